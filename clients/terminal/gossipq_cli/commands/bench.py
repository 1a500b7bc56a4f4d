"""`gossipq bench`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gossipq import limits
from gossipq.texts import many
from gossipq_cli import benches, latency
from gossipq_cli.kinds import Duration, Rate, Size
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Output, is_terminal


@click.group(cls=Noun)
def command() -> None:
    """Measure publish, consume, end to end, round trip, and latency.

    \b
    gossipq bench e2e
    gossipq bench pub --batch 1
    gossipq bench rtt -o json
    gossipq bench load --rate 20k --for 30s

    Random bytes through a topic made for it and removed afterwards. Each consumed byte is checked.
    """


def _options(records: int, batch: int | None, fetch: bool = False) -> Callable[[Any], Any]:
    """Return the options of one bench, with its defaults."""

    def decorate(function: Any) -> Any:
        options = [
            click.option("--records", type=click.IntRange(min=1), default=records, show_default=True),
            click.option("--size", type=Size(), default=100, show_default=True, help="bytes of one record"),
            click.option("--topic", help="publish to this topic, and leave it there"),
            click.option("--retention", type=Duration(), help="of the topic that is made"),
        ]
        if batch is not None:
            text = "records of one publish_many; 1: publish() and `with message:` one by one"
            options.append(
                click.option(
                    "--batch", type=click.IntRange(min=1), default=batch, show_default=True, help=text
                )
            )
        if fetch:
            text = "records that one fetch may bring"
            count = click.IntRange(1, limits.IN_FLIGHT_MAX)
            options.append(
                click.option(
                    "--fetch", type=count, default=limits.CREDIT_RECORDS, show_default=True, help=text
                )
            )
        for option in options:
            function = option(function)
        return pass_choices(function)

    return decorate


def _run(
    choices: Choices, measure: Callable[[Choices, benches.Load], dict[str, Any]], given: dict[str, Any]
) -> None:
    batch, out = given.get("batch", 1), Output(choices)
    with benches.topic(choices, given["topic"], given["retention"]) as topic:
        records = max(batch, given["records"] - given["records"] % batch)
        more = {name: given[name] for name in ("marks", "fetch", "ahead") if name in given}
        load = benches.Load(topic, records, batch, given["size"], **more)
        if is_terminal(sys.stderr):
            out.say(f"measuring with {load.records:,} records of {load.size} B")
        answer = measure(choices, load)
    row = {"records": load.records, "batch": load.batch, "size": load.size, **answer}
    shown = (
        f"{name.removesuffix('_per_s').replace('_', ' ')} {value:,}/s"
        for name, value in answer.items()
        if name.endswith("_per_s")
    )
    laps = (
        f"{name.removesuffix('_ms')} {value} ms" for name, value in answer.items() if name.endswith("_ms")
    )
    out.one(
        row,
        f"{many(load.records, 'record')} of {load.size} B in batches of {load.batch}: "
        + "  ".join([*shown, *laps]),
    )


@command.command("pub")
@_options(1_000_000, 500)
def pub(choices: Choices, /, **given: Any) -> None:
    """Publish only, until the last confirm."""
    _run(choices, benches.run_pub, given)


@command.command("sub")
@_options(1_000_000, 500, fetch=True)
def sub(choices: Choices, /, **given: Any) -> None:
    """Consume and ack only; the topic is filled before the clock starts."""
    _run(choices, benches.run_sub, given)


@command.command("e2e")
@click.option(
    "--ahead",
    type=click.IntRange(min=0),
    default=0,
    help="most records the producer may be ahead; 0 = no bound",
)
@click.option(
    "--marks",
    type=click.IntRange(min=0),
    default=0,
    help="also report the time each time this many records are done",
)
@_options(1_000_000, 500, fetch=True)
def e2e(choices: Choices, /, **given: Any) -> None:
    """Publish here, consume and ack in a second process, at the same time."""
    _run(choices, benches.run_e2e, given)


@command.command("rtt")
@_options(2_000, None)
def rtt(choices: Choices, /, **given: Any) -> None:
    """One publish in flight: how long until it is confirmed."""
    _run(choices, benches.run_rtt, given)


@command.command("load")
@click.option("--rate", type=Rate(), required=True, help="records a second: 500, 20k, 1.5m")
@click.option("--for", "seconds", type=Duration(), default=10.0, show_default="10s", help="how long")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="records in a call")
@click.option("--size", type=Size(), default=100, show_default=True, help="bytes of one record; at least 8")
@click.option("--topic", help="publish to this topic, and leave it there")
@click.option("--retention", type=Duration(), help="of the topic that is made")
@click.option(
    "--histogram", type=click.Path(path_type=Path), help="write PATH.confirm.hgrm, PATH.delivery.hgrm"
)
@pass_choices
def load(choices: Choices, /, **given: Any) -> None:
    """How long a confirm and a delivery take at a fixed rate.

    The rate sets the time at which each call is due, and its latency counts from then. So a pause of
    the node counts for every record that was due during it. Needs pip install "gossipq[bench]".
    """
    out = Output(choices)
    if given["size"] < latency.DUE_BYTES:
        raise click.UsageError(f"--size of at least {latency.DUE_BYTES}: a record carries when it was due")
    latency.histogram()  # a missing library is reported before a topic is created
    with benches.topic(choices, given["topic"], given["retention"]) as topic:
        offer = latency.Offer(topic, given["rate"], given["seconds"], given["batch"], given["size"])
        if is_terminal(sys.stderr):
            out.say(f"offering {offer.records:,} records of {offer.size} B in {offer.seconds:g} s")
        answer = latency.run(choices, offer, given["histogram"])
    row = {"records": offer.records, "batch": offer.batch, "size": offer.size, **answer}
    out.one(row, _told(offer, answer))


def _told(offer: latency.Offer, answer: dict[str, Any]) -> str:
    """Format rates in one line, and each kind of latency in another."""
    megabytes = answer["published_bytes_per_s"] / 1e6
    lines = [
        f"{many(offer.records, 'record')} of {offer.size} B in batches of {offer.batch}: offered "
        f"{answer['offered_per_s']:,}/s, published {answer['published_per_s']:,}/s, {megabytes:,.1f} MB/s"
    ]
    for kind in ("confirm", "delivery"):
        told = (f"{name} {answer[f'{kind}_{name}_ms']:g} ms" for name in latency.PERCENTILES)
        lines.append(f"until {kind}: " + "  ".join(told))
    return "\n".join(lines)
