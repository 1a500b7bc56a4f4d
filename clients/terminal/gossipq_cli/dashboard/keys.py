"""Bytes of a terminal -> names of keys, and a key -> the next Ui. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gossipq_cli.dashboard.commands import Command, completed, parse
from gossipq_cli.dashboard.state import RATES_S, SPEEDS, VIEWS, Board, Menu, Prompt, Ui
from gossipq_cli.dashboard.table import Sorting
from gossipq_cli.dashboard.views import PAGES, view_of
from gossipq_cli.dashboard.views.base import Page
from gossipq_cli.dashboard.views.jobs import jobs_of
from gossipq_ops.figures import GRAPHS
from gossipq_ops.questions import Act, Done, Failed, Open, Opened, Subject, Try, of_record
from gossipq_ops.verbs import Verb, name_of, question_of, verb_of, verbs_of, with_undo

ESCAPES = {
    b"[A": "up", b"[B": "down", b"[C": "right", b"[D": "left", b"OA": "up", b"OB": "down", b"OC": "right",
    b"OD": "left",
    b"[5~": "pgup", b"[6~": "pgdn", b"[H": "home", b"[F": "end", b"OH": "home", b"OF": "end",
    b"[1~": "home", b"[4~": "end",
    b"[7~": "home", b"[8~": "end", b"[3~": "delete", b"[Z": "backtab", b"OM": "enter",
}  # fmt: skip
CONTROLS = {
    0x0D: "enter",
    0x0A: "enter",
    0x09: "tab",
    0x7F: "backspace",
    0x08: "backspace",
    0x15: "kill",
    0x17: "word",
    0x0C: "redraw",
}
SEQUENCE_MAX = 16  #: longer sequences are ignored
PASTE_QUIET = 40  #: empty reads after which the end of a paste is given up
PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"  #: around pasted text
TEXT = "paste:"  #: prefix of a key: the rest was pasted


HELP_LINES = 20  #: maximum lines by which help can scroll


class Decoder:
    """Decodes keys that arrive in pieces. `flush` recognises a lone Escape."""

    def __init__(self) -> None:
        self._rest = b""
        self._quiet = 0  # number of empty reads

    @property
    def waiting(self) -> bool:
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        self._rest += data
        self._quiet, keys = 0, []
        while self._rest and (found := self._next()):
            key, used = found
            self._rest = self._rest[used:]
            keys += [key] if key else []
        return keys

    def flush(self) -> list[str]:
        """No input came for a while. The end of a paste can take longer."""
        self._quiet += 1
        if self._rest.startswith(PASTE) and self._quiet < PASTE_QUIET:
            return []
        rest, self._rest = self._rest, b""
        return ["esc"] if rest.startswith(b"\x1b") else []

    def _next(self) -> tuple[str, int] | None:
        """Return (key, bytes used); "" for unknown input; None if more bytes are needed."""
        rest = self._rest
        if rest[0] == 0x1B:
            return self._escape(rest)
        if rest[0] < 0x20 or rest[0] == 0x7F:
            return CONTROLS.get(rest[0], ""), 1
        length = (
            1
            if rest[0] < 0x80
            else 2
            if rest[0] >> 5 == 6
            else 3
            if rest[0] >> 4 == 14
            else 4
            if rest[0] >> 3 == 30
            else 0
        )
        if not length:
            return "", 1
        if len(rest) < length:
            return None
        char = rest[:length].decode(errors="replace")
        return (char, length) if len(char) == 1 and char.isprintable() else ("", length)

    @staticmethod
    def _escape(rest: bytes) -> tuple[str, int] | None:
        if rest.startswith(PASTE):
            end = rest.find(PASTED)
            text = " ".join(rest[len(PASTE) : end].decode(errors="replace").splitlines())
            return (TEXT + "".join(filter(str.isprintable, text)), end + len(PASTED)) if end >= 0 else None
        if len(rest) == 1:
            return None
        if rest[1] == 0x1B:
            return "esc", 1
        if rest[1:2] not in (b"[", b"O"):
            return "esc", 1
        for end in range(2, min(len(rest), SEQUENCE_MAX)):
            if 0x40 <= rest[end] <= 0x7E:
                return ESCAPES.get(rest[1 : end + 1], ""), end + 1
        return ("", len(rest)) if len(rest) >= SEQUENCE_MAX else None


class Quit(NamedTuple):
    pass


class Save(NamedTuple):
    path: str  #: "" = a name with the time


class Redraw(NamedTuple):
    pass


class Seek(NamedTuple):
    """Move in a recording: by a number of snapshots, by a time, or to a time (unix)."""

    steps: int = 0
    by_ms: int = 0
    to_ms: int = 0


Deed = Quit | Save | Redraw | Seek | Act | Try
SEEKS = {",": Seek(-1), ".": Seek(1), "[": Seek(by_ms=-60_000), "]": Seek(by_ms=60_000)}


class Stepped(NamedTuple):
    ui: Ui
    deeds: list[Deed]


def step(ui: Ui, key: str, board: Board, page: int = 20, seen: bool = True) -> Stepped:
    """Return the Ui after a key, and the effects to execute.

    `page` is the number of lines of a list. `seen`: the screen is large enough to show the choice.
    """
    if not seen:
        return Stepped(ui, [Quit()] if key == "q" else [])
    if ui.prompt is not None:
        return _type(ui, ui.prompt, key, board)
    ui = replace(ui, notice="", bad=False)
    if key.startswith(TEXT):  # it could be taken for keys, even for the answer yes
        return Stepped(replace(ui, notice="paste where something is typed, as after : or /"), [])
    if ui.menu is not None and key != "redraw":
        return _choose(ui, ui.menu, key, board)
    if key == "redraw":
        return Stepped(ui, [Redraw()])
    if ui.help and key in MOVES:
        at = {
            1: ui.help_at + MOVES[key],
            2: ui.help_at + MOVES[key] // 2 * page,
            3: HELP_LINES if MOVES[key] > 0 else 0,
        }
        return Stepped(replace(ui, help_at=max(0, min(HELP_LINES, at[abs(MOVES[key])]))), [])
    if ui.help:
        return Stepped(ui, [Quit()]) if key == "q" else Stepped(replace(ui, help=False, help_at=0), [])
    if key == "q":
        return Stepped(ui, [Quit()])
    if key == "w":
        return Stepped(ui, [Save("")])
    if ui.view == "messages" and ui.path:
        subject = of_record(ui.path[0])
        verb = next((verb for verb in verbs_of(subject) if verb.key == key), None)
        if verb is not None:
            return _begin(ui, verb, subject, board)
    if board.recorded and key in SEEKS:
        return Stepped(ui, [SEEKS[key]])
    return Stepped(_move(ui, key, board, page), [])


def _move(ui: Ui, key: str, board: Board, page: int) -> Ui:
    if key in tuple("1234567"):
        return go(ui, VIEWS[int(key) - 1])
    if key in ("tab", "backtab", "left", "right"):
        turn = 1 if key in ("tab", "right") else -1
        return go(ui, VIEWS[(VIEWS.index(ui.view) + turn) % len(VIEWS)])
    if key in MOVES:
        return _walk(ui, key, board, page)
    if key == "enter":
        return _enter(ui, board)
    if key in ("esc", "backspace"):
        return _back(ui)
    if key == "/":
        kind = "search" if ui.view == "messages" and ui.topic and not ui.path else "filter"
        return replace(
            ui,
            prompt=Prompt(
                kind,
                "search for:" if kind == "search" else "filter:",
                ui.find if kind == "search" else ui.look.filter,
            ),
        )
    if key == ":":
        return replace(ui, prompt=Prompt("command", ":"))
    if key in ("a", "o"):
        return _offer(ui, board) if key == "a" else _over(ui, board)
    if key in ("s", "S"):
        return _sort(ui, board, key == "S")
    if key in ("p", " "):
        return replace(ui, paused=not ui.paused)
    if key in ("+", "=", "-"):
        turn = -1 if key == "-" else 1
        if board.recorded:
            return replace(ui, speed=_next(SPEEDS, ui.speed, turn))
        return replace(ui, every_s=_next(RATES_S, ui.every_s, turn))
    if key == "m":
        return _messages(ui, board)
    if key == "J":
        return _jobs(ui, board)
    if key == "t" and ui.view == "messages" and ui.topic and not ui.path:
        return replace(ui, tail=not ui.tail, back=0, find="")
    if key == "b":
        return replace(ui, graph=GRAPHS[(GRAPHS.index(ui.graph) + 1) % len(GRAPHS)])
    return replace(ui, help=True) if key in ("?", "h") else ui


MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -2, "pgdn": 2, "home": -3, "g": -3, "end": 3, "G": 3}


def _next(values: Sequence[float], now: float, turn: int) -> float:
    at = min(range(len(values)), key=lambda number: abs(values[number] - now)) + turn
    return values[max(0, min(len(values) - 1, at))]


def go(ui: Ui, view: str) -> Ui:
    """Show the list of a view, and leave an opened page."""
    return replace(ui, view=view, path=())


def _walk(ui: Ui, key: str, board: Board, page: int) -> Ui:
    how = MOVES[key]
    if ui.view == "messages" and ui.path:  # scrolls the opened record
        by = {1: 1, 2: page, 3: 0}[abs(how)] * (1 if how > 0 else -1)
        return ui.looking(at=0 if how == -3 else max(0, ui.look.at + by))
    view = view_of(ui)
    keys = view.keys(board, ui)
    at = view.pointed(keys, ui)
    if ui.view == "messages" and ui.topic and not ui.find and key == "pgup" and at <= 0:
        return replace(ui.looking(chosen="", at=0), tail=False, back=ui.back + page)
    if ui.view == "messages" and ui.topic and key == "pgdn" and not ui.tail and at >= len(keys) - 1:
        back = max(0, ui.back - page)
        return replace(ui.looking(chosen="", at=0), back=back, tail=back == 0)
    if not keys:
        return ui
    to = {-3: 0, -2: at - page, -1: at - 1, 1: at + 1, 2: at + page, 3: len(keys) - 1}[how]
    to = max(0, min(len(keys) - 1, to))
    return ui.looking(chosen=keys[to], at=to)


def _over(ui: Ui, board: Board) -> Ui:
    """Move to the next list of the page."""
    view = view_of(ui)
    return view.next_section(board, ui) if isinstance(view, Page) else ui


def _chosen(ui: Ui, board: Board) -> str:
    view = view_of(ui)
    keys = view.keys(board, ui)
    at = view.pointed(keys, ui)
    return keys[at] if keys else ""


def _enter(ui: Ui, board: Board) -> Ui:
    chosen = _chosen(ui, board)
    return view_of(ui).open(board, ui, chosen) if chosen else ui


def _back(ui: Ui) -> Ui:
    """Go back: from an opened page, a filter, or a topic's messages."""
    if ui.path:
        up = ui.path[:-1]
        return replace(ui, path=up if (ui.view, len(up)) in PAGES else ())
    if ui.look.filter:
        return ui.looking(filter="")
    if ui.view == "messages" and ui.find:
        return replace(ui, find="")
    if ui.view == "messages" and ui.topic:
        return replace(ui, topic="", partition=-1, tail=True, back=0)
    return ui


