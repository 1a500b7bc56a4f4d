"""Alarms as records: raised once, cleared once, over restarts of the node and of its writer."""

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
from gossipq.errors import BadRequest, Busy
from gossipq.messages import StatusReply
from gossipq.values import Alarm, AuditRow, WorkerStats
from gossipq.wire.ownership import key_of_node
from gossipq_client import Client, connect
from gossipq_client.io import Connecting
from gossipq_node import node_writer
from gossipq_node.actors.board import Board, Facts
from gossipq_node.adapters import serf_membership
from gossipq_node.node_writer import AlarmEvent, AlarmSource, AuditSource, NodeWriter

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


class Writing:
    """A writer whose board the test writes."""

    def __init__(self, node: str, endpoint: str, token: bytes = b"") -> None:
        self.board = Board(0)
        source = AlarmSource(self.board, node, SystemClock())
        self.writer = NodeWriter(endpoint, token, [source])

    def look(self, *alarms: Alarm, state: str = "ready", other_state: str = "ready") -> bool:
        worker = WorkerStats(0, 1, "", state, 0, 1, *[0] * 10)
        other = WorkerStats(1, 2, "", other_state, 0, 1, *[0] * 10)
        status = StatusReply("x", "x", bytes(16), "0", "standalone", 0, 1, 1, [worker, other], [])
        self.board.facts = Facts(status, {}, list(alarms), {}, 0)
        return self.writer.write()


def lag(node: str, subject: str = "orders/billing", since_ms: int = 5) -> Alarm:
    return msgspec.structs.replace(alarm("lag", node, subject, "far behind"), since_ms=since_ms)


def told(mq: Client, node: str) -> list[AlarmEvent]:
    """A node's records in the topic."""
    if not mq.topics("_alarms"):
        return []
    found = []
    for record in mq.read("_alarms"):
        with suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(record.value, type=AlarmEvent))
    return [said for said in found if said.node == node]


def test_an_alarm_is_told_when_it_comes_and_when_it_goes(
    mq: Client, shared_node: RunningNode, name: str
) -> None:
    writing = Writing(name, shared_node.endpoint, shared_node.token())
    writing.look()
    for _ in range(3):
        writing.look(lag(name), lag(name, "mails/x"))
    writing.look(lag(name, "mails/x"))
    assert [(said.event, said.subject, said.since_ms) for said in told(mq, name)] == [
        ("raised", "orders/billing", 5),
        ("raised", "mails/x", 5),
        ("cleared", "orders/billing", 5),
    ]
    assert told(mq, name)[0].command == "gossipq why TOPIC --group GROUP"
    (record,) = [record for record in mq.read("_alarms", route="warning.#") if b"cleared" in record.value][:1]
    assert (record.route, record.key) == ("warning.lag", f"{name}/lag/orders/billing".encode())


def test_a_writer_that_starts_again_continues_from_its_records(
    mq: Client, shared_node: RunningNode, name: str
) -> None:
    Writing(name, shared_node.endpoint, shared_node.token()).look(lag(name), lag(name, "mails/x"))
    key = key_of_node(shared_node.token(), bytes(16))
    with Client(Connecting.to(shared_node.endpoint, "another node", 5.0, key)) as other:
        other.publish("_alarms", b"not ours", timeout=10)
    again = Writing(name, shared_node.endpoint, shared_node.token())
    again.look(lag(name, since_ms=99))
    assert [(said.event, said.subject, said.since_ms) for said in told(mq, name)][2:] == [
        ("cleared", "mails/x", 5)
    ]


def test_only_nodes_write_what_nodes_say(mq: Client, shared_node: RunningNode, name: str) -> None:
    Writing(name, shared_node.endpoint, shared_node.token()).look(lag(name))
    with pytest.raises(BadRequest, match="_alarms is written by nodes only"):
        mq.publish("_alarms", b"all is well", timeout=10)
    stranger = key_of_node(b"another secret", bytes(16))
    with Client(Connecting.to(shared_node.endpoint, "", 5.0, stranger)) as other, pytest.raises(BadRequest):
        other.publish("_alarms", b"all is well", timeout=10)
    assert [said.event for said in told(mq, name)] == ["raised"]


