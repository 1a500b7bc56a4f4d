"""Collects the data of snapshots, each node on a thread, so that a silent
one does not delay others.

Messages are not read. STATUS, STATS, CLIENTS and ALARMS are asked for once an interval. Topics,
growth and configurations change slowly and are asked for less often. `Snapshot.missing` names data
that an old node cannot supply.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gossipq import limits
from gossipq.errors import GossipqError, UnknownVerb, Unreachable
from gossipq.messages import StatsReply, StatusReply
from gossipq.values import ClientRow, Member, TopicInfo
from gossipq_ops.clusters import ClusterView, NodeView
from gossipq_ops.collect import SILENT_MS, Heard, Told, members, snapshot
from gossipq_ops.process import own_name
from gossipq_ops.rows import Snapshot

if TYPE_CHECKING:
    from gossipq_client import Client

Connect = Callable[[str], "Client"]  #: "" = the address that the user gave
TOPICS_EVERY_S = 5.0  #: also at once if the counters name an unknown topic
SLOW_EVERY_S = 60.0  #: growth, configurations
ASK_AT_ONCE = 16
SHARE = 30  #: a question is repeated after this many times its duration,
EASE_S_MAX = 1.0  #: but at most this much later than wanted, so that the node does not look silent
AGAIN_S = 0.5  #: pause between two attempts to reach a node
SILENT_INTERVALS = 2.5
PATIENCE_S = 0.2  #: ending threads are waited for this long; they hold no data


class Slow:
    """An answer that is asked for again after `every_s`; never if the node
    does not know the question.
    """

    def __init__(self, every_s: float) -> None:
        self.every_s, self.unknown = every_s, False
        self.value: Any = []
        self._asked_s = float("-inf")

    def ask(self, question: Callable[[], Any], at_once: bool = False) -> Any:
        """Ask the question. Raises its errors, except that the node does not know it."""
        if not self.unknown and (at_once or time.monotonic() - self._asked_s >= self.every_s):
            try:
                self.value, self._asked_s = question(), time.monotonic()
            except UnknownVerb:
                self.unknown = True
        return self.value


class NodeTeller:
    """The answers of one node; without a name, of any node."""

    def __init__(self, endpoint: str, name: str = "") -> None:
        self.endpoint, self.name = endpoint, name
        self._config, self._alarms = Slow(SLOW_EVERY_S), Slow(0.0)
        self._heard: Heard | None = None
        self._heard_s = 0.0

    def ask(self, mq: "Client") -> None:
        """Ask for all of them. Raises GossipqError."""
        asked_s = time.perf_counter()
        status = mq.admin.raw.status()
        if self.name not in ("", status.node):  # the client has connected to another node
            raise Unreachable(f"{self.name} does not answer", hint="gossipq status")
        rtt_us = round((time.perf_counter() - asked_s) * 1_000_000)
        endpoint = next(
            (member.endpoint for member in members([Heard(status, "")]) if member.name == status.node),
            self.endpoint,
        )
        config, alarms = self._config.ask(mq.admin.raw.running_config), self._alarms.ask(mq.admin.raw.alarms)
        self._heard = Heard(status, endpoint, 0, rtt_us, alarms, config)
        self._heard_s = time.monotonic()

    @property
    def heard(self) -> Heard | None:
        """Return the last answers with their age."""
        found = self._heard
        return found and found._replace(age_ms=round((time.monotonic() - self._heard_s) * 1_000))

    @property
    def missing(self) -> list[str]:
        return [name for name, slow in (("config", self._config), ("alarms", self._alarms)) if slow.unknown]


class ClusterTeller:
    """The leaders' answers about topics, groups and clients."""

    def __init__(self) -> None:
        self._topics, self._clients = Slow(TOPICS_EVERY_S), Slow(0.0)
        self._hours, self._minutes = Slow(SLOW_EVERY_S), Slow(SLOW_EVERY_S)
        self.stats = StatsReply([], [])
        self.asked, self._counted_ms = False, 0

    def ask(self, mq: "Client") -> None:
        """Ask for all of them. Raises GossipqError."""
        stats = mq.admin.raw.stats()
        known = {topic.name for topic in self._topics.value}
        self._topics.ask(mq.admin.raw.topics, at_once=not {part.topic for part in stats.partitions} <= known)
        self._clients.ask(mq.admin.raw.clients)
        self._hours.ask(lambda: _curve(mq, hours=True))
        self._minutes.ask(lambda: _curve(mq, hours=False))
        self.stats = carried(self.stats, stats, {topic.name for topic in self._topics.value})
        self.asked, self._counted_ms = True, wall_ms()

    def told(self, nodes: list[Heard], missing: list[str], unreachable: list[str]) -> Told:
        topics: list[TopicInfo] = self._topics.value
        # this client is not counted
        clients: list[ClientRow] = [row for row in self._clients.value if row.client != own_name()]
        names = (("clients", self._clients), ("growth", self._hours))
        missing = missing + [name for name, slow in names if slow.unknown]
        missing += [] if self.asked else ["counters"]
        return Told(
            nodes,
            self.stats,
            topics,
            clients,
            self._hours.value,
            self._minutes.value,
            self._counted_ms,
            missing,
            unreachable,
        )


def carried(before: StatsReply, now: StatsReply, topics: set[str]) -> StatsReply:
    """Add the last rows of partitions that have no leader now: their records still exist."""
    led = {part.partition for part in now.partitions}
    partitions = [part for part in before.partitions if part.partition not in led and part.topic in topics]
    away = {part.partition for part in partitions}
    groups = [part for part in before.groups if part.partition in away]
    return StatsReply([*now.partitions, *partitions], [*now.groups, *groups])


