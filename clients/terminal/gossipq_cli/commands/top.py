"""`gossipq top`."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gossipq_cli import failures
from gossipq_cli.contexts import servers_of
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import is_terminal
from gossipq_ops.hints import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossipq_cli.dashboard.recordings import Recording
    from gossipq_cli.dashboard.state import Ui
    from gossipq_client import Client

PLAIN_SIZE = 120, 40  #: of one screen without a terminal
SIZE_MAX = 500
VIEWS = ("overview", "nodes", "topics", "groups", "clients", "messages", "growth")
GRAPHS = ("block", "braille", "ascii")


class Extent(click.ParamType):  # type: ignore[type-arg]
    """COLUMNSxLINES."""

    name = "SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        found = re.fullmatch(r"(\d{1,3})x(\d{1,3})", value)
        size = (int(found[1]), int(found[2])) if found else (0, 0)
        if not (60 <= size[0] <= SIZE_MAX and 20 <= size[1] <= SIZE_MAX):
            self.fail(f"{value!r}; write COLUMNSxLINES, from 60x20 to {SIZE_MAX}x{SIZE_MAX}", param, ctx)
        return size


@click.command(cls=Verb)
@click.argument("view", required=False)
@click.option("--view", "named", metavar="VIEW", help="the view to begin with: " + ", ".join(VIEWS))
@click.option(
    "--open",
    "opened",
    multiple=True,
    metavar="NAME",
    help="what is opened in it: a node, a topic, TOPIC GROUP, a REF",
)
@click.option("--topic", default="", help="whose messages the view of messages shows")
@click.option("--interval", type=Duration(), default=1.0, help="between two snapshots, 500ms to 10s (1s)")
@click.option(
    "--graph", type=click.Choice(GRAPHS), help="what charts are made of (what the terminal can show)"
)
@click.option("--once", is_flag=True, help="one screen, without a terminal; also what a pipe gets")
@click.option(
    "--svg",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="one screen as a picture",
)
@click.option("--size", type=Extent(), metavar="120x40", help="of that screen")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="show a recording",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="add each snapshot to a recording",
)
@pass_choices
def command(choices: Choices, /, view: str | None, named: str | None, **given: Any) -> None:
    """Watch nodes, topics, groups, clients, messages and growth.

    \b
    gossipq top
    gossipq top groups
    gossipq top --once --view topics | head
    gossipq top -o json | jq .groups
    gossipq top --svg overview.svg --size 120x40
    gossipq top --record monday.jsonl      and later: gossipq top --replay monday.jsonl

    Press ? for the keys. Views: overview, nodes (with events), topics (with partitions), groups (backlog,
    trend, time left), clients, messages (tail, search, why, trace, replay, edit), growth (the last week).
    """
    ui = _ui(view or named or VIEWS[0], given)
    if view and named:
        raise click.UsageError("name one view")
    snapshots = _recording(given["replay"]) if given["replay"] else None
    if choices.output in ("json", "jsonl"):
        _json(choices, ui, snapshots)
    elif given["record"] and not _on_terminal():
        _record(choices, ui, given["record"])
    elif given["picture"] or given["once"] or not _on_terminal():
        _once(choices, ui, snapshots, given["size"] or _plain_size(), given["picture"])
    else:
        _live(choices, ui, snapshots, given["record"])


def _ui(view: str, given: dict[str, Any]) -> "Ui":
    from gossipq_cli.dashboard.state import RATES_S, Ui
    from gossipq_ops.figures import graph_of

    if view not in VIEWS:
        raise click.UsageError(f"no view {view!r}{nearest(view, VIEWS) or '; there are ' + ', '.join(VIEWS)}")
    if not RATES_S[0] <= given["interval"] <= RATES_S[-1]:
        raise click.BadParameter(
            f"{given['interval']:g} s; from {RATES_S[0]:g} s to {RATES_S[-1]:g} s", param_hint="'--interval'"
        )
    path = tuple(given["opened"])
    if path and len(path) != (2 if view == "groups" else 1):
        raise click.BadParameter("twice for a group (its topic, its name), else once", param_hint="'--open'")
    if path and view not in ("nodes", "topics", "groups", "clients", "messages"):
        raise click.BadParameter(f"nothing opens in {view}", param_hint="'--open'")
    topic = given["topic"] or (path[0].partition("/")[0] if path and view == "messages" else "")
    graph = given["graph"] or (graph_of(os.environ) if _on_terminal() and not given["picture"] else "block")
    return Ui(view=view, path=path, every_s=given["interval"], graph=graph, topic=topic)


def _on_terminal() -> bool:
    return is_terminal(sys.stdout) and sys.stdin.isatty()


def _plain_size() -> tuple[int, int]:
    import shutil

    if not sys.stdout.isatty():
        return PLAIN_SIZE
    columns, lines = shutil.get_terminal_size(PLAIN_SIZE)
    return max(60, columns), max(20, lines - 1)


def _recording(path: Path) -> "Recording":
    from gossipq_cli.dashboard.recordings import Recording

    try:
        return Recording(path.read_bytes())
    except ValueError as error:
        raise failures.Failure(
            "usage", f"{path}: {error}", "`gossipq top --record FILE` makes one", failures.USAGE
        ) from None


def _connector(choices: Choices) -> "Callable[[str], Client]":
    """Return a function that connects to one address, or for "" as the user asked."""
    from gossipq_cli import ask

    home = ask.Home()

    def connect(address: str) -> "Client":
        if not address:
            return ask.connect(choices)
        asked = home.told(lambda: ask.status(choices))
        return ask.connect(ask.elsewhere(choices, address, asked))

    return connect


def _server(choices: Choices) -> str:
    from gossipq_client.io import addresses_of

    return addresses_of(servers_of(choices.servers))[0]


def _json(choices: Choices, ui: "Ui", snapshots: "Recording | None") -> None:
    """Return all fields, also defaults, so that readers need not know them."""
    import msgspec

    from gossipq_cli.dashboard import still
    from gossipq_cli.output import json_text

    if snapshots is not None:
        found = snapshots[-1]
    else:
        found = still.asked(_connector(choices), _server(choices), type(ui)(), 40, rates=False).history.now
    sys.stdout.write(json_text(_full(msgspec.structs.asdict(found))) + "\n")


def _full(value: Any) -> Any:
    import msgspec

    if isinstance(value, msgspec.Struct):
        return _full(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {key: _full(each) for key, each in value.items()}
    return [_full(each) for each in value] if isinstance(value, list) else value


def _once(
    choices: Choices,
    ui: "Ui",
    snapshots: "Recording | None",
    size: tuple[int, int],
    picture: Path | None,
) -> None:
    from gossipq_cli.dashboard import still
    from gossipq_cli.dashboard.frame import plain, screen
    from gossipq_cli.dashboard.painter import in_ascii, svg
    from gossipq_cli.files import save_picture
    from gossipq_ops.figures import speaks_unicode
    from gossipq_ops.history import LENGTH

    if snapshots is not None:
        board = still.recorded(snapshots[-LENGTH:])
    else:
        board = still.asked(_connector(choices), _server(choices), ui, size[1])
        failed = still.trouble(board)
        if failed is not None:
            raise failures.Failure("failed", failed.text, failed.hint)
    if picture is None:
        text = plain(board, ui, *size)
        unreadable = sys.stdout.isatty() and not speaks_unicode(os.environ)
        sys.stdout.write(in_ascii(text) if unreadable else text)
        return
    save_picture(str(picture), svg(screen(board, ui, *size), size[0], f"gossipq top --view {ui.view}"))


def _record(choices: Choices, ui: "Ui", file: Path) -> None:
    """Record without a screen until it is stopped. Raises Failure if the file cannot be written."""
    from queue import SimpleQueue

    from gossipq_cli.dashboard.sources import News, Recorder, Watch
    from gossipq_ops.rows import Snapshot

    news: SimpleQueue[News] = SimpleQueue()
    recorder = Recorder(file)
    watch = Watch(_connector(choices), lambda: _server(choices), ui.every_s, news.put)
    watch.start()
    try:
        while True:
            found = news.get()
            if isinstance(found, Snapshot):
                recorder.add(found)
    except OSError as error:
        raise failures.Failure("failed", f"{file} cannot be written: {error.strerror}") from None
    finally:
        watch.stop()


def _live(choices: Choices, ui: "Ui", snapshots: "Recording | None", record_to: Path | None) -> None:
    from dataclasses import replace

    from gossipq_cli.dashboard.app import App, Options
    from gossipq_cli.dashboard.painter import colors_of
    from gossipq_cli.dashboard.sources import ASK_TIMEOUT_S

    patient = replace(choices, timeout_s=min(choices.timeout_s, ASK_TIMEOUT_S))
    App(
        _connector(patient),
        ui,
        Options(lambda: _server(choices), colors_of(choices.color), snapshots, record_to),
    ).run()
