"""Points that the leader of a shard makes for a backup. A point describes the state at one
entry, whatever happens later.
"""

import msgspec
import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core import shard
from gossipq.core.copies.backups import IDLE_MS
from gossipq.core.ledger import records
from gossipq.export_messages import BackedUp, BackUp
from gossipq.messages import DropTopic, RefusedMessage
from gossipq.operator_messages import PurgeTopic
from gossipq.values import TopicOptions

ADA = client("ada")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> int:
    return single(worker.topic("orders"))


def ask(worker: FakeWorker, message: BackUp) -> tuple[BackedUp | RefusedMessage, list]:
    answer = worker.ask(1, ADA, message)
    for effects in worker.effects.values():
        for _, _, told, bodies in effects.enclosed:
            return told, msgspec.msgpack.decode(bodies[0] or b"\x90")
    return answer, []


def whole(worker: FakeWorker, index: int, kind: str, at: int = 0) -> list:
    found = []
    while at >= 0:
        told, rows = ask(worker, BackUp(index, kind, at))
        assert told.index == index
        found, at = found + rows, told.more
    return found


def state_of(worker: FakeWorker) -> dict[bytes, bytes]:
    return {k: v for k, v in worker.disk[1].state.rows.items() if k not in records.OWN_ROWS}


def test_a_point_is_of_one_entry_whatever_comes_and_goes_meanwhile(
    worker: FakeWorker, orders: int, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_PART_BYTES", 300)
    for number in range(20):
        worker.publish(orders, [b"%d" % number * 20])
    point, _ = ask(worker, BackUp())
    before, bodies = state_of(worker), dict(worker.disk[1].body.rows)
    assert point.index == worker.shards[1].applied
    first, _ = ask(worker, BackUp(point.index, "state", 0))
    worker.publish(orders, [b"later"])
    while worker.ask(1, ADA, PurgeTopic(orders, 10)).count:
        pass
    state = [tuple(row) for row in whole(worker, point.index, "state", 0)]
    assert len(state) == len(dict(state))
    assert dict(state) == before != state_of(worker)
    rows = {index.to_bytes(8, "big"): body for index, body in whole(worker, point.index, "batches")}
    assert rows == bodies
    assert whole(worker, point.index, "kept") == [int.from_bytes(key, "big") for key in sorted(bodies)]
    assert len(worker.disk[1].body.rows) == 21, "nothing goes that the backup may still ask for"
    assert first.more == 1
    ask(worker, BackUp())
    worker.turn()
    worker.advance(IDLE_MS)
    worker.turn()
    worker.publish(orders, [b"x"])
    assert len(worker.disk[1].body.rows) == 12, "and then it does"


def test_only_later_batches_are_asked_for(worker: FakeWorker, orders: int) -> None:
    worker.publish(orders, [b"one"])
    (old, _), kept = ask(worker, BackUp()), None
    worker.publish(orders, [b"two"])
    (new, _) = ask(worker, BackUp())
    assert ask(worker, BackUp(old.index, "state", 0))[0].code == "wrong_state", "there is one point at a time"
    assert len(whole(worker, new.index, "batches", old.index + 1)) == 1
    kept = whole(worker, new.index, "kept")
    assert len(kept) == 2
    assert whole(worker, new.index, "batches", new.index + 1) == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (BackUp(7), "wrong_state"),
        (BackUp(-1), "wrong_state"),
        (BackUp(0, "rows"), None),
    ],
)
def test_what_is_not_there_is_refused(worker: FakeWorker, orders: int, message: BackUp, code: str) -> None:
    told, _ = ask(worker, message)
    assert getattr(told, "code", None) == code
    if code is None:
        for wrong in (BackUp(told.index, "rows"), BackUp(told.index, "state", 3), BackUp(told.index)):
            assert ask(worker, wrong)[0].code == "bad_request"
        for far in (-5, told.index + 9, 2**63):
            assert isinstance(ask(worker, BackUp(told.index, "batches", far))[0], BackedUp)
            assert isinstance(ask(worker, BackUp(told.index, "kept", far))[0], BackedUp)


