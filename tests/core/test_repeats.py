"""A client that got no answer asks again. The work is not done twice, and the same leader or the
next one gives the first answer again.
"""

from array import array
from collections.abc import Callable

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.ledger import repeats
from gossipq.core.register import TopicRegister
from gossipq.core.storage import log
from gossipq.messages import (
    Access,
    Cancel,
    CreateTopic,
    Done,
    DropTopic,
    Edit,
    RefusedMessage,
    Requeue,
    SetAccess,
    SetGroup,
    Topics,
)
from gossipq.operator_messages import DropGroup, SetTopic
from gossipq.types import ID_HASH, topic_id_of
from gossipq.values import AccessChange, GroupOptions, Message, Ref, Role, Rule, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire.frames import decode, encode

ADA, BEN = client("ada"), client("ben")
KEY = b"key of one request"


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


def code(answer: object) -> str:
    assert isinstance(answer, RefusedMessage), answer
    return answer.code


def entries(worker: FakeWorker, shard: int) -> int:
    return worker.shards[shard].last


@pytest.fixture(params=[False, True], ids=["same leader", "next leader"])
def lose(request: pytest.FixtureRequest, worker: FakeWorker) -> Callable[[], None]:
    """The answer is lost, and maybe the leader, too."""
    return worker.restart if request.param else lambda: None


def test_a_topic_is_made_once(worker: FakeWorker, lose: Callable[[], None]) -> None:
    asked = CreateTopic("orders", idempotency_key=KEY)
    first = worker.ask(0, ADA, asked)
    assert isinstance(first, Topics)
    lose()
    assert worker.ask(0, ADA, asked) == first
    assert code(worker.ask(0, ADA, CreateTopic("orders"))) == "topic_exists"
    assert code(worker.ask(0, ADA, CreateTopic("orders", idempotency_key=b"another"))) == "topic_exists"
    assert code(worker.ask(0, BEN, asked)) == "topic_exists", "a key is that of a session"


def test_a_topic_that_somebody_removed_since_is_not_made_again(
    worker: FakeWorker, lose: Callable[[], None]
) -> None:
    asked = CreateTopic("orders", idempotency_key=KEY)
    worker.ask(0, ADA, asked)
    assert worker.ask(0, BEN, DropTopic("orders")) == Topics([])
    lose()
    assert code(worker.ask(0, ADA, asked)) == "unknown_topic"
    assert "orders" not in worker.shards[0].ledger.cluster.names


def test_a_topic_is_removed_once(worker: FakeWorker, lose: Callable[[], None]) -> None:
    worker.topic("orders")
    asked = DropTopic("orders", idempotency_key=KEY)
    assert worker.ask(0, ADA, asked) == Topics([])
    lose()
    assert worker.ask(0, ADA, asked) == Topics([])
    assert code(worker.ask(0, ADA, DropTopic("orders"))) == "unknown_topic"
    anew = worker.topic("orders")
    assert worker.ask(0, ADA, asked) == Topics([])
    assert worker.shards[0].ledger.cluster.names["orders"] == anew, "somebody else's topic stays"


def test_a_policy_is_not_set_back(worker: FakeWorker, lose: Callable[[], None]) -> None:
    worker.topic("orders")
    asked = SetTopic("orders", TopicOptions(ttl_ms=1_000), idempotency_key=KEY)
    worker.ask(0, ADA, asked)
    worker.ask(0, BEN, SetTopic("orders", TopicOptions(ttl_ms=2_000)))
    lose()
    answer = worker.ask(0, ADA, asked)
    assert isinstance(answer, Topics)
    assert answer.topics[0].config.ttl_ms == 2_000


def test_users_are_changed_once(worker: FakeWorker, lose: Callable[[], None]) -> None:
    version = worker.shards[0].ledger.cluster.access.version
    asked = SetAccess(AccessChange(roles=[Role("r", [])], version=version), idempotency_key=KEY)
    first = worker.ask(0, ADA, asked)
    assert isinstance(first, Access)
    lose()
    assert worker.ask(0, ADA, asked) == first


def test_records_and_groups_are_changed_once(worker: FakeWorker, lose: Callable[[], None]) -> None:
    orders = single(worker.topic("orders"))
    topic_id = topic_id_of(orders)
    worker.publish(orders, [b"a", b"b", b"c"])
    worker.subscribe(ADA, orders)
    worker.turn()
    worker.end_session(ADA.session)
    worker.restart()
    worker.tick(60 * limits.SECOND_MS)
    asked: list[Message] = [
        Cancel(Ref(orders, 0), idempotency_key=b"1"),
        Requeue(Ref(orders, 1), "billing", idempotency_key=b"2"),
        SetGroup(topic_id, "billing", GroupOptions(attempts_max=7), idempotency_key=b"3"),
        DropGroup(topic_id, "billing", idempotency_key=b"4"),
    ]
    for message in asked:
        first = worker.ask(1, ADA, message)
        if isinstance(message, Requeue):
            assert code(first) == "wrong_state", "it is ready: a refusal is asked anew each time"
            continue
        assert isinstance(first, Done), (message, first)
        lose()
        last = entries(worker, 1)
        assert worker.ask(1, ADA, message) == first
        assert entries(worker, 1) - last <= 1, "nothing but the word of a new leader"


