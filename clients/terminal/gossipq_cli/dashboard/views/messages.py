"""Messages of a topic: tail, older ones, search; one record with its state and history."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from gossipq.texts import brief, moment, readable
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import BAD, DIM, GOOD, HEAD, LIVE, WARN, Column, box, wrapped
from gossipq_cli.dashboard.views.base import Lister, none_yet, opened, safe_name
from gossipq_cli.dashboard.views.topics import topic_columns, topic_rows
from gossipq_ops.figures import short, size
from gossipq_ops.questions import (
    Failed,
    Find,
    Open,
    Opened,
    Page,
    Record,
    Records,
    Subject,
    of_record,
)

VALUE_SHOWN = 16_384  #: bytes of an opened value that are drawn
COLORS = {"acked": GOOD, "ready": LIVE, "in_flight": LIVE, "dead": BAD}
VERBS = "r replay  e edit  d due  c cancel  x remove"


def key_text(record: Record) -> str:
    return "-" if record.key is None else brief(record.key, 24)


def value_text(record: Record) -> Text:
    return Text("gone", DIM) if record.gone else Text(brief(record.value, 400))


COLUMNS: list[Column[Record]] = [
    Column(
        "p",
        lambda record: str(record.partition),
        right=True,
        sort=lambda record: (record.partition, record.offset),
    ),
    Column("offset", lambda record: str(record.offset), right=True, sort=lambda record: record.offset),
    Column("stored", lambda record: _time(record), leave=2, sort=lambda record: record.time_ms),
    Column("key", lambda record: key_text(record), least=6, leave=3),
    Column("size", lambda record: "-" if record.gone else size(record.size), right=True, leave=4),
    Column("value", lambda record: value_text(record), least=12),
]


def _time(record: Record) -> str:
    return moment(record.time_ms)[11:23] if record.time_ms else "-"


class Messages(Lister):
    """Without a topic, a list of topics to choose from."""

    what = "message"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return COLUMNS if ui.topic else topic_columns(board.history, ui)

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Any]:
        if not ui.topic:
            return [row for row in topic_rows(board.history) if not row.topic.virtual]
        answer = answer_of(board, ui)
        return answer.records if isinstance(answer, Records) else []

    def key(self, row: Any) -> str:
        return row.ref if isinstance(row, Record) else str(row.topic.name)

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        if ui.topic:
            return opened(ui, chosen)
        return msgspec.structs.replace(ui, topic=chosen, partition=-1, tail=True, back=0, find="")

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        if not chosen:
            return Subject("topic", (ui.topic,)) if ui.topic else None
        return of_record(chosen) if ui.topic else Subject("topic", (chosen,))

    def pointed(self, keys: Sequence[str], ui: Ui) -> int:
        """Return the pointer: at the newest record until the user moves it."""
        if ui.topic and ui.tail and not ui.find and not ui.look.chosen:
            return len(keys) - 1
        return super().pointed(keys, ui)

    def empty(self, board: Board, ui: Ui) -> str:
        answer = answer_of(board, ui)
        if board.recorded and ui.topic:
            return "a recording has no messages"
        if isinstance(answer, Failed):
            return answer.text
        if not ui.topic:
            return none_yet(board.history, 'no topic yet: gossipq pub hello "first message"')
        if answer is None:
            return "asking ..."
        return f"none contains {ui.find!r}" if ui.find else "no messages"

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 2)
        if not ui.topic:
            return box("messages: choose a topic", lines, width, height, f"enter: its messages  {where}")
        place = ui.topic if ui.partition < 0 else f"{ui.topic}/{ui.partition}"
        answer = answer_of(board, ui)
        if ui.find:
            looked = (
                f"{answer.looked:,} of {answer.total:,} looked at  "
                if isinstance(answer, Records)
                else "searching ...  "
            )
            return box(
                f"{place}  contains {ui.find!r}",
                lines,
                width,
                height,
                f"{looked}{where}  esc: back to the tail",
            )
        how = "tail" if ui.tail else f"{ui.back:,} before the end"
        rate = f"live {short(board.history.last('topic', ui.topic))}/s" if ui.tail else "t: tail"
        return box(
            f"{place}  {how}",
            lines,
            width,
            height,
            f"enter: why, trace  / search  pgup older  {rate}  {where}",
        )


def answer_of(board: Board, ui: Ui) -> object:
    """Return the newest page or search of this topic."""
    for ask, answer in board.answers.items():
        if isinstance(ask, Find) and ui.find and (ask.topic, ask.text) == (ui.topic, ui.find):
            return answer
        if isinstance(ask, Page) and not ui.find and (ask.topic, ask.partition) == (ui.topic, ui.partition):
            return answer
    return None


class RecordPage(Lister):
    """The page of one record, without a list."""

    what = "record"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return []

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Any]:
        return []

    def key(self, row: Any) -> str:
        return ""

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return of_record(ui.path[0])

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        ref = ui.path[0]
        answer = board.answers.get(Open(ref))
        if isinstance(answer, Failed):
            return box(ref, [Text(answer.text, BAD), Text(answer.hint, DIM)], width, height, "esc: back")
        if not isinstance(answer, Opened):
            told = "not available in a recording" if board.recorded else "asking ..."
            return box(ref, [Text(told, DIM)], width, height)
        inner = width - 4
        why, trace = _why_lines(answer, inner), _trace_lines(answer)
        why_height = min(len(why) + 2, max(5, height // 3))
        trace_height = min(len(trace) + 2, max(4, height // 4)) if trace else 0
        content = height - why_height - trace_height
        at = max(0, ui.look.at)
        shown = _content_lines(answer, inner)
        first = max(0, min(at, len(shown) - (content - 2)))
        lines = box(ref, shown[first:], width, content, f"{size(answer.size)}  {VERBS}")
        lines += box("why", why, width, why_height)
        return lines + (box("trace", trace, width, trace_height) if trace else [])


def _content_lines(answer: Opened, width: int) -> list[Text]:
    fields = [Text(f"{safe_name(name)} ", DIM).append(safe_name(text)) for name, text in answer.fields]
    text = readable(answer.value[:VALUE_SHOWN], keep="\n")
    value = wrapped(text, width, keep_lines=True)
    if len(answer.value) < answer.size or answer.size > VALUE_SHOWN:
        value.append(Text("... the rest: gossipq msg show --raw", DIM))
    return [*fields, Text(), *value]


def _why_lines(answer: Opened, width: int) -> list[Text]:
    lines: list[Text] = []
    for stand in answer.stands:
        head = (
            Text(safe_name(stand.group) or "every group", HEAD)
            .append(": ")
            .append(safe_name(stand.state.replace("_", " ")), COLORS.get(stand.state, WARN))
        )
        if stand.time_ms:
            head.append(f"  {moment(stand.time_ms)}", DIM)
        if stand.attempts:
            head.append(f"  attempts {stand.attempts}, failures {stand.failures}", DIM)
        lines.append(head)
        lines += wrapped(f"  {stand.because}", width) if stand.because else []
        lines += wrapped(f"  {stand.next}", width, HEAD) if stand.next else []
    return lines + [Text(safe_name(line), DIM) for line in answer.lines]


def _trace_lines(answer: Opened) -> list[Text]:
    """Return the trace. Times count from the first step."""
    if not answer.steps:
        return []
    first = answer.steps[0].time_ms
    return [
        Text(f"{_since(step.time_ms - first):>9} ", DIM)
        .append(
            f"{safe_name(step.what.replace('_', ' ')):<11} ", BAD if step.what in ("failed", "dead") else ""
        )
        .append(safe_name("  ".join(_details(step))))
        for step in answer.steps
    ]


def _details(step: Any) -> list[str]:
    found = [f"group {step.group}"] if step.group else []
    found += [f"by {step.consumer}"] if step.consumer else []
    found += [f"attempt {step.attempt}"] if step.attempt else []
    return found + ([step.reason] if step.reason else [])


def _since(value_ms: int) -> str:
    return f"+{value_ms} ms" if value_ms < 10_000 else f"+{value_ms / 1_000:.0f} s"
