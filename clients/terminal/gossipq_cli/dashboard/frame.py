"""The whole screen: header, tabs, view, prompt or notice, footer. Lines of the given size. Pure."""

from rich.text import Text

from gossipq.health import State
from gossipq.texts import moment
from gossipq_cli.dashboard.state import LEAST, VIEWS, Board, Menu, Prompt, Ui, stale
from gossipq_cli.dashboard.table import BAD, DIM, GOOD, HEAD, WARN, Column, block, box, fit, table, wrapped
from gossipq_cli.dashboard.views import view_of
from gossipq_cli.dashboard.views.base import Page, safe_name
from gossipq_ops.figures import short, span
from gossipq_ops.history import ASKING
from gossipq_ops.history import GOOD as GOOD_STATES
from gossipq_ops.verbs import Verb, command_of, name_of, verbs_of

OLD = "bright_black"  #: colour of outdated figures
AROUND = 3  #: lines around the view: header, tabs, footer
ASKED = {
    "confirm": "y: yes   any other key: no",
    "try": "esc: cancel",
}  #: kinds of prompts with a question, and their styles
SHORT = {"overview": "over", "messages": "msgs", "growth": "grow", "clients": "cli"}

HELP = """\
1-7 tab   the view      ↑ ↓ pgup pgdn home end  move      o  next list
enter     open it       esc   back, or end of a filter
a         act: replay, purge, pause, seek, kick, drain ...; it asks first
/         filter; in messages of a topic: search values (key=ADA: by key)
s S       sort by the next column; turn round     p   pause
m  J      messages of the topic, jobs of the group    t tail   + - pace
w         save the screen as SVG    b   the marks of charts        q   quit
:         a name to jump to (tab completes), or topic NAME, messages
          TOPIC[/P], group TOPIC GROUP, jobs TOPIC GROUP, find TOPIC TEXT,
          why REF, rate S, replay REF GROUP, edit REF VALUE, reschedule REF DELAY,
          cancel REF, rm REF, svg FILE, at TIME, speed N, q
In a message: r replay, e edit, d due time, c cancel, x remove; each asks.

● well  ▲ look at it  ✖ broken  ○ gone.  up: the node that runs longest.
A record is ready, in flight, retrying, parked, scheduled, acked, dead,
voided or removed. records: what can be read. lag: what is not done.
Growth: flows come with each full minute; levels and marks at once.
Exact numbers: gossipq top -o json, gossipq group lag TOPIC."""