def _sort(ui: Ui, board: Board, turn: bool) -> Ui:
    view = view_of(ui)
    titles = view.sorts(board, ui)
    now = ui.look.sorting or view.sorting
    if turn:
        return ui.looking(sorting=Sorting(now.title, not now.down))
    if not titles:
        return ui
    title = titles[(titles.index(now.title) + 1) % len(titles)] if now.title in titles else titles[0]
    return ui.looking(sorting=Sorting(title, title not in ("topic", "group", "node", "client", "P", "shard")))


def _messages(ui: Ui, board: Board) -> Ui:
    """Show the messages of the topic or partition under the pointer."""
    subject = _subject(ui, board)
    if subject is None or subject.kind not in ("topic", "partition", "group", "dead"):
        return ui
    partition = int(subject.names[1]) if subject.kind == "partition" else -1
    fresh = replace(ui, view="messages", topic=subject.names[0], partition=partition, path=())
    return replace(fresh, tail=True, back=0, find="")


def _jobs(ui: Ui, board: Board) -> Ui:
    """Show the jobs of the group under the pointer, or of the opened one."""
    if ui.view == "groups" and len(ui.path) == 2:
        return jobs_of(ui, *ui.path)
    subject = _subject(ui, board)
    return jobs_of(ui, *subject.names) if subject is not None and subject.kind == "group" else ui


