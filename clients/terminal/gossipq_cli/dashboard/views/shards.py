"""One shard: its copies and its partitions."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import BAD, WARN, Column, box, table
from gossipq_cli.dashboard.views.base import SEPARATOR, Lister, state_text
from gossipq_cli.dashboard.views.nodes import role_text
from gossipq_cli.dashboard.views.topics import by_name
from gossipq_ops.figures import short, size
from gossipq_ops.questions import Subject
from gossipq_ops.rows import Copy, Partition
from gossipq_ops.sums import records_of

COPY_COLUMNS: list[Column[Copy]] = [
    Column("copy on", lambda copy: copy.node, least=8),
    Column("role", lambda copy: role_text(copy.role)),
    Column("lag", lambda copy: short(copy.lag), right=True),
    Column("", lambda copy: "" if copy.reachable else Text("does not answer", BAD)),
]
PARTITION_COLUMNS: list[Column[Partition]] = [
    Column("topic", lambda part: part.topic, least=12, sort=lambda part: by_name(part.topic)),
    Column("P", lambda part: str(part.partition), right=True),
    Column("records", lambda part: short(records_of(part)), right=True, sort=records_of),
    Column("bytes", lambda part: size(part.bytes), right=True, sort=lambda part: part.bytes),
    Column("first", lambda part: str(part.first), right=True, leave=2),
    Column("next", lambda part: str(part.next), right=True, leave=1),
]


class ShardPage(Lister):
    what = "partition"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return PARTITION_COLUMNS

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Partition]:
        found = [part for part in board.history.now.partitions if str(part.shard) == ui.path[1]]
        return sorted(found, key=lambda part: (by_name(part.topic), part.partition))

    def key(self, row: Partition) -> str:
        return f"{row.topic}{SEPARATOR}{row.partition}"

    def of_nodes(self, row: Partition) -> bool:
        return row.topic.startswith("_")

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        topic, _, number = chosen.partition(SEPARATOR)
        found = msgspec.structs.replace(ui, view="messages", topic=topic, partition=int(number), path=())
        return msgspec.structs.replace(found, tail=True, back=0, find="")

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("partition", tuple(chosen.split(SEPARATOR, 1))) if chosen else None

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        shard = next((shard for shard in board.history.now.shards if str(shard.shard) == ui.path[1]), None)
        if shard is None:
            return box(f"shard {ui.path[1]}", [Text("nobody tells of this shard", WARN)], width, height)
        top = min(height // 2, len(shard.copies) + 3)
        title = Text(f"shard {shard.shard}  ").append_text(state_text(shard.state))
        title.append(f"  led by {shard.leader or 'nobody'}  term {shard.term}")
        copies = table(COPY_COLUMNS, shard.copies, width - 4, top - 2, empty="no copy is known").lines
        lines, where = self.listed(board, ui, width - 4, height - top - 2)
        return [
            *box(title, copies, width, top),
            *box("partitions", lines, width, height - top, f"enter: messages  a: act  {where}"),
        ]
