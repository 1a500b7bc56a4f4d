"""Topics with records and rates; one topic with partitions, their leaders, and policy."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import BAD, DIM, WARN, Column, Sorting, beside, block, box, flowed, table
from gossipq_cli.dashboard.views.base import Lister, line_of, opened, safe_name, state_text
from gossipq_cli.dashboard.views.nodes import copies_text, known
from gossipq_ops.figures import short, size
from gossipq_ops.history import History
from gossipq_ops.questions import Subject
from gossipq_ops.rows import Partition, Shard, Topic
from gossipq_ops.sums import TopicSum, records_of

STATES = ("ready", "in_flight", "retrying", "parked", "scheduled", "acked", "dead", "voided", "removed")


class Sum(NamedTuple):
    topic: Topic
    sums: TopicSum


def topic_columns(history: History, ui: Ui, few: bool = False) -> list[Column[Sum]]:
    """Return the columns. `few`: those of the overview."""

    def rate(row: Sum) -> float:
        return history.last("topic", row.topic.name)

    def count(title: str, field: str, leave: int, style: str = "") -> Column[Sum]:
        def cell(row: Sum) -> Text:
            value = getattr(row.sums, field)
            return Text(short(value), style if value else "")

        return Column(title, cell, right=True, leave=leave, sort=lambda row: getattr(row.sums, field))

    columns: list[Column[Sum]] = [
        Column("topic", _name, least=9 if few else 12, sort=lambda row: by_name(row.topic.name)),
        Column(
            "P",
            lambda row: str(row.sums.partitions or "-"),
            right=True,
            leave=5,
            sort=lambda row: row.sums.partitions,
        ),
        Column("in/s", lambda row: short(rate(row)), right=True, sort=rate),
        count("records", "records", 0),
    ]
    if not few:
        columns += [
            count("ready", "ready", 4),
            count("fly", "in_flight", 5),
            count("retry", "retrying", 6, WARN),
            count("park", "parked", 8, WARN),
            count("sched", "scheduled", 7),
            count("dead", "dead", 2, BAD),
            count("acked", "acked", 9),
            Column(
                "bytes",
                lambda row: size(row.sums.bytes),
                right=True,
                leave=1,
                sort=lambda row: row.sums.bytes,
            ),
        ]
    trend: Column[Sum] = Column(
        "last minutes",
        draw=lambda row, width: line_of(history.series("topic", row.topic.name), width, ui),
        least=12,
        leave=3,
        grow=0 if few else 60,
    )
    return [*columns, trend]


def _name(row: Sum) -> Text:
    name = Text(safe_name(row.topic.name))
    if row.topic.virtual:
        name.append(f" -> {safe_name(', '.join(row.topic.virtual))}", DIM)
    return name


def by_name(topic: str) -> tuple[bool, str]:
    """Return a sort key: system topics come last."""
    return topic.startswith("_"), topic


def topic_rows(history: History) -> list[Sum]:
    known_topics = {topic.name: topic for topic in history.now.topics}
    names = known_topics.keys() | history.topics.keys()
    return [
        Sum(known_topics.get(name) or Topic(name=name), history.topics.get(name, TopicSum()))
        for name in sorted(names, key=by_name)
    ]


class Topics(Lister):
    what = "topic"
    counted = True
    sorting = Sorting("topic", False)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return topic_columns(board.history, ui)

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Sum]:
        return topic_rows(board.history)

    def key(self, row: Sum) -> str:
        return row.topic.name

    def of_nodes(self, row: Sum) -> bool:
        return row.topic.name.startswith("_")

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        return opened(ui, chosen)

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("topic", (chosen,)) if chosen else None

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 2)
        return box("topics", lines, width, height, f"enter: partitions  m: messages  a: act  {where}")


class Part(NamedTuple):
    partition: Partition
    shard: Shard
    dead: int


def part_columns() -> list[Column[Part]]:
    def count(title: str, field: str, leave: int = 0) -> Column[Part]:
        return Column(
            title,
            lambda part: short(getattr(part.partition, field)),
            right=True,
            leave=leave,
            sort=lambda part: getattr(part.partition, field),
        )

    return [
        Column(
            "P",
            lambda part: str(part.partition.partition),
            right=True,
            sort=lambda part: part.partition.partition,
        ),
        Column("shard", lambda part: str(part.partition.shard), right=True, leave=8),
        Column(
            "leader",
            lambda part: part.shard.leader or Text("nobody", BAD),
            least=6,
            sort=lambda part: part.shard.leader,
        ),
        Column("worker", lambda part: known(part.shard.worker), right=True, leave=2),
        Column("pid", lambda part: str(part.shard.pid or "-"), right=True, leave=2),
        Column("first", lambda part: str(part.partition.first), right=True, leave=7),
        Column("next", lambda part: str(part.partition.next), right=True, leave=5),
        Column(
            "records",
            lambda part: short(records_of(part.partition)),
            right=True,
            sort=lambda part: records_of(part.partition),
        ),
        Column(
            "bytes",
            lambda part: size(part.partition.bytes),
            right=True,
            leave=6,
            sort=lambda part: part.partition.bytes,
        ),
        count("sched", "scheduled", 9),
        count("void", "voided", 10),
        Column("dead", lambda part: Text(short(part.dead), BAD if part.dead else ""), right=True, leave=3),
        Column("state", lambda part: state_text(part.shard.state), leave=4),
        Column(
            "followers",
            draw=lambda part, width: copies_text(part.shard, part.shard.leader, width),
            least=24,
            leave=1,
            grow=70,
        ),
    ]


def _count_text(state: str, value: int) -> Text:
    style = BAD if state == "dead" and value else WARN if state in ("retrying", "parked") and value else ""
    return Text().append(f"{state.replace('_', ' ')} ", DIM).append(short(value), style)


class TopicPage(Lister):
    what = "partition"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return part_columns()

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Part]:
        now, name = board.history.now, ui.path[0]
        shards = {shard.shard: shard for shard in now.shards}
        dead: dict[int, int] = {}
        for group in now.groups:
            if group.topic == name:
                dead[group.partition] = dead.get(group.partition, 0) + group.dead
        return [
            Part(
                part,
                shards.get(part.shard) or Shard(shard=part.shard, state="unknown"),
                dead.get(part.partition, 0),
            )
            for part in sorted(now.partitions, key=lambda part: part.partition)
            if part.topic == name
        ]

    def key(self, row: Part) -> str:
        return str(row.partition.partition)

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        """Open the messages of this partition. Escape returns to the topics."""
        found = msgspec.structs.replace(ui, view="messages", topic=ui.path[0], partition=int(chosen), path=())
        return msgspec.structs.replace(found, tail=True, back=0, find="")

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("partition", (ui.path[0], chosen)) if chosen else Subject("topic", ui.path)

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        name = ui.path[0]
        found = next((row for row in topic_rows(board.history) if row.topic.name == name), None)
        if found is None:
            return box(name, [Text("this topic is gone", WARN)], width, height)
        sums = found.sums
        counts = [_count_text(state, getattr(sums, state)) for state in STATES]
        lines = flowed(counts, width - 4)
        top = len(lines) + 4
        rate = board.history.series("topic", name)
        now = f"in {short(board.history.last('topic', name))}/s"
        about = [*lines, line_of(rate, width - 4, ui), Text(now, DIM)]
        virtual = (
            f"copied to {', '.join(found.topic.virtual)}"
            if found.topic.virtual
            else f"{size(sums.bytes)} stored"
        )
        upper = box(f"{name}  {virtual}", about, width, top, "a record counts once for each group")
        config = sorted(found.topic.config.items())
        right = 0 if width < 140 or not config else 38
        lines, where = self.listed(board, ui, width - right - 4, height - top - 2)
        parts = box("partitions", lines, width - right, height - top, f"enter: messages  {where}")
        if not right:
            return [*upper, *parts]
        pairs: list[Column[tuple[str, str]]] = [
            Column("key", lambda pair: Text(pair[0], DIM)),
            Column("value", lambda pair: pair[1], least=6),
        ]
        policy = table(pairs, config, right - 4, height - top - 1).lines[1:]
        return [
            *upper,
            *beside(parts, box("policy", block(policy, right - 4, height - top - 2), right, height - top)),
        ]
