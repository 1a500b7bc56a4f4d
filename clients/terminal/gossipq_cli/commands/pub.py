"""`gossipq pub`."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gossipq.errors import GossipqError, NotConfirmed
from gossipq.record_options import RECORD_OPTIONS, OptionKind
from gossipq.texts import many
from gossipq_cli import ask, failures, records
from gossipq_cli.kinds import Duration, Moment, Until
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output
from gossipq_cli.records import Record

if TYPE_CHECKING:
    from gossipq_client import Client, Receipt

PENDING_MAX = 20_000  #: receipts kept before the oldest is checked


class What(NamedTuple):
    """The records to publish, as given on the command line."""

    body: str | None
    lines: bool
    jsonl: bool
    times: int
    empty: bool  #: an empty stdin is a record, too
    key: str | None
    headers: dict[str, str | bytes]
    options: dict[str, Any]

    def records(self) -> Iterator[Record]:
        fixed = self.headers or None
        if self.lines or self.jsonl:
            for number, line in enumerate(sys.stdin.buffer):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if self.lines:
                    yield Record(line, self._key(number), fixed, self._options(number, {}))
                elif line.strip():
                    record = records.from_json(line, number + 1)
                    yield record._replace(
                        key=record.key if record.key is not None else self._key(number),
                        headers=record.headers or fixed,
                        options=self._options(number, record.options),
                    )
            return
        stdin = sys.stdin.buffer.read() if self.body is None or self.body == "-" else None
        if stdin == b"" and not self.empty:
            raise failures.Failure(
                "nothing", "nothing was published: stdin was empty", "--empty publishes an empty record"
            )
        for number in range(self.times):
            value = (
                stdin
                if stdin is not None
                else records.fill(self.body or "", number).encode("utf-8", "surrogateescape")
            )
            yield Record(value, self._key(number), fixed, self._options(number, {}))

    def _key(self, number: int) -> bytes | None:
        return None if self.key is None else records.fill(self.key, number).encode("utf-8", "surrogateescape")

    def _options(self, number: int, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of a record: those of its line win over the command line."""
        given = self.options
        for name in ("id", "unique"):
            if name in given:
                given = given | {name: records.fill(given[name], number)}
        if "delay" in own or "at" in own:
            given = {name: value for name, value in given.items() if name not in ("delay", "at")}
        return {**given, **own}


class Tally:
    """Receipts in order: confirmed records, and the first error."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.published = self.confirmed = self.duplicates = 0
        self.first: Receipt | None = None
        self.error: GossipqError | failures.Failure | None = None
        self.stopped = False  #: the rest of the input was not read
        self.pending: deque[Any] = deque()

    def add(self, publish: Callable[[], Any]) -> None:
        """Count a record before it is published, because an interrupt can come in between."""
        self.published += 1
        try:
            self.pending.append(publish())
        except GossipqError:
            self.published -= 1
            raise
        if len(self.pending) > PENDING_MAX:
            self.settle(self.pending.popleft(), self.timeout_s)

    def settle(self, receipt: Any, timeout_s: float) -> None:
        try:
            kept = receipt.result(timeout_s)
        except GossipqError as error:
            self.error = self.error or error
            return
        self.confirmed += 1
        self.duplicates += kept.duplicate
        self.first = self.first or kept

    def settle_all(self) -> None:
        """Wait for all open receipts, while confirms arrive within the time limit of each other.

        So a slow line can take its time for each batch.
        """
        deadline = time.monotonic() + self.timeout_s
        while self.pending:
            before = self.confirmed
            self.settle(self.pending.popleft(), max(0.0, deadline - time.monotonic()))
            if self.confirmed > before:
                deadline = time.monotonic() + self.timeout_s


def _record_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command an option for each that a record has."""
    for option in reversed(RECORD_OPTIONS):
        kinds: dict[OptionKind, Any] = {
            "choice": click.Choice(option.choices),
            "duration": Duration(),
            "moment": Moment(),
            "text": click.STRING,
            "until": Until(),
            "whole": click.IntRange(option.low, option.high),
        }
        name, shown = option.name.replace("_", "-"), option.placeholder or None
        decorate = click.option(
            f"--{name}", option.name, type=kinds[option.kind], metavar=shown, help=option.help
        )
        command = decorate(command)
    return command


