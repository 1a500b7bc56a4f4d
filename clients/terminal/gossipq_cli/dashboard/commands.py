"""The line after `:`, as in `:group orders billing`: what it changes, or why it cannot. Pure."""

import difflib
from typing import Any, NamedTuple

from gossipq_cli.dashboard.asked import Act
from gossipq_cli.dashboard.figures import GRAPHS
from gossipq_cli.dashboard.state import RATES_S, VIEWS


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
    "pause": "pause",
    "help": "help",
    "q": "q",
}
VERBS = {
    "replay": ("requeue", 2),
    "edit": ("edit", 2),
    "reschedule": ("reschedule", 2),
    "cancel": ("cancel", 1),
    "rm": ("rm", 1),
}


def parse(line: str) -> Command:
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    name = {"quit": "q", "exit": "q", "h": "help"}.get(name, name)
    if not name:
        return Command("")
    if name in VIEWS and not (name == "messages" and rest):
        return Command(name, {"view": name, "path": ()})
    if name not in FORMS:
        close = difflib.get_close_matches(name, [*FORMS, *VIEWS], n=1)
        return Command(
            name,
            trouble=f"no command {name}" + (f"; did you mean {close[0]}?" if close else "; ? lists them"),
        )
    words = rest.split(None, 1)
    if name in VERBS:
        verb, count = VERBS[name]
        if len(words) < count or (count == 1 and len(words) > 1):
            return _wrong(name)
        return Command(name, act=Act(verb, words[0], words[1] if count > 1 else ""))
    if name in ("q", "svg"):
        return Command(name, text=rest)
    changes = _changes(name, rest, words)
    return _wrong(name) if changes is None else Command(name, changes)


def _wrong(name: str) -> Command:
    return Command(name, trouble=f"write {FORMS[name]}")


def _changes(name: str, rest: str, words: list[str]) -> dict[str, Any] | None:
    """None: that is not how it is written."""
    fresh = {"path": (), "tail": True, "back": 0, "find": "", "partition": -1}
    if name in ("pause", "help"):
        return {"paused": True} if name == "pause" else {"help": True}
    if name == "rate":
        return _rate(rest)
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
    return fresh | {"view": "messages", "topic": words[0], "find": words[1]}


def _rate(text: str) -> dict[str, Any] | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return {"every_s": seconds} if RATES_S[0] <= seconds <= RATES_S[-1] else None
