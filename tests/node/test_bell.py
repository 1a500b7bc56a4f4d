"""Alarms as records: raised once, cleared once, over restarts of the node and of the bell."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

from conftest import RunningNode
from gossipq.clock import SystemClock
from gossipq.config import Node
from gossipq.core.requests.alarms import alarm
from gossipq.errors import BadRequest, GossipqError
from gossipq.messages import StatusReply
from gossipq.values import Alarm, WorkerStats
from gossipq.wire.ownership import key_of_node
from gossipq_client import Client, connect
from gossipq_node import bell as bells
from gossipq_node.actors.board import Board, Facts
from gossipq_node.adapters import serf_membership
from gossipq_node.bell import Bell, Rung

pytestmark = pytest.mark.e2e
PATIENCE_S = 30.0
names = iter(f"node-{number}" for number in range(100))


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


@pytest.fixture
def name() -> str:
    return next(names)


class Ringing:
    """A bell whose board the test writes."""

    def __init__(self, node: str, endpoint: str, token: bytes = b"") -> None:
        self.board = Board(0)
        self.bell = Bell(self.board, node, endpoint, SystemClock(), token)

    def look(self, *alarms: Alarm, state: str = "ready", other_state: str = "ready") -> None:
        worker = WorkerStats(0, 1, "", state, 0, 1, *[0] * 10)
        other = WorkerStats(1, 2, "", other_state, 0, 1, *[0] * 10)
        status = StatusReply("x", "x", bytes(16), "0", "standalone", 0, 1, 1, [worker, other], [])
        self.board.facts = Facts(status, {}, list(alarms), {}, 0)
        self.bell.look()


def lag(node: str, subject: str = "orders/billing", since_ms: int = 5) -> Alarm:
    return msgspec.structs.replace(alarm("lag", node, subject, "far behind"), since_ms=since_ms)


def told(mq: Client, node: str) -> list[Rung]:
    """A node's records in the topic."""
    if not mq.topics("_alarms"):
        return []
    found = []
    for record in mq.read("_alarms"):
        with suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(record.value, type=Rung))
    return [rung for rung in found if rung.node == node]


def test_an_alarm_is_told_when_it_comes_and_when_it_goes(
    mq: Client, shared_node: RunningNode, name: str
) -> None:
    ringing = Ringing(name, shared_node.endpoint, shared_node.token())
    ringing.look()
    for _ in range(3):
        ringing.look(lag(name), lag(name, "mails/x"))
    ringing.look(lag(name, "mails/x"))
    assert [(rung.event, rung.subject, rung.since_ms) for rung in told(mq, name)] == [
        ("raised", "orders/billing", 5),
        ("raised", "mails/x", 5),
        ("cleared", "orders/billing", 5),
    ]
    assert told(mq, name)[0].command == "gossipq why TOPIC --group GROUP"
    (record,) = [record for record in mq.read("_alarms", route="warning.#") if b"cleared" in record.value][:1]
    assert (record.route, record.key) == ("warning.lag", f"{name}/lag/orders/billing".encode())


def test_a_bell_that_starts_again_goes_on_from_what_it_said(
    mq: Client, shared_node: RunningNode, name: str
) -> None:
    Ringing(name, shared_node.endpoint, shared_node.token()).look(lag(name), lag(name, "mails/x"))
    key = key_of_node(shared_node.token(), bytes(16))
    with Client([shared_node.endpoint], "another node", 5.0, key) as other:
        other.publish("_alarms", b"not ours", timeout=10)
    again = Ringing(name, shared_node.endpoint, shared_node.token())
    again.look(lag(name, since_ms=99))
    assert [(rung.event, rung.subject, rung.since_ms) for rung in told(mq, name)][2:] == [
        ("cleared", "mails/x", 5)
    ]


