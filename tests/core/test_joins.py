"""Joins: a record that is published once, when jobs of any shard have ended."""

from typing import Any

import msgspec
import pytest

from core.harness import FakeWorker, client
from gossipq import limits
from gossipq.core.ledger import JoinName
from gossipq.core.requests import joins
from gossipq.core.requests.joins import JoinRequests
from gossipq.core.requests.publish import PublishRequests
from gossipq.errors import StoreFull
from gossipq.messages import (
    Ack,
    AckResults,
    AskJob,
    Cancel,
    Done,
    DropTopic,
    Edit,
    Explained,
    Job,
    JoinJobs,
    Nack,
    RefusedMessage,
    Reschedule,
    Show,
    Started,
    Subscribe,
    Trace,
    Why,
)
from gossipq.peer_messages import JobsEnded
from gossipq.permissions import Rights
from gossipq.types import PARTS_HEADER, PartitionKey, partition_key
from gossipq.values import EndedPart, JobResult, JoinPart, PartEnd, Ref, Rule, Start, TopicOptions
from gossipq.wire import batch as batches

ADA, EVE = client("ada"), client("eve")
MINUTE_MS = limits.MINUTE_MS


class Desk:
    """A worker with a topic of two partitions, in two shards: the parts. Topic `page` has the follow-ups."""

    def __init__(self, retention_ms: int = 10 * MINUTE_MS) -> None:
        self.worker = FakeWorker(shards=3)
        info = self.worker.topic("resize", TopicOptions(2, backoff_ms=[100], attempts_max=1))
        self.parts = [partition_key(info.id, number) for number in (0, 1)]
        self.shards = dict(zip(self.parts, info.shards, strict=True))
        page = self.worker.topic("page", TopicOptions(1, retention_ms=retention_ms))
        self.home, self.shard = partition_key(page.id, 0), page.shards[0]
        self.numbers = iter(range(100, 10_000))
        for partition in self.parts:
            self.worker.publish(partition, [b"job"] * 4, shard=self.shards[partition])
            self.ask(partition, Subscribe(1, "work", [Start(partition, "first")], 100, limits.CREDIT_BYTES))

    def ask(self, partition: PartitionKey, message: Any, batch: bytes = b"", who: Any = ADA) -> Any:
        shard = self.shards.get(partition, self.shard)
        origin, number, worker = (b"c", who.session), next(self.numbers), self.worker
        effects = worker.turn(lambda: worker.step(shard, origin, number, who, message, batch=batch))
        answers = [m for each in effects.values() for _, at, m in each.replies if at == number]
        worker.tick(1)
        return answers[0] if answers else None

    def wanted(self, partition: PartitionKey, offset: int, topic: str = "resize") -> JoinPart:
        return JoinPart(Ref(partition, offset), topic, self.shards.get(partition, self.shard))

    def join(self, *parts: JoinPart, count: int = 0, timeout_ms: int = MINUTE_MS, **more: Any) -> Any:
        message = JoinJobs(self.home, list(parts), timeout_ms, count, **more)
        return self.ask(self.home, message, bytes(batches.seal([b"all done"])), EVE)

    def joined(self, *parts: JoinPart, **more: Any) -> Ref:
        answer = self.join(*parts, **more)
        assert isinstance(answer, Done), answer
        assert answer.ref is not None
        return answer.ref

    def finish(self, partition: PartitionKey, offset: int, value: bytes = b"") -> None:
        number, row = 1 if partition in self.parts else 2, (partition, offset, offset + 1)
        results = [JobResult(partition, offset, MINUTE_MS, "json", value)] if value else []
        self.ask(partition, AckResults(number, [row], results) if value else Ack(number, [row]))

    def fail(self, partition: PartitionKey, offset: int, reason: str) -> None:
        row = partition, offset, offset + 1
        self.ask(partition, Started(1, [row]))
        self.ask(partition, Nack(1, [row], reason=reason))

    def told(self) -> list[list[dict[str, str]]]:
        """The header of each follow-up."""
        shard = self.worker.shards[self.shard]
        ledger = shard.ledger
        found = list[list[dict[str, str]]]()
        for _, _, part in ledger.slices.between(self.home, 0, ledger.partitions[self.home].next):
            body, _ = shard.body(part.index)
            assert body is not None
            opened = batches.Batch(body)
            assert opened.values() == [b"all done"]
            (headers,) = opened.column(batches.HEADERS) or []
            found.append(msgspec.json.decode(msgspec.msgpack.decode(headers)[PARTS_HEADER]))
        return found

    def states(self) -> list[list[str]]:
        return [[part["state"] for part in parts] for parts in self.told()]

    def job(self, ref: Ref) -> Any:
        return self.ask(ref.partition, AskJob(ref), who=EVE)

    def pass_time(self, ms: int, step_ms: int = 1_000) -> None:
        for _ in range(0, ms, step_ms):
            self.worker.tick(step_ms)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_record_is_published_when_jobs_of_two_shards_have_ended(desk: Desk) -> None:
    one, two = desk.parts
    assert len({desk.shards[one], desk.shards[two]}) == 2
    ref = desk.joined(desk.wanted(one, 0), desk.wanted(two, 1))
    assert desk.job(ref).job.state == "scheduled"
    desk.finish(one, 0, b"1")
    assert desk.told() == []
    desk.worker.settle()
    assert "1 of 2 have ended, resize/1/1 has not" in desk.job(ref).job.because
    desk.finish(two, 1)
    assert desk.told() == [
        [{"ref": "resize/0/0", "state": "succeeded"}, {"ref": "resize/1/1", "state": "succeeded"}]
    ]
    found = desk.job(ref).job
    assert (found.state, found.ref.offset) == ("waiting", 0)
    assert not desk.worker.shards[desk.shard].ledger.joins.rows
    assert not desk.worker.shards[desk.shard]._leading()._joins.known


