"""Records as jobs: their results, and the requests that wait for them."""

from array import array
from typing import Any

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.storage import log
from gossipq.messages import (
    Ack,
    Acked,
    AckResults,
    AskJob,
    Cancel,
    Cancelled,
    Done,
    DropTopic,
    Job,
    Nack,
    RefusedMessage,
    ReportProgress,
    Requeue,
    Started,
)
from gossipq.types import DELAY, REPLACE, UNIQUE_HASH, PartitionKey
from gossipq.values import JobInfo, JobProgress, JobResult, Ref, ResultRun, TopicOptions
from gossipq.wire import batch as batches

ADA, BOB, EVE = client("ada"), client("bob"), client("eve")
HOUR_MS = limits.HOUR_MS


class Desk:
    """A worker with one topic of one partition. Eve asks, Ada and Bob work."""

    def __init__(self) -> None:
        self.worker = FakeWorker()
        options = TopicOptions(backoff_ms=[100], attempts_max=2)
        self.partition: PartitionKey = single(self.worker.topic("resize", options))
        self.number = 100

    def publish(self, count: int = 1, **columns: Any) -> None:
        assert self.worker.publish(self.partition, [b"job"] * count, **columns) is not None

    def finish(self, offset: int, value: bytes = b"42", keep_ms: int = HOUR_MS, who: Any = ADA) -> Any:
        result = JobResult(self.partition, offset, keep_ms, "json", value)
        return self.worker.ask(
            1,
            who,
            AckResults(1, [(self.partition, offset, offset + 1)], [result]),
            origin=(b"c", who.session),
        )

    def ask(self, offset: int = -1, wait_ms: int = 0, group: str = "", seen_ms: int = -1, **ref: int) -> Any:
        """The answer of this turn; None: the request waits."""
        self.number += 1
        message = AskJob(Ref(self.partition, offset, **ref), group, wait_ms, seen_ms)
        return self.worker.ask(1, EVE, message, self.number, (b"c", EVE.session))

    def job(self, offset: int = -1, **more: Any) -> JobInfo:
        answer = self.ask(offset, **more)
        assert isinstance(answer, Job), answer
        self.worker.seen.pop()
        return answer.job

    def heard(self) -> list[Any]:
        """The answers to requests that waited, since the last call."""
        found = [
            message
            for effects in self.worker.seen
            for (_, session), number, message in effects.replies
            if session == EVE.session and number > 100
        ]
        self.worker.seen.clear()
        return found

    def take_over(self) -> None:
        self.worker.settle()
        self.worker.restart()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_result_is_stored_in_the_entry_that_acks(desk: Desk) -> None:
    desk.publish(2)
    desk.worker.subscribe(ADA, desk.partition)
    before = desk.worker.shards[1].last
    assert desk.finish(0) == Acked([])
    kinds = [entry.kind for entry in desk.worker.shards[1].peers.after(before)]
    assert (kinds.count(log.RESULT), kinds.count(log.ACK)) == (1, 0)
    job = desk.job(0)
    assert (job.state, job.group, job.consumer, job.kind, job.value) == (
        "succeeded",
        "billing",
        "ada",
        "json",
        b"42",
    )
    assert (job.kept_ms, job.attempt) == (HOUR_MS, 1)
    assert desk.job(1).state == "running"
    desk.take_over()
    assert desk.job(0).value == b"42"


def test_the_states_of_a_job(desk: Desk) -> None:
    desk.publish(1)
    assert desk.job(0).state == "waiting"
    desk.worker.subscribe(ADA, desk.partition, records=1)
    running = desk.job(0)
    assert (running.state, running.consumer, running.attempt) == ("running", "ada", 1)
    assert running.time_ms == desk.worker.now.wall_ms
    desk.worker.ask(1, ADA, Started(1, [(desk.partition, 0, 1)]), origin=(b"c", ADA.session))
    desk.worker.ask(1, ADA, Nack(1, [(desk.partition, 0, 1)], reason="ValueError: no"))
    retrying = desk.job(0)
    assert (retrying.state, retrying.failures) == ("retrying", 1)
    desk.worker.tick(200)
    desk.worker.subscribe(BOB, desk.partition, records=1)
    desk.worker.tick(200)
    desk.worker.ask(1, BOB, Nack(1, [(desk.partition, 0, 1)], reason="ValueError: no"))
    failed = desk.job(0)
    assert (failed.state, failed.because, failed.failures) == ("failed", "ValueError: no", 2)