def test_what_could_not_be_told_is_told_later(
    mq: Client, shared_node: RunningNode, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_writer, "ASK_S", 0.2)
    writing = Writing(name, "tcp://127.0.0.1:9", shared_node.token())
    assert not writing.look(lag(name))
    monkeypatch.undo()
    writing.writer._endpoint = shared_node.endpoint
    writing.look(lag(name))
    assert [said.event for said in told(mq, name)] == ["raised"]


def test_nothing_is_told_while_no_worker_serves(name: str) -> None:
    Writing(name, "tcp://127.0.0.1:9").look(lag(name), state="starting", other_state="down")


def test_a_node_ends_though_its_writer_reads_from_a_cluster_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_writer, "END_S", 0.05)
    monkeypatch.setattr(node_writer, "LOOK_S", 0.0)
    reads, gone = threading.Event(), threading.Event()
    writer = NodeWriter("tcp://127.0.0.1:1", b"", [])
    monkeypatch.setattr(writer, "write", lambda: reads.set() or gone.wait(PATIENCE_S))
    writer.start()
    assert reads.wait(PATIENCE_S)
    writer.close()
    assert not gone.is_set()
    gone.set()


def test_nothing_is_cleared_while_a_worker_is_away(mq: Client, shared_node: RunningNode, name: str) -> None:
    writing = Writing(name, shared_node.endpoint, shared_node.token())
    writing.look(lag(name))
    writing.look(other_state="recovering")
    assert [said.event for said in told(mq, name)] == ["raised"]
    writing.look()
    assert [said.event for said in told(mq, name)] == ["raised", "cleared"]


def await_told(mq: Client, node: str, count: int) -> list[AlarmEvent]:
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
        mq.flush(None)
        (raised,) = await_told(mq, "ada", 1)
        assert (raised.event, raised.name, raised.subject) == ("raised", "lag", "orders/billing")
    node.kill()
    node.start()
    with connect(node.endpoint) as mq:
        time.sleep(node_writer.LOOK_S * 3)
        assert len(told(mq, "ada")) == 1, "what lasts is not raised again"
        for msg in mq.consume("orders", group="billing", stop_at_end=True):
            msg.ack_soon()
        mq.flush(None)
        assert [said.event for said in await_told(mq, "ada", 2)] == ["raised", "cleared"]


def test_what_waits_beside_the_frontdoor_ends_within_the_drain() -> None:
    """A writer that asked a draining node held the frontdoor for the time of the whole drain."""
    assert Node().drain_ms > 1_000 * (node_writer.END_S + serf_membership.END_S)


class Source:
    """A source that fails as often as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def publish(self, connect: Callable[[], Client]) -> bool:
        self.calls += 1
        if self.errors:
            raise self.errors.pop()
        return False


def test_a_refused_source_is_tried_again_and_one_with_a_fault_is_not() -> None:
    refused, faulty, good = Source(Busy("later")), Source(KeyError("fault")), Source()
    writer = NodeWriter("tcp://127.0.0.1:1", b"", [refused, faulty, good])
    assert not writer.write()
    assert writer.write()
    assert (refused.calls, faulty.calls, good.calls) == (2, 1, 2)


class Topic:
    """A client whose publishes are refused after some."""

    def __init__(self, accepted: int) -> None:
        self.accepted, self.values = accepted, list[bytes]()

    def create_topic(self, name: str, **_: object) -> None:
        assert name == "_audit"

    def publish(self, topic: str, value: bytes, **_: object) -> None:
        if len(self.values) == self.accepted:
            raise Busy("later")
        self.values.append(value)


def test_rows_of_the_audit_wait_until_they_are_stored() -> None:
    board = Board(0)
    board.audit += [AuditRow(time_ms, "ada", "h", "PURGE", "orders", "admitted") for time_ms in (1, 2, 3)]
    source, topic = AuditSource(board, "x"), Topic(2)
    with pytest.raises(Busy):
        source.publish(lambda: topic)  # type: ignore[arg-type,return-value]
    topic.accepted = 3
    assert source.publish(lambda: topic)  # type: ignore[arg-type,return-value]
    assert not source.publish(lambda: topic)  # type: ignore[arg-type,return-value]
    assert [msgspec.json.decode(value)["time_ms"] for value in topic.values] == [1, 2, 3]