# --- verbs


def _subject(ui: Ui, board: Board) -> Subject | None:
    """Return the target for verbs: the row under the pointer, or else the page."""
    return view_of(ui).subject(board, ui, _chosen(ui, board))


def _offer(ui: Ui, board: Board) -> Ui:
    """Open the menu of verbs for the target."""
    subject = _subject(ui, board)
    if subject is None or not verbs_of(subject):
        return replace(ui, notice="nothing can be done with this from here")
    if board.recorded:
        return replace(ui, notice="a recording cannot be changed", bad=True)
    return replace(ui, menu=Menu(subject))


def _choose(ui: Ui, menu: Menu, key: str, board: Board) -> Stepped:
    """Choose in the menu: by letter, or with arrows and Enter."""
    verbs = verbs_of(menu.subject)
    if key in ("up", "down"):
        at = max(0, min(len(verbs) - 1, menu.at + MOVES[key]))
        return Stepped(replace(ui, menu=replace(menu, at=at)), [])
    ui = replace(ui, menu=None)
    chosen = verbs[menu.at] if key == "enter" else next((verb for verb in verbs if verb.key == key), None)
    if chosen is None:
        return Stepped(replace(ui, notice="" if key == "esc" else f"no verb has the key {key}"), [])
    return _begin(ui, chosen, menu.subject, board)


