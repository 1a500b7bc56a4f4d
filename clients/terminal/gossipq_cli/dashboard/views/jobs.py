"""The jobs of a group, with the errors of failed ones and the schedules of the topic; the last hour of a
schedule.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from gossipq.texts import moment, readable
from gossipq_cli.dashboard.state import JOBS, Board, Ui
from gossipq_cli.dashboard.table import BAD, DIM, GOOD, LIVE, UNSORTED, WARN, Column, box
from gossipq_cli.dashboard.views.base import SEPARATOR, Lister, Page, Section, opened, safe_name
from gossipq_cli.dashboard.views.nodes import clock
from gossipq_ops.figures import bar, short, span, stretch
from gossipq_ops.jobs import Lane, is_slow, lanes
from gossipq_ops.questions import (
    Failed,
    Job,
    JobError,
    Planned,
    Ran,
    Runs,
    Subject,
    Ticked,
    Work,
    Working,
)

TONES = {"succeeded": GOOD, "running": LIVE, "failed": BAD, "expired": BAD}
PROGRESS = 12  #: columns of a bar


def job_columns(now_ms: int, ui: Ui) -> list[Column[Job]]:
    def state(job: Job) -> Text:
        slow = is_slow(job, now_ms)
        return Text("slow" if slow else job.state, LIVE if job.state == "running" and not slow else WARN)

    def age(job: Job) -> str:
        if not job.time_ms:
            return "-"
        return ("in " if job.state == "retrying" else "") + span(abs(now_ms - job.time_ms))

    def progress(job: Job) -> Text:
        if job.progress < 0:
            return Text("-", DIM)
        return Text(bar(job.progress, PROGRESS, ui.graph), GOOD).append(f" {job.progress:>4.0%}", "")

    return [
        Column("job", lambda job: safe_name(job.ref), least=10),
        Column("state", state),
        Column("time", age, right=True),
        Column("progress", progress, leave=1),
        Column("attempt", lambda job: str(job.attempt), right=True, leave=3),
        Column("consumer", lambda job: safe_name(job.consumer) or "-", least=6, leave=4),
        Column("text", lambda job: readable((job.text or job.because).encode()), least=8, leave=2),
    ]


ERROR_COLUMNS: list[Column[JobError]] = [
    Column("failed", lambda row: Text(short(row.jobs), BAD), right=True),
    Column("newest", lambda row: Text(clock(row.last_ms), DIM), leave=2),
    Column("error", lambda row: readable(row.error.encode()), least=12),
    Column("ref", lambda row: safe_name(row.ref), leave=3),
]


def schedule_columns(now_ms: int) -> list[Column[Planned]]:
    def upcoming(row: Planned) -> Text:
        if not row.next_ms:
            return Text("paused" if row.paused else "ended", WARN if row.paused else DIM)
        return Text(f"in {span(max(0, row.next_ms - now_ms))}")

    return [
        Column("schedule", lambda row: safe_name(row.name), least=8),
        Column("next", upcoming, right=True),
        Column("when", lambda row: safe_name(row.when), least=8, leave=1),
        Column("records", lambda row: short(row.ticks), right=True, leave=2),
    ]


class JobsPage(Page):
    """Jobs, errors and schedules of one group, with one pointer over all."""

    what = "job"
    sorting = UNSORTED

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return job_columns(board.history.now.time_ms, ui)

    def sections(self, board: Board, ui: Ui) -> list[Section]:
        answer, now_ms = board.answers.get(Work(ui.path[0], ui.path[1])), board.history.now.time_ms
        found = answer if isinstance(answer, Working) else Working([], [], [])
        nothing = "no job runs, and none is retried"
        if not isinstance(answer, Working):
            nothing = "not available in a recording" if board.recorded else "asking ..."
        sections = [
            Section("jobs", job_columns(now_ms, ui), found.jobs, lambda job: str(job.ref), nothing),
            Section("errors", ERROR_COLUMNS, found.errors, lambda row: str(row.name), "no job has failed"),
            Section(
                "schedules",
                schedule_columns(now_ms),
                found.schedules,
                lambda row: str(row.name),
                "no schedules",
            ),
        ]
        wanted = ui.look.filter.casefold()
        return [
            each._replace(rows=[row for row in each.rows if wanted in each.key(row).casefold()])
            for each in sections
        ]

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        """Open the record of a job, the newest record of an error, or a schedule."""
        name, _, key = chosen.partition(SEPARATOR)
        if name == "schedules":
            return opened(ui, *ui.path, key)
        if name == "errors":
            rows = self.sections(board, ui)[1].rows
            key = next(row.ref for row in rows if row.name == key)
        return opened(msgspec.structs.replace(ui, view="messages", topic=ui.path[0]), key)

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        topic, group = ui.path[:2]
        name, _, key = chosen.partition(SEPARATOR)
        if name == "jobs":
            return Subject("job", (key, group))
        if name == "errors":
            return Subject("error", (topic, group, key))
        return Subject("schedule", (topic, key)) if name == "schedules" else Subject("group", (topic, group))

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        topic, group = ui.path[:2]
        answer = board.answers.get(Work(topic, group))
        if isinstance(answer, Failed):
            told = [Text(safe_name(answer.text), BAD), Text(safe_name(answer.hint), DIM)]
            return box(f"jobs of {group} on {topic}", told, width, height, "esc: back")
        sections = self.sections(board, ui)
        pointer = self.pointer(sections, ui)
        count = len(sections[0].rows)
        of = f" of {answer.total}" if isinstance(answer, Working) and answer.total > count else ""
        titles = {
            "jobs": f"jobs of {group} on {topic}: {count}{of} running or retried",
            "errors": "failed, by error",
            "schedules": f"schedules of {topic}",
        }
        least = max(4, height // 4)
        low = [min(len(each.rows) + 3, least) for each in sections[1:]]
        lines: list[Text] = []
        for section, tall in zip(sections, [height - sum(low), *low], strict=True):
            listed, where = self.part(section, pointer, (width - 4, tall - 2))
            foot = f"a: act  o: next list  {where}" if section.name == "jobs" else where
            lines += box(titles[section.name], listed, width, tall, foot)
        return lines


class SchedulePage(Lister):
    """The last hour of a schedule: one line for each tick."""

    what = "tick"
    sorting = UNSORTED

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        def drawn(row: tuple[Ran, Lane], width: int) -> Text:
            run, lane = row
            return Text(stretch(lane.begin, lane.run, lane.end, width, ui.graph), TONES.get(run.state, WARN))

        def took(row: tuple[Ran, Lane]) -> str:
            run = row[0]
            if run.end_ms:
                return span(max(0, run.end_ms - run.tick_ms))
            return f"{run.progress:.0%}" if run.progress >= 0 else "-"

        return [
            Column("tick", lambda row: clock(row[0].tick_ms)),
            Column("state", lambda row: Text(safe_name(row[0].state), TONES.get(row[0].state, WARN))),
            Column("time", took, right=True),
            Column("last hour", draw=drawn, least=20),
            Column("ref", lambda row: safe_name(row[0].ref) or "-", least=8, leave=1),
        ]

    def all_rows(self, board: Board, ui: Ui) -> Sequence[tuple[Ran, Lane]]:
        answer = self._answer(board, ui)
        return lanes(answer.runs, board.history.now.time_ms) if isinstance(answer, Ticked) else []

    def key(self, row: tuple[Ran, Lane]) -> str:
        return str(row[0].tick_ms)

    def empty(self, board: Board, ui: Ui) -> str:
        answer = self._answer(board, ui)
        if isinstance(answer, Failed):
            return answer.text
        if answer is None:
            return "not available in a recording" if board.recorded else "asking ..."
        return "no tick in the last hour"

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        """Open the record of a tick, if it got one."""
        ref = next((run.ref for run, _ in self.all_rows(board, ui) if str(run.tick_ms) == chosen), "")
        return opened(msgspec.structs.replace(ui, view="messages", topic=ui.path[0]), ref) if ref else ui

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("schedule", (ui.path[0], ui.path[3]))

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 5)
        answer, told = self._answer(board, ui), Text("asking ...", DIM)
        if isinstance(answer, Ticked):
            upcoming = ", ".join(moment(each)[11:19] for each in answer.next_ms)
            state = "paused" if answer.schedule.paused else f"next: {upcoming or '-'}"
            told = Text(f"{safe_name(answer.schedule.when)}  {state}  {short(answer.schedule.ticks)} records")
        title = f"schedule {safe_name(ui.path[3])} of {safe_name(ui.path[0])}"
        foot = f"the last ten ticks  enter: its record  a: act  {where}"
        return [*box(title, [told], width, 3), *box("the last hour", lines, width, height - 3, foot)]

    @staticmethod
    def _answer(board: Board, ui: Ui) -> object:
        return board.answers.get(Runs(ui.path[0], ui.path[1], ui.path[3]))


def jobs_of(ui: Ui, topic: str, group: str) -> Ui:
    """Return the Ui with the jobs of a group opened."""
    return opened(msgspec.structs.replace(ui, view="groups"), topic, group, JOBS)
