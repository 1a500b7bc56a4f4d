"""The turn itself: who calls a shard, what a turn commits, and how a
turn ends that cannot finish.
"""

import ast
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.harness import FakeWorker, client, single
from core.turns import run
from gossipq import limits
from gossipq.core.leader import Leader
from gossipq.core.ledger import Ledger, records
from gossipq.core.raft import ClusterTime
from gossipq.core.raft.cluster_time import Reading
from gossipq.core.shard import Shard
from gossipq.core.storage.tables import MemoryTables
from gossipq.core.turn import RECOVER_MS
from gossipq.errors import CorruptLog
from gossipq.messages import Ack, CreateTopic, Publish
from gossipq.peer_messages import Vote
from gossipq.types import DELAY, Now
from gossipq.values import TopicOptions
from gossipq.wire import batch as batches

ROOT = Path(__file__).parents[2]
ADA = client("ada")
DAY_MS = 86_400_000
DRIVEN = {
    "begin",
    "step",
    "publish",
    "end_session",
    "tick",
    "ready",
    "write",
    "stored",
    "answers",
    "advance",
    "lead",
}
DRIVERS = {"gossipq/core/turn.py", "gossipq/core/shard.py"}
#: modules that may hold a shard
SEEN = ("gossipq/core/*.py", "nodes/gossipq_node/actors/*.py", "tests/core/*.py", "tests/sim/*.py")
#: receivers, by their last word, whose methods have the same names but which are no shards
NO_SHARDS = {
    *("turn", "turns", "_turn"),  # the turn itself
    # test drivers
    *("worker", "copies", "fleet", "three", "seat", "seats", "led", "trio", "book", "desk", "self", "super"),
    # rooms of a leader, and a part of dispatch
    *("dispatch", "backups", "room", "_register", "_roster", "_schedules", "_joins", "holdings", "plan"),
    # what a consumer of the simulator says of its work
    "reports",
    # tests of a replica, a clock, a model
    *("replica", "campaign", "machine", "time", "life", "stranger"),
}  # fmt: skip