def _begin(ui: Ui, verb: Verb, subject: Subject, board: Board) -> Stepped:
    """Begin a verb: ask for text, then show what it would do, then ask for a yes."""
    act = Act(verb.name, subject)
    if board.recorded:
        return Stepped(replace(ui, notice="a recording cannot be changed", bad=True), [])
    if not verb.asks:
        return _try(ui, act)
    text, opened = verb.text, board.answers.get(Open(subject.names[0]))
    if isinstance(opened, Opened):
        if verb.name == "requeue":
            text = next((stand.group for stand in opened.stands if stand.group), "")
        elif verb.name == "edit":
            text = _editable(opened)
            if not text and opened.size:
                ref = opened.ref
                hint = f"not text of one line: gossipq msg show {ref} --raw | ... | gossipq msg edit {ref} -"
                return Stepped(replace(ui, notice=hint, bad=True), [])
    return Stepped(replace(ui, prompt=Prompt("verb", verb.asks, text, act)), [])


def _editable(opened: Opened) -> str:
    try:
        text = opened.value.decode() if len(opened.value) == opened.size else ""
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""


def _try(ui: Ui, act: Act) -> Stepped:
    """Ask the question of an act; if it has none, ask the cluster first what it would do."""
    question = question_of(act)
    if question:
        return Stepped(replace(ui, prompt=Prompt("confirm", f"{question} y/n", then=act)), [])
    label = f"{verb_of(act).name} {name_of(act.subject)}: asking what it would do ... esc: cancel"
    return Stepped(replace(ui, prompt=Prompt("try", label, then=act)), [Try(act)])


