"""`gossipq spark`: jobs over exports and imported tables. spark/jobs are
the same for spark-submit.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gossipq.texts import brief, dashed, many, readable, size
from gossipq_cli import failures
from gossipq_cli.files import save_picture
from gossipq_cli.kinds import Moment
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter

Spark = Any  #: a SparkSession
Frame = Any  #: a DataFrame
SHOWN = 20  #: default number of records shown by a search
GAPS_SHOWN = 8


@click.group(cls=Noun)
def command() -> None:
    """Run Spark jobs over exports: growth, latency, dead, search, replay.

    \b
    gossipq export --out export
    gossipq spark growth export --picture growth.svg
    gossipq spark import export table

    SOURCE is the folder of an export, or a table that was imported. Needs pip install "gossipq[spark]" and
    Java 17 or later.
    """


@contextmanager
def running(master: str) -> Iterator[Spark]:
    """Return a session for one command. Raises Failure if a program or library is missing."""
    try:
        import pyspark_gossipq
    except ImportError as error:
        raise failures.Failure(
            "no_spark",
            f"{(error.name or '').partition('.')[0]} is not installed",
            '`pip install "gossipq[spark]"` brings pyspark and pyarrow (0.5 GB)',
        ) from None
    if shutil.which("java") is None and not Path(os.environ.get("JAVA_HOME", ""), "bin", "java").is_file():
        hint = "`apt-get install openjdk-17-jre-headless`, or set JAVA_HOME"
        raise failures.Failure("no_java", "Spark needs Java 17 or later, and there is none", hint)
    with pyspark_gossipq.plainly():
        yield pyspark_gossipq.session("gossipq", master)


class Source:
    """The input of a job: an export or an imported table, and the wanted topics."""

    def __init__(self, path: str, topics: Sequence[str], allow_gap: bool) -> None:
        self.path, self.topics, self.allow_gap = path, ",".join(topics), allow_gap

    def rows(self, spark: Spark, data_set: str = "messages") -> Frame:
        from pyspark_gossipq.pipelines import imports

        return imports.rows(spark, self.path, data_set, self.topics, self.allow_gap)

    def gaps(self, out: Output) -> list[Any]:
        """Return the gaps, and print them for people."""
        from pyspark_gossipq.pipelines import imports

        found = imports.gaps(self.path, self.topics)
        for gap in found[:GAPS_SHOWN]:
            out.say(
                f"missing: records {gap.start} to {gap.end - 1} of {gap.topic}/{gap.partition}, which "
                "retention removed before their export"
            )
        if len(found) > GAPS_SHOWN:
            out.say(f"missing: {many(len(found) - GAPS_SHOWN, 'more gap')}")
        return found


def _job(*more: Callable[[Any], Any], reports: bool = False) -> Callable[[Any], Any]:
    """Add the common arguments and options of jobs."""

    def decorate(function: Any) -> Any:
        @wraps(function)
        def job(*given: Any, source: str, topics: tuple[str, ...], allow_gap: bool, **options: Any) -> Any:
            return function(*given, source=Source(source, topics, allow_gap), **options)

        options = [
            click.option(
                "--master",
                default="local[*]",
                show_default=True,
                help="where Spark runs; spark-submit's goes before",
            ),
            click.option(
                "-t", "--topic", "topics", multiple=True, help="only these topics; * stands for any text"
            ),
            click.option(
                "--allow-gap",
                is_flag=True,
                help="continue without records that retention removed before their export",
            ),
        ]
        if reports:
            options += [
                click.option("--picture", type=click.Path(dir_okay=False), help="draw it into this SVG file"),
                click.option(
                    "--rollups",
                    type=click.Path(file_okay=False),
                    help="keep it as JSON in this folder, for dashboards",
                ),
            ]
        for option in (*reversed(more), *reversed(options), click.argument("source")):
            job = option(job)
        return pass_choices(job)

    return decorate


class Report:
    """A small result: printed, drawn, and stored as a roll-up."""

    def __init__(
        self, choices: Choices, kind: str, source: Source, picture: str | None, rollups: str | None
    ) -> None:
        if picture is not None and not picture.endswith(".svg"):
            raise click.UsageError("--picture draws SVG; name a file that ends in .svg")
        self.out, self.kind, self.source, self.picture, self.rollups = (
            Output(choices),
            kind,
            source,
            picture,
            rollups,
        )

    def show(
        self,
        columns: Sequence[Column],
        found: Sequence[Mapping[str, Any]],
        draw: Callable[[Sequence[Mapping[str, Any]]], str],
    ) -> None:
        from pyspark_gossipq import rollups

        rows = [{name: rollups.plain(value) for name, value in row.items()} for row in found]
        self.out.rows(columns, rows)
        if not rows:
            self.out.say("nothing there")
        gaps = self.source.gaps(self.out)
        if self.rollups is not None:
            path = rollups.save(
                self.rollups, self.kind, self.source.path, [each.name for each in columns], rows, gaps
            )
            self.out.say(f"kept in {path}")
        if self.picture is not None:
            save_picture(self.picture, draw(rows))
            self.out.say(f"drawn in {self.picture}")


def collected(frame: Frame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['topic']} {row['group']}"


def _decimal(name: str) -> Column:
    return Column(name, lambda value: f"{value:,.3f}", right=True)


@command.command("import")
@_job(click.argument("table"))
def import_(choices: Choices, source: Source, table: str, master: str) -> None:
    """Import an export into Parquet tables; what is there already stays as it is, however often this runs.

    \b
    gossipq spark import export table
    gossipq spark import s3a://bucket/export s3a://bucket/table -t 'orders.*'
    """
    with running(master) as spark:
        from pyspark_gossipq.pipelines import imports

        done = imports.import_export(spark, source.path, table, source.topics, allow_gap=source.allow_gap)
    out = Output(choices)
    columns = [Column("topic"), Column("partition"), *map(counter, ("first", "end", "new"))]
    out.rows(columns, [vars(each) | {"new": each.end - each.first} for each in done])
    source.gaps(out)
    out.say(f"{table} has everything of {source.path}" + ("" if done else ", and had it before"))


@command.command("growth")
@_job(reports=True)
def growth(choices: Choices, source: Source, master: str, picture: str | None, rollups: str | None) -> None:
    """Records and bytes by topic and day; a picture of less than three days is by hour, minute or second.

    \b
    gossipq spark growth export
    gossipq spark growth table --picture growth.svg --rollups rollups
    """
    report = Report(choices, "growth", source, picture, rollups)
    columns = [Column("topic"), Column("day"), counter("records"), Column("bytes", size, right=True)]
    columns += [counter("records_total"), Column("bytes_total", size, right=True)]

    with running(master) as spark:
        from pyspark_gossipq import charts
        from pyspark_gossipq.pipelines import reports

        messages = source.rows(spark)

        by = "day" if picture is None else reports.fitting_step(messages)
        steps = collected(reports.growth(messages, by))

        def draw(rows: Sequence[Mapping[str, Any]]) -> str:
            series: dict[str, list[tuple[str, float]]] = {}
            for row in rows if by == "day" else steps:
                series.setdefault(row["topic"], []).append((row[by], row["records"]))
            if len({time for points in series.values() for time, _ in points}) > 1:
                return charts.lines(f"Records by {by}", series)
            return charts.bars(
                "Records", {topic: {"records": points[0][1]} for topic, points in series.items()}
            )

        report.show(columns, steps if by == "day" else reports.days_of(steps, by), draw)


@command.command("status")
@_job(reports=True)
def status(choices: Choices, source: Source, master: str, picture: str | None, rollups: str | None) -> None:
    """Count the records in each state, for each group.

    \b
    gossipq spark status export --picture status.svg
    """
    report = Report(choices, "status", source, picture, rollups)

    def draw(rows: Sequence[Mapping[str, Any]]) -> str:
        from pyspark_gossipq import charts

        return charts.bars(
            "Records by state", {_named(row): {name: row[name] for name in reports.STATES} for row in rows}
        )

    with running(master) as spark:
        from pyspark_gossipq.pipelines import reports

        columns = [Column("topic"), Column("group"), *map(counter, reports.STATES)]
        report.show(columns, collected(reports.status(source.rows(spark, "deliveries"))), draw)


@command.command("latency")
@_job(click.option("--total", is_flag=True, help="all days together"), reports=True)
def latency(
    choices: Choices,
    source: Source,
    master: str,
    picture: str | None,
    rollups: str | None,
    total: bool,
) -> None:
    """How long it took from publishing (or from the due time) to the first ack, by day of the ack.

    \b
    gossipq spark latency export
    gossipq spark latency table --total -o json
    """
    report = Report(choices, "latency", source, picture, rollups)

    def draw(rows: Sequence[Mapping[str, Any]]) -> str:
        from pyspark_gossipq import charts

        named = {f"{_named(row)} {row.get('day', '')}".strip(): {"p50": row["p50_ms"]} for row in rows}
        for row, parts in zip(rows, named.values(), strict=True):
            parts |= {"to p95": row["p95_ms"] - row["p50_ms"], "to p99": row["p99_ms"] - row["p95_ms"]}
        return charts.bars("Publish to ack: p50, p95, p99", named, "ms")

    with running(master) as spark:
        from pyspark_gossipq.pipelines import reports

        messages, acks = (source.rows(spark, data_set) for data_set in ("messages", "acks"))
        sketches = reports.latency_sketches(messages, acks).cache()
        columns = [Column("topic"), Column("group"), *([] if total else [Column("day")]), counter("records")]
        columns += [_decimal(name) for name in (*reports.QUANTILES, "max_ms")]
        report.show(columns, collected(reports.latency(sketches, not total)), draw)
        if rollups is not None:
            sketches.write.mode("overwrite").parquet(f"{rollups}/latency.parquet")
        sketches.unpersist()


@command.command("dead")
@_job(reports=True)
def dead(choices: Choices, source: Source, master: str, picture: str | None, rollups: str | None) -> None:
    """Dead letters by topic, group and reason.

    \b
    gossipq spark dead export
    """
    report = Report(choices, "dead", source, picture, rollups)
    columns = [Column("topic"), Column("group"), Column("reason"), *map(counter, ("records", "attempts_max"))]
    columns += [Column(name, dashed) for name in ("first_at", "last_at")]
    columns.append(Column("last_error", lambda error: dashed(brief((error or "").encode()))))

    def draw(rows: Sequence[Mapping[str, Any]]) -> str:
        from pyspark_gossipq import charts

        by_group: dict[str, dict[str, float]] = {}
        for row in rows:
            by_group.setdefault(_named(row), {})[row["reason"] or "dead"] = row["records"]
        return charts.bars("Dead letters", by_group)

    with running(master) as spark:
        from pyspark_gossipq.pipelines import reports

        report.show(columns, collected(reports.dead(source.rows(spark, "deliveries"))), draw)


def _pair(text: str, sign: str, what: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found or not name:
        raise click.UsageError(f"{what} {text!r}: write NAME{sign}VALUE")
    return name, value


def _looking(function: Any) -> Any:
    """Add options that select records."""
    for option in (
        click.option("--until", type=Moment(), help="published before this time"),
        click.option("--from", "since", type=Moment(), help="published at this time or later"),
        click.option(
            "--field",
            "paths",
            multiple=True,
            metavar="PATH=VALUE",
            help="this value at a path of a JSON value: $.user=7",
        ),
        click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="this header"),
        click.option("-k", "--key", default="", help="this key"),
        click.option("--text", default="", help="this text in the value"),
    ):
        function = option(function)
    return function


class Looking:
    """Conditions for records, checked before Spark starts."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.text, self.key = asked["text"], asked["key"]
        self.headers = dict(_pair(text, ":", "-H") for text in asked["headers"])
        self.paths = dict(_pair(text, "=", "--field") for text in asked["paths"])
        self.since, self.until = (
            asked[name].isoformat() if asked[name] else "" for name in ("since", "until")
        )

    def among(self, messages: Frame) -> Frame:
        from pyspark_gossipq.pipelines import records

        return records.search(messages, self.text, self.key, self.headers, self.paths, self.since, self.until)