def _curve(mq: "Client", hours: bool) -> list[Any]:
    from gossipq_client.values import series

    return series(mq.admin.raw.growth(hours=hours), limits.HOUR_MS if hours else limits.MINUTE_MS)


def view_of(asked: StatusReply, status_at: Callable[[str], StatusReply]) -> ClusterView:
    """Ask each member that `asked` names, at its address."""
    members = sorted(asked.members, key=lambda member: member.name)
    with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
        statuses = pool.map(lambda member: _status_of(status_at, asked, member), members)
        return ClusterView(
            asked, [NodeView(member, status) for member, status in zip(members, statuses, strict=True)]
        )


def _status_of(
    status_at: Callable[[str], StatusReply], asked: StatusReply, member: Member
) -> StatusReply | None:
    if member.copy == asked.copy:
        return asked
    try:
        status = status_at(member.endpoint)
    except GossipqError:
        return None
    return status if status.copy == member.copy else None  # another node may have the address now


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def once(connect: Connect, server: str) -> Snapshot:
    """Return one snapshot. Raises GossipqError if no node answers."""
    home, cluster = NodeTeller(server), ClusterTeller()
    with connect("") as mq:
        home.ask(mq)
        with suppress(Unreachable):  # a leader is missing or does not answer: the snapshot says so
            cluster.ask(mq)
    first = home.heard
    assert first is not None, "it has answered"
    nodes, unreachable = [first], []
    for member in members(nodes):
        if member.name != first.status.node:
            other = NodeTeller(member.endpoint, member.name)
            try:
                with connect(member.endpoint) as mq:
                    other.ask(mq)
            except GossipqError:
                unreachable.append(member.endpoint)
            nodes += [heard] if (heard := other.heard) else []
    return snapshot(
        cluster.told([each._replace(age_ms=0) for each in nodes], home.missing, unreachable),
        wall_ms(),
        server,
    )


class Poll(threading.Thread):
    """Asks one teller repeatedly, with a client of its own. Slow questions are asked less often."""

    def __init__(
        self, connect: "Callable[[], Client]", ask: "Callable[[Client], None]", every: Callable[[], float]
    ) -> None:
        super().__init__(name="gossipq-top-poll", daemon=True)
        self._connect, self._ask, self._every = connect, ask, every
        self._over = threading.Event()
        self.error: Exception | None = None
        self.rounds = 0

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                with self._connect() as mq:
                    while not self._over.is_set():
                        began_s = time.monotonic()
                        self._ask(mq)
                        took_s = time.monotonic() - began_s
                        self.error = None
                        self.rounds += 1
                        self._over.wait(pause_s(self._every(), took_s))
            except Exception as error:  # shown on the screen
                self.error = error
            self._over.wait(AGAIN_S)


def pause_s(every_s: float, took_s: float) -> float:
    """Return the pause after a question: longer after a slow one, up to a bound."""
    return max(0.05, min(SHARE * took_s, every_s + EASE_S_MAX), every_s - took_s)


class Gathering:
    """All polls of one cluster. Nodes are added as the roster names them."""

    def __init__(self, connect: Connect, server: str, every: Callable[[], float]) -> None:
        self._connect, self._server, self._every = connect, server, every
        self._home, self._cluster = NodeTeller(server), ClusterTeller()
        self._others: dict[str, NodeTeller] = {}
        self._polls: dict[str, Poll] = {}
        self._rounds = -1

    def __enter__(self) -> "Gathering":
        self._poll("home", "", self._home.ask)
        self._poll("cluster", "", self._cluster.ask)
        return self

    def __exit__(self, *error: object) -> None:
        for poll in self._polls.values():
            poll.stop()
        for poll in self._polls.values():
            poll.join(PATIENCE_S)

    def _poll(self, name: str, endpoint: str, ask: "Callable[[Client], None]") -> None:
        self._polls[name] = Poll(lambda: self._connect(endpoint), ask, self._every)
        self._polls[name].start()

    @property
    def error(self) -> Exception | None:
        """The reason for missing news."""
        return self._polls["home"].error or self._polls["cluster"].error

    def next(self) -> Snapshot | None:
        """Return a snapshot, or None if no node has answered since the last one."""
        nodes = {heard.status.node: heard for teller in self._others.values() if (heard := teller.heard)}
        home = self._home.heard
        if home is None and not nodes:
            return None
        if home is not None:
            before = nodes.get(home.status.node)
            if before is None or home.age_ms <= before.age_ms:
                nodes[home.status.node] = home
        told = list(nodes.values())
        self._meet(told)
        rounds = sum(poll.rounds for poll in self._polls.values())
        waits = not self._cluster.asked and self._polls["cluster"].error is None
        if waits or rounds == self._rounds:
            return None
        self._rounds = rounds
        unreachable = [endpoint for endpoint in self._others if self._polls[endpoint].error is not None]
        silent_ms = round(max(SILENT_MS, SILENT_INTERVALS * 1_000 * self._every()))
        return snapshot(
            self._cluster.told(told, self._home.missing, unreachable), wall_ms(), self._server, silent_ms
        )

    def _meet(self, told: list[Heard]) -> None:
        """Poll each node of a roster with several nodes, while it is in the roster."""
        roster = members(told)
        if len(roster) > 1:
            for member in roster:
                if member.endpoint not in self._others:
                    teller = self._others[member.endpoint] = NodeTeller(member.endpoint, member.name)
                    self._poll(member.endpoint, member.endpoint, teller.ask)
        if roster:
            for endpoint in self._others.keys() - {member.endpoint for member in roster}:
                del self._others[endpoint]
                self._polls.pop(endpoint).stop()
