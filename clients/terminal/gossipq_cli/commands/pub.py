"""`gossipq pub`."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gossipq.errors import GossipqError
from gossipq_cli import ask, failures, records
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output
from gossipq_cli.records import Record

if TYPE_CHECKING:
    from gossipq_client import Client, Receipt

PENDING_MAX = 20_000  #: receipts held before the oldest is looked at


class What(NamedTuple):
    """What to publish, as the command line says it."""

    body: str | None
    lines: bool
    jsonl: bool
    times: int
    key: str | None
    headers: dict[str, str | bytes]

    def records(self) -> Iterator[Record]:
        fixed = self.headers or None
        if self.lines or self.jsonl:
            for number, line in enumerate(sys.stdin.buffer):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if self.lines:
                    yield Record(line, self._key(number), fixed)
                elif line.strip():
                    record = records.from_json(line, number + 1)
                    yield record._replace(
                        key=record.key if record.key is not None else self._key(number), headers=record.headers or fixed
                    )
            return
        stdin = sys.stdin.buffer.read() if self.body is None or self.body == "-" else None
        for number in range(self.times):
            value = stdin if stdin is not None else records.fill(self.body or "", number).encode("utf-8", "surrogateescape")
            yield Record(value, self._key(number), fixed)

    def _key(self, number: int) -> bytes | None:
        return None if self.key is None else records.fill(self.key, number).encode("utf-8", "surrogateescape")


class Tally:
    """Receipts in order: what is confirmed, what failed first."""

    def __init__(self) -> None:
        self.published = self.confirmed = 0
        self.first: Receipt | None = None
        self.error: GossipqError | None = None
        self.pending: deque[Any] = deque()

    def add(self, receipt: Any) -> None:
        self.published += 1
        self.pending.append(receipt)
        if len(self.pending) > PENDING_MAX:
            self.settle(self.pending.popleft(), None)

    def settle(self, receipt: Any, timeout_s: float | None) -> None:
        try:
            kept = receipt.result(timeout_s)
        except GossipqError as error:
            self.error = self.error or error
            return
        self.confirmed += 1
        self.first = self.first or kept

    def settle_all(self, timeout_s: float) -> None:
        """All that is still open, within one time limit together."""
        deadline = time.monotonic() + timeout_s
        while self.pending:
            self.settle(self.pending.popleft(), max(0.0, deadline - time.monotonic()))


@click.command(cls=Verb)
@click.argument("topic")
@click.argument("body", required=False)
@click.option("-k", "--key", help="key; records of one key keep their order")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="header, may be repeated")
@click.option("--lines", is_flag=True, help="one record a line of stdin")
@click.option("--jsonl", is_flag=True, help='one record a line of stdin: {"value":..., "key":..., "headers":{...}}')
@click.option("--count", type=click.IntRange(min=1), help="publish the body so many times")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="records per second at most")
@click.option(
    "--level",
    type=click.Choice(["stored", "none"]),
    help="stored: wait for the disk; none: promise nothing (default: the topic's)",
)
@pass_choices
def command(
    choices: Choices,
    topic: str,
    body: str | None,
    key: str | None,
    headers: tuple[str, ...],
    lines: bool,
    jsonl: bool,
    count: int | None,
    rate: float | None,
    level: str | None,
) -> int:
    """Publish records: an argument, stdin, or a line each.

    \b
    gossipq pub orders "first"
    gossipq pub orders -k ada -H source:shop "17 apples"
    gossipq pub orders --count 1000 --rate 100 "order {n} at {time}"
    gossipq pub orders --lines < /etc/hosts
    gossipq sub orders --from first --exit-at-end --json | gossipq pub copy --jsonl

    In BODY given as an argument and in the key, {n} {time} {uuid} are filled in; stdin is taken as it is. The topic is made
    on first use.
    """
    if sum((body not in (None, "-") or count is not None, lines, jsonl)) > 1:
        raise click.UsageError("BODY with --count, --lines and --jsonl exclude each other")
    if body is None and not (lines or jsonl) and sys.stdin.isatty():
        raise click.UsageError("nothing to publish: give a BODY, or pipe something in")
    what, out = What(body, lines, jsonl, count or 1, key, dict(map(records.header, headers))), Output(choices)
    tally, started = Tally(), time.monotonic()
    with ask.connect(choices) as mq:
        new = not choices.quiet and bool(ask.missing(mq, [topic]))
        started = time.monotonic()
        try:
            _send(mq, topic, what, tally, level, rate)
        except GossipqError as error:
            tally.error = tally.error or error
        tally.settle_all(choices.timeout_s)
    if new and tally.confirmed:
        out.say(f"topic {topic} is made on first use")
    return _tell(out, topic, tally, time.monotonic() - started, single=what.times == 1 and not (lines or jsonl))


def _send(mq: "Client", topic: str, what: What, tally: Tally, level: str | None, rate: float | None) -> None:
    start = time.monotonic()
    for number, record in enumerate(what.records()):
        if rate and (early_s := start + number / rate - time.monotonic()) > 0:
            time.sleep(early_s)
        tally.add(mq.publish(topic, record.value, key=record.key, headers=record.headers, level=level))


def _tell(out: Output, topic: str, tally: Tally, seconds: float, single: bool) -> int:
    if tally.error is not None and not tally.confirmed:
        raise tally.error
    first = tally.first
    if single and first is not None:
        row = {
            "topic": topic,
            "partition": first.partition,
            "offset": first.offset,
            "copies": first.copies,
            "duplicate": first.duplicate,
        }
        text = (
            f"stored {topic}/{first.partition} @{first.offset}  {seconds * 1_000:.1f} ms" if first.copies else f"sent {topic}"
        )
        out.one(row, text)
    else:
        rate = tally.confirmed / seconds if seconds else 0.0
        row = {"topic": topic, "published": tally.published, "confirmed": tally.confirmed, "seconds": round(seconds, 3)}
        out.one(row, f"stored {tally.confirmed:,} of {tally.published:,} in {topic}  {seconds:.2f} s  {rate:,.0f}/s")
    if tally.error is None:
        return failures.DONE
    told = failures.explain(tally.error)
    message = f"{tally.published - tally.confirmed:,} of {tally.published:,} records not stored: {told.message}"
    raise failures.Failure("partly", message, told.hint, failures.PARTLY)