@click.command(cls=Verb)
@click.argument("topic")
@click.argument("body", required=False)
@click.option("-k", "--key", help="key; records of one key keep their order")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="header, may be repeated"
)
@click.option("--lines", is_flag=True, help="one record a line of stdin")
@click.option(
    "--jsonl", is_flag=True, help='one record a line of stdin: {"value":..., "key":..., "headers":{...}}'
)
@click.option("--empty", is_flag=True, help="publish an empty stdin as an empty record")
@click.option("--count", type=click.IntRange(min=1), help="publish the body this many times")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="records per second at most")
@_record_options
@pass_choices
def command(
    choices: Choices,
    /,
    topic: str,
    body: str | None,
    key: str | None,
    headers: tuple[str, ...],
    lines: bool,
    jsonl: bool,
    empty: bool,
    count: int | None,
    rate: float | None,
    **options: Any,
) -> int:
    """Publish records: an argument, stdin, or a line each.

    \b
    gossipq pub orders "first"
    gossipq pub orders -k ada -H source:shop "17 apples"
    gossipq pub orders --delay 10m --id reminder-17 "pay for 17 apples"
    gossipq pub orders --unique reindex-7 --conflict replace --delay 5s "reindex customer 7"
    gossipq pub orders --count 1000 --rate 100 "order {n} at {time}"
    gossipq pub orders --lines < /etc/hosts
    gossipq sub orders --from first --exit-at-end -o jsonl | gossipq pub copy --jsonl

    In BODY given as an argument, in key, id and unique name, {n} {time} {uuid} are filled in; stdin is taken
    as it is. A line of --jsonl may have the options from --delay on for itself; bytes go into
    value_base64, key_base64, id_base64 and headers_base64. The first publish creates the topic.
    """
    if sum((body not in (None, "-") or count is not None, lines, jsonl)) > 1:
        raise click.UsageError("BODY with --count, --lines and --jsonl exclude each other")
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("--delay and --at exclude each other")
    if body is None and not (lines or jsonl) and sys.stdin.isatty():
        raise click.UsageError("nothing to publish: give a BODY, or pipe something in")
    given = {name: value for name, value in options.items() if value is not None}
    what = What(body, lines, jsonl, count or 1, empty, key, dict(map(records.header, headers)), given)
    out, tally, started = Output(choices), Tally(choices.timeout_s), time.monotonic()
    with ask.connect(choices) as mq:
        missing = bool(ask.missing(mq, [topic]))
        new = missing and not choices.quiet
        if not missing and mq.topic(topic).schema() is not None:
            mq.schema(topic)
        started, interrupted = time.monotonic(), False
        try:
            _send(mq, topic, what, tally, rate)
        except KeyboardInterrupt:
            interrupted = True
        except (GossipqError, failures.Failure) as error:
            tally.error = tally.error or error
            tally.stopped = True
        tally.settle_all()
        if tally.error is not None:
            mq.close(flush=False)  # the time for confirms is over
    if new and tally.confirmed:
        out.say(f"created topic {topic}")
    if interrupted:
        return _tell_interrupted(out, tally)
    single = what.times == 1 and not (lines or jsonl)
    return _tell(out, topic, tally, time.monotonic() - started, single)


def _send(mq: "Client", topic: str, what: What, tally: Tally, rate: float | None) -> None:
    start = time.monotonic()
    for number, record in enumerate(what.records()):
        if rate and (early_s := start + number / rate - time.monotonic()) > 0:
            time.sleep(early_s)
        options: dict[str, Any] = {**record.options, "wait": tally.timeout_s}
        options |= {"key": record.key, "headers": record.headers}
        tally.add(partial(mq.post, topic, record.value, **options))


def _row(topic: str, receipt: "Receipt") -> dict[str, Any]:
    row = {"topic": topic, "partition": receipt.partition, "offset": receipt.offset, "ref": receipt.ref}
    row |= {"copies": receipt.copies, "duplicate": receipt.duplicate}
    return row | {"kept": True} if receipt.kept else row


def _sentence(topic: str, receipt: "Receipt", seconds: float) -> str:
    """Return a sentence about one record, with a ref for `gossipq why` and `gossipq msg`."""
    if not receipt.copies:
        return f"sent {topic}"
    done = "duplicate of" if receipt.duplicate else "scheduled" if receipt.offset < 0 else "stored"
    if receipt.kept:
        done = "nothing stored: the unique name is that of"
    copies = receipt.receipts or (receipt,)  # a receipt for each topic behind a virtual one
    refs = ", ".join(copy.ref or f"a record of {topic} that is gone" for copy in copies)
    return f"{done} {refs}  {seconds * 1_000:.1f} ms"


def _tell_interrupted(out: Output, tally: Tally) -> int:
    lost = f", {tally.published - tally.confirmed:,} may be" if tally.published > tally.confirmed else ""
    out.say(f"interrupted after {many(tally.published, 'record')}: {tally.confirmed:,} stored{lost}")
    return failures.INTERRUPTED


def _tell(out: Output, topic: str, tally: Tally, seconds: float, single: bool) -> int:
    if tally.error is not None and not tally.confirmed:
        raise tally.error
    first = tally.first
    if single and first is not None:
        out.one(_row(topic, first), _sentence(topic, first, seconds))
    else:
        rate = tally.confirmed / seconds if seconds else 0.0
        row = {"topic": topic, "published": tally.published, "confirmed": tally.confirmed}
        row |= {"duplicates": tally.duplicates, "seconds": round(seconds, 3)}
        known = f" ({tally.duplicates:,} known already)" if tally.duplicates else ""
        done = "stored" if first is None or first.copies else "sent"
        out.one(
            row,
            f"{done} {tally.confirmed:,} of {tally.published:,} in {topic}{known}  {seconds:.2f} s  "
            f"{rate:,.0f}/s",
        )
    if tally.error is None:
        return failures.DONE
    told = failures.explain(tally.error)
    unsure = isinstance(tally.error, NotConfirmed)  # otherwise refused: certainly not stored
    missing = f"{tally.published - tally.confirmed:,} of {tally.published:,} records"
    message = f"{missing} {'may be stored or not' if unsure else 'not stored'}: {told.message}"
    if tally.stopped:
        lost = ""
        if tally.published > tally.confirmed:
            lost = f", {tally.published - tally.confirmed:,} {'may be' if unsure else 'not'}"
        message = (
            f"stopped after {many(tally.published, 'record')}: {tally.confirmed:,} stored{lost}: "
            f"{told.message}"
        )
    raise failures.Failure("partly", message, told.hint, failures.PARTLY)
