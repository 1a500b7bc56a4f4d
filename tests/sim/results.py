"""A client that asks for jobs and waits for them, and the checks of results (P26)."""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from gossipq.messages import AskJob, Job
from gossipq.values import Ref
from sim.clients import PATIENCE_MS, Party
from sim.history import History, JobHeard
from sim.progress import GROUP, lately_reported

if TYPE_CHECKING:
    from sim.world import World

RESULTS_SHARE = 0.3  #: of the runs: their consumers send a result with each ack
WAITS_MS = (0, 300, 2_000)
REPORTED_SHARE = 0.6  #: of the questions: about a record of which something was reported lately


class Asker(Party):
    """Asks for one record after the other, sometimes before it exists."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "asker")
        self.partition = self.waiting = self.asked_ms = self.newest = 0
        self.reports_dice = Random(f"{world.seed}/asker/reports")
        self.next()

    def next(self) -> None:
        self.partition, self.shard = self.world.admin.home(0)
        self.waiting = 0
        if self.stopped:
            return
        if self.partition:
            self.asked_ms = self.world.now
            message = AskJob(Ref(self.partition, self.choose()), GROUP, self.dice.choice(WAITS_MS))
            self.waiting = self.ask(message)
        self.world.at(PATIENCE_MS + WAITS_MS[-1], self.again, self.waiting)

    def choose(self) -> int:
        """The offset of the record to ask for."""
        if self.world.history.keeps_progress and self.reports_dice.random() < REPORTED_SHARE:
            offset = lately_reported(self.world.history, self.reports_dice, self.partition)
            if offset >= 0:
                return offset
        return self.dice.randrange(self.newest + 3)

    def again(self, request_id: int) -> None:
        if request_id == self.waiting:
            self.turn_away()
            self.next()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id != self.waiting:
            return
        if isinstance(answer, Job):
            job, offset = answer.job, answer.job.ref.offset
            self.newest = max(self.newest, offset)
            row = JobHeard(
                self.asked_ms, sent_ms, self.partition, offset, job.state, job.value, term, job.text
            )
            self.world.history.heard_jobs.append(row)
            self.world.history.count(f"job {job.state}")
        elif getattr(answer, "code", "") == "not_leader":
            self.turn_away()
        self.waiting = -1
        self.world.at(self.dice.randrange(20, 200), self.next)


def results_have_acks(history: History) -> Iterator[str]:
    """P26: a result is stored with the ack of its record, and never without it."""
    for copy in history.copies:
        for (partition, group), rows in copy.results.items():
            acked, first = copy.acked.get((partition, group), {}), copy.firsts.get(partition, 0)
            for offset, (value, time_ms) in rows.items():
                if offset >= first and acked.get(offset) != time_ms:
                    yield (
                        f"P26 {copy.name} has result {value!r} of {offset} from {time_ms}, and its ack is of "
                        f"{acked.get(offset)}"
                    )
                if not value.endswith(b"-%d" % offset):
                    yield f"P26 {copy.name} has result {value!r} at {offset}"


def acks_have_results(history: History) -> Iterator[str]:
    """P26: every copy that stores an ack stores its result too, also if the consumer never heard of the ack.
    The liar and the drainers send acks without results.
    """
    if not history.keeps_results:
        return
    bare = {
        (row.partition, offset)
        for row in history.asked
        if row.well and not row.with_results
        for offset in range(row.first, row.end)
    }
    for copy in history.copies:
        for (partition, group), acked in copy.acked.items():
            found = copy.results.get((partition, group), {})
            for offset in acked if group == GROUP else ():
                if offset not in found and (partition, offset) not in bare:
                    yield f"P26 {copy.name} has the ack of {offset} without its result"
    for row in history.acks:
        if row.group != GROUP or not row.with_results:
            continue
        for copy in history.copies_of(row.partition):
            found = copy.results.get((row.partition, row.group), {})
            for offset in range(row.first, row.end):
                if offset not in found and (row.partition, offset) not in bare:
                    yield f"P26 {offset} was acked at {row.time_ms} with a result, and {copy.name} has none"


def ends_are_final(history: History) -> Iterator[str]:
    """P26: a job that was said to have succeeded keeps its state. Every copy has the result that was said, or
    none if none was said.
    """
    ended: dict[tuple[int, int], JobHeard] = {}
    for row in sorted(history.heard_jobs, key=lambda row: row.time_ms):
        if row.state == "succeeded":
            ended.setdefault((row.partition, row.offset), row)
    for row in history.heard_jobs:
        first = ended.get((row.partition, row.offset))
        if first is None:
            continue
        if row.asked_ms > first.time_ms and (row.state, row.value) != (first.state, first.value):
            yield (
                f"P26 {row.offset} was {row.state} {row.value!r} at {row.time_ms}; it had succeeded at "
                f"{first.time_ms}: {first.value!r}"
            )
        for copy in history.copies_of(row.partition) if row is first else ():
            value, _ = copy.results.get((row.partition, GROUP), {}).get(row.offset, (b"", 0))
            if value != row.value:
                yield f"P26 {row.offset} was said to have {row.value!r}, and {copy.name} has {value!r}"


RESULT_CHECKS = [results_have_acks, acks_have_results, ends_are_final]
