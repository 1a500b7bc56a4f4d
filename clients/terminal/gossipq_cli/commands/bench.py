"""`gossipq bench`."""

import sys
from collections.abc import Callable
from typing import Any

import click

from gossipq import limits
from gossipq.texts import many
from gossipq_cli import benches
from gossipq_cli.kinds import Duration, Size
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Output, is_terminal


@click.group(cls=Noun)
def command() -> None:
    """Measure publish, consume, end to end and round trip.

    \b
    gossipq bench e2e
    gossipq bench pub --batch 1
    gossipq bench rtt -o json

    Random bytes through a topic made for it and removed afterwards. Each consumed byte is checked.
    """


def _options(records: int, batch: int | None, fetch: bool = False) -> Callable[[Any], Any]:
    """The options of one bench, with its defaults."""

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
    "--marks", type=click.IntRange(min=0), default=0, help="also report the time each so many records"
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
