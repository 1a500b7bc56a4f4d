"""Reports on an export or a table: growth, states of records, latency, dead letters."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

STATES = ("ready", "in_flight", "retrying", "parked", "dead", "done")
QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
MS = 1_000  #: in microseconds
DAY_US = 86_400_000_000
STEPS = {"day": DAY_US, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
POINTS_MIN = 3  #: of a chart


def utc_day(time: Column | str) -> Column:
    """Return the date in UTC, in any time zone of the session."""
    return F.date_from_unix_date(F.floor(F.unix_micros(time) / DAY_US).cast("int"))


def growth(messages: DataFrame, by: str = "day") -> DataFrame:
    """Return records and bytes by topic and publish time (UTC), with running totals.

    `by` is a step in STEPS, and the name of the time column: a date for days, else text
    such as 2026-11-21 09:05.
    """
    times = messages.groupBy("topic", step_of("publish_time", by).alias(by)).agg(
        F.count(F.lit(1)).alias("records"), F.sum(F.octet_length("value")).cast("long").alias("bytes")
    )
    so_far = Window.partitionBy("topic").orderBy(by)
    return times.select(
        "*",
        F.sum("records").over(so_far).alias("records_total"),
        F.sum("bytes").over(so_far).alias("bytes_total"),
    ).orderBy("topic", by)


def step_of(time: Column | str, by: str) -> Column:
    """Return the second, minute, hour or day of a time, in UTC."""
    if by == "day":
        return utc_day(time)
    second = F.pmod(F.floor(F.unix_micros(time) / 1_000_000), F.lit(86_400))
    parts = [F.floor(second / 3_600), F.floor(second / 60) % 60, second % 60]
    shown = {"hour": "%02d:00", "minute": "%02d:%02d", "second": "%02d:%02d:%02d"}[by]
    return F.format_string(f"%s {shown}", utc_day(time).cast("string"), *parts[: shown.count("%")])


def fitting_step(messages: DataFrame) -> str:
    """Return the largest of STEPS that gives a chart enough points."""
    first, last = messages.agg(
        F.min(F.unix_micros("publish_time")), F.max(F.unix_micros("publish_time"))
    ).first() or (
        None,
        None,
    )
    span_us = (last or 0) - (first or 0)
    return next((by for by, step_us in STEPS.items() if span_us >= POINTS_MIN * step_us), "second")


def days_of(rows: Sequence[Mapping[str, Any]], by: str) -> list[dict[str, Any]]:
    """Convert rows of `growth` with a shorter step to rows by day, without a new count."""
    days: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        day = row[by][: len("2026-11-21")]
        total = days.setdefault(
            (row["topic"], day), {"topic": row["topic"], "day": day, "records": 0, "bytes": 0}
        )
        total["records"] += row["records"]
        total["bytes"] += row["bytes"]
        total |= {name: row[name] for name in ("records_total", "bytes_total")}
    return list(days.values())


def status(deliveries: DataFrame) -> DataFrame:
    """Count the records in each state, for each group of each topic."""
    counted = (
        deliveries.where("group_name != ''")
        .groupBy("topic", F.col("group_name").alias("group"))
        .pivot("state", list(STATES))
        .agg(F.sum(F.col("end_offset") - F.col("start_offset")))
    )
    return counted.na.fill(0).orderBy("topic", "group")


def latency_sketches(messages: DataFrame, acks: DataFrame) -> DataFrame:
    """Return a KLL sketch of the time to the first ack, by topic, group and day (UTC).

    The time counts from publishing, or from the due time. Sketches of several runs or
    days can be merged; percentiles cannot. The clocks are those of producer and leader;
    negative times count as 0.
    """
    done = acks.select(
        "topic_id",
        "partition",
        F.col("group_name").alias("group"),
        "acked_at",
        F.explode(F.sequence("start_offset", F.col("end_offset") - 1)).alias("offset"),
    )
    first = done.groupBy("topic_id", "partition", "offset", "group").agg(F.min("acked_at").alias("acked_at"))
    began = F.coalesce("deliver_at", "publish_time")
    took = F.greatest(F.lit(0).cast("long"), F.unix_micros("acked_at") - F.unix_micros("began"))
    timed = messages.select("topic", "topic_id", "partition", "offset", began.alias("began"))
    return (
        timed.join(first, ["topic_id", "partition", "offset"])
        .groupBy("topic", "group", utc_day("acked_at").alias("day"))
        .agg(
            F.count(F.lit(1)).alias("records"),
            F.max(took).alias("max_us"),
            F.kll_sketch_agg_bigint(took).alias("sketch"),
        )
    )


def latency(sketches: DataFrame, by_day: bool = True) -> DataFrame:
    """Return percentiles of sketches, merged by topic and group, and `by_day`."""
    names = ["topic", "group", *(["day"] if by_day else [])]
    merged = sketches.groupBy(*names).agg(
        F.sum("records").alias("records"),
        F.max("max_us").alias("max_us"),
        F.kll_merge_agg_bigint("sketch").alias("sketch"),
    )
    return merged.select(
        *names,
        "records",
        *(
            _ms(F.kll_sketch_get_quantile_bigint("sketch", F.lit(rank))).alias(name)
            for name, rank in QUANTILES.items()
        ),
        _ms(F.col("max_us")).alias("max_ms"),
    ).orderBy(*names)


def _ms(micros: Column) -> Column:
    return F.round(micros / MS, 3)


def dead(deliveries: DataFrame) -> DataFrame:
    """Count dead letters by topic, group and reason, with first and
    last time and the last error.
    """
    count = F.col("end_offset") - F.col("start_offset")
    return (
        deliveries.where("state = 'dead'")
        .groupBy("topic", F.col("group_name").alias("group"), "reason")
        .agg(
            F.sum(count).alias("records"),
            F.max("attempts").alias("attempts_max"),
            F.min("changed_at").alias("first_at"),
            F.max("changed_at").alias("last_at"),
            F.max_by("error", "changed_at").alias("last_error"),
        )
        .orderBy(F.desc("records"), "topic", "group", "reason")
    )
