"""Converts snapshots to rates, series and events. Decides nothing about their display. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gossipq import limits
from gossipq.health import State
from gossipq.texts import many
from gossipq_ops.rows import Alarm, Event, Growth, Node, Shard, Snapshot, Worker
from gossipq_ops.sums import GroupSum, TopicSum, group_sums, topic_sums

LENGTH = 240  #: values of a series: one for each snapshot
SERIES_MAX = 2_000  #: series that are kept; further names have no sparkline
EVENTS_MAX = 200
STALE_RHYTHMS = 3  #: counts are outdated after this many missed intervals
ASKING = "asking"  #: state of a node that could not have answered yet
ALIKE_MS = 10_000  #: within this time, two nodes report the same event
SEEN_MS = 60_000  #: within this time, roster or silence shows an event that gossip has reported
NODE_SPAN = 2  #: number of snapshots for the rates of nodes
#: the shards of a killed node get other leaders in about two seconds; top sees it a second later
ELECTING_MS = 5_000
NO_QUORUM = "no_quorum"  #: name of the alarm
GOOD = ("ready", "witness")  #: states of a node or worker that need no attention

Name = tuple[str, ...]  #: ("in",), ("topic", NAME), ("lag", TOPIC, GROUP), ("node", NAME) ...


class Counters(NamedTuple):
    time_ms: int
    values: dict[Name, float]


def rates(before: Counters, now: Counters, stored: bool = False) -> dict[Name, float]:
    """Return rates per second.

    A counter that fell belongs to a restarted process: all of it is new. Stored counters fall when
    a partition was removed: then the rate is 0.
    """
    seconds = (now.time_ms - before.time_ms) / 1_000
    found = {}
    for name, value in now.values.items():
        was = before.values.get(name, value)
        new = value - was if value >= was else 0.0 if stored else value
        found[name] = new / seconds if seconds > 0 else 0.0
    return found


class Past(deque[Counters]):
    """The last few counters, oldest first."""

    def __init__(self) -> None:
        super().__init__(maxlen=NODE_SPAN)

    def rates(self, now: Counters, stored: bool = False) -> dict[Name, float]:
        """Return the rates since the oldest of them."""
        before = self[0] if self else now
        self.append(now)
        return rates(before, now, stored)


class History:
    """The last snapshot, its sums, and series of the past."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length
        self.now = Snapshot(time_ms=0)
        self.before: Snapshot | None = None
        self.topics: dict[str, TopicSum] = {}
        self.groups: dict[tuple[str, str], GroupSum] = {}
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._led: Led = {}
        self._led_ms = -ELECTING_MS  #: when all shards were last seen with a leader
        self.growth_hours: list[Growth] = []  #: the last known ones
        self.growth_minutes: list[Growth] = []
        self.count = 0
        self._series: dict[Name, deque[float]] = {}
        self._counted = Counters(0, {})
        self._rates: dict[Name, float] = {}
        self._past, self._used = Past(), Past()
        #: records read by searches of this dashboard, not yet subtracted from
        #: the rate of deliveries
        self._own = 0
        # time between the last two counts: a large cluster is counted less often
        self._rhythm_ms = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add the next snapshot. Older ones are ignored."""
        if self.count and snapshot.time_ms <= self.now.time_ms:
            return
        self.before, self.now = (self.now if self.count else None), snapshot
        self.count += 1
        if 0 < snapshot.shards_total <= snapshot.shards_led:
            self._led_ms = snapshot.time_ms
        self.topics, self.groups = topic_sums(snapshot), group_sums(snapshot.groups)
        self.growth_hours = snapshot.growth_hours or self.growth_hours
        self.growth_minutes = snapshot.growth_minutes or self.growth_minutes
        self._measure(snapshot)
        self._notice(snapshot)

    @property
    def electing(self) -> bool:
        """True if the shards without a leader had one a moment ago: a takeover is running."""
        now = self.now
        return now.state == State.NO_QUORUM and now.time_ms - self._led_ms < ELECTING_MS

    # --- rates and series

    @property
    def seconds(self) -> float:
        """Seconds between the last two snapshots."""
        return (self.now.time_ms - self.before.time_ms) / 1_000 if self.before else 0.0

    def series(self, *name: str) -> Sequence[float]:
        return list(self._series.get(name, ()))

    def last(self, *name: str) -> float:
        found = self._series.get(name)
        return found[-1] if found else 0.0

    def _measure(self, snapshot: Snapshot) -> None:
        gauges: dict[Name, float] = {("lag", *at): found.lag for at, found in self.groups.items()}
        gauges["backlog",] = sum(found.lag for found in self.groups.values())
        gauges["dead",] = sum(found.dead for found in self.groups.values())
        of_topics, of_nodes, loads = (
            self._counted_rates(snapshot),
            self._node_rates(snapshot),
            self._node_loads(snapshot),
        )
        if self.before is not None:
            gauges["in",] = sum(rate for name, rate in of_topics.items() if name[0] == "topic")
            out = sum(rate for name, rate in of_nodes.items() if name[0] == "node-out")
            gauges["out",] = self._without_own(out)
            gauges |= of_topics | of_nodes | loads
        for name in self._series.keys() - gauges.keys():
            del self._series[name]
        for name, value in gauges.items():
            found = self._series.get(name)
            if found is None:
                if len(self._series) >= SERIES_MAX and len(name) > 1:
                    continue
                found = self._series[name] = deque(maxlen=self.length)
            found.append(value)

    def read(self, records: int) -> None:
        """Note records that this dashboard has read itself: they are not traffic."""
        self._own += records

    def _without_own(self, out: float) -> float:
        """Subtract own reads from the rate of deliveries. Nodes report
        them about a second later.
        """
        own = min(self._own, round(out * self.seconds))
        self._own -= own
        return out - own / self.seconds if self.seconds else out

    def _counted_rates(self, snapshot: Snapshot) -> dict[Name, float]:
        """Return rates of topics and groups between their last two counts; unchanged in between."""
        counted_ms = snapshot.counted_ms or snapshot.time_ms
        if counted_ms > self._counted.time_ms:
            values: dict[Name, float] = {
                ("topic", name): found.published for name, found in self.topics.items()
            }
            values |= {("group", *at): found.acked for at, found in self.groups.items()}
            now = Counters(counted_ms, values)
            self._rhythm_ms = counted_ms - self._counted.time_ms if self._counted.time_ms else 0
            self._rates, self._counted = rates(self._counted, now, stored=True), now
        elif self.stale_ms:
            self._rates = {}  # the present is unknown
        return self._rates

    @property
    def uncounted(self) -> bool:
        """True if no leader has reported topics, groups and clients, so
        empty lists mean nothing.
        """
        return "counters" in self.now.missing

    @property
    def measured(self) -> bool:
        """True after two counts; before, rates are unknown."""
        return self._rhythm_ms > 0

    @property
    def stale_ms(self) -> int:
        """Age of the counters if they are outdated; 0 while they are fresh."""
        age_ms = self.now.time_ms - self._counted.time_ms
        return (
            age_ms
            if self._counted.time_ms and age_ms > max(limits.FRESH_MS, STALE_RHYTHMS * self._rhythm_ms)
            else 0
        )

    def _node_rates(self, snapshot: Snapshot) -> dict[Name, float]:
        """Return rates of nodes over a few snapshots, because workers report once a second.

        The first value of a counter gives no rate.
        """
        values: dict[Name, float] = {}
        for node in snapshot.nodes:
            if node.state in (ASKING, "failed") and not node.uptime_ms:
                continue  # it has not answered yet
            values["node", node.name] = node.published + node.delivered
            values["node-out", node.name] = node.delivered
        return self._past.rates(Counters(snapshot.time_ms, values))

    def _node_loads(self, snapshot: Snapshot) -> dict[Name, float]:
        """Return loads in percent of a core."""
        used: dict[Name, float] = {
            ("node-cpu", node.name): node.cpu_ms / 10 for node in snapshot.nodes if node.cpu_ms >= 0
        }
        return self._used.rates(Counters(snapshot.time_ms, used), stored=True)

    def trend(self, topic: str, group: str, over: int = 10) -> float:
        """Return by how many records a second the lag grows (below 0:
        shrinks), over the last snapshots.
        """
        found = list(self.series("lag", topic, group))[-over:]
        if len(found) < 2 or not self.seconds:
            return 0.0
        return (found[-1] - found[0]) / ((len(found) - 1) * self.seconds)

    def eta_s(self, topic: str, group: str) -> float | None:
        """Return the seconds until the lag is 0 at the present trend; None: never."""
        lag = self.last("lag", topic, group)
        trend = self.trend(topic, group)
        return 0.0 if not lag else lag / -trend if trend < 0 else None

    # --- events

    def _notice(self, snapshot: Snapshot) -> None:
        """Add events of gossip, and changes between two snapshots."""
        for event in snapshot.events:
            if not any(_alike(event, old) for old in self.events):
                self.events.append(event)
        for kind, who, text in changes(self.before or snapshot, snapshot, self._led):
            event = Event(time_ms=snapshot.time_ms, kind=kind, who=who, text=text)
            # gossip has reported it
            if not any(_alike(event, old, SEEN_MS) for old in snapshot.events):
                self.events.append(event)
        self._led |= {
            shard.shard: (shard.leader, snapshot.time_ms) for shard in snapshot.shards if shard.leader
        }


def _alike(event: Event, other: Event, within_ms: int = ALIKE_MS) -> bool:
    """True if two events report the same thing at different times."""
    return (event.kind, event.who) == (other.kind, other.who) and abs(
        event.time_ms - other.time_ms
    ) < within_ms


Change = tuple[str, str, str]  #: kind, who, text
Led = dict[int, tuple[str, int]]  #: shard -> its last leading node, and until when (unix ms)


def changes(before: Snapshot, now: Snapshot, led: Led) -> list[Change]:
    """Return the changes between two snapshots, as events."""
    return [
        *_node_changes(before, now),
        *_worker_changes(before, now),
        *_shard_changes(before, now, led),
        *_topic_changes(before, now),
    ]


def _node_changes(before: Snapshot, now: Snapshot) -> Iterable[Change]:
    was: Mapping[str, Node] = {node.name: node for node in before.nodes}
    for node in now.nodes:
        old = was.get(node.name)
        if old is None:
            yield "member-join", node.name, node.endpoint
        elif old.state != node.state and ASKING not in (old.state, node.state):
            yield f"member-{node.state}", node.name, node.detail or f"was {old.state}"
    for name in sorted(was.keys() - {node.name for node in now.nodes}):
        yield "member-gone", name, "off the roster"


def _worker_changes(before: Snapshot, now: Snapshot) -> Iterable[Change]:
    failed = {node.name for node in now.nodes if node.state == "failed"}
    was: Mapping[tuple[str, int], Worker] = {
        (worker.node, worker.worker): worker for worker in before.workers
    }
    for worker in now.workers:
        old, who = was.get((worker.node, worker.worker)), f"{worker.node}/{worker.worker}"
        if old is None or worker.node in failed:
            continue  # reported with the failure of its node
        if worker.restarts > old.restarts:
            yield (
                "worker-restart",
                who,
                f"restart {worker.restarts}, pid {old.pid} -> {worker.pid or 'none yet'}",
            )
        elif worker.state != old.state:
            yield f"worker-{worker.state}", who, worker.detail or f"was {old.state}"


def _shard_changes(before: Snapshot, now: Snapshot, led: Led) -> Iterable[Change]:
    """Return moved leaders, one line for all shards with the same move."""
    was: Mapping[int, Shard] = {shard.shard: shard for shard in before.shards}
    moved: dict[tuple[str, str], list[int]] = {}
    for shard in now.shards:
        old = was.get(shard.shard)
        if old is None or old.leader == shard.leader:
            continue
        last, until_ms = led.get(shard.shard, ("", now.time_ms))
        if not shard.leader:
            change = "leader-lost", f"{old.leader} leads no more"
        elif last == shard.leader:
            change = "leader-back", last
        else:
            change = (
                "leader-move",
                f"{last or 'nobody'} -> {shard.leader} within {(now.time_ms - until_ms) / 1_000:.0f} s",
            )
        moved.setdefault(change, []).append(shard.shard)
    for (kind, text), numbers in moved.items():
        yield kind, f"shard {numbers[0]}" if len(numbers) == 1 else many(len(numbers), "shard"), text


def _topic_changes(before: Snapshot, now: Snapshot) -> Iterable[Change]:
    was, names = {topic.name for topic in before.topics}, {topic.name for topic in now.topics}
    for name in sorted(names - was):
        yield "topic-made", name, ""
    for name in sorted(was - names):
        yield "topic-gone", name, ""


# --- alarms


def alarms(history: History) -> list[Alarm]:
    """Return the alarms of the snapshot, worst first. An election is a warning."""
    found = {alarm.text: alarm for alarm in history.now.alarms}
    if history.electing:
        passing = [alarm for alarm in found.values() if alarm.name == NO_QUORUM]
        found |= {alarm.text: replace(alarm, severity="warning") for alarm in passing}
    return sorted(found.values(), key=lambda alarm: (alarm.severity != "critical", alarm.name, alarm.text))
