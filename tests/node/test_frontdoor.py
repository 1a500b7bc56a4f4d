"""The frontdoor: what it answers itself, what it passes on, what it says of workers that are away."""

import pytest

from contracts.memory import MemoryMailbox, MemoryNetwork
from gossipq import limits
from gossipq.messages import Bye, Hello, Ping, Pong, Publish, Refused, Stats, Status, StatusReply, Welcome
from gossipq.peer_messages import Append, Report
from gossipq.types import NODE_SHARD, Now
from gossipq.values import Message, Route, WorkerStats
from gossipq.wire.frames import decode, encode
from gossipq_node.actors.frontdoor import Frontdoor
from gossipq_node.ports import Incoming
from gossipq_node.settings import FrontdoorSettings, WorkerState

ROUTES = tuple(Route(shard, 0, f"worker-{shard % 2}") for shard in range(4))
SETTINGS = FrontdoorSettings(
    node="ada",
    cluster_name="shop",
    cluster=bytes(16),
    mode="standalone",
    shards=4,
    clients_bind="door",
    peers_bind="inside",
    routes=ROUTES,
    forwards=("worker-0", "worker-1"),
    window_bytes=limits.MIB,
    warnings=("look out",),
)


class Switch(MemoryMailbox):
    """A mailbox that notes what it forwards; `reachable` says whether it can."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__(network, "door", "inside")
        self.forwarded: list[tuple[str, bytes, bytes]] = []
        self.reachable = True

    def forward(self, endpoint: str, message: Incoming) -> bool:
        if self.reachable:
            self.forwarded.append((endpoint, message.control, message.batch))
        return self.reachable


class House:
    def __init__(self) -> None:
        network = MemoryNetwork()
        self.mailbox = Switch(network)
        self.door = Frontdoor(SETTINGS, self.mailbox, Now(1_000, 0))
        self.client, self.worker = network.client("door"), network.client("inside")

    def turn(self) -> None:
        self.door.turn(self.mailbox.receive(0), Now(3_000, 0))

    def ask(self, message: Message, shard: int = NODE_SHARD, batch: bytes = b"") -> tuple[int, int, Message]:
        """(shard, request id, message) of the answer."""
        self.client.send(encode(message, shard, 7), batch)
        self.turn()
        header, answer = decode(self.client.receive()[0])
        return header.shard, header.request_id, answer

    def status(self) -> StatusReply:
        answer = self.ask(Status())[2]
        assert isinstance(answer, StatusReply)
        return answer

    def report(self, worker: int, pid: int, state: str = "ready", term: int = 3) -> None:
        stats = WorkerStats(worker, pid, f"worker-{worker}", state, 0, 2, *[0] * 10)
        self.worker.send(encode(Report(stats, [Route(shard, term, f"worker-{worker}") for shard in (worker, worker + 2)])))
        self.turn()


@pytest.fixture
def house() -> House:
    return House()


def test_it_greets_with_the_routes(house: House) -> None:
    shard, request_id, welcome = house.ask(Hello(bytes(16), "test", "1"))
    assert (shard, request_id) == (NODE_SHARD, 7)
    assert isinstance(welcome, Welcome)
    assert (welcome.node, welcome.routes, welcome.shards, welcome.window_bytes) == ("ada", list(ROUTES), 4, limits.MIB)


def test_it_answers_ping_and_hears_bye(house: House) -> None:
    assert house.ask(Ping())[2] == Pong()
    house.client.send(encode(Bye(), NODE_SHARD))
    house.turn()
    assert not house.client.inbox


@pytest.mark.parametrize("message", [Hello(bytes(16), "", ""), Ping(), Bye(), Publish(5), Stats()])
def test_a_shard_in_the_header_goes_to_its_worker_untouched(house: House, message: Message) -> None:
    control = encode(message, 3, 9)
    house.client.send(control, b"batch")
    house.turn()
    assert house.mailbox.forwarded == [("worker-1", control, b"batch")]
    assert not house.client.inbox


def test_a_shard_that_is_none_is_refused(house: House) -> None:
    shard, request_id, refused = house.ask(Publish(1), 4)
    assert isinstance(refused, Refused)
    assert (shard, request_id, refused.code) == (4, 7, "bad_request")
    assert "0 to 3" in refused.message


def test_a_worker_that_is_away_is_busy(house: House) -> None:
    house.door.set_states([WorkerState(0, 10, True, 0), WorkerState(1, 0, False, 1)])
    refused = house.ask(Publish(1), 1)[2]
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_ms > 0) == ("busy", True)
    house.client.send(encode(Publish(1), 2))
    house.turn()
    assert house.mailbox.forwarded[0][0] == "worker-0"


def test_a_worker_that_does_not_read_is_busy(house: House) -> None:
    house.mailbox.reachable = False
    refused = house.ask(Publish(1), 1)[2]
    assert isinstance(refused, Refused)
    assert refused.code == "busy"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", "protocol"),
        (b"x" * 23, "protocol"),
        (b"y" * 100, "protocol"),
        (b"GQ\x09" + bytes(21), "wrong_version"),
        (encode(Ping(), NODE_SHARD)[:3] + b"\xee" + encode(Ping(), NODE_SHARD)[4:], "unknown_verb"),
        (encode(Status(), NODE_SHARD)[:24] + b"\xc1", "protocol"),
        (encode(Publish(1), NODE_SHARD), "unknown_verb"),
        (encode(Append("me", 0, 0, 0, []), 1), "unknown_verb"),
        (encode(Append("me", 0, 0, 0, []), NODE_SHARD), "unknown_verb"),
    ],
)
def test_garbage_is_refused_and_counted(house: House, frame: bytes, code: str) -> None:
    house.client.send(frame)
    house.turn()
    _, refused = decode(house.client.receive()[0])
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert house.status().bad_frames == 1


def test_a_client_cannot_report(house: House) -> None:
    stats = WorkerStats(0, 1, "evil", "ready", 0, 2, *[0] * 10)
    refused = house.ask(Report(stats, [Route(0, 9, "evil")]))[2]
    assert isinstance(refused, Refused)
    assert house.status().led == 0


def test_status_counts_shards_of_workers_that_reported(house: House) -> None:
    before = house.status()
    assert (before.led, [worker.state for worker in before.workers]) == (0, ["starting", "starting"])
    assert [worker.endpoint for worker in before.workers] == ["worker-0", "worker-1"]
    house.door.set_states([WorkerState(0, 10, True, 0), WorkerState(1, 11, True, 2, "exit code 9")])
    house.report(0, 10)
    house.report(1, 11, "full")
    status = house.status()
    assert (status.led, status.uptime_ms, status.mode, status.warnings) == (4, 2_000, "standalone", ["look out"])
    assert [(worker.state, worker.restarts, worker.detail) for worker in status.workers] == [
        ("ready", 0, ""),
        ("full", 2, "exit code 9"),
    ]
    assert [route.term for route in status.routes] == [3, 3, 3, 3]


def test_a_worker_that_recovers_leads_nothing(house: House) -> None:
    house.report(0, 10)
    house.report(0, 10, "recovering")
    assert house.status().led == 0


def test_the_reports_of_a_dead_process_are_forgotten(house: House) -> None:
    house.door.set_states([WorkerState(0, 10, True, 0)])
    house.report(0, 10)
    assert house.status().led == 2
    house.door.set_states([WorkerState(0, 0, False, 0, "exit code 9")])
    assert (house.status().led, house.status().workers[0].state) == (0, "down")
    house.door.set_states([WorkerState(0, 12, True, 1)])
    house.report(0, 10)  # came late
    assert (house.status().led, house.status().workers[0].state) == (0, "starting")
    house.report(0, 12)
    assert house.status().led == 2