def screen(board: Board, ui: Ui, width: int, height: int) -> list[Text]:
    """Return `height` lines of `width` columns."""
    if width < LEAST[0] or height < LEAST[1]:
        told = f"{width}x{height} is too small: gossipq top needs {LEAST[0]}x{LEAST[1]}. q quits"
        return block(wrapped(told, width), width, height)
    body = height - AROUND
    if ui.help:
        lines = helping(ui.help_at, width, body)
    elif not board.history.count:
        lines = box("", _waiting(board, width - 4), width, body)
    else:
        below = menu_box(ui.menu, width) if ui.menu is not None else question_box(ui.prompt, width, body // 2)
        room = body - len(below)
        lines = [*block(view_of(ui).draw(board, ui, width, room), width, room), *below]
    if stale(board, ui) and not ui.help:
        lines = [Text(line.plain, OLD) for line in lines]  # the header shows their age
    return [header(board, ui, width), tabs(ui, width), *lines, bottom(board, ui, width)]


def helping(at: int, width: int, height: int) -> list[Text]:
    """Return the help from line `at` on, or its end if `at` is too large."""
    told = [part for line in HELP.split("\n") for part in wrapped(line, width - 4)]
    room = height - 2
    at = max(0, min(at, len(told) - room))
    more = f"↑↓ {at + 1}-{at + room} of {len(told)}  " if len(told) > room else ""
    return box("help", told[at:], width, height, f"{more}esc: back")


def menu_box(menu: Menu, width: int) -> list[Text]:
    """Return the menu of a row, with the equivalent command for each verb."""
    verbs = verbs_of(menu.subject)
    columns: list[Column[Verb]] = [
        Column("key", lambda verb: Text(verb.key, HEAD)),
        Column("verb", lambda verb: verb.name),
        Column("what", lambda verb: verb.what, least=20),
        Column("", lambda verb: Text(command_of(verb, menu.subject), DIM), least=20, leave=1),
    ]
    lines = table(columns, verbs, width - 4, len(verbs) + 1, at=menu.at).lines[1:]
    foot = "its letter, or ↑↓ enter: first what it would do  esc: back"
    return box(name_of(menu.subject), lines, width, len(verbs) + 2, foot)


def question_box(prompt: Prompt | None, width: int, most: int) -> list[Text]:
    """Return the full question that waits for a yes; empty without one."""
    if prompt is None or prompt.kind not in ASKED:
        return []
    lines = wrapped(prompt.label, width - 4, HEAD)[: most - 2]
    return box("", lines, width, len(lines) + 2, ASKED[prompt.kind])


def _waiting(board: Board, width: int) -> list[Text]:
    if board.fault is None:
        return [Text("asking ...", DIM)]
    return [
        *wrapped(f"✖ {board.fault.text}", width, BAD),
        *wrapped(board.fault.hint, width),
        Text(),
        Text("it is asked again every few seconds; q quits", DIM),
    ]


def header(board: Board, ui: Ui, width: int) -> Text:
    """Return the header. On a narrow screen, the least important parts are left out first."""
    now, history = board.history.now, board.history
    well = sum(node.state in GOOD_STATES for node in now.nodes)
    parts: list[tuple[int, Text]] = [(0, Text(" gossipq", HEAD))]
    if board.history.count:
        if stale(board, ui):
            parts.append((0, Text(f"✖ no answer for {span(board.age_ms)}", BAD)))
        if now.state not in ("", State.HEALTHY):
            passing = now.state == State.DEGRADED or history.electing
            parts.append((0, Text(now.state, WARN if passing else BAD)))
        if history.stale_ms and not board.recorded:
            parts.append((0, Text(f"figures of {span(history.stale_ms)} ago", WARN)))
        sound = (
            all(node.state in (*GOOD_STATES, ASKING) for node in now.nodes)
            and now.shards_led >= now.shards_total
            and now.state in ("", State.HEALTHY, State.DEGRADED)
        )
        bad = WARN if history.electing else BAD
        mark, style = ("●", GOOD) if sound else ("✖", bad)
        count = f"{well}/{len(now.nodes)} nodes" if len(now.nodes) != 1 else now.answered_by
        name = Text(f"{safe_name(now.cluster)} ").append(mark, style)
        parts.append((0, name.append(f" {safe_name(count)}", "" if sound else style)))
        parts.append((1, Text(f"in {short(history.last('in'))}/s")))
        parts.append((1, Text(f"out {short(history.last('out'))}/s")))
        backlog = "-" if history.uncounted else short(history.last("backlog"))
        parts.append((3, Text(f"backlog {backlog}")))
        if now.clients:
            parts.append((5, Text(f"clients {short(len({client.session for client in now.clients}))}")))
        shards = f"shards {now.shards_led}/{now.shards_total}"
        led = now.shards_led >= now.shards_total
        parts.append((2 if led else 0, Text(shards, "" if led else bad)))
        if now.serf:
            gossip = f"{safe_name(now.mode or 'gossip')} {safe_name(now.serf)}"
            parts.append((4 if now.serf == "ok" else 1, Text(gossip, "" if now.serf == "ok" else WARN)))
        elif now.mode:
            parts.append((6, Text(safe_name(now.mode))))
        parts.append((7, Text(f"up {span(now.uptime_ms)}")))
        parts.append((8, Text(f"v{safe_name(now.version)}", DIM)))
    elif board.fault is not None and board.fault.state:
        parts.append((0, Text(board.fault.state, BAD)))
    if stale(board, ui):  # except its first words: the name, and the age of the rest
        parts = [*parts[:2], *((rank, Text(part.plain.replace("●", "○"), OLD)) for rank, part in parts[2:])]
    if ui.paused:
        parts.append((0, Text("paused", WARN)))
    if board.recorded:
        number, total = board.played
        told = f"{moment(now.time_ms)[:19]}Z  {number}/{total}  x{ui.speed:g}" if total else ""
        parts.append((0, Text(f"recording {told}".rstrip(), WARN)))
    while sum(part.cell_len + 2 for _, part in parts) > width and any(rank for rank, _ in parts):
        parts.remove(max(parts, key=lambda part: part[0]))
    return fit(Text("  ").join(part for _, part in parts), width)


def tabs(ui: Ui, width: int) -> Text:
    names = [(number, name) for number, name in enumerate(VIEWS, 1)]
    long = sum(len(name) + 4 for _, name in names) + 1 <= width
    line = Text()
    for number, name in names:
        shown = f"{number} {name if long else SHORT.get(name, name)}"
        line.append("  " if line.plain else " ").append(shown, "bold reverse" if name == ui.view else "")
    if ui.path:
        line.append("  › " + " › ".join(map(safe_name, ui.path)), HEAD)
    return fit(line, width)


def bottom(board: Board, ui: Ui, width: int) -> Text:
    if ui.prompt is not None and ui.prompt.kind not in ASKED:
        label = Text(f" {safe_name(ui.prompt.label)} ", HEAD)
        room = max(8, width - label.cell_len - 2)
        text = Text(safe_name(ui.prompt.text))
        if text.cell_len > room:  # the end is being typed
            text = text[-room:]
        return fit(label.append_text(text).append("▏"), width)
    if ui.notice:
        return fit(Text(f" {safe_name(ui.notice)}", BAD if ui.bad else GOOD), width)
    if board.fault is not None and stale(board, ui):
        return fit(Text(f" {safe_name(board.fault.text)}: {safe_name(board.fault.hint)}", BAD), width)
    return fit(Text(" " + footer(board, ui, width), DIM), width)


def footer(board: Board, ui: Ui, width: int) -> str:
    """Return the keys that fit, the important ones first."""
    if ui.menu is not None:
        return "↑↓ move  ⏎ choose  esc back"
    if ui.prompt is not None:
        return ASKED.get(ui.prompt.kind, "")
    keys = ["? help", "q quit", "1-7 view", "↑↓ move"]
    if ui.view == "messages" and ui.path:
        keys += ["esc back", "r replay", "e edit", "d due", "c cancel", "x remove"]
    else:
        keys += ["⏎ open"] if not ui.path or ui.view == "topics" else []
        keys += ["esc back"] if ui.path or (ui.view == "messages" and ui.topic) else []
        keys += (
            ["/ search", "t tail", "pgup older"]
            if ui.view == "messages" and ui.topic
            else ["/ filter", "s sort"]
        )
        keys += ["a act"]
        keys += ["o next list"] if isinstance(view_of(ui), Page) else []
        keys += ["m messages"] if ui.view in ("topics", "overview") else []
    if board.recorded:
        keys[4:4] = [", . [ ] back, on", "+- speed"]
        keys += ["p pause", ": command"]
    else:
        keys += ["p pause", f"+- rate {ui.every_s:g}s", "w svg", ": command"]
    while len("  ".join(keys)) + 1 > width:
        keys.pop()
    return "  ".join([*keys[2:], *keys[:2]])


def plain(board: Board, ui: Ui, width: int, height: int) -> str:
    """Return the view under its header, for pipes: no colours, borders or footer."""
    lines = screen(board, ui, width, height)[:-1]
    del lines[1:2]
    kept = [_bare(line.plain) for line in lines]
    return "\n".join(line for line in kept if line.strip()) + "\n"


FRAMES = str.maketrans("╭╮╰╯│─", "      ")


def _bare(line: str) -> str:
    return line.translate(FRAMES).rstrip()
