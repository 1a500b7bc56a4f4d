"""A change that the register has begun is finished, whichever node leads the meta shard then, and a
removed topic stays removed.
"""

import msgspec
import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.register import TopicRegister
from gossipq.core.storage.log import NOOP
from gossipq.messages import BindTopic, CreateTopic, DropTopic, RefusedMessage, Resolve, Topics
from gossipq.operator_messages import SetTopic
from gossipq.peer_messages import InstallTopic, TopicInstalled
from gossipq.types import topic_id_of
from gossipq.values import Message, TopicOptions

ADA = client("ada")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


def cut_off(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker, message: Message) -> None:
    """The meta shard logs the message, and its leader is gone before a shard hears of it."""
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        assert worker.ask(0, ADA, message) is None
    worker.restart()
    for _ in range(3):
        worker.tick(limits.SECOND_MS)


def code(answer: object) -> str:
    assert isinstance(answer, RefusedMessage), answer
    return answer.code


def test_a_removal_goes_on_after_a_takeover(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker) -> None:
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"x"])
    cut_off(monkeypatch, worker, DropTopic("orders"))
    assert code(worker.publish(orders, [b"y"])) == "unknown_topic"
    assert not worker.shards[1].ledger.partitions
    assert code(worker.ask(0, ADA, DropTopic("orders"))) == "unknown_topic"
    assert not worker.shards[0].ledger.cluster.installing, "it is finished"


def test_so_does_a_change_and_a_creation(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker) -> None:
    orders = single(worker.topic("orders"))
    cut_off(monkeypatch, worker, SetTopic("orders", TopicOptions(ttl_ms=5_000)))
    assert worker.shards[1].ledger.topics[topic_id_of(orders)].config.ttl_ms == 5_000
    cut_off(monkeypatch, worker, CreateTopic("bills", TopicOptions()))
    (bills,) = [info for info in worker.shards[1].ledger.topics.values() if info.name == "bills"]
    assert worker.ask(0, ADA, Resolve(["bills"])) == Topics([bills])
    assert not worker.shards[0].ledger.cluster.installing


def test_who_asks_again_for_a_removal_under_way_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    worker.topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        assert worker.ask(0, ADA, DropTopic("orders")) is None
        worker.restart()
        assert worker.ask(0, ADA, DropTopic("orders"), request_id=9) is None
    worker.tick(limits.SECOND_MS)
    worker.tick(limits.SECOND_MS)
    replies = [(request_id, message) for effects in worker.seen for _, request_id, message in effects.replies]
    assert replies.count((9, Topics([]))) == 1


def test_the_end_of_a_topic_is_told_when_the_one_before_it_of_that_name_is_gone_too(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    """Otherwise a client that removes a topic, creates it again and removes it again would get
    records of the first topic afterwards.
    """
    first = worker.topic("orders", TopicOptions(partitions=4))
    tell, held = TopicRegister._tell, True

    def slow(register: TopicRegister, topic_id: int) -> None:
        if topic_id != first.id or not held:
            tell(register, topic_id)

    monkeypatch.setattr(TopicRegister, "_tell", slow)
    assert worker.ask(0, ADA, DropTopic("orders")) is None
    assert worker.topic("orders", TopicOptions(partitions=4)).id > first.id
    assert worker.ask(0, ADA, DropTopic("orders"), request_id=9) is None
    held = False
    worker.tick(limits.SECOND_MS)
    worker.tick(limits.SECOND_MS)
    replies = [(request_id, message) for effects in worker.seen for _, request_id, message in effects.replies]
    assert replies.count((9, Topics([]))) == 1
    assert not worker.shards[1].ledger.partitions


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "after a restart"])
def test_a_late_word_of_the_register_brings_nothing_back(worker: FakeWorker, restart: bool) -> None:
    info = worker.topic("orders")
    worker.ask(0, ADA, DropTopic("orders"))
    if restart:
        worker.restart()
    worker.turn(lambda: worker.step(1, (), 0, None, InstallTopic(info)))
    assert not worker.shards[1].ledger.partitions
    assert not worker.shards[1].ledger.topics
    assert code(worker.publish(single(info), [b"y"])) == "unknown_topic"


def test_records_of_a_topic_that_the_register_has_lost_are_none_of_another_one(worker: FakeWorker) -> None:
    """Topic ids are indexes of entries: a meta shard that was recovered from an older copy
    assigns them a second time.
    """
    before = worker.disk[0].copy()
    for name in ("some", "more", "lost"):
        lost = single(worker.topic(name))
    worker.publish(lost, [b"secret"])
    worker.disk[0] = before
    worker.restart()
    while worker.shards[0].last + 1 < topic_id_of(lost):
        worker.turn(lambda: worker.shards[0].desk.propose(NOOP, b""))
    assert worker.ask(0, ADA, CreateTopic("new", TopicOptions())) is None
    assert worker.shards[1].ledger.topics[topic_id_of(lost)].name == "lost"
    worker.ask(0, ADA, DropTopic("new"))
    assert worker.shards[1].ledger.partitions[lost].next == 1, "nor are they removed with it"


