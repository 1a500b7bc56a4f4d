"""Single records: search, find duplicates, publish again."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gossipq.errors import BadRequest
from gossipq.wire.times import micros

PLACE = ("topic", "topic_id", "partition", "offset")
KINDS = {"place": PLACE, "id": ("topic", "id"), "key": ("topic", "key"), "value": ("topic", "value")}
REPLAY_TASKS = 2  #: they share the rate


def search(
    messages: DataFrame,
    text: str = "",
    key: str = "",
    header: Mapping[str, str] | None = None,
    json: Mapping[str, str] | None = None,
    since: str = "",
    until: str = "",
) -> DataFrame:
    """Return records by text in the value, key, headers, values at JSON paths ("$.user"), and time.

    Times are ISO, UTC by default. Raises BadRequest.
    """
    found = messages
    if since:
        found = found.where(F.col("publish_time") >= F.timestamp_micros(F.lit(micros("since", since))))
    if until:
        found = found.where(F.col("publish_time") < F.timestamp_micros(F.lit(micros("until", until))))
    if key:
        found = found.where(F.col("key") == F.lit(key.encode()))
    if text:
        found = found.where(F.col("value").cast("string").contains(text))
    for name, value in (header or {}).items():
        pair = F.struct(F.lit(name).alias("key"), F.lit(value.encode()).alias("value"))
        found = found.where(F.array_contains(F.col("headers"), pair))
    for path, value in (json or {}).items():
        found = found.where(F.get_json_object(F.col("value").cast("string"), path) == value)
    return found


def duplicates(messages: DataFrame, by: str = "id") -> DataFrame:
    """Return duplicated records by topic: how many there are of each, and how many too many."""
    names = _names(by)
    alike = (
        messages.where(F.col(names[-1]).isNotNull()).groupBy(*names).agg(F.count(F.lit(1)).alias("records"))
    )
    return (
        alike.groupBy("topic")
        .agg(
            F.sum("records").alias("records"),
            F.count(F.lit(1)).alias("distinct"),
            F.sum(F.col("records") - 1).alias("duplicates"),
        )
        .orderBy("topic")
    )


def deduplicated(messages: DataFrame, by: str = "id") -> DataFrame:
    """Return the first record of each id (or key), by offset, and all records without one."""
    names = _names(by)
    columns = messages.columns
    sort = F.struct(*(name for name in ("partition", "offset")))
    known, unknown = messages.where(F.col(names[-1]).isNotNull()), messages.where(F.col(names[-1]).isNull())
    first = known.groupBy(*names).agg(F.min_by(F.struct(*columns), sort).alias("row")).select("row.*")
    return first.unionAll(unknown)


def _names(by: str) -> tuple[str, ...]:
    if by not in KINDS:
        raise BadRequest(f"by={by!r}", hint=f"one of {', '.join(KINDS)}")
    return KINDS[by]


def replay(messages: DataFrame, servers: str, topic: str, replay_id: str, per_second: float = 0.0) -> None:
    """Publish records again to an existing topic. Raises BadRequest for a record's own topic.

    Each gets headers x-replay-of and x-replay-id, and an id made from both. So a replay that is
    repeated under the same name does not publish records that the topic remembers.
    """
    if messages.where(F.col("topic") == topic).limit(1).count():
        raise BadRequest(
            f"records of {topic!r} would go back to it", hint="replay to another topic: --to NAME"
        )
    writer = messages.coalesce(REPLAY_TASKS).write.format("gossipq").mode("append")
    rate = str(per_second / REPLAY_TASKS)
    writer.options(servers=servers, topic=topic, writeId=replay_id, recordsPerSecond=rate).save()