def test_only_nodes_write_what_nodes_say(mq: Client, shared_node: RunningNode, name: str) -> None:
    Ringing(name, shared_node.endpoint, shared_node.token()).look(lag(name))
    with pytest.raises(BadRequest, match="_alarms is written by nodes only"):
        mq.publish("_alarms", b"all is well", timeout=10)
    stranger = key_of_node(b"another secret", bytes(16))
    with Client([shared_node.endpoint], "", 5.0, stranger) as other, pytest.raises(BadRequest):
        other.publish("_alarms", b"all is well", timeout=10)
    assert [rung.event for rung in told(mq, name)] == ["raised"]


def test_what_could_not_be_told_is_told_later(
    mq: Client, shared_node: RunningNode, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "ASK_S", 0.2)
    ringing = Ringing(name, "tcp://127.0.0.1:9", shared_node.token())
    with pytest.raises(GossipqError):
        ringing.look(lag(name))
    monkeypatch.undo()
    ringing.bell._endpoint = shared_node.endpoint
    ringing.look(lag(name))
    assert [rung.event for rung in told(mq, name)] == ["raised"]


def test_nothing_is_told_while_no_worker_serves(name: str) -> None:
    Ringing(name, "tcp://127.0.0.1:9").look(lag(name), state="starting", other_state="down")


def test_a_node_ends_though_its_bell_reads_from_a_cluster_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bells, "END_S", 0.05)
    monkeypatch.setattr(bells, "LOOK_S", 0.0)
    reads, gone = threading.Event(), threading.Event()
    bell = Bell(Board(0), "x", "tcp://127.0.0.1:1", SystemClock())
    monkeypatch.setattr(bell, "look", lambda: reads.set() or gone.wait(PATIENCE_S))
    bell.start()
    assert reads.wait(PATIENCE_S)
    bell.close()
    assert not gone.is_set()
    gone.set()


def test_nothing_is_cleared_while_a_worker_is_away(mq: Client, shared_node: RunningNode, name: str) -> None:
    ringing = Ringing(name, shared_node.endpoint, shared_node.token())
    ringing.look(lag(name))
    ringing.look(other_state="recovering")
    assert [rung.event for rung in told(mq, name)] == ["raised"]
    ringing.look()
    assert [rung.event for rung in told(mq, name)] == ["raised", "cleared"]


def await_told(mq: Client, node: str, count: int) -> list[Rung]:
    end = time.monotonic() + PATIENCE_S
    while len(found := told(mq, node)) < count:
        assert time.monotonic() < end, found
        time.sleep(0.2)
    return found


@pytest.mark.slow
def test_a_lag_alarm_over_a_kill_of_the_node(make_node: Callable[..., RunningNode]) -> None:
    node = make_node("--name", "ada")
    node.environment["GOSSIPQ_NODE__ALARMS"] = "true"
    node.start()
    with connect(node.endpoint) as mq:
        mq.create_topic("orders", alarm_lag=10)
        mq.publish_many("orders", [b"x"] * 50, timeout=10)
        batch = mq.fetch("orders", group="billing", n=1, wait=10)
        mq.ack_soon(batch)
        mq.flush()
        (raised,) = await_told(mq, "ada", 1)
        assert (raised.event, raised.name, raised.subject) == ("raised", "lag", "orders/billing")
    node.kill()
    node.start()
    with connect(node.endpoint) as mq:
        time.sleep(bells.LOOK_S * 3)
        assert len(told(mq, "ada")) == 1, "what lasts is not raised again"
        for msg in mq.consume("orders", group="billing", stop_at_end=True):
            msg.ack_soon()
        mq.flush()
        assert [rung.event for rung in await_told(mq, "ada", 2)] == ["raised", "cleared"]


def test_what_waits_beside_the_frontdoor_ends_within_the_drain() -> None:
    """A bell that asked a node which drains held the frontdoor for as long as the whole drain may take."""
    assert Node().drain_ms > 1_000 * (bells.END_S + serf_membership.END_S)
