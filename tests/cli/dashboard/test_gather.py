"""Asking nodes: what is too old, what is silent, what comes back; with clients that are scripted."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gossipq.errors import UnknownVerb, Unreachable
from gossipq.messages import StatsReply, StatusReply
from gossipq.values import ClientRow, GroupStats, Member, PartitionStats, WorkerStats
from gossipq_ops.gather import ClusterTeller, Gathering, NodeTeller, Slow, carried, once, pause_s
from gossipq_ops.process import own_name
from waiting import until


def status(node: str = "vm") -> StatusReply:
    row = WorkerStats(0, 7, "tcp://vm:7701", "ready", 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return StatusReply(node, "shop", b"", "0.1.0", "standalone", 5_000, 1, 1, [row], [])


def member(name: str) -> Member:
    return Member(name, name, f"tcp://{name}:7700", 1)


class Node:
    """A node of an older version, which may be made silent."""

    def __init__(self) -> None:
        self.there = self.counts = True
        self.roster: list[Member] = []
        self.asked: list[str] = []

    def connect(self, address: str) -> "Node":
        self._check()
        return self

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _check(self) -> None:
        if not self.there:
            raise Unreachable("no node answers", hint="start one")

    @property
    def admin(self) -> "Node":
        return self

    raw = admin

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**options: Any) -> Any:
            self._check()
            self.asked.append(name)
            if name == "stats" and not self.counts:
                raise Unreachable("no answer within 5 s", hint="gossipq status")
            if name in ("running_config", "alarms", "clients", "growth"):
                raise UnknownVerb(f"{name}: a verb of a later version")
            return {
                "status": replace(status(), members=self.roster),
                "stats": StatsReply([], []),
                "topics": [],
            }[name]

        return call


def test_an_old_node_is_asked_once_for_what_it_does_not_know() -> None:
    node = Node()
    found = once(node.connect, "tcp://vm:7700")
    assert sorted(found.missing) == ["alarms", "clients", "config", "growth"]
    assert found.nodes[0].state == "ready"
    slow = Slow(0.0)
    for _ in range(3):
        assert slow.ask(node.alarms) == []
    assert node.asked.count("alarms") == 2, "once by `once`, once here"


def test_counters_that_no_leader_tells_are_missing() -> None:
    node = Node()
    node.counts = False
    assert "counters" in once(node.connect, "tcp://vm:7700").missing
    with Gathering(node.connect, "tcp://vm:7700", lambda: 0.05) as gathering:
        assert "counters" in until(gathering.next).missing
        node.counts = True
        until(lambda: (found := gathering.next()) is not None and "counters" not in found.missing)


def test_who_looks_does_not_count_itself() -> None:
    teller = ClusterTeller()
    rows = [
        ClientRow(bytes([at]) * 16, name, "0.1.0", "vm", 0, 1, 0, 0, 0, 0, 0, [])
        for at, name in enumerate((own_name(), "shop"))
    ]
    teller._clients.value, teller._clients.unknown = rows, True
    assert [row.client for row in teller.told([], [], []).clients] == ["shop"]


def test_nobody_there() -> None:
    node = Node()
    node.there = False
    with pytest.raises(Unreachable):
        once(node.connect, "tcp://vm:7700")


def test_snapshots_stop_with_the_answers_and_come_back_with_them() -> None:
    node = Node()
    with Gathering(node.connect, "tcp://vm:7700", lambda: 0.05) as gathering:
        first = until(gathering.next)
        assert first.answered_by == "vm"
        node.there = False
        until(lambda: gathering.error)
        gathering.next()
        assert gathering.next() is None, "what is old is not told as new"
        assert isinstance(gathering.error, Unreachable)
        node.there = True
        assert until(gathering.next).time_ms >= first.time_ms


def test_who_left_the_roster_is_asked_no_more() -> None:
    node = Node()
    node.roster = [member("a"), member("b")]
    with Gathering(node.connect, "tcp://vm:7700", lambda: 0.05) as gathering:
        until(lambda: gathering.next() and set(gathering._others) == {"tcp://a:7700", "tcp://b:7700"})
        gone = gathering._polls["tcp://b:7700"]
        node.roster = [member("a"), member("c")]
        until(lambda: gathering.next() and set(gathering._others) == {"tcp://a:7700", "tcp://c:7700"})
        until(lambda: not gone.is_alive())
        assert set(gathering._polls) == {"home", "cluster", "tcp://a:7700", "tcp://c:7700"}


def test_snapshots_come_at_the_pace_that_was_asked_for_also_after_a_slow_begin() -> None:
    """A node that is away for a while when it all begins costs no more than that while."""
    from gossipq_cli.dashboard.sources import Watch
    from gossipq_ops.rows import Snapshot

    node, told = Node(), []
    node.there = False
    watch = Watch(node.connect, lambda: "tcp://vm:7700", 0.1, told.append)
    watch.start()
    try:
        until(lambda: told)
        assert not any(isinstance(news, Snapshot) for news in told)
        node.there = True
        until(lambda: sum(isinstance(news, Snapshot) for news in told) >= 5)
        watch.paused = True
    finally:
        watch.stop()


@pytest.mark.parametrize(
    ("every_s", "took_s", "pause"),
    [(1.0, 0.001, 0.999), (1.0, 0.04, 1.2), (1.0, 3.0, 2.0), (0.05, 0.001, 0.05), (10.0, 0.1, 9.9)],
)
def test_what_takes_long_is_asked_more_seldom(every_s: float, took_s: float, pause: float) -> None:
    assert pause_s(every_s, took_s) == pytest.approx(pause)


def test_a_partition_that_nobody_leads_keeps_its_last_row_until_its_topic_is_gone() -> None:
    def part(number: int, published: int = 5) -> PartitionStats:
        return PartitionStats(number, "orders", number, 0, 0, published, published, 0, 0)

    group = GroupStats(2, "orders", "billing", 0, 1, 0, 0, 0, 0, 0)
    before = StatsReply([part(1), part(2)], [group])
    now = StatsReply([part(1, 9)], [])
    assert carried(before, now, {"orders"}) == StatsReply([part(1, 9), part(2)], [group])
    assert carried(before, now, set()) == now
    assert carried(before, before, {"orders"}) == before


def test_a_client_that_turned_to_another_node_does_not_speak_for_the_first_one() -> None:
    node, teller = Node(), NodeTeller("tcp://b:7700", "b")
    with pytest.raises(Unreachable, match="b does not answer"):
        teller.ask(node)
    assert teller.heard is None
    first = NodeTeller("tcp://b:7700", "vm")
    first.ask(node)
    assert first.heard is not None