def test_tombstones_go_after_a_week_and_what_is_later_is_told_by_the_register(worker: FakeWorker) -> None:
    info = worker.topic("orders")
    worker.ask(0, ADA, DropTopic("orders"))
    worker.advance(8 * limits.DAY_MS)
    worker.topic("bills")
    worker.ask(0, ADA, DropTopic("bills"))
    assert not worker.shards[1].ledger.removed(info.id)
    worker.turn(lambda: worker.step(1, (), 0, None, InstallTopic(info)))
    worker.tick(limits.SECOND_MS)
    assert not worker.shards[1].ledger.topics, "it was back for a moment, and the register knew better"
    assert worker.shards[1].ledger.removed(info.id)


def test_a_change_behind_a_removal_makes_no_topic(worker: FakeWorker) -> None:
    worker.topic("orders")
    shard, answers = worker.shards[0], []
    effects = worker.turn(
        lambda: worker.step(0, (b"c", b"1"), 1, ADA, DropTopic("orders")),
        lambda: worker.step(0, (b"c", b"2"), 2, ADA, SetTopic("orders", TopicOptions(ttl_ms=5_000))),
    )
    answers = [(request_id, message) for each in effects.values() for _, request_id, message in each.replies]
    assert (1, Topics([])) in answers
    assert [code(message) for request_id, message in answers if request_id == 2] == ["unknown_topic"]
    assert not shard.ledger.cluster.names


def test_a_virtual_topic_and_the_end_of_its_real_one_do_not_pass_each_other(worker: FakeWorker) -> None:
    worker.topic("orders")
    shard = worker.shards[0]
    effects = worker.turn(
        lambda: worker.step(0, (b"c", b"1"), 1, ADA, BindTopic("all", ["orders"])),
        lambda: worker.step(0, (b"c", b"2"), 2, ADA, DropTopic("orders")),
    )
    answers = {request_id: message for each in effects.values() for _, request_id, message in each.replies}
    assert isinstance(answers[1], Topics)
    assert code(answers[2]) == "bad_request"
    assert set(shard.ledger.cluster.names) == {"all", "orders"}


def test_an_old_answer_of_a_shard_frees_nobody(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker) -> None:
    info = worker.topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        assert worker.ask(0, ADA, SetTopic("orders", TopicOptions(ttl_ms=5_000))) is None
        worker.turn(lambda: worker.step(0, (), 0, None, TopicInstalled(info.id, info.version, 1)))
    assert worker.shards[0].ledger.cluster.installing


def test_a_change_is_not_confirmed_by_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    """Its entry may not be stored yet, and the leader may fall before it is."""
    info = worker.topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        assert worker.ask(0, ADA, SetTopic("orders", TopicOptions(ttl_ms=5_000))) is None
        worker.restart()  # the next leader goes on with that change
        effects = worker.turn(
            lambda: worker.step(0, (b"c", b"1"), 7, ADA, SetTopic("orders", TopicOptions(ttl_ms=9_000))),
            lambda: worker.step(0, (), 0, None, TopicInstalled(info.id, 2, 1)),
        )
        assert not [answer for each in effects.values() for _, _, answer in each.replies]
    worker.seen.clear()
    worker.tick(limits.SECOND_MS)
    (answer,) = [answer for each in worker.seen for _, number, answer in each.replies if number == 7]
    assert [(each.version, each.config.ttl_ms) for each in answer.topics] == [(3, 9_000)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (CreateTopic("bills"), CreateTopic("bills", if_not_exists=True)),
        (SetTopic("orders", TopicOptions(ttl_ms=5)), SetTopic("orders", TopicOptions(ttl_ms=5))),
    ],
)
def test_who_asks_for_what_is_there_waits_for_its_shards(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker, first: Message, second: Message
) -> None:
    worker.topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        assert worker.ask(0, ADA, first) is None
        worker.restart()
        assert worker.ask(0, ADA, second, 5) is None
    worker.seen.clear()
    worker.tick(limits.SECOND_MS)
    (answer,) = [answer for each in worker.seen for _, number, answer in each.replies if number == 5]
    assert isinstance(answer, Topics)


@pytest.mark.parametrize("names", [["*"], ["t1*", "t2*", "t3*", "t4*"], [f"t{n}" for n in range(10, 50)]])
def test_topics_come_in_pages_in_the_order_of_their_names(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker, names: list[str]
) -> None:
    for number in range(10, 50):
        worker.topic(f"t{number}")
    monkeypatch.setattr(limits, "LIST_ROWS_MAX", 15)
    found, answers = [], [worker.ask(0, ADA, Resolve(names))]
    while answers[-1].more:
        answers.append(worker.ask(0, ADA, Resolve(names, after=answers[-1].more)))
    found = [info.name for answer in answers for info in answer.topics]
    assert found == [f"t{number}" for number in range(10, 50)]
    assert [len(answer.topics) for answer in answers] == [15, 15, 10]