def test_a_point_that_nobody_asks_for_is_given_up(worker: FakeWorker, orders: int) -> None:
    point, _ = ask(worker, BackUp())
    for _ in range(3):
        worker.advance(IDLE_MS - 1)
        assert isinstance(ask(worker, BackUp(point.index, "kept"))[0], BackedUp)
    worker.advance(IDLE_MS)
    worker.turn()
    assert ask(worker, BackUp(point.index, "kept"))[0].code == "wrong_state"
    assert not worker.shards[1].peers.sending


def test_a_point_of_a_leader_that_starts_over_is_gone(worker: FakeWorker, orders: int) -> None:
    point, _ = ask(worker, BackUp())
    worker.publish(orders, [b"x"])
    worker.restart()
    assert ask(worker, BackUp(point.index, "kept"))[0].code == "wrong_state"
    assert ask(worker, BackUp())[0].index > point.index


def test_what_was_kept_for_the_point_before_is_no_part_of_the_next(worker: FakeWorker, orders: int) -> None:
    """The next write deletes those batches, and a restore would then miss
    records that the point lists.
    """
    for number in range(6):
        worker.publish(orders, [b"%d" % number])
    ask(worker, BackUp())
    while worker.ask(1, ADA, PurgeTopic(orders, 4)).count:
        pass
    point, _ = ask(worker, BackUp())
    kept = whole(worker, point.index, "kept")
    worker.publish(orders, [b"later"])
    worker.turn()
    there = [index for index, _ in whole(worker, point.index, "batches")]
    assert kept == there
    assert len(kept) == 2


@pytest.mark.parametrize("goes", ["purged", "removed"])
def test_batches_of_a_point_stay_whatever_is_swept_meanwhile(
    worker: FakeWorker, orders: int, goes: str
) -> None:
    """Each write lets retention delete rows: without protection, a restored cluster would miss
    batches that the point lists.
    """
    for number in range(20):
        worker.publish(orders, [b"%d" % number * 20])
    point, _ = ask(worker, BackUp())
    bodies = dict(worker.disk[1].body.rows)
    if goes == "purged":
        while worker.ask(1, ADA, PurgeTopic(orders, 10)).count:
            pass
    else:
        worker.ask(0, ADA, DropTopic("orders"))
    others = single(worker.topic("others", TopicOptions(partitions=1)))
    for _ in range(10):
        worker.tick(100)
        worker.publish(others, [b"x"])
    assert whole(worker, point.index, "kept") == [int.from_bytes(key, "big") for key in sorted(bodies)]
    rows = {index.to_bytes(8, "big"): body for index, body in whole(worker, point.index, "batches")}
    assert rows == bodies


def test_points_without_a_pause_keep_nothing_of_those_before(worker: FakeWorker, orders: int) -> None:
    for at in range(5):
        worker.publish(orders, [b"x"])
        ask(worker, BackUp())
        while worker.ask(1, ADA, PurgeTopic(orders, at + 1)).count:
            pass
        worker.turn()
    worker.publish(orders, [b"y"])
    ask(worker, BackUp())
    worker.publish(orders, [b"z"])
    assert len(worker.disk[1].body.rows) == 2


def test_what_waited_for_a_backup_goes_also_after_a_crash(worker: FakeWorker, orders: int) -> None:
    for _ in range(30):
        worker.publish(orders, [b"x"])
    ask(worker, BackUp())
    while worker.ask(1, ADA, PurgeTopic(orders, 30)).count:
        pass
    worker.publish(orders, [b"y"])
    assert len(worker.disk[1].body.rows) == 31
    worker.restart()
    worker.publish(orders, [b"z"])
    assert len(worker.disk[1].body.rows) == 2
    assert not list(worker.disk[1].state.scan(b"b", b"c"))


def test_what_waited_for_a_backup_goes_a_bounded_number_at_a_time(
    worker: FakeWorker, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        worker.publish(orders, [b"x"])
    ask(worker, BackUp())
    while worker.ask(1, ADA, PurgeTopic(orders, 30)).count:
        pass
    worker.tick(100)
    worker.publish(orders, [b"y"])
    assert len(worker.disk[1].body.rows) == 31
    monkeypatch.setattr(shard, "SWEEP_ROWS", 10)
    worker.advance(IDLE_MS)
    worker.turn()
    left = [len(worker.disk[1].body.rows)]
    for _ in range(6):
        worker.publish(orders, [b"y"])
        left.append(len(worker.disk[1].body.rows))
    assert left[1] > 10, "not all in one turn"
    assert left[-1] == 7, "those that were published since"
