"""`gossipq help`."""

import click

from gossipq_cli import failures
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output
from gossipq_ops.hints import nearest

ALARM = "alarm-"
TOPICS = {
    "exit-codes": "What a command's exit code says.",
    "health": "Health states of nodes, shards and clusters.",
    "alarms": "Alarms that a node can raise.",
    "times": "How durations and points in time are written.",
    "refs": "How one record is named.",
    "output": "Forms of answers, for people and for scripts.",
    "servers": "Which node a command asks.",
}
PAGES = {
    "times": """\
A duration is a number with a unit: 500ms, 30s, 1h30m, 7d; without a unit it is seconds.
A point in time is 2026-11-21T09:00Z, or 2026-11-21 09:00 in the time zone of this machine,
or -10m: 10 minutes ago.

  gossipq pub orders --delay 90s "..."
  gossipq sub orders --from -1h --exit-at-end
  gossipq topic set orders --retention 30d""",
    "refs": """\
TOPIC/PARTITION/OFFSET names a record, as orders/0/17. A scheduled record has no offset yet:
orders/0/@10.0 is record 0 of entry 10 of its log, and this name stays valid when it is due. With --id, TOPIC
and the id that its producer gave it.

  gossipq why orders/0/17
  gossipq msg show orders --id order-17""",
    "output": """\
Data goes to stdout, everything else to stderr. On a terminal tables have borders, in a pipe they are
plain text. -o json is one document, -o jsonl one object a line, -o names only the first column. An error
with -o json is an object on stderr: {"error": {"code", "message", "hint"}}. NO_COLOR or --no-color leaves
colours away. -q leaves remarks away.

  gossipq topic ls -o names | xargs -n 1 gossipq topic show
  gossipq group lag orders -o json""",
    "servers": """\
Commands use the first of these that is set: -s URL or -s CONTEXT, $GOSSIPQ_SERVER, the context in use, tcp://127.0.0.1:7700.
One address is enough: the node there tells the others.

  gossipq -s tcp://10.0.0.7:7700 status
  gossipq context save shop -s tcp://10.0.0.7:7700 -s tcp://10.0.0.8:7700
  gossipq context use shop""",
}


@click.command(cls=Verb)
@click.argument("words", metavar="[TOPIC | COMMAND...]", nargs=-1)
@click.pass_context
@pass_choices
def command(choices: Choices, ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command or a topic: health, exit codes, an alarm, times.

    \b
    gossipq help
    gossipq help exit-codes
    gossipq help alarm-lag
    gossipq help topic create      as gossipq topic create --help
    """
    if words and (page := _of_command(ctx.find_root(), words)):
        Output.write(page)
        return
    topic = "-".join(words) or None  # also written "exit codes"
    from gossipq.alarms import KINDS
    from gossipq.health import table

    if topic is None:
        pages = {**TOPICS, f"{ALARM}NAME": f"One alarm: {', '.join(KINDS)}."}
        width = max(map(len, pages))
        Output.write("\n".join(f"{name:<{width}}  {text}" for name, text in pages.items()))
    elif topic == "exit-codes":
        Output.write("\n".join(f"{code:>4}  {text}" for code, text in failures.EXIT_CODES.items()))
        Output.write("Only `gossipq check` has others: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.")
    elif topic == "health":
        out = Output(choices)
        names = ("word", "scope", "ready", "meaning")
        out.rows([Column(name) for name in names], [dict(zip(names, row, strict=True)) for row in table()])
    elif topic == "alarms":
        width = max(map(len, KINDS))
        Output.write(
            "\n".join(f"{name:<{width}}  {kind.severity:<8}  {kind.verb}" for name, kind in KINDS.items())
        )
    elif topic.startswith(ALARM) and (name := topic.removeprefix(ALARM).replace("-", "_")) in KINDS:
        kind = KINDS[name]
        Output.write(
            f"{name} ({kind.severity})\n\n{kind.meaning}\n\nlook at: {kind.check}\nthen:    {kind.verb}"
        )
    elif topic in PAGES:
        Output.write(PAGES[topic])
    else:
        root = ctx.find_root()
        if moved := getattr(root.command, "moved", {}).get(topic):
            text = f"no help on {topic}; that is `gossipq {moved}` now"
            raise failures.Failure(
                "unknown_help", text, "`gossipq --help` lists commands", failures.NOT_FOUND
            )
        commands = root.command.list_commands(root) if isinstance(root.command, click.Group) else []
        known = [*TOPICS, *commands, *(f"{ALARM}{name}" for name in KINDS)]
        text = f"no help on {topic}{nearest(topic, known)}"
        raise failures.Failure("unknown_help", text, "`gossipq help` lists what there is", failures.NOT_FOUND)


def _of_command(root: click.Context, words: tuple[str, ...]) -> str:
    """Return the help of a command; "" if the first word is not a command.

    Raises UsageError if a later word is not one.
    """
    ctx, command = root, root.command
    for at, word in enumerate(words):
        found = command.get_command(ctx, word) if isinstance(command, click.Group) else None
        if found is None and not at:
            return ""
        if found is None:
            known = command.list_commands(ctx) if isinstance(command, click.Group) else []
            raise click.UsageError(f"no such command: {' '.join(words)}{nearest(word, known)}")
        ctx, command = click.Context(found, info_name=word, parent=ctx), found
    return command.get_help(ctx)
