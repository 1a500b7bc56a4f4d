"""The command line after `:`, such as `:group orders billing` or `:billing`. Pure."""

import difflib
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gossipq_cli.dashboard.state import JOBS, RATES_S, SPEEDS, VIEWS, Board
from gossipq_ops.figures import GRAPHS
from gossipq_ops.questions import Act, of_record

NEAR_SHOWN = 4


class Command(NamedTuple):
    """`changes` are fields of the Ui."""

    name: str
    changes: dict[str, Any] | None = None
    act: Act | None = None
    text: str = ""
    trouble: str = ""


FORMS = {
    "node": "node NAME",
    "topic": "topic NAME",
    "group": "group TOPIC GROUP",
    "jobs": "jobs TOPIC GROUP",
    "messages": "messages [TOPIC[/PARTITION]]",
    "find": "find TOPIC TEXT",
    "why": "why REF",
    "replay": "replay REF GROUP",
    "edit": "edit REF VALUE",
    "reschedule": "reschedule REF DELAY",
    "cancel": "cancel REF",
    "rm": "rm REF",
    "rate": "rate SECONDS",
    "graph": f"graph {'|'.join(GRAPHS)}",
    "svg": "svg [FILE]",
    "at": "at HH:MM[:SS], or at 2026-11-21T09:00Z, of a recording",
    "speed": f"speed {SPEEDS[0]:g} to {SPEEDS[-1]:g}, of a recording",
    "pause": "pause",
    "help": "help",
    "q": "q",
}
RECORD_VERBS = {
    "replay": ("requeue", 2),
    "edit": ("edit", 2),
    "reschedule": ("reschedule", 2),
    "cancel": ("cancel", 1),
    "rm": ("rm", 1),
}


def places(board: Board) -> dict[str, dict[str, Any]]:
    """Return names that can be jumped to -> their place. For equal names, the later kind wins."""
    found: dict[str, dict[str, Any]] = {}
    for client in board.history.now.clients:
        found[client.session] = found[client.client or client.session] = _at("clients", client.session)
    for topic, group in board.history.groups:
        found[group] = found[f"{topic} {group}"] = _at("groups", topic, group)
    for topic in board.history.topics:
        found[topic] = _at("topics", topic)
    for node in board.history.now.nodes:
        found[node.name] = _at("nodes", node.name)
    return found


def _at(view: str, *path: str) -> dict[str, Any]:
    return {"view": view, "path": path}


def completed(text: str, board: Board) -> str:
    """Complete a text with the common beginning of all matching commands and names."""
    known = [name for name in (*VIEWS, *FORMS, *places(board)) if name.startswith(text)]
    if not known:
        return text
    first, last = min(known), max(known)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(char for char, _ in alike)


def jump(line: str, board: Board) -> Command | None:
    """Return the jump to the thing of this name, or with this unique beginning."""
    known = places(board)
    near = [name for name in known if name.startswith(line)]
    where = {(found["view"], *found["path"]): found for found in map(known.__getitem__, near)}
    if line in known:
        return Command(line, known[line])
    if len(where) == 1:
        return Command(line, next(iter(where.values())))
    if len(where) > 1:
        shown = ", ".join(sorted(near)[:NEAR_SHOWN])
        return Command(line, trouble=f"{len(near)} names begin with {line}: {shown} ...; tab completes")
    return None


def parse(line: str, board: Board | None = None) -> Command:
    """Parse a line. `board` has the names for jumps."""
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    name = {"quit": "q", "exit": "q", "h": "help"}.get(name, name)
    if not name:
        return Command("")
    if name in VIEWS and not (name == "messages" and rest):
        return Command(name, {"view": name, "path": ()})
    if name not in FORMS:
        board = board or Board()
        found = jump(line.strip(), board)
        if found is not None:
            return found
        close = difflib.get_close_matches(line.strip(), [*FORMS, *VIEWS, *places(board)], n=1)
        return Command(
            name,
            trouble=f"no command or name {line.strip()}"
            + (f"; did you mean {close[0]}?" if close else "; ? lists them"),
        )
    words = rest.split(None, 1)
    if name in RECORD_VERBS:
        verb, count = RECORD_VERBS[name]
        if len(words) < count or (count == 1 and len(words) > 1):
            return _wrong(name)
        return Command(name, act=Act(verb, of_record(words[0]), words[1] if count > 1 else ""))
    if name in ("q", "svg"):
        return Command(name, text=rest)
    if name == "at":
        time_ms = _time_ms(rest, (board or Board()).history.now.time_ms)
        return Command(name, text=str(time_ms)) if time_ms else _wrong(name)
    changes = _changes(name, rest, words)
    return _wrong(name) if changes is None else Command(name, changes)


def _wrong(name: str) -> Command:
    return Command(name, trouble=f"write {FORMS[name]}")


def _changes(name: str, rest: str, words: list[str]) -> dict[str, Any] | None:
    """Return the changes, or None for a wrong form."""
    fresh = {"path": (), "tail": True, "back": 0, "find": "", "partition": -1}
    if name in ("pause", "help"):
        return {"paused": True} if name == "pause" else {"help": True}
    if name == "rate":
        return _within(rest, RATES_S, "every_s")
    if name == "speed":
        return _within(rest, SPEEDS, "speed")
    if name == "graph":
        return {"graph": rest} if rest in GRAPHS else None
    if not words:
        return None
    if name in ("topic", "node"):
        return {"view": f"{name}s", "path": (rest,)}
    if name == "why":
        return {"view": "messages", "topic": rest.partition("/")[0], "path": (rest,)} if "/" in rest else None
    if name == "messages":
        topic, slash, number = rest.partition("/")
        if slash and not number.isdecimal():
            return None
        return fresh | {"view": "messages", "topic": topic, "partition": int(number) if slash else -1}
    if len(words) < 2:
        return None
    if name == "group":
        return {"view": "groups", "path": (words[0], words[1])}
    if name == "jobs":
        return {"view": "groups", "path": (words[0], words[1], JOBS)}
    return fresh | {"view": "messages", "topic": words[0], "find": words[1]}


def _within(text: str, values: Sequence[float], field: str) -> dict[str, Any] | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return {field: number} if values[0] <= number <= values[-1] else None


def _time_ms(text: str, now_ms: int) -> int | None:
    """Return a time in a recording, in UTC: 14:05 is on the day that is shown."""
    try:
        day = datetime.fromtimestamp(now_ms / 1_000, UTC).date().isoformat()
        found = datetime.fromisoformat(f"{day}T{text}" if ":" in text[:3] else text)
        return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        return None