def test_a_request_waits_until_the_job_has_ended(desk: Desk) -> None:
    desk.publish(3)
    desk.worker.subscribe(ADA, desk.partition)
    for offset in range(3):
        assert desk.ask(offset, wait_ms=30_000) is None
    desk.finish(1, b"1")
    (answer,) = desk.heard()
    assert (answer.job.ref.offset, answer.job.value) == (1, b"1")
    desk.worker.ask(1, ADA, Ack(1, [(desk.partition, 0, 1)]))
    (answer,) = desk.heard()
    assert (answer.job.ref.offset, answer.job.state, answer.job.kind) == (0, "succeeded", "")
    desk.worker.tick(30_000)
    (answer,) = desk.heard()
    assert (answer.job.ref.offset, answer.job.state) == (2, "waiting"), "its lease has ended, too"
    assert not desk.worker.shards[1]._leading()._jobs.waiters


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_request_hears_of_every_end(desk: Desk, end: str) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition, records=0 if end == "cancelled" else 1)
    assert desk.ask(0, wait_ms=30_000) is None
    if end == "cancelled":
        desk.worker.ask(1, EVE, Cancel(Ref(desk.partition, 0)))
    else:
        desk.worker.ask(1, ADA, Nack(1, [(desk.partition, 0, 1)], dead="rejected", reason="bad"))
    (answer,) = desk.heard()
    assert answer.job.state == end


def test_a_scheduled_job_is_known_by_its_first_ref(desk: Desk) -> None:
    desk.publish(2, fixed={DELAY: array("q", [500, 60_000])})
    index = desk.worker.shards[1].last
    scheduled = desk.job(index=index, record=0)
    assert scheduled.state == "scheduled"
    assert 500 <= scheduled.time_ms - desk.worker.now.wall_ms <= 600
    assert desk.ask(index=index, record=0, wait_ms=30_000) is None
    desk.worker.subscribe(ADA, desk.partition)
    desk.worker.tick(700)
    desk.worker.tick(100)
    desk.finish(0, b"late")
    (answer,) = desk.heard()
    assert (answer.job.state, answer.job.value) == ("succeeded", b"late")
    # also when the record is gone
    desk.worker.shards[1].ledger.partitions[desk.partition].first = 1
    assert desk.job(index=index, record=0).value == b"late"
    desk.worker.shards[1].ledger.partitions[desk.partition].first = 0


def test_a_lost_ack_stores_no_result(desk: Desk) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition)
    desk.worker.subscribe(BOB, desk.partition)
    assert desk.finish(0, b"bob", who=BOB) == Acked([(desk.partition, 0, 1)])
    assert desk.job(0).state == "running"
    assert desk.finish(0, b"ada") == Acked([])
    assert desk.finish(0, b"again") == Acked([])
    assert desk.job(0).value == b"ada"


def test_a_result_goes_when_its_time_is_over(desk: Desk) -> None:
    desk.publish(3)
    desk.worker.subscribe(ADA, desk.partition)
    desk.finish(0, keep_ms=5_000)
    desk.finish(1, keep_ms=60_000)
    state = desk.worker.shards[1].ledger.state
    assert desk.worker.shards[1].next_deadline() is not None
    for _ in range(12):
        desk.worker.tick(500)
    job = desk.job(0)
    assert (job.state, job.kept_ms, job.value) == ("succeeded", 0, b""), "its ack is known"
    assert desk.job(1).value == b"42"
    assert len(list(state.scan(b"r", b"s"))) == len(list(state.scan(b"y", b"z"))) == 1
    for _ in range(130):
        desk.worker.tick(500)
    assert not list(state.scan(b"r", b"s"))
    assert desk.worker.shards[1].ledger.results.first_end_ms is None


