"""Single records: look for them, find those that are there twice, publish them again."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gossipq.errors import BadRequest
from gossipq.wire.times import micros

PLACE = ("topic", "topic_id", "partition", "offset")
KINDS = {"place": PLACE, "id": ("topic", "id"), "key": ("topic", "key"), "value": ("topic", "value")}
REPLAY_TASKS = 2  #: that share the rate


def search(
    messages: DataFrame,
    text: str = "",
    key: str = "",
    header: Mapping[str, str] | None = None,
    json: Mapping[str, str] | None = None,
    since: str = "",
    until: str = "",
) -> DataFrame:
    """Records with this text in their value, this key, these headers, these values at JSON paths ("$.user"),
    between two times (ISO; UTC unless they say otherwise). Raises BadRequest."""
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
    """Records that are there more than once, by topic: how many there are of each kind, and how many too
    many."""
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
    """The first record of each kind, by offset; what has no id (or key) is all kept."""
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
    """Publishes records again, to `topic`, which must be there. Each has headers x-replay-of and x-replay-id,
    and an id made of both: replayed under the same name again, what the topic remembers is not published
    twice.

    Raises BadRequest when a record would go back where it is from."""
    if messages.where(F.col("topic") == topic).limit(1).count():
        raise BadRequest(
            f"records of {topic!r} would go back to it", hint="replay to another topic: --to NAME"
        )
    writer = messages.coalesce(REPLAY_TASKS).write.format("gossipq").mode("append")
    rate = str(per_second / REPLAY_TASKS)
    writer.options(servers=servers, topic=topic, writeId=replay_id, recordsPerSecond=rate).save()