def test_a_failed_part_is_told(desk: Desk) -> None:
    one, two = desk.parts
    desk.joined(desk.wanted(one, 0), desk.wanted(two, 0), desk.wanted(two, 1))
    desk.fail(one, 0, "ValueError: no such picture\nTraceback")
    desk.ask(two, Cancel(Ref(two, 0), running=True))
    desk.finish(two, 1)
    (parts,) = desk.told()
    assert parts[0] == {"ref": "resize/0/0", "state": "failed", "because": "ValueError: no such picture"}
    assert [part["state"] for part in parts] == ["failed", "cancelled", "succeeded"]


@pytest.mark.parametrize(("count", "ended"), [(1, 1), (2, 2), (0, 3)])
def test_some_of_the_jobs_are_enough(desk: Desk, count: int, ended: int) -> None:
    one = desk.parts[0]
    desk.joined(*(desk.wanted(one, offset) for offset in range(3)), count=count)
    for offset in range(3):
        assert len(desk.told()) == (offset >= ended)
        desk.finish(one, offset)
    assert desk.states() == [["succeeded"] * ended + ["open"] * (3 - ended)]


def test_jobs_that_ended_before_are_told_at_once(desk: Desk) -> None:
    one = desk.parts[0]
    desk.finish(one, 0, b"1")
    desk.joined(desk.wanted(one, 0))
    assert desk.states() == [["succeeded"]]


def test_jobs_of_which_nothing_is_known_are_told_as_such(desk: Desk) -> None:
    one = desk.parts[0]
    gone = JoinPart(Ref(partition_key(2**30, 0), 0), "gone", 1)
    shard = JoinPart(Ref(one, 0), "resize", 2)
    renamed = desk.wanted(one, 0, "page")
    desk.joined(desk.wanted(one, 99), gone, shard, renamed)
    desk.pass_time(2 * joins.AGAIN_MS)  # the register is asked for the topic that nobody knows
    (parts,) = desk.told()
    assert [part["state"] for part in parts] == ["unknown"] * 4
    assert [len(part) for part in parts] == [3] * 4


def test_a_record_does_not_wait_longer_than_its_time(desk: Desk) -> None:
    one = desk.parts[0]
    desk.joined(desk.wanted(one, 0), desk.wanted(one, 1), timeout_ms=5_000)
    desk.finish(one, 1)
    desk.pass_time(4_000)
    assert desk.told() == []
    desk.pass_time(2_000)
    assert desk.states() == [["open", "succeeded"]]