def last_word(node: ast.expr) -> str:
    """The last word of a receiver: `shards` for `copies.shards["a"]`, `start` for `node.start()`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "?"


def driven_by_hand(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DRIVEN:
            who = last_word(node.func.value)
            if who not in NO_SHARDS:
                yield node.lineno, f"{who}.{node.func.attr}"


def test_only_the_turn_drives_a_shard() -> None:
    files = [path for pattern in SEEN for path in ROOT.glob(pattern)]
    found = {str(path.relative_to(ROOT)): list(driven_by_hand(path.read_text("utf-8"))) for path in files}
    assert {name for name in DRIVERS if found.pop(name)} == DRIVERS, "or this test sees nothing"
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "line", ["shard.tick()", "worker.shards[1].step(1)", "self.leader.advance(0)", "lambda s: s.begin(1)"]
)
def test_a_driver_beside_it_would_be_seen(line: str) -> None:
    assert list(driven_by_hand(line))


def test_every_method_that_is_driven_is_one_of_a_shard() -> None:
    assert set(dir(Shard)) >= DRIVEN


# --- what a turn commits ------------------------------------------------------------------------------------


class Counting(FakeWorker):
    commits = 0

    def commit(self) -> None:
        super().commit()
        self.commits += 1


def test_a_turn_commits_when_it_promises_something_and_the_rest_rides_along_in_time() -> None:
    worker = Counting()
    orders = single(worker.topic())
    worker.subscribe(ADA, orders)
    worker.settle()
    before = worker.commits
    worker.turn()
    assert worker.commits == before, "nothing is promised"
    worker.publish(orders, [b"x"])
    worker.turn()
    assert worker.commits == before + 1
    assert worker.shards[1].pending, "the lease of what was handed out"
    worker.advance(limits.LEASE_LOG_MS - 1)
    worker.turn()
    assert worker.commits == before + 1
    worker.advance(1)
    worker.turn()
    assert worker.commits == before + 2
    assert not worker.shards[1].pending


def test_a_turn_of_publishes_alone_ticks_only_where_something_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, ticked = FakeWorker(), list[int]()
    orders, real = single(worker.topic()), Leader.tick

    def tick(leader: Leader) -> None:
        ticked.append(leader._desk.shard)
        real(leader)

    def ticks(routine: bool) -> list[int]:
        assert worker.effects[1].routine == routine
        found, ticked[:] = ticked.copy(), []
        return found

    worker.settle()
    worker.turn()
    monkeypatch.setattr(Leader, "tick", tick)
    worker.publish(orders, [b"x"])
    assert ticks(routine=True) == []
    worker.publish(orders, [b"later"], fixed={DELAY: array("q", [50])})
    ticked.clear()
    worker.publish(orders, [b"z"])
    assert ticks(routine=True) == []
    worker.advance(50)
    worker.publish(orders, [b"z"])
    assert ticks(routine=False) == [1], "a record is due"
    worker.subscribe(ADA, orders)
    assert ticks(routine=False) == [1]
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]), origin=(b"c", ADA.session))
    assert ticks(routine=False) == [1]


def test_what_comes_while_a_leader_does_not_serve_is_looked_at_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, ticked = FakeWorker(), list[int]()
    worker.topic()
    worker.settle()
    worker.turn()
    monkeypatch.setattr(Leader, "tick", lambda leader: ticked.append(leader._desk.shard))
    worker.turn()
    assert ticked == []
    with monkeypatch.context() as patch:
        patch.setattr(Leader, "serving", property(lambda leader: False))
        worker.turn(lambda: worker.shards[1].renew(ADA.session))
    assert ticked == []
    worker.turn()
    assert ticked == [1]


def test_what_waits_in_another_shard_rides_along() -> None:
    worker = Counting()
    orders = single(worker.topic())
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"x"])
    assert worker.shards[1].pending
    worker.slow = True
    worker.turn(lambda: worker.step(0, (b"c", b"1"), 1, ADA, CreateTopic("other")))
    assert not worker.shards[1].pending


def test_a_publish_that_finds_its_partition_full_makes_room_at_once() -> None:
    worker = FakeWorker()
    orders = single(worker.topic("orders", TopicOptions(bytes_max=10_000, overflow="drop_oldest")))
    worker.settle()
    worker.turn()
    for _ in range(20):
        worker.publish(orders, [bytes(1_000)])
    state = worker.shards[1].ledger.partitions[orders]
    assert state.first > 0, "without waiting for the next look at what may leave"


def test_what_a_shard_tells_another_one_here_is_heard_in_the_next_turn() -> None:
    worker = FakeWorker()
    worker.slow = True
    worker.turn(
        lambda: worker.step(0, (b"c", b"1"), 1, ADA, CreateTopic("orders", TopicOptions(partitions=2)))
    )
    assert worker.turns.next_deadline_ms() == 0
    assert not worker.shards[1].ledger.partitions
    worker.turn()
    assert worker.shards[1].ledger.partitions


def test_a_new_leader_that_hears_one_wrong_clock_goes_by_the_time_of_the_shards_beside_it() -> None:
    """The shard never had a leader. Of the other two voters one answers, and
    its clock is a day behind.
    """
    worker = FakeWorker()
    worker.disk[1].state.put(records.META, records.encode(records.Meta(voters=["n1", "n2", "n3"])))
    worker.restart()
    shard = worker.shards[1]
    while not shard.leading:
        worker.advance(500)
        worker.turn()
        for pre in (True, False):
            reading = Reading(worker.now.wall_ms - DAY_MS, 0, False)
            vote = Vote("n2", shard.term + pre, True, pre, *reading)
            worker.turn(lambda vote=vote: worker.step(1, (), 0, None, vote, shard.term))  # type: ignore[misc]
    known = [each.replica.time.known_ahead_ms(worker.now) for each in worker.shards.values()]
    assert known[0] == known[1]
    assert abs(shard.desk.leader_ms - worker.now.wall_ms) < 1_000


def test_of_the_shards_beside_it_the_latest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy's knowledge of its leader's time is as old as the last message."""
    worker = FakeWorker()
    late = worker.shards[1].replica.time
    monkeypatch.setattr(ClusterTime, "known_ahead_ms", lambda time, now: 9_000 if time is late else 5_000)
    assert worker.turns._ahead_ms() == 9_000