def test_results_go_with_their_topic(desk: Desk) -> None:
    desk.publish(2)
    desk.worker.subscribe(ADA, desk.partition)
    desk.finish(0)
    assert desk.ask(1, wait_ms=30_000) is None
    desk.worker.ask(0, EVE, DropTopic("resize"))
    desk.worker.turn()
    desk.worker.seen += desk.worker.turn().values()
    for _ in range(5):
        desk.worker.tick(1_000)
    answer = desk.ask(0)
    assert isinstance(answer, RefusedMessage)
    assert answer.code == "unknown_topic"
    assert not list(desk.worker.shards[1].ledger.state.scan(b"r", b"s"))


def test_a_requeued_job_runs_again(desk: Desk) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition, records=1)
    desk.finish(0, b"first")
    desk.worker.ask(1, EVE, Requeue(Ref(desk.partition, 0), "billing"))
    assert desk.job(0).state == "waiting"
    desk.worker.subscribe(BOB, desk.partition)
    desk.finish(0, b"second", who=BOB)
    assert desk.job(0).value == b"second"
    assert len(list(desk.worker.shards[1].ledger.state.scan(b"y", b"z"))) == 1


def test_what_a_request_may_not_ask(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.publish(2)
    desk.worker.subscribe(ADA, desk.partition)
    large = b"x" * (limits.RESULT_BYTES_MAX + 1)
    for answer in (
        desk.finish(0, large),
        desk.finish(0, keep_ms=0),
        desk.ask(0, wait_ms=limits.JOB_WAIT_MS_MAX + 1),
        desk.ask(0, group="nobody"),
    ):
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "bad_request"
    assert desk.ask(7).code == "unknown_record"
    assert desk.job(0).state == "running", "nothing was acked"
    monkeypatch.setattr(limits, "JOB_WAITERS_MAX", 1)
    assert desk.ask(0, wait_ms=1_000) is None
    assert desk.ask(1, wait_ms=1_000).code == "busy"


def test_of_several_groups_one_is_named(desk: Desk) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition)
    desk.worker.subscribe(BOB, desk.partition, group="audit")
    assert desk.ask(0).hint == "name one: audit, billing"
    desk.finish(0, b"ada")
    assert desk.job(0).value == b"ada", "only one has a result"
    assert desk.job(0, group="audit").state == "running"
    desk.finish(0, b"bob", who=BOB)
    assert desk.ask(0).hint == "name one: audit, billing"
    assert desk.job(0, group="audit").value == b"bob"


def test_a_leader_that_ends_tells_those_who_wait(desk: Desk) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition)
    assert desk.ask(0, wait_ms=30_000) is None
    assert desk.worker.shards[1]._leading()._jobs.waiting() == [((b"c", EVE.session), desk.number)]


def test_progress_is_told_to_those_who_follow(desk: Desk) -> None:
    desk.publish(2)
    desk.worker.subscribe(ADA, desk.partition, records=1)
    assert desk.job(0).done == -1.0

    def report(offset: int, done: float, text: str = "") -> Any:
        rows = [JobProgress(desk.partition, offset, done, text)]
        answer = desk.worker.ask(1, ADA, ReportProgress(1, rows), 77, (b"c", ADA.session))
        if answer is None:
            desk.worker.tick(limits.LEASE_LOG_MS)
        return answer

    assert desk.ask(0, wait_ms=30_000, seen_ms=0) is None
    report(0, 0.4, "page 4 of 10")
    (answer,) = desk.heard()
    told = answer.job
    assert (told.state, told.done, told.text) == ("running", 0.4, "page 4 of 10")
    assert report(1, 0.5) == Acked([(desk.partition, 1, 2)]), "nobody holds it"
    assert report(0, 1.5).code == "bad_request"
    desk.take_over()
    assert desk.job(0).done == 0.4
    state = desk.worker.shards[1].ledger.state
    assert len(list(state.scan(b"w", b"x"))) == len(list(state.scan(b"y", b"z"))) == 1
    desk.worker.advance(limits.DAY_MS + 1_000)
    desk.worker.tick(2_000)
    desk.worker.tick(2_000)
    assert not list(state.scan(b"w", b"x"))


