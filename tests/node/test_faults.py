"""Unexpected exceptions, planted at each entry point of a worker and of the frontdoor: each is
answered, counted, logged once, and ends nothing else.
"""

import logging
from typing import Any

import pytest

from gossipq.core.ledger import Ledger
from gossipq.core.requests import ExplainRequests, PublishRequests, Watch
from gossipq.errors import Internal
from gossipq.messages import (
    Confirm,
    Deliver,
    Hello,
    Ping,
    Pong,
    RefusedMessage,
    Resolve,
    Stats,
    StatsReply,
    Status,
    StatusReply,
    Subscribe,
    Why,
)
from gossipq.operator_messages import ListClients
from gossipq.types import NODE_SHARD
from gossipq.values import Ref, Start
from gossipq_node.actors import frontdoor, sender, worker_stats
from gossipq_node.actors.faults import TOLD_MAX, Faults
from gossipq_node.actors.post import Post
from node.test_frontdoor import House
from node.test_worker import OWNER, Client, Hands


def planted(*args: Any, **more: Any) -> Any:
    raise KeyError("planted")


@pytest.fixture
def hands() -> Hands:
    return Hands()


def faults(hands: Hands) -> int:
    hands.turn(1_000)
    return hands.reports()[-1].stats.faults


def code(answer: object) -> str:
    return answer.code if isinstance(answer, RefusedMessage) else type(answer).__name__


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


def subscribed(client: Client, partition: int, shard: int) -> None:
    client.ask(Subscribe(1, "billing", [Start(partition)], 10, 1_000_000), shard)


def test_a_request_that_meets_a_fault_is_answered_counted_and_told_once(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    client = hands.client()
    partition, shard = client.topic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExplainRequests, "serve", planted)
        for _ in range(3):
            answer = client.ask(Why(Ref(partition, 0), "billing"), shard)
            assert isinstance(answer, RefusedMessage)
            assert (answer.code, answer.hint) == (Internal.code, "the log of the node has the details")
    assert told(caplog) == [f"worker 0: internal error at Why of shard {shard}; this place is logged once"]
    assert "planted" in caplog.text
    assert faults(hands) == 3
    assert code(client.publish(partition, shard, 1)) == "Confirm"


def test_a_publish_that_meets_a_fault_takes_nobody_else_along(hands: Hands) -> None:
    client, other = hands.client(), hands.client(b"o" * 16)
    partition, shard = client.topic()
    subscribed(other, partition, shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishRequests, "publish", planted)
        assert code(client.publish(partition, shard, 1)) == "internal"
    other.inbox()
    assert code(client.publish(partition, shard, 1)) == "Confirm"
    assert any(isinstance(message, Deliver) for message in other.inbox())


@pytest.mark.parametrize(("where", "name", "question"), [
    (worker_stats, "_stats", Stats()),
    (worker_stats, "_clients", ListClients()),
])  # fmt: skip
def test_a_question_to_the_worker_itself(hands: Hands, where: Any, name: str, question: Any) -> None:
    client = hands.client()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, planted)
        assert code(client.ask(question)) == "internal"
    assert isinstance(client.ask(Ping()), Pong)
    assert code(client.ask(question)) in ("StatsReply", "Clients")
    assert faults(hands) == 1


def test_an_answer_that_cannot_be_encoded(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    client = hands.client()
    partition, shard = client.topic()
    encode = sender.encode

    def picky(message: Any, *rest: Any) -> bytes:
        return planted() if isinstance(message, Confirm | Deliver) else encode(message, *rest)

    subscribed(client, partition, shard)
    with monkeypatch.context() as patch:
        patch.setattr(sender, "encode", picky)
        client.publish(partition, shard, 1)
    assert faults(hands) == 2, "a confirm and a delivery"
    assert code(client.publish(partition, shard, 1)) == "Confirm", "the repeat is one"


@pytest.mark.parametrize(("owner", "name"), [(Watch, "look"), (worker_stats, "_stats")])
def test_housekeeping_and_reports_go_on(hands: Hands, owner: Any, name: str) -> None:
    client = hands.client()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, planted)
        hands.turn(20_000)
        client.ask(Stats())
    report = hands.reports()[-1]
    assert report.stats.state == "ready"
    assert faults(hands) == 1
    assert isinstance(hands.client(b"n" * 16).ask(Stats()), StatsReply)


def test_what_a_node_says(hands: Hands) -> None:
    client = hands.client()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Post, "open", planted)
        hands.network.client("tcp://127.0.0.1:7741").send(b"junk")
        hands.turn()
    assert isinstance(client.ask(Ping()), Pong)
    assert faults(hands) == 1


def test_an_entry_that_cannot_be_applied_stops_its_shard_and_who_asks_hears_why(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    apply = Ledger.apply

    def fails(ledger: Ledger, entry: Any) -> object:
        return (
            planted()
            if entry.body and ledger is hands.worker._turn.shards[shard].ledger
            else apply(ledger, entry)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "apply", fails)
        assert client.publish(partition, shard, 1) is None, "nothing of that turn is sent"
    hands.turn()
    client.ask(OWNER)
    answer = client.publish(partition, shard, 1)
    assert isinstance(answer, RefusedMessage)
    assert f"shard {shard} stopped: KeyError('planted')" in answer.message
    assert code(client.ask(Resolve(["missing"]))) == "Topics", "the other shard serves"
    restarts = hands.store.commits
    hands.turn(60_000)
    assert hands.store.commits - restarts < 5, "no loop of restarts"
    stats = hands.reports()[-1]
    assert stats.stats.state == "ready"
    assert [alarm.name for alarm in stats.alarms] == ["shard_damaged"]


def test_the_frontdoor_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    with monkeypatch.context() as patch:
        patch.setattr(frontdoor, "welcome", planted)
        assert code(house.ask(Hello(b"s" * 16, "test", "0"), NODE_SHARD)[2]) == "internal"
    assert isinstance(house.ask(Status(), NODE_SHARD)[2], StatusReply)


def test_faults_are_told_by_kind_and_in_bounds(caplog: pytest.LogCaptureFixture) -> None:
    found = Faults("worker 0")
    for number in range(2 * TOLD_MAX):
        try:
            planted()
        except KeyError as error:
            found.met(f"verb {number}", 3, error)
    assert found.count == 2 * TOLD_MAX
    assert len(told(caplog)) == TOLD_MAX