def _record(row: Any) -> dict[str, Any]:
    from pyspark_gossipq import rollups

    told = {
        "ref": f"{row.topic}/{row.partition}/{row.offset}",
        "publish_time": rollups.plain(row.publish_time),
    }
    return told | {"key": None if row.key is None else readable(row.key), "value": readable(row.value)}


@command.command("search")
@_looking
@click.option(
    "-n",
    "--number",
    "limit",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    help="show so many",
)
@_job()
def search(choices: Choices, source: Source, master: str, limit: int, **asked: Any) -> None:
    """Find records by text, key, header, JSON path and time.

    \b
    gossipq spark search export --text apples
    gossipq spark search table -t orders --field '$.user=ada' --from 2026-11-01 -o json
    """
    looking = Looking(asked)
    with running(master) as spark:
        found = looking.among(source.rows(spark))
        rows = found.orderBy("topic", "partition", "offset").limit(limit).collect()
    out, shown = Output(choices), [_record(row) for row in rows]
    source.gaps(out)
    short = Column("value", lambda value: brief(value.encode()))
    out.rows([Column("ref"), Column("publish_time", title="time"), Column("key", dashed), short], shown)
    if not shown:
        out.say("no such record")
    elif len(shown) == limit:
        out.say(f"only the first {many(limit, 'record')}; -n raises that")