def test_topics_that_are_made_by_name_are_made_and_told_page_by_page(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    monkeypatch.setattr(limits, "LIST_BYTES_MAX", 1_000)
    names = [f"t{number}" for number in range(10, 20)]
    answer = worker.ask(0, ADA, Resolve(names, True))
    assert [info.name for info in answer.topics] == ["t10", "t11", "t12", "t13"]
    assert set(worker.shards[0].ledger.cluster.names) == set(names[:4])
    rest = worker.ask(0, ADA, Resolve(names, True, answer.more))
    assert [info.name for info in rest.topics] == names[4:8]


@pytest.mark.parametrize(
    ("name", "node", "made"),
    [("_audit", False, False), ("_audit", True, True), ("_schemas", False, True), ("_replies", False, True)],
)
def test_a_topic_that_only_nodes_write_is_not_made_by_who_may_not_write_it(
    worker: FakeWorker, name: str, node: bool, made: bool
) -> None:
    who = msgspec.structs.replace(ADA, node=node)
    answer = worker.ask(0, who, Resolve([name], True))
    if made:
        assert isinstance(answer, Topics)
    else:
        assert code(answer) == "bad_request"
        assert answer.message == f"{name} is written by nodes only"
    assert (name in worker.shards[0].ledger.cluster.names) is made


def test_who_waits_for_a_shard_that_is_gone_hears_so(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    orders = worker.topic("orders")
    monkeypatch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
    messages = [
        SetTopic("orders", TopicOptions(ttl_ms=5_000)),
        CreateTopic("more"),
        Resolve(["orders"]),
        Resolve(["late"], True),
    ]
    steps = [lambda n=n, m=m: worker.step(0, (b"c", b"1"), n, ADA, m) for n, m in enumerate(messages)]
    worker.seen[:] = worker.turn(*steps).values()
    worker.ask(0, ADA, DropTopic("more"), 9)
    for _ in range(8):
        worker.tick(500)
    answers = {number: answer for effects in worker.seen for _, number, answer in effects.replies}
    assert set(answers) == {0, 1, 2, 3, 9}
    assert [info.id for info in answers[2].topics] == [orders.id]
    for number in (0, 1, 3, 9):
        assert answers[number].code in ("refused", "unknown_topic"), answers[number]
    assert "no answer of shard 1" in answers[0].message


def test_a_shard_that_did_not_hear_is_told_again_after_half_a_second(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    """No other event makes the meta shard look at its timers."""
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        assert worker.ask(0, ADA, CreateTopic("orders", TopicOptions()), 5) is None
    deadline_ms = worker.turns.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms - worker.now.boot_ms <= 500
    worker.seen.clear()
    worker.tick(500)
    answers = [answer for effects in worker.seen for _, number, answer in effects.replies if number == 5]
    assert isinstance(answers[0], Topics)


def test_a_register_that_opens_again_tells_of_topics_whose_shard_is_gone(
    monkeypatch: pytest.MonkeyPatch, worker: FakeWorker
) -> None:
    info = worker.topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(TopicRegister, "_tell", lambda register, topic_id: None)
        worker.ask(0, ADA, SetTopic("orders", TopicOptions(ttl_ms=5_000)))
        worker.restart()
        assert worker.shards[0].ledger.cluster.installing
        worker.seen.clear()
        worker.ask(0, ADA, Resolve(["orders"]), 5)
        for _ in range(8):
            worker.tick(500)
    answers = [answer for effects in worker.seen for _, number, answer in effects.replies if number == 5]
    assert [found.id for found in answers[0].topics] == [info.id]


def test_a_producer_that_spoke_in_the_same_turn_is_not_forgotten(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"x"], b"p" * 16, 1)
    worker.advance(limits.PRODUCER_IDLE_MS + 2 * limits.HOUR_MS)
    assert worker.publish(orders, [b"y"], b"p" * 16, 2) == (7, 1, 1, False), (
        "FORGET is proposed in this very turn"
    )
    worker.settle()
    worker.restart()
    assert worker.publish(orders, [b"y"], b"p" * 16, 2) == (7, 1, 1, True)


def test_a_topic_cannot_lie_beside_one_that_has_no_records(worker: FakeWorker) -> None:
    worker.topic("orders")
    worker.ask(0, ADA, BindTopic("all", ["orders"]))
    assert code(worker.ask(0, ADA, CreateTopic("bills", TopicOptions(beside="all")))) == "bad_request"
    assert isinstance(worker.ask(0, ADA, CreateTopic("bills", TopicOptions(beside="orders"))), Topics)