def test_the_answer_names_the_record_as_the_first_one_did(
    worker: FakeWorker, lose: Callable[[], None]
) -> None:
    orders = single(worker.topic("orders", TopicOptions(dedup_ms=100)))
    worker.publish(orders, [b"a"])
    worker.publish(orders, [b"b"], fixed={ID_HASH: array("Q", [7])})
    asked = Cancel(Ref(orders, -1, id_hash=7), idempotency_key=KEY)
    first = worker.ask(1, ADA, asked)
    assert isinstance(first, Done)
    assert first.ref is not None
    assert first.ref.offset == 1
    worker.tick(200)
    worker.publish(orders, [b"c"], fixed={ID_HASH: array("Q", [7])})  # another record, by now
    lose()
    assert worker.ask(1, ADA, asked) == first


def test_a_record_is_replaced_once(worker: FakeWorker, lose: Callable[[], None]) -> None:
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"a"])
    batch = bytes(batches.seal([b"z"]))
    asked = Edit(Ref(orders, 0), idempotency_key=KEY)
    rows = []
    for _ in range(2):
        effects = worker.turn(lambda: worker.step(1, (b"c", b"1"), 1, ADA, asked, batch=batch))
        rows += effects[1].confirms[b"c", b"1"]
        lose()
    assert rows == [(1, 1, 1, False)] * 2
    assert worker.shards[1].ledger.partitions[orders].next == 2


def test_of_two_that_come_at_once_one_is_done(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"a"])
    asked = Cancel(Ref(orders, 0), idempotency_key=KEY)
    effects = worker.turn(*[lambda at=at: worker.step(1, (b"c", b"1"), at, ADA, asked) for at in (1, 2)])
    first, second = (message for _, _, message in effects[1].replies)
    assert first == Done(1, Ref(orders, 0))
    assert code(second) == "busy"
    assert worker.ask(1, ADA, asked) == Done(1, Ref(orders, 0))


def test_the_batch_of_one_that_is_refused_so_does_not_stay(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"a"])
    asked, batch = Edit(Ref(orders, 0), idempotency_key=KEY), bytes(batches.seal([b"z" * 1_000]))

    def edits(at: int) -> Callable[[], None]:
        return lambda: worker.step(1, (b"c", b"1"), at, ADA, asked, batch=batch)

    worker.turn(edits(1), edits(2))
    assert [row for _, row in worker.tables[1].body.scan(b"", b"\xff")].count(batch) == 1


def test_a_leader_that_was_gone_between_the_two_entries_has_done_nothing(worker: FakeWorker) -> None:
    """The key was stored, but the entry after it was not; an entry of another leader
    must not be mistaken for it.
    """
    worker.topic("bills")
    shard = worker.shards[0]
    asked = CreateTopic("orders", idempotency_key=KEY)
    worker.turn(lambda: worker.step(0, (b"c", b"1"), 1, ADA, CreateTopic("x", idempotency_key=b"x")))
    announce = log.NOOP
    worker.turn(
        lambda: shard.desk.propose(
            announce, b"\x91\xc4" + bytes([len(ADA.session + KEY)]) + ADA.session + KEY
        )
    )
    worker.restart()  # the NOOP of the new leader has a later term
    assert worker.shards[0].ledger.repeats.find(ADA.session + KEY) is None
    assert isinstance(worker.ask(0, ADA, asked), Topics)


def test_a_request_that_met_a_fault_is_not_taken_for_done(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = CreateTopic("orders", idempotency_key=KEY)
    worker.contains = True
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_make", lambda *_: 1 / 0)
        assert code(worker.ask(0, ADA, asked)) == "internal"
    assert isinstance(worker.ask(0, ADA, asked), Topics)
    assert "orders" in worker.shards[0].ledger.cluster.names


def test_a_key_too_long_is_refused_and_old_ones_go(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code(worker.ask(0, ADA, CreateTopic("orders", idempotency_key=bytes(65)))) == "bad_request"
    monkeypatch.setattr(repeats, "KEPT_MAX", 3)
    for number in range(5):
        worker.ask(0, ADA, CreateTopic(f"t{number}", idempotency_key=b"%d" % number))
    known = worker.shards[0].ledger.repeats
    assert [known.find(ADA.session + b"%d" % number) is not None for number in range(5)] == [False] * 2 + [
        True
    ] * 3
    worker.advance(repeats.KEPT_MS + 1)
    worker.ask(0, ADA, CreateTopic("late", idempotency_key=b"late"))
    rows = list(worker.tables[0].state.scan(b"k", b"l"))
    assert len(rows) == 1


def test_users_and_roles_are_no_more_than_an_answer_tells(worker: FakeWorker) -> None:
    """Otherwise nobody could read them any more, and no node could join."""
    for number in range(1_000):
        roles = [Role(f"r{number}-{at}", [Rule("p" * 190, ["read"])] * 60) for at in range(20)]
        answer = worker.ask(0, ADA, SetAccess(AccessChange(roles=roles)))
        if isinstance(answer, RefusedMessage):
            break
        decode(encode(answer))  # type: ignore[arg-type]
    assert code(answer) == "bad_request"
    assert number, "some fit"
    gone = AccessChange(roles_gone=["r0-0"])
    assert isinstance(worker.ask(0, ADA, SetAccess(gone)), Access)


def test_each_kind_of_entry_has_its_row_in_the_table(worker: FakeWorker) -> None:
    """`Ledger.apply` looks for the payload of a kind in `log.KINDS`, and for the function that applies it."""
    assert worker.shards[0].ledger._apply.keys() == log.KINDS.keys()
    assert set(log.SINCE_2) == {log.LEASE, log.ACK, log.FAIL}, "formats on disk stay as they are"