def cancels(desk: Desk) -> list[Any]:
    """What clients were told of cancelled records, since the last call."""
    told = [
        (origin[1], message.ranges)
        for effects in desk.worker.seen
        for origin, message in effects.notices
        if isinstance(message, Cancelled)
    ]
    desk.worker.seen.clear()
    return told


def cancel(desk: Desk, offset: int, running: bool = True) -> Any:
    return desk.worker.ask(1, EVE, Cancel(Ref(desk.partition, offset), "too slow", running=running))


def test_a_running_job_is_cancelled(desk: Desk) -> None:
    desk.publish(2)
    desk.worker.subscribe(ADA, desk.partition, records=1, cancels=True)
    assert desk.ask(0, wait_ms=30_000) is None
    assert cancel(desk, 0, running=False).code == "wrong_state"
    assert cancels(desk) == []
    assert isinstance(cancel(desk, 0), Done)
    replies = [message for effects in desk.worker.seen for _, _, message in effects.replies]
    (answer,) = [message for message in replies if isinstance(message, Job)]
    assert (answer.job.state, answer.job.because) == ("cancelled", "eve took it away: too slow")
    gone = (desk.partition, 0, 1)
    assert cancels(desk) == [(ADA.session, [gone])]
    assert desk.finish(0) == Acked([gone])
    assert desk.job(0).state == "cancelled"
    assert not list(desk.worker.shards[1].ledger.state.scan(b"r", b"s"))
    assert cancel(desk, 0).code == "wrong_state"


@pytest.mark.parametrize("end", ["takeover", "lease", "session", "nack"])
def test_a_cancelled_job_is_never_handed_out_again(desk: Desk, end: str) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition, cancels=True)
    desk.worker.ask(1, ADA, Started(1, [(desk.partition, 0, 1)]), origin=(b"c", ADA.session))
    desk.worker.settle()
    assert isinstance(cancel(desk, 0), Done)
    if end == "takeover":
        desk.take_over()
    elif end == "lease":
        desk.worker.tick(limits.MINUTE_MS)
    elif end == "session":
        desk.worker.turn(lambda: desk.worker.end_session(ADA.session, silent=True))
    else:
        desk.worker.ask(1, ADA, Nack(1, [(desk.partition, 0, 1)], failed=False), origin=(b"c", ADA.session))
    desk.worker.taken()
    desk.worker.subscribe(BOB, desk.partition)
    desk.worker.tick(1_000)
    assert desk.worker.taken() == []
    assert desk.job(0).state == "cancelled"


def test_a_client_hears_of_a_cancel_from_the_next_leader(desk: Desk) -> None:
    desk.publish(3)
    desk.worker.subscribe(ADA, desk.partition, cancels=True)
    assert isinstance(cancel(desk, 1), Done)
    desk.take_over()
    desk.worker.seen.clear()
    desk.worker.subscribe(ADA, desk.partition, holding=[(desk.partition, 0, 3)], cancels=True)
    desk.worker.tick(10)
    assert cancels(desk) == [(ADA.session, [(desk.partition, 1, 2)])]
    assert [desk.job(offset).state for offset in range(3)] == ["running", "cancelled", "running"]


def test_a_client_that_does_not_ask_is_not_told(desk: Desk) -> None:
    desk.publish(1)
    desk.worker.subscribe(ADA, desk.partition)
    assert isinstance(cancel(desk, 0), Done)
    assert cancels(desk) == []


def test_a_job_whose_name_another_one_took_is_cancelled(desk: Desk) -> None:
    names = {"uniques": [b"a"], "fixed": {UNIQUE_HASH: batches.id_column([b"a"]), REPLACE: array("I", [1])}}
    desk.publish(1, **names)
    desk.worker.subscribe(ADA, desk.partition, records=1, cancels=True)
    assert desk.ask(0, wait_ms=30_000) is None
    desk.worker.seen.clear()
    desk.publish(1, **names)
    told = [message.job.state for effects in desk.worker.seen for _, _, message in effects.replies]
    assert told == ["cancelled"]
    assert cancels(desk) == [(ADA.session, [(desk.partition, 0, 1)])]


