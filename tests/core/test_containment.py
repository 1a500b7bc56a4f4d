"""A fault of the node in a request, or in a part of a turn, ends there: it is answered and told, and nothing
of it is left."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from core.fleet import Fleet
from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.copies import Reconfiguration
from gossipq.core.delivery import Dispatch, Outbox
from gossipq.core.delivery.window import LEASED, MOVES, NEW, READY
from gossipq.core.desk import Request
from gossipq.core.effects import Effects
from gossipq.core.register import TopicRegister
from gossipq.core.requests import ConsumeRequests, ExplainRequests, MendRequests, PublishRequests
from gossipq.core.shard import CONTAINED_AGAIN_MS
from gossipq.messages import (
    Ack,
    CreateTopic,
    Nack,
    Publish,
    RefusedMessage,
    Requeue,
    Resolve,
    Subscribe,
    Subscribed,
    Topics,
    Why,
)
from gossipq.peer_messages import Transfer
from gossipq.values import Message, Ref, Start, TopicOptions
from gossipq.wire import batch as batches

ADA, BOB = client("ada"), client("bob")
AT = (b"c", ADA.session)


class Worker(FakeWorker):
    """Notes what was contained, and the shards that stopped."""

    contains = True

    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []
        self.closed: list[int] = []
        self.abandoned: list[tuple[object, int]] = []
        super().__init__()

    def send(self, shard: Any, effects: Effects) -> None:
        super().send(shard, effects)
        self.faults += [(fault.what, repr(fault.error)) for fault in effects.faults]
        self.abandoned += effects.abandoned

    def stopped(self, shard: int, error: Exception) -> None:
        self.closed.append(shard)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def orders(worker: Worker) -> int:
    return single(worker.topic("orders", TopicOptions(attempts_max=1)))


def fails_after(patch: pytest.MonkeyPatch, room: type, name: str, times: int = 10**6) -> None:
    """The method does all that it does, and then meets a fault."""
    whole, left = getattr(room, name), [times]

    def planted(*args: Any, **more: Any) -> Any:
        found = whole(*args, **more)
        left[0] -= 1
        if left[0] >= 0:
            raise KeyError("planted")
        return found

    patch.setattr(room, name, planted)


def code(answer: object) -> str:
    return answer.code if isinstance(answer, RefusedMessage) else type(answer).__name__


def stored(worker: Worker, partition: int) -> int:
    return worker.shards[1].ledger.partitions[partition].next


# --- requests -----------------------------------------------------------------------------------------------


def test_a_publish_that_was_half_done_is_answered_and_not_stored(worker: Worker, orders: int) -> None:
    last = worker.shards[1].last
    with pytest.MonkeyPatch.context() as patch:
        fails_after(patch, PublishRequests, "publish")
        assert code(worker.publish(orders, [b"poison"])) == "internal"
    assert worker.faults == [("Publish", "KeyError('planted')")]
    assert worker.shards[1].serving
    assert worker.shards[1].last == last + 1, "a NOOP, and nothing of the batch"
    assert worker.publish(orders, [b"fine"]) == (7, 0, 1, False)
    worker.restart()
    assert stored(worker, orders) == 1


def test_a_publish_that_had_changed_nothing_disturbs_nobody(
    worker: Worker, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.subscribe(ADA, orders)
    monkeypatch.setattr("gossipq.core.storage.log.publish_payload", lambda *args: 1 // 0)
    assert code(worker.publish(orders, [b"poison"])) == "internal"
    monkeypatch.undo()
    assert worker.abandoned == []
    worker.publish(orders, [b"fine"])
    assert worker.taken() == [(ADA.session, 0, 1, 1)]


def test_what_others_published_in_that_turn_is_stored_or_refused(worker: Worker, orders: int) -> None:
    whole = PublishRequests.publish

    def planted(room: PublishRequests, request: Request) -> None:
        whole(room, request)
        if request.request_id == 2:
            raise KeyError("planted")

    def publishing(request_id: int) -> Callable[[], None]:
        batch = bytes(batches.seal([b"%d" % request_id]))
        return lambda: worker.take(1, AT, request_id, ADA, Publish(orders), batches.check(batch), batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishRequests, "publish", planted)
        effects = worker.turn(*map(publishing, (1, 2, 3)))[1]
    assert {request: code(answer) for _, request, answer in effects.replies} == {2: "internal", 3: "busy"}
    assert worker.abandoned == [(AT, 1)], "it may be stored: who asked asks again"
    assert stored(worker, orders) == 1


def refused_and_again(
    worker: Worker, shard: int, message: Message, room: type, name: str
) -> tuple[Message | None, Message | None]:
    """The answers to a request that meets a fault at its end, and to the same one after that."""
    with pytest.MonkeyPatch.context() as patch:
        fails_after(patch, room, name)
        first = worker.ask(shard, ADA, message, origin=AT)
    assert [what for what, _ in worker.faults] == [type(message).__name__]
    return first, worker.ask(shard, ADA, message, origin=AT)


def test_a_subscription_that_was_half_made_is_gone(worker: Worker, orders: int) -> None:
    message = Subscribe(1, "billing", [Start(orders)], 10, limits.MIB)
    first, again = refused_and_again(worker, 1, message, ConsumeRequests, "serve")
    assert code(first) == "internal"
    assert isinstance(again, Subscribed)
    worker.publish(orders, [b"x"])
    assert worker.taken() == [(ADA.session, 0, 1, 1)], "to one subscription"


def test_an_ack_that_was_half_done_comes_again(worker: Worker, orders: int) -> None:
    worker.publish(orders, [b"x", b"y"])
    worker.subscribe(ADA, orders)
    assert worker.taken()
    with pytest.MonkeyPatch.context() as patch:
        fails_after(patch, ConsumeRequests, "serve")
        assert code(worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]), origin=AT)) == "internal"
    assert (AT, 0) in worker.abandoned, "the client hears that it has to subscribe again"
    assert worker.shards[1].delivered == 2, "what was counted stays counted"
    worker.subscribe(ADA, orders)
    worker.tick(60_000)
    assert worker.taken()[0][1:3] == (0, 2), "nothing was acked"


def test_a_mending_that_was_half_done_is_none(worker: Worker, orders: int) -> None:
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], dead="rejected"), origin=AT)
    worker.settle()
    message = Requeue(Ref(orders, 0), "billing")
    first, again = refused_and_again(worker, 1, message, MendRequests, "serve")
    assert code(first) == "internal"
    assert code(again) == "Done", "it was a dead letter still"


def test_a_question_changes_nothing_and_disturbs_nobody(
    worker: Worker, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.subscribe(ADA, orders)
    monkeypatch.setattr(ExplainRequests, "serve", lambda *args: 1 // 0)
    assert code(worker.ask(1, ADA, Why(Ref(orders, 0), "billing"), origin=AT)) == "internal"
    ((verb, fault),) = worker.faults
    assert (verb, fault.partition("(")[0]) == ("Why", "ZeroDivisionError")
    worker.publish(orders, [b"x"])
    assert worker.taken() == [(ADA.session, 0, 1, 1)]
    assert worker.abandoned == []


def test_a_topic_that_was_half_made_is_none(worker: Worker) -> None:
    first, again = refused_and_again(worker, 0, CreateTopic("orders"), TopicRegister, "serve")
    assert code(first) == "internal"
    assert isinstance(again, Topics)
    found = worker.ask(0, ADA, Resolve(["orders"]))
    assert isinstance(found, Topics)
    assert len(found.topics) == 1


def test_a_leader_of_three_copies_leads_on_in_its_term(monkeypatch: pytest.MonkeyPatch) -> None:
    three = Fleet(1, "abc")
    partition = three.topic()
    leader, term = three.leader, three.leader.term
    with pytest.MonkeyPatch.context() as patch:
        fails_after(patch, PublishRequests, "publish")
        three.publish(partition, b"poison")
        three.run(50)
        fails_after(patch, Reconfiguration, "serve")
        three.tell(Transfer("b" if leader.replica.me != "b" else "c"))
        three.run(50)
    answers = [code(answer) for effects in three.seen[leader.replica.me] for _, _, answer in effects.replies]
    assert answers.count("internal") >= 1
    three.run(3_000)
    if three.leader is leader:
        assert leader.term == term
    three.publish(partition, b"fine")
    three.run(500)
    assert three.confirmed() == 1
    assert {shard.ledger.partitions[partition].next for shard in three.shards.values()} == {1}


# --- parts of a turn ----------------------------------------------------------------------------------------


PARTS = {
    "tick": (Dispatch, "tick"),
    "gather": (Outbox, "gather"),
    "leases": (Outbox, "log_leases"),
    "answers": (Outbox, "_count_applied"),
    "deliveries": (Dispatch, "run"),
    "end of a session": (Dispatch, "end_session"),
}


def use(worker: Worker, orders: int) -> None:
    """Something for every part of a turn."""
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"x", b"y"])
    worker.settle()
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]), origin=AT)
    worker.settle()
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.settle()


@pytest.mark.parametrize("part", PARTS)
def test_one_fault_is_contained_and_the_shard_goes_on(worker: Worker, orders: int, part: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fails_after(patch, *PARTS[part], times=1)
        use(worker, orders)
    assert [what for what, _ in worker.faults] == ["tick" if part == "gather" else part]
    assert worker.closed == []
    before = stored(worker, orders)
    worker.publish(orders, [b"z"])
    worker.subscribe(BOB, orders)
    worker.settle()
    worker.tick(60_000)
    assert stored(worker, orders) == before + 1
    taken = {offset for _, first, end, _ in worker.taken() for offset in range(first, end)}
    assert before in taken, "it still hands out"
    worker.restart()
    assert stored(worker, orders) == before + 1


@pytest.mark.parametrize("part", ["tick", "gather", "deliveries"])
def test_a_fault_in_each_turn_stops_the_shard_and_no_other(worker: Worker, orders: int, part: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fails_after(patch, *PARTS[part])
        patch.setattr(worker, "slow", True)
        for _ in range(20):
            if 1 not in worker.closed:
                with suppress(KeyError):  # the shard stopped in that turn
                    worker.subscribe(ADA, orders)  # else nothing is handed out
            worker.turn()
            worker.advance(1_000)
    assert 1 in worker.closed
    assert len(worker.closed) == len(set(worker.closed)), "each once"


def test_faults_that_are_far_apart_never_stop_it(worker: Worker, orders: int) -> None:
    for _ in range(5):
        worker.advance(CONTAINED_AGAIN_MS)
        with pytest.MonkeyPatch.context() as patch:
            fails_after(patch, Dispatch, "tick", times=2)  # of both shards
            for shard in worker.shards.values():
                shard.leave(False)  # the meta shard has no topics, so time alone gives it no tick
            worker.turn()
    assert worker.closed == []
    assert len(worker.faults) == 10


# --- moves that there are not -------------------------------------------------------------------------------


def test_a_move_that_the_table_does_not_have_is_a_fault(worker: Worker, orders: int) -> None:
    """Nothing is delivered, and all is found on disk again."""
    worker.subscribe(ADA, orders)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(MOVES, (NEW, LEASED))
        worker.publish(orders, [b"x"])
    assert [what for what, error in worker.faults if "NoSuchMove" in error] == ["deliveries"]
    worker.taken()
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"y"])
    assert [row[1:3] for row in worker.taken()] == [(0, 1), (1, 2)]
    assert worker.shards[1].serving


def test_a_record_that_goes_back_without_its_move_is_a_fault(worker: Worker, orders: int) -> None:
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"x"])
    back = Nack(1, [(orders, 0, 1)], 0, failed=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(MOVES, (LEASED, READY))
        assert code(worker.ask(1, ADA, back)) == "internal"
    assert ["NoSuchMove" in error for _, error in worker.faults] == [True]
    assert worker.shards[1].serving
