"""Nodes with load, and events of the cluster; one node with workers, shards and configuration."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import BAD, DIM, GOOD, WARN, Column, beside, block, box, table
from gossipq_cli.dashboard.views.base import Lister, line_of, marked, opened, safe_name, share_bar, state_text
from gossipq_ops.figures import micros, short, size, span
from gossipq_ops.history import History
from gossipq_ops.questions import Subject
from gossipq_ops.rows import Copy, Event, Node, Shard, Worker

BAR = 7
BAD_EVENTS = ("failed", "lost", "down", "restart", "recovering", "full")
GOOD_EVENTS = ("join", "ready", "made")


def known(value: float, show: Any = str) -> str:
    return "-" if value < 0 else show(value)


def clock(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "--:--:--"


def node_columns(history: History, ui: Ui) -> list[Column[Node]]:
    def used(node: Node) -> float:
        return history.last("node-cpu", node.name)

    def load(node: Node) -> Text:
        if gone(node):
            return Text(f"{node.state} {span(node.silent_ms)}" if node.silent_ms > 0 else node.state, BAD)
        if node.state != "ready":
            return state_text(node.state)
        return share_bar(used(node) / 100, BAR, ui).append(f"{used(node):4.0f}%", "")

    columns: list[Column[Node]] = [
        Column("node", lambda node: marked(node.state, node.name), least=8, sort=lambda node: node.name)
    ]
    if any(node.cpu_ms >= 0 for node in history.now.nodes):
        columns.append(Column("cpu", load, leave=4, sort=used))
    else:
        columns.append(Column("state", lambda node: load(node) if gone(node) else state_text(node.state)))
    columns += [
        Column("lead", lambda node: str(node.leading), right=True, sort=lambda node: node.leading),
        Column("follow", lambda node: str(node.following), right=True, leave=7),
        Column(
            "msg/s",
            lambda node: quiet(node, short(history.last("node", node.name))),
            right=True,
            sort=lambda node: history.last("node", node.name),
        ),
        Column(
            "store",
            lambda node: quiet(node, size(node.store_bytes)),
            right=True,
            leave=2,
            sort=lambda node: node.store_bytes,
        ),
    ]
    columns += _machine_columns(history.now.nodes)
    columns += [
        Column("sessions", lambda node: quiet(node, str(node.sessions)), right=True, leave=6),
        Column("rtt", lambda node: quiet(node, known(node.rtt_us, micros)), right=True, leave=3),
        Column("seen", lambda node: known(node.silent_ms, span), right=True, leave=4),
        Column("version", lambda node: node.version, leave=9),
        Column(
            "load",
            draw=lambda node, width: (
                "" if gone(node) else line_of(history.series("node", node.name), width, ui)
            ),
            least=12,
            leave=8,
            grow=60,
        ),
        Column("address", lambda node: node.endpoint, leave=10),
    ]
    return columns


def _machine_columns(nodes: Sequence[Node]) -> Iterator[Column[Node]]:
    """Yield the columns that only some nodes can fill."""
    if any(node.disk_free_bytes >= 0 for node in nodes):
        yield Column("free", lambda node: quiet(node, known(node.disk_free_bytes, size)), right=True, leave=5)
    if any(node.commit_us > 0 for node in nodes):
        yield Column("commit", lambda node: quiet(node, micros(node.commit_us)), right=True, leave=4)
    if any(node.rss_bytes >= 0 for node in nodes):
        yield Column("rss", lambda node: quiet(node, known(node.rss_bytes, size)), right=True, leave=5)


def gone(node: Node) -> bool:
    return node.state in ("failed", "left")


def quiet(node: Node, text: str) -> str:
    """Return "-" for a node that is gone."""
    return "-" if gone(node) else text


def event_style(event: Event) -> str:
    if any(word in event.kind for word in BAD_EVENTS):
        return BAD
    return GOOD if any(word in event.kind for word in GOOD_EVENTS) else WARN


EVENT_COLUMNS: list[Column[Event]] = [
    Column("time", lambda event: Text(clock(event.time_ms), DIM)),
    Column("event", lambda event: Text(event.kind, event_style(event)), least=9),
    Column("who", lambda event: event.who, least=6),
    Column("what", lambda event: event.text, least=4),
]


def events_box(board: Board, ui: Ui, width: int, height: int, bare: bool = False) -> list[Text]:
    """Return the events, newest first."""
    events = sorted(board.history.events, key=lambda event: -event.time_ms)
    laid = table(EVENT_COLUMNS, events, width - 4, height - 1, empty="no event since this top was started")
    return box(
        "gossip events" if board.history.now.serf else "events",
        laid.lines[1:],
        width,
        height,
        str(len(events)),
        bare=bare,
    )


class Nodes(Lister):
    what = "node"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return node_columns(board.history, ui)

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Node]:
        return board.history.now.nodes

    def key(self, row: Node) -> str:
        return row.name

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        return opened(ui, chosen)

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("node", (chosen,)) if chosen else None

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        top = min(height // 2, max(6, len(board.history.now.nodes) + 4))
        lines, where = self.listed(board, ui, width - 4, top - 2)
        help_text = "enter: workers, shards, configuration  a: act"
        return [
            *box("nodes", lines, width, top, f"{help_text}  {where}"),
            *events_box(board, ui, width, height - top),
        ]


class Held(NamedTuple):
    """A shard in the view of one of its nodes."""

    shard: Shard
    copy: Copy


def shard_columns(history: History, name: str) -> list[Column[Held]]:
    return [
        Column("shard", lambda held: str(held.shard.shard), right=True, sort=lambda held: held.shard.shard),
        Column("state", lambda held: state_text(held.shard.state), sort=lambda held: held.shard.state),
        Column("here", lambda held: role_text(held.copy.role), sort=lambda held: held.copy.role),
        Column("lag", lambda held: short(held.copy.lag), right=True, sort=lambda held: held.copy.lag),
        Column("term", lambda held: str(held.shard.term), right=True, leave=2),
        Column("worker", lambda held: known(held.shard.worker), right=True, leave=3),
        Column("pid", lambda held: str(held.shard.pid or "-"), right=True, leave=4),
        Column(
            "other copies",
            draw=lambda held, width: copies_text(held.shard, name, width),
            least=20,
            leave=1,
            grow=60,
        ),
    ]


def role_text(role: str) -> Text:
    return Text(role, GOOD if role == "leader" else "" if role == "follower" else DIM)


def copies_text(shard: Shard, without: str, width: int) -> Text:
    """Return the other copies with their lag, worst first, as "node-c +120 ✖, node-b +0".

    Names can be cut, lags cannot.
    """
    copies = [copy for copy in shard.copies if copy.node != without]
    copies.sort(key=lambda copy: (copy.reachable, -copy.lag))
    if not copies:
        return Text("no other copy", DIM)
    found, used = Text(), 0
    for at, copy in enumerate(copies):
        more = len(copies) - at
        role = "" if copy.role in ("leader", "follower") else f" {copy.role}"
        lag = f" leads{role}" if copy.role == "leader" else f"{role} +{short(copy.lag)}"
        tail = f"{lag}{'' if copy.reachable else ' ✖'}"
        name, room = Text(safe_name(copy.node)), width - used - len(tail) - (2 if at else 0)
        spare = 0 if more == 1 else len(f", {more - 1} more")
        if at and name.cell_len > room - spare:
            return found.append(f", {more} more")
        name.truncate(max(1, room - (spare if not at else 0)), overflow="ellipsis")
        found.append(", " if at else "").append_text(name.append(tail))
        if not copy.reachable:
            found.stylize(BAD, len(found) - len(name))
        used = found.cell_len
    return found


WORKER_COLUMNS: list[Column[Worker]] = [
    Column("worker", lambda worker: str(worker.worker), right=True),
    Column("state", lambda worker: state_text(worker.state)),
    Column("pid", lambda worker: str(worker.pid), right=True),
    Column("leads", lambda worker: str(worker.leading), right=True),
    Column("sessions", lambda worker: str(worker.sessions), right=True, leave=3),
    Column("published", lambda worker: short(worker.published), right=True, leave=1),
    Column("delivered", lambda worker: short(worker.delivered), right=True, leave=1),
    Column("refused", lambda worker: short(worker.refused), right=True, leave=2),
    Column("dead", lambda worker: short(worker.dead), right=True, leave=4),
    Column("commit", lambda worker: micros(worker.commit_us), right=True, leave=2),
    Column("store", lambda worker: size(worker.store_bytes), right=True),
    Column("restarts", lambda worker: str(worker.restarts), right=True),
    Column("address", lambda worker: worker.endpoint, leave=5),
    Column("detail", lambda worker: worker.detail, least=6, leave=6),
]


class NodePage(Lister):
    what = "shard"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return shard_columns(board.history, ui.path[0])

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Held]:
        return [
            Held(shard, copy)
            for shard in board.history.now.shards
            for copy in shard.copies
            if copy.node == ui.path[0]
        ]

    def key(self, row: Held) -> str:
        return str(row.shard.shard)

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        return opened(ui, ui.path[0], chosen)

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("node", ui.path[:1])

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        now, name = board.history.now, ui.path[0]
        node = next((node for node in now.nodes if node.name == name), None)
        if node is None:
            return box(name, [Text("this node is not in the cluster any more", WARN)], width, height)
        workers = [worker for worker in now.workers if worker.node == name]
        top = min(height // 2, max(4, len(workers) + 3))
        about = f"{name}  {node.state}  {node.version}  up {span(node.uptime_ms)}  {node.endpoint}"
        upper = box(
            about,
            table(WORKER_COLUMNS, workers, width - 4, top - 2, empty="no workers").lines,
            width,
            top,
            node.detail,
        )
        left = width if width < 100 or not node.config else width - min(width // 2, 80)
        if left == width and node.config and height - top >= 10:
            half = (height - top) // 2
            lines, where = self.listed(board, ui, width - 4, half - 2)
            return [
                *upper,
                *box("shards", lines, width, half, where),
                *config_box(node, width, height - top - half),
            ]
        lines, where = self.listed(board, ui, left - 4, height - top - 2)
        shards = box("shards", lines, left, height - top, where)
        if left == width:
            return [*upper, *shards]
        return [*upper, *beside(shards, config_box(node, width - left, height - top))]


def config_box(node: Node, width: int, height: int) -> list[Text]:
    pairs: list[Column[tuple[str, str]]] = [
        Column("key", lambda pair: Text(pair[0], DIM), least=10),
        Column("value", lambda pair: pair[1], least=8),
    ]
    rows = sorted(node.config.items())
    laid = table(pairs, rows, width - 4, height - 1)
    return box(
        "running configuration",
        block(laid.lines[1:], width - 4, height - 2),
        width,
        height,
        "secrets are masked",
    )