def finish_run(desk: Desk, first: int, values: list[bytes], keep_ms: int = HOUR_MS, who: Any = ADA) -> Any:
    """Ack neighbours, each with its result."""
    run = ResultRun(desk.partition, first, keep_ms, "json", values)
    ack = AckResults(1, [(desk.partition, first, run.end)], [], [run])
    return desk.worker.ask(1, who, ack, origin=(b"c", who.session))


def test_results_of_neighbours_share_rows(desk: Desk) -> None:
    desk.publish(200)
    desk.worker.subscribe(ADA, desk.partition)
    values = [b"%d" % number for number in range(200)]
    finish_run(desk, 10, values[10:150])
    finish_run(desk, 150, values[150:151])
    state = desk.worker.shards[1].ledger.state
    rows = list(state.scan(b"r", b"s"))
    assert [len(key) for key, _ in rows] == [33, 33, 33, 25], "blocks of 64, and a single one"
    assert len(list(state.scan(b"y", b"z"))) == len(rows)
    for offset in (10, 63, 64, 149, 150):
        job = desk.job(offset)
        assert (job.state, job.value, job.attempt, job.consumer) == ("succeeded", values[offset], 1, "ada")
    assert desk.job(9).state == desk.job(151).state == "running"
    desk.take_over()
    assert desk.job(64).value == b"64"
    for _ in range(HOUR_MS // 60_000 + 2):
        desk.worker.tick(60_000)
    state = desk.worker.shards[1].ledger.state
    assert not list(state.scan(b"r", b"s"))
    assert not list(state.scan(b"y", b"z"))
    assert (desk.job(64).state, desk.job(64).kept_ms) == ("succeeded", 0)


def test_of_neighbours_only_open_records_get_a_result(desk: Desk) -> None:
    desk.publish(6)
    desk.worker.subscribe(ADA, desk.partition)
    desk.finish(2, b"first")
    desk.worker.ask(1, ADA, Started(1, [(desk.partition, 4, 5)]), origin=(b"c", ADA.session))
    desk.worker.ask(1, ADA, Nack(1, [(desk.partition, 4, 5)], reason="ValueError: no"))
    desk.worker.tick(200)
    desk.worker.tick(200)
    finish_run(desk, 0, [b"0", b"1", b"2", b"3", b"4", b"5"])
    found = [desk.job(offset) for offset in range(6)]
    assert [job.value for job in found] == [b"0", b"1", b"first", b"3", b"4", b"5"]
    assert [job.attempt for job in found] == [1, 1, 1, 1, 2, 1]
    desk.worker.ask(1, EVE, Requeue(Ref(desk.partition, 3), "billing"))
    assert desk.job(3).state in ("waiting", "running")
    desk.finish(3, b"again")
    assert desk.job(3).value == b"again"


def test_results_of_lost_neighbours_are_dropped(desk: Desk) -> None:
    desk.publish(4)
    desk.worker.subscribe(ADA, desk.partition, records=2)
    desk.worker.subscribe(BOB, desk.partition)
    assert finish_run(desk, 0, [b"0", b"1", b"2", b"3"]) == Acked([(desk.partition, 2, 4)])
    assert [desk.job(offset).value for offset in (0, 1)] == [b"0", b"1"]
    assert desk.job(2).state == "running"


def test_bad_runs_of_results_are_refused(desk: Desk) -> None:
    desk.publish(2)
    desk.worker.subscribe(ADA, desk.partition)
    for keep_ms, values in ((0, [b"1"]), (HOUR_MS, []), (HOUR_MS, [bytes(limits.RESULT_BYTES_MAX + 1)])):
        assert isinstance(finish_run(desk, 0, values, keep_ms), RefusedMessage)
    assert desk.job(0).state == "running"


def test_neighbours_that_were_scheduled_are_found_by_their_first_refs(desk: Desk) -> None:
    desk.publish(3, fixed={DELAY: array("q", [500, 500, 500])})
    index = desk.worker.shards[1].last
    desk.worker.subscribe(ADA, desk.partition)
    desk.worker.tick(700)
    desk.worker.tick(100)
    finish_run(desk, 0, [b"0", b"1", b"2"])
    assert [desk.job(index=index, record=record).value for record in range(3)] == [b"0", b"1", b"2"]
