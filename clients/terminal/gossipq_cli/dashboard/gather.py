"""Asks a cluster for what a snapshot is made of: each node on a thread of its own, so that one that is silent
delays no other.

Nothing here walks messages. STATUS, STATS, CLIENTS and ALARMS are asked once an interval; topics, growth and
configurations, which change slowly, more seldom. What a node is too old to tell is named in
`Snapshot.missing`.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gossipq import limits
from gossipq.errors import GossipqError, UnknownVerb, Unreachable
from gossipq.messages import StatsReply
from gossipq.values import ClientRow, TopicInfo
from gossipq_cli.ask import own_name
from gossipq_cli.dashboard.collect import SILENT_MS, Heard, Told, members, snapshot
from gossipq_cli.dashboard.rows import Snapshot

if TYPE_CHECKING:
    from gossipq_client import Client

Connect = Callable[[str], "Client"]  #: "" = as the user said
TOPICS_EVERY_S = 5.0  #: also at once when the counters know a topic that is not known here
SLOW_EVERY_S = 60.0  #: growth, configurations
SHARE = 30  #: a question that takes so long is asked again after so many times as long,
EASE_S_MAX = 1.0  #: but so much later than wished at most: who is asked shall not look silent
AGAIN_S = 0.5  #: between two attempts to reach a node
SILENT_INTERVALS = 2.5
PATIENCE_S = 0.2  #: a thread that ends is waited for so long; it holds nothing that must be kept


class Slow:
    """An answer that is asked for again when it is old enough, or never, where nobody knows the question."""

    def __init__(self, every_s: float) -> None:
        self.every_s, self.unknown = every_s, False
        self.value: Any = []
        self._asked_s = float("-inf")

    def ask(self, question: Callable[[], Any], at_once: bool = False) -> Any:
        """Raises what asking raises, but for a question that the node does not know."""
        if not self.unknown and (at_once or time.monotonic() - self._asked_s >= self.every_s):
            try:
                self.value, self._asked_s = question(), time.monotonic()
            except UnknownVerb:
                self.unknown = True
        return self.value


class NodeTeller:
    """What one node says of itself; without a name, whichever node answers."""

    def __init__(self, endpoint: str, name: str = "") -> None:
        self.endpoint, self.name = endpoint, name
        self._config, self._alarms = Slow(SLOW_EVERY_S), Slow(0.0)
        self._heard: Heard | None = None
        self._heard_s = 0.0

    def ask(self, mq: "Client") -> None:
        """Raises GossipqError."""
        asked_s = time.perf_counter()
        status = mq.admin.status()
        if self.name not in ("", status.node):  # the client has turned to another one
            raise Unreachable(f"{self.name} does not answer", hint="gossipq status")
        rtt_us = round((time.perf_counter() - asked_s) * 1_000_000)
        endpoint = next(
            (member.endpoint for member in members([Heard(status, "")]) if member.name == status.node),
            self.endpoint,
        )
        config, alarms = self._config.ask(mq.admin.running_config), self._alarms.ask(mq.admin.alarms)
        self._heard = Heard(status, endpoint, 0, rtt_us, alarms, config)
        self._heard_s = time.monotonic()

    @property
    def heard(self) -> Heard | None:
        """Its last words, with their age."""
        found = self._heard
        return found and found._replace(age_ms=round((time.monotonic() - self._heard_s) * 1_000))

    @property
    def missing(self) -> list[str]:
        return [name for name, slow in (("config", self._config), ("alarms", self._alarms)) if slow.unknown]


class ClusterTeller:
    """What leaders say of topics, groups and clients."""

    def __init__(self) -> None:
        self._topics, self._clients = Slow(TOPICS_EVERY_S), Slow(0.0)
        self._hours, self._minutes = Slow(SLOW_EVERY_S), Slow(SLOW_EVERY_S)
        self.stats = StatsReply([], [])
        self.asked, self._counted_ms = False, 0

    def ask(self, mq: "Client") -> None:
        """Raises GossipqError."""
        stats = mq.admin.stats()
        known = {topic.name for topic in self._topics.value}
        self._topics.ask(mq.topics, at_once=not {part.topic for part in stats.partitions} <= known)
        self._clients.ask(mq.admin.clients)
        self._hours.ask(lambda: _curve(mq, hours=True))
        self._minutes.ask(lambda: _curve(mq, hours=False))
        self.stats = carried(self.stats, stats, {topic.name for topic in self._topics.value})
        self.asked, self._counted_ms = True, wall_ms()

    def told(self, nodes: list[Heard], missing: list[str], unreachable: list[str]) -> Told:
        topics: list[TopicInfo] = self._topics.value
        # who looks is not counted
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
    """With the last rows of partitions that nobody leads at the moment: what is in them is not gone."""
    led = {part.partition for part in now.partitions}
    partitions = [part for part in before.partitions if part.partition not in led and part.topic in topics]
    away = {part.partition for part in partitions}
    groups = [part for part in before.groups if part.partition in away]
    return StatsReply([*now.partitions, *partitions], [*now.groups, *groups])


def _curve(mq: "Client", hours: bool) -> list[Any]:
    from gossipq_client.values import series

    return series(mq.admin.growth(hours=hours), limits.HOUR_MS if hours else limits.MINUTE_MS)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def once(connect: Connect, server: str) -> Snapshot:
    """One snapshot, asked for in turn. Raises GossipqError when no node answers."""
    home, cluster = NodeTeller(server), ClusterTeller()
    with connect("") as mq:
        home.ask(mq)
        with suppress(Unreachable):  # no leader, or none that answers: the snapshot says so
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
    """Asks one teller again and again, over a client of its own; a question that takes long is asked more
    seldom."""

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
            except Exception as error:  # told where it can be read: on the screen
                self.error = error
            self._over.wait(AGAIN_S)


def pause_s(every_s: float, took_s: float) -> float:
    """What a cluster of many partitions takes a while to tell is asked for more seldom, up to a bound."""
    return max(0.05, min(SHARE * took_s, every_s + EASE_S_MAX), every_s - took_s)


class Gathering:
    """All polls of one cluster; nodes are added as the roster names them."""

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
        """Why there is nothing new."""
        return self._polls["home"].error or self._polls["cluster"].error

    def next(self) -> Snapshot | None:
        """A snapshot, unless no node has said anything since the last one."""
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
        """Asks every node of a roster of several itself, as long as it is there."""
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
