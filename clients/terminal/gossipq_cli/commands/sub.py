"""`gossipq sub`."""

import sys

import click

from gossipq_cli import ask, failures, records
from gossipq_cli.options import Choices, Verb, pass_choices


def start_of(text: str | None) -> str | int | None:
    """What --from means to the client: a word, an offset, or a time back from now as it is."""
    return int(text) if text is not None and text.isdigit() else text


@click.command(cls=Verb)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-g", "--group", help="join this group and ack what was printed; without it every record is only read")
@click.option(
    "--from", "start", metavar="WHERE", help="new, first, an OFFSET, or a time back like -10m (a new group: first, else new)"
)
@click.option("-n", "--number", type=click.IntRange(min=1), help="stop after so many records")
@click.option("--exit-at-end", is_flag=True, help="stop when everything that is there has been printed")
@click.option(
    "-f",
    "--format",
    "pattern",
    help=r"how to print: %t topic %p partition %o offset %k key %v value %S bytes %T time (ms) %h headers %a attempt",
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line")
@pass_choices
def command(
    choices: Choices,
    topics: tuple[str, ...],
    group: str | None,
    start: str | None,
    number: int | None,
    exit_at_end: bool,
    pattern: str | None,
    as_json: bool,
) -> int:
    r"""Print records as they come, or from any point of a topic.

    \b
    gossipq sub orders                                   what comes from now on
    gossipq sub orders --from first --exit-at-end        all there is
    gossipq sub orders --from -10m -f '%p/%o %k %v\n'
    gossipq sub 'orders.*' -g billing -n 100 --json

    A record counts as acked when it has been written to stdout. Exits 1 when it ends before -n records came.
    """
    if pattern is not None and (as_json or choices.output.startswith("json")):
        raise click.UsageError("-f and --json exclude each other")
    as_json = as_json or choices.output.startswith("json")
    render = records.to_json if as_json else records.formatter(pattern if pattern is not None else r"%v\n")
    out, printed = sys.stdout.buffer, 0
    with ask.connect(choices) as mq:
        for message in mq.consume(list(topics), group, start=start_of(start), stop_at_end=exit_at_end):
            with message:
                try:
                    out.write(render(message))
                    out.flush()
                except BrokenPipeError:
                    # SystemExit gives the record back uncounted: nobody has seen it
                    raise SystemExit(failures.quiet_pipe()) from None
            printed += 1
            if printed == number:
                break
    return failures.FAILED if number is not None and printed < number else failures.DONE