def test_a_time_before_the_last_entry_of_a_shard_is_not_taken_from_another_one() -> None:
    """A machine without a battery-backed clock starts in 1970, with one new shard
    and one that has entries.
    """
    worker = FakeWorker()
    worker.disk[0] = MemoryTables()
    was_ms, worker.now = worker.shards[1].desk.leader_ms, Now(5_000, 9_000)
    worker.restart()
    assert worker.shards[0].desk.leader_ms == 9_000
    assert worker.shards[1].desk.leader_ms == was_ms
    worker.advance(1, DAY_MS + was_ms)
    worker.turn()
    assert worker.shards[1].desk.leader_ms >= DAY_MS + was_ms, (
        "it was not sure, and steps when the clock is set"
    )


# --- what cannot be finished --------------------------------------------------------------------------------


class Failing(FakeWorker):
    """Records failures, and does not open the shards again by itself."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        super().__init__()

    def run(self, *steps: object) -> None:
        self._sent, self.effects = [], {}
        run(self, self.turns, self.now, lambda: self._work(steps))  # type: ignore[arg-type]

    def open(self, shard: int) -> Shard:
        opened = super().open(shard)
        self.heard.append(f"opened {shard}")
        return opened

    def refused(self, error: object) -> None:
        self.heard.append("refused")

    def stopped(self, shard: int, error: Exception) -> None:
        self.heard.append(f"stopped {shard}")


@pytest.fixture
def worker() -> Failing:
    worker = Failing()
    worker.heard.clear()
    return worker


def publishing(worker: FakeWorker, partition: int, value: bytes) -> object:
    batch = bytes(batches.seal([value]))
    return lambda: worker.take(1, (b"c", b"p"), 7, None, Publish(partition), batches.check(batch), batch)


def test_a_failed_commit_sends_nothing_and_opens_from_disk_after_a_pause(worker: Failing) -> None:
    orders = single(worker.topic())
    worker.publish(orders, [b"kept"])
    worker.refuses = True
    worker.run(publishing(worker, orders, b"lost"))
    assert (worker._sent, worker.heard) == ([], ["opened 0", "opened 1", "refused"])
    assert not worker.turns.is_open
    assert worker.turns.next_deadline_ms() == worker.now.boot_ms + RECOVER_MS
    worker.run(publishing(worker, orders, b"not open"))
    assert [answer.code for effects in worker._sent for _, _, answer in effects.replies] == ["not_leader"]  # type: ignore[attr-defined]
    worker.advance(RECOVER_MS)
    worker.refuses = False
    worker.run()
    assert worker.turns.is_open
    assert worker.shards[1].ledger.partitions[orders].next == 1
    assert worker.publish(orders, [b"next"]) == (7, 1, 1, False)


def test_while_the_disk_refuses_every_attempt_pauses(worker: Failing) -> None:
    worker.topic()
    worker.refuses = True
    worker.run(publishing(worker, single(worker.shards[0].ledger.cluster.names["orders"]), b"lost"))
    for _ in range(3):
        worker.advance(RECOVER_MS)
        worker.run()
        assert not worker.turns.is_open
        assert worker.turns.next_deadline_ms() == worker.now.boot_ms + RECOVER_MS


@pytest.mark.parametrize("error", [CorruptLog("the chain"), KeyError(7)])
def test_a_shard_that_cannot_apply_stops_and_the_others_go_on(
    worker: Failing, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = single(worker.topic())
    worker.publish(orders, [b"kept"])
    apply = Ledger.apply

    def fails(ledger: Ledger, entry: object) -> object:
        if ledger is worker.shards[1].ledger:
            raise error
        return apply(ledger, entry)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "apply", fails)
        worker.run(publishing(worker, orders, b"poison"))
    assert worker.heard == ["stopped 1"]
    assert worker._sent == []
    worker.run()
    assert worker.heard == ["stopped 1", "opened 0"]
    assert list(worker.shards) == [0]
    assert list(worker.turns.stopped) == [1]
    assert "orders" in worker.shards[0].ledger.cluster.names
    for _ in range(5):
        worker.advance(RECOVER_MS)
        worker.run()
    assert worker.heard.count("opened 0") == 1, "no loop of restarts"


def test_a_shard_that_cannot_be_opened_stops_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = FakeWorker.open

    def fails(worker: FakeWorker, shard: int) -> Shard:
        if shard == 1:
            raise ValueError("planted")
        return opened(worker, shard)

    monkeypatch.setattr(FakeWorker, "open", fails)
    worker = Failing()
    assert worker.heard == ["opened 0", "stopped 1"]
    assert worker.shards[0].serving
    assert worker.turns.stopped[1] == "ValueError('planted')"