@pytest.mark.parametrize("ends", [(), (0,), (0, 1)])
def test_a_takeover_keeps_what_has_ended(desk: Desk, ends: tuple[int, ...]) -> None:
    one, two = desk.parts
    ref = desk.joined(desk.wanted(one, 0), desk.wanted(two, 0))
    for number in ends:
        desk.finish(desk.parts[number], 0)
    desk.worker.settle()
    desk.worker.restart()
    assert len(desk.told()) == (len(ends) == 2)
    for partition in desk.parts:
        desk.ask(partition, Subscribe(1, "work", [Start(partition)], 100, limits.CREDIT_BYTES))
        desk.finish(partition, 0)
    desk.pass_time(40_000)
    for partition in desk.parts:
        desk.finish(partition, 0)
    desk.pass_time(12_000)
    assert desk.states() == [["succeeded", "succeeded"]]
    assert desk.job(ref).job.ref.offset == 0


def test_a_new_leader_takes_over_some_joins_in_each_turn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the turn: a takeover with 200,000 parts must not hold them."""
    one, two = desk.parts
    for _ in range(10):
        desk.joined(desk.wanted(one, 0), desk.wanted(two, 0))
    desk.worker.settle()
    sizes: list[int] = []
    take_over = JoinRequests._take_over

    def noted(room: JoinRequests) -> None:
        take_over(room)
        sizes.append(len(room.known))

    with monkeypatch.context() as patch:
        patch.setattr(joins, "PARTS_PER_TURN", 4)
        patch.setattr(JoinRequests, "_take_over", noted)
        desk.worker.restart()
    grown = [size for size in sizes if size]
    assert grown[:5] == [2, 4, 6, 8, 10]
    room = desk.worker.shards[desk.shard]._leading()._joins
    room.inherited.append(JoinName(desk.home, 1 << 40))  # it was cancelled before its turn
    desk.pass_time(2 * joins.ASK_MS)
    assert (room.inherited, len(room.known)) == ([], 10)
    for partition in desk.parts:
        desk.ask(partition, Subscribe(1, "work", [Start(partition)], 100, limits.CREDIT_BYTES))
    desk.pass_time(40_000)
    for partition in desk.parts:
        desk.finish(partition, 0)
    desk.pass_time(12_000)
    assert desk.states() == [["succeeded", "succeeded"]] * 10


def test_a_lost_answer_is_asked_for_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    one = desk.parts[0]
    desk.joined(desk.wanted(one, 0))
    room = desk.worker.shards[desk.shard]._leading()._joins
    monkeypatch.setattr(room, "known", {})
    desk.finish(one, 0)
    monkeypatch.undo()
    assert desk.told() == []
    desk.pass_time(joins.AGAIN_MS + joins.ASK_MS)
    assert desk.states() == [["succeeded"]]


def test_a_leader_of_a_new_term_is_asked_for_everything(desk: Desk) -> None:
    one = desk.parts[0]
    desk.joined(desk.wanted(one, 0))
    room = desk.worker.shards[desk.shard]._leading()._joins
    asked = room._asked[desk.shards[one]]
    assert (len(asked.fresh), len(asked.parts)) == (0, 1)
    before_ms = list(asked.parts.values())
    desk.pass_time(50, 50)
    assert list(asked.parts.values()) == before_ms
    told = JobsEnded(desk.shards[one], asked.term + 1, [])
    desk.worker.turn(lambda: desk.worker.step(desk.shard, (), 0, None, told))
    assert list(asked.parts.values()) == [desk.worker.now.boot_ms]


def test_an_end_that_is_told_twice_counts_once(desk: Desk) -> None:
    one = desk.parts[0]
    ref = desk.joined(desk.wanted(one, 0), desk.wanted(one, 1))
    ended = EndedPart(desk.home, ref.index, 0, PartEnd("succeeded", Ref(one, 0)))
    for row in (ended, ended, msgspec.structs.replace(ended, part=7)):
        desk.worker.turn(
            lambda row=row: desk.worker.step(desk.shard, (), 0, None, JobsEnded(1, 1, [row]))  # type: ignore[misc]
        )
    assert desk.told() == []
    desk.worker.settle()
    assert "1 of 2" in desk.job(ref).job.because


def test_a_join_can_be_cancelled(desk: Desk) -> None:
    one = desk.parts[0]
    ref = desk.joined(desk.wanted(one, 0))
    refused = desk.ask(desk.home, Reschedule(ref, 0), who=EVE)
    assert isinstance(refused, RefusedMessage)
    assert "waits for jobs" in refused.message
    refused = desk.ask(desk.home, Edit(ref), bytes(batches.seal([b"x"])), EVE)
    assert isinstance(refused, RefusedMessage)
    assert "waits for jobs" in refused.message
    assert isinstance(desk.ask(desk.home, Cancel(ref), who=EVE), Done)
    assert desk.job(ref).job.state == "cancelled"
    desk.finish(one, 0)
    desk.pass_time(12_000)
    assert desk.told() == []
    assert not list(desk.worker.shards[desk.shard].ledger.state.scan(b"z", b"{"))
    assert not desk.worker.shards[desk.shard]._leading()._joins.known
    state = desk.worker.shards[desk.shard].ledger.partitions[desk.home]
    assert (state.published, state.voided, state.next) == (1, 1, 0)


def test_a_join_waits_for_another_join(desk: Desk) -> None:
    one = desk.parts[0]
    first = desk.joined(desk.wanted(one, 0))
    desk.joined(JoinPart(first, "page", desk.shard))
    desk.ask(desk.home, Subscribe(2, "pages", [Start(desk.home, "first")], 100, limits.CREDIT_BYTES))
    desk.finish(one, 0)
    desk.worker.tick(1)
    assert len(desk.told()) == 1
    desk.finish(desk.home, 0, b"2")
    assert desk.told()[1] == [{"ref": "page/0/0", "state": "succeeded"}]
    # the result is found by the first ref, also when the record is gone
    desk.worker.shards[desk.shard].ledger.partitions[desk.home].first = 1
    assert desk.job(first).job.value == b"2"
    desk.worker.shards[desk.shard].ledger.partitions[desk.home].first = 0


def test_who_waits_for_the_follow_up_hears_of_its_end(desk: Desk) -> None:
    one = desk.parts[0]
    ref = desk.joined(desk.wanted(one, 0))
    desk.ask(desk.home, Subscribe(2, "pages", [Start(desk.home, "first")], 100, limits.CREDIT_BYTES))
    assert desk.ask(desk.home, AskJob(ref, wait_ms=30_000), who=EVE) is None
    desk.finish(one, 0)
    worker, row = desk.worker, (desk.home, 0, 1)
    worker.tick(1)
    effects = worker.turn(lambda: worker.step(desk.shard, (b"c", ADA.session), 1, ADA, Ack(2, [row])))
    answers = [m for each in effects.values() for _, _, m in each.replies if isinstance(m, Job)]
    assert [answer.job.state for answer in answers] == ["succeeded"]


def test_a_repeated_request_joins_once(desk: Desk) -> None:
    one = desk.parts[0]
    first = desk.join(desk.wanted(one, 0), idempotency_key=b"k")
    assert desk.join(desk.wanted(one, 0), idempotency_key=b"k") == first
    desk.finish(one, 0)
    assert len(desk.told()) == 1


def test_a_join_of_two_leaders_is_published_once(desk: Desk) -> None:
    one = desk.parts[0]
    ref = desk.joined(desk.wanted(one, 0))
    room = desk.worker.shards[desk.shard]._leading()._joins
    name = next(iter(room.known))

    def close_twice() -> None:
        for _ in range(2):
            room._over[name] = None
            room._close(name)

    desk.worker.slow = True
    desk.worker.turn(close_twice)
    desk.worker.slow = False
    desk.worker.turn()
    assert desk.states() == [["open"]]
    assert desk.job(ref).job.ref.offset == 0


def test_a_full_topic_delays_its_own_joins_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    full, part = desk.home, desk.wanted(desk.parts[0], 0)
    monkeypatch.setattr(joins, "CLOSED_PER_TURN", 1)
    desk.joined(part)
    other = desk.worker.topic("other", TopicOptions(beside="page", partitions=1))
    desk.home = partition_key(other.id, 0)
    desk.joined(part)
    require_space = PublishRequests.require_space

    def refused(requests: PublishRequests, partition: PartitionKey, info: Any) -> None:
        if partition == full:
            raise StoreFull("the topic is full")
        require_space(requests, partition, info)

    with monkeypatch.context() as patch:
        patch.setattr(PublishRequests, "require_space", refused)
        desk.finish(desk.parts[0], 0)
        for _ in range(3):
            desk.worker.tick(joins.RETRY_MS)
        ledger = desk.worker.shards[desk.shard].ledger
        assert ledger.partitions[desk.home].next == 1
        assert ledger.partitions[full].next == 0
    desk.worker.tick(joins.RETRY_MS)
    assert ledger.partitions[full].next == 1


def test_a_full_store_delays_a_join(desk: Desk) -> None:
    one = desk.parts[0]
    desk.joined(desk.wanted(one, 0))
    desk.worker.shards[desk.shard].desk.full = "the disk is full"
    desk.finish(one, 0)
    desk.pass_time(3_000)
    assert desk.told() == []
    desk.worker.shards[desk.shard].desk.full = ""
    desk.pass_time(2_000)
    assert desk.states() == [["succeeded"]]


def test_joins_go_with_their_topic(desk: Desk) -> None:
    one = desk.parts[0]
    desk.joined(desk.wanted(one, 0))
    desk.worker.ask(0, EVE, DropTopic("page"))
    desk.pass_time(5_000)
    ledger = desk.worker.shards[desk.shard].ledger
    assert not ledger.joins.rows
    assert not list(ledger.state.scan(b"z", b"{"))
    desk.finish(one, 0)
    desk.pass_time(3_000)
    assert not desk.worker.shards[desk.shard]._leading()._joins.known


def test_retention_forgets_the_earlier_place() -> None:
    desk = Desk(retention_ms=1_000)
    one = desk.parts[0]
    ref = desk.joined(desk.wanted(one, 0))
    desk.finish(one, 0)
    ledger = desk.worker.shards[desk.shard].ledger
    assert len(list(ledger.state.scan(b"R", b"S"))) == 2
    desk.ask(desk.home, Subscribe(2, "pages", [Start(desk.home, "first")], 100, limits.CREDIT_BYTES))
    desk.finish(desk.home, 0)
    desk.pass_time(5_000)
    assert ledger.partitions[desk.home].first == 1
    assert not list(ledger.state.scan(b"R", b"S"))
    assert not list(ledger.state.scan(b"F", b"G"))
    assert isinstance(desk.job(ref), RefusedMessage)


def test_why_tells_what_a_record_waits_for(desk: Desk) -> None:
    one = desk.parts[0]
    ref = desk.joined(desk.wanted(one, 0))
    answer = desk.ask(desk.home, Why(ref), who=EVE)
    assert isinstance(answer, Explained)
    assert answer.standings[0].because == "it waits for jobs: 0 of 1 have ended, resize/0/0 has not"
    assert isinstance(desk.ask(desk.home, Show(ref), who=EVE), RefusedMessage)
    assert desk.ask(desk.home, Trace(ref), who=EVE) is not None
    desk.finish(one, 0)
    answer = desk.ask(desk.home, Why(ref), who=EVE)
    assert f"was page/0/@{ref.index}.0 while it waited for jobs" in answer.lines or not answer.lines


def test_bad_joins_are_refused(desk: Desk) -> None:
    part = desk.wanted(desk.parts[0], 0)
    for parts, more in (
        ((), {}),
        ((part,) * (limits.JOIN_PARTS_MAX + 1), {}),
        ((part,), {"count": 2}),
        ((part,), {"timeout_ms": 0}),
        ((msgspec.structs.replace(part, shard=9),), {}),
        ((msgspec.structs.replace(part, topic="x" * limits.HEADERS_BYTES_MAX),), {}),
    ):
        assert isinstance(desk.join(*parts, **more), RefusedMessage), more
    for batch in (b"", bytes(batches.seal([b"1", b"2"]))):
        answer = desk.ask(desk.home, JoinJobs(desk.home, [part], MINUTE_MS), batch)
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "bad_batch"


def test_a_join_needs_to_read_its_parts(desk: Desk) -> None:
    rights = Rights("eve", [Rule("page", ["publish"])])
    mallory = msgspec.structs.replace(EVE, rights=rights)
    message = JoinJobs(desk.home, [desk.wanted(desk.parts[0], 0)], MINUTE_MS)
    answer = desk.ask(desk.home, message, bytes(batches.seal([b"all done"])), mallory)
    assert isinstance(answer, RefusedMessage)
    assert answer.code == "forbidden"
    assert "resize" in answer.message