@command.command("dedup")
@click.option(
    "--by",
    type=click.Choice(["id", "key", "value", "place"]),
    default="id",
    show_default=True,
    help="what two records must share to be duplicates",
)
@click.option("--to", metavar="DIR", help="write the records without their duplicates there, as Parquet")
@_job()
def dedup(choices: Choices, source: Source, master: str, by: str, to: str | None) -> None:
    """Count duplicate records, and write each record once.

    \b
    gossipq spark dedup export --by value
    gossipq spark dedup export -t orders --by id --to orders-once
    """
    with running(master) as spark:
        from pyspark_gossipq.pipelines import records

        messages = source.rows(spark)
        rows = [row.asDict() for row in records.duplicates(messages, by).collect()]
        if to is not None:
            records.deduplicated(messages, by).write.mode("errorifexists").parquet(to)
    out = Output(choices)
    out.rows([Column("topic"), *map(counter, ("records", "distinct", "duplicates"))], rows)
    source.gaps(out)
    if to is not None:
        out.say(f"written to {to}")


@command.command("replay")
@click.option("--to", required=True, metavar="TOPIC", help="publish to this topic, which must be there")
@click.option("--id", "replay_id", help="name of this replay: under the same name nothing is published twice")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0.0, help="records a second at most; 0: no bound"
)
@click.option("--dry-run", is_flag=True, help="only say how many that would be")
@_looking
@_job()
def replay(
    choices: Choices,
    source: Source,
    master: str,
    to: str,
    replay_id: str | None,
    rate: float,
    dry_run: bool,
    **asked: Any,
) -> None:
    """Publish records again, to another topic.

    \b
    gossipq topic create orders.again --dedup 7d
    gossipq spark replay export -t orders --from 2026-11-20 --to orders.again --dry-run
    gossipq spark replay export -t orders --from 2026-11-20 --to orders.again --rate 5000 --id monday

    Each gets the headers x-replay-of and x-replay-id, and an id made of both, which the topic remembers as
    long as its --dedup says, and for a million later ids of its partition.
    """
    name, looking = replay_id or f"replay-{datetime.now():%Y%m%d%H%M%S}", Looking(asked)
    with running(master) as spark:
        from gossipq_client.io import addresses_of
        from pyspark_gossipq.pipelines import records

        found = looking.among(source.rows(spark))
        count = found.count()
        if not dry_run and count:
            records.replay(found, ",".join(addresses_of(tuple(choices.servers))), to, name, rate)
    row = {"records": count, "to": to, "id": name, "dry_run": dry_run}
    said, out = (
        f"{many(count, 'record')} {'would be ' if dry_run else ''}published to {to} as {name}",
        Output(choices),
    )
    source.gaps(out)
    out.one(row, said, name)
