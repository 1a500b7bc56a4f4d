"""Consumers of the simulator report their progress; the checks compare what is shown with it (P29)."""

from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from gossipq.messages import Acked, ReportProgress
from gossipq.values import JobProgress
from sim.history import History, JobHeard, Reported

if TYPE_CHECKING:
    from sim.clients import Consumer

GROUP = "g"  #: only its consumers report
PROGRESS_SHARE = 0.4  #: of the runs with results
REPORTS_MAX = 4  #: of one record
PAUSE_MS = 60  #: at most, between the answer of a report and the next report
LATEST = 12  #: reports, of which a client asks for one record
ENDED = ("succeeded", "failed", "cancelled", "expired")


class Sent(NamedTuple):
    """A report that waits for its answer, and how many more its consumer makes of the record."""

    report: Reported
    left: int


class Reports:
    """The reports of one consumer. It makes the next one of a record when the last one was answered, and does
    not stop when it acks the record: a late report must change nothing."""

    def __init__(self, consumer: "Consumer") -> None:
        self.consumer = consumer
        self.dice = Random(f"{consumer.world.seed}/{consumer.name}/reports")
        self.waiting: dict[int, Sent] = {}

    def begin(self, partition: int, offset: int, takes_ms: int) -> None:
        """Report something while the work on a record lasts, and after it."""
        world = self.consumer.world
        if world.history.keeps_progress and self.consumer.group == GROUP:
            world.at(self.dice.randrange(1, takes_ms), self.say, partition, offset, REPORTS_MAX)

    def say(self, partition: int, offset: int, left: int) -> None:
        consumer, world = self.consumer, self.consumer.world
        if consumer.stopped or not left:
            return
        text = f"{consumer.name}-{consumer.requests}"
        rows = [JobProgress(partition, offset, self.dice.random(), text)]
        request_id = consumer.ask(ReportProgress(1, rows))
        report = Reported(world.now, -1, 0, partition, offset, text)
        world.history.reports[text] = report
        self.waiting[request_id] = Sent(report, left - 1)

    def answered(self, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        """Note which report the leader has taken, and make the next one."""
        report, left = self.waiting.pop(request_id)
        if isinstance(answer, Acked) and not answer.lost:
            self.consumer.world.history.count("progress reported")
            stored = report._replace(stored_ms=sent_ms, term=term)
            self.consumer.world.history.reports[report.text] = stored
        again_ms = self.dice.randrange(1, PAUSE_MS)
        self.consumer.world.at(again_ms, self.say, report.partition, report.offset, left)


def lately_reported(history: History, dice: Random, partition: int) -> int:
    """Return the offset of a record with a recent report, or -1."""
    rows = [row for row in list(history.reports.values())[-LATEST:] if row.partition == partition]
    return dice.choice(rows).offset if rows else -1


def newer_reports_stay(history: History) -> Iterator[str]:
    """P29: what is shown was reported of this record, and no report is shown over a later one. Another leader
    may not have a report that was not synced, so only answers of one term are compared.
    """
    by_place: dict[tuple[int, int], list[Reported]] = defaultdict(list)
    for row in history.reports.values():
        by_place[row.partition, row.offset].append(row)
    for heard in history.heard_jobs:
        if not heard.text:
            continue
        place, shown = (heard.partition, heard.offset), history.reports.get(heard.text)
        if shown is None or (shown.partition, shown.offset) != place or shown.asked_ms > heard.time_ms:
            yield f"P29 {heard.text!r} is shown of {heard.offset}, and nobody reported that of it"
            continue
        for later in by_place[place] if heard.state not in ENDED else ():
            known = later.term == heard.term and 0 <= later.stored_ms < heard.asked_ms
            if known and 0 <= shown.stored_ms < later.asked_ms:
                yield (
                    f"P29 {heard.text!r} is shown of {heard.offset} at {heard.time_ms}; {later.text!r} was "
                    f"reported at {later.stored_ms}, after it"
                )


def ends_end_reports(history: History) -> Iterator[str]:
    """P29: what is shown of a job does not change when it has succeeded."""
    ended: dict[tuple[int, int], JobHeard] = {}
    for row in sorted(history.heard_jobs, key=lambda row: row.time_ms):
        if row.state != "succeeded":
            continue
        first = ended.setdefault((row.partition, row.offset), row)
        if row.asked_ms > first.time_ms and row.text not in ("", first.text):
            yield (
                f"P29 {row.offset} had succeeded at {first.time_ms} with {first.text!r}, and has "
                f"{row.text!r} at {row.time_ms}"
            )


PROGRESS_CHECKS = [newer_reports_stay, ends_end_reports]