def answered(ui: Ui, ask: Act | Try, answer: Done | Failed) -> Ui:
    """Return the Ui after the answer to a try or an act."""
    waiting = ui.prompt is not None and ui.prompt.kind == "try"
    if isinstance(ask, Try) and not (waiting and ui.prompt and ui.prompt.then == ask.act):
        return ui  # cancelled meanwhile
    if isinstance(ask, Try):
        ui = replace(ui, prompt=None)
    if isinstance(answer, Failed):
        return replace(ui, notice=f"{answer.text}{'  ' if answer.hint else ''}{answer.hint}", bad=True)
    if isinstance(ask, Act) or verb_of(ask.act).shows:
        return replace(ui, notice=with_undo(answer.text, answer.undo), bad=False)
    label = f"{answer.text}. {verb_of(ask.act).name} {name_of(ask.act.subject)}? y/n"
    return replace(ui, prompt=Prompt("confirm", label, then=ask.act))


# --- typing


def _type(ui: Ui, prompt: Prompt, key: str, board: Board) -> Stepped:
    if prompt.kind == "try":
        return Stepped(replace(ui, prompt=None, notice="not done") if key == "esc" else ui, [])
    if prompt.kind == "confirm" and key.startswith(TEXT):
        return Stepped(ui, [])
    if prompt.kind == "confirm":
        deeds: list[Deed] = [prompt.then] if key in ("y", "Y") and prompt.then else []
        notice = "" if deeds else "not done"
        return Stepped(replace(ui, prompt=None, notice=notice), deeds)
    if key == "esc":
        ui = replace(ui, prompt=None)
        return Stepped(ui.looking(filter="") if prompt.kind == "filter" else ui, [])
    if key == "enter":
        return _typed(replace(ui, prompt=None), prompt, board)
    text = prompt.text
    if key == "backspace":
        if not text and prompt.kind in ("command", "filter", "search"):
            return Stepped(replace(ui, prompt=None), [])
        text = text[:-1]
    elif key == "tab" and prompt.kind == "command":
        text = completed(text, board)
    elif key == "kill":
        text = ""
    elif key == "word":
        text = text.rstrip().rpartition(" ")[0]
    elif len(key) == 1 or key.startswith(TEXT):
        text += key.removeprefix(TEXT)
    ui = replace(ui, prompt=replace(prompt, text=text))
    return Stepped(ui.looking(filter=text, at=0) if prompt.kind == "filter" else ui, [])


def _typed(ui: Ui, prompt: Prompt, board: Board) -> Stepped:
    text = prompt.text
    if prompt.kind == "filter":
        return Stepped(ui.looking(filter=text, at=0), [])
    if prompt.kind == "search":
        return Stepped(replace(ui, find=text.strip()), [])
    if prompt.kind == "command":
        return _obey(ui, parse(text, board), board)
    if not text or prompt.then is None:
        return Stepped(replace(ui, notice="not done"), [])
    return _try(ui, prompt.then._replace(text=text))


def _obey(ui: Ui, command: Command, board: Board) -> Stepped:
    """Execute a line after `:`."""
    if command.trouble:
        return Stepped(replace(ui, notice=command.trouble, bad=True), [])
    if command.act is not None:
        if board.recorded:
            return Stepped(replace(ui, notice="a recording cannot be changed", bad=True), [])
        return _try(ui, command.act)
    if command.name == "q":
        return Stepped(ui, [Quit()])
    if command.name == "at":
        if not board.recorded:
            return Stepped(replace(ui, notice="only a recording has another time", bad=True), [])
        return Stepped(ui, [Seek(to_ms=int(command.text))])
    if command.name == "svg":
        return Stepped(ui, [Save(command.text)])
    return Stepped(replace(ui, **command.changes or {}), [])
