"""The content of each page as plain values: rows, and curves of a history. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gossipq.limits import FRESH_MS
from gossipq.texts import many, moment
from gossipq_gateway.console.charts import Bars, Curve, Strip, bars, curve, strip
from gossipq_ops.history import History, alarms
from gossipq_ops.jobs import is_slow, lanes
from gossipq_ops.outlook import Holder, Look, lines, outlook
from gossipq_ops.questions import Answer, Job, Ran, Ticked, Working
from gossipq_ops.rows import Alarm, Client, Event, Growth, Node, Shard
from gossipq_ops.sums import GroupSum, TopicSum
from gossipq_ops.verbs import NAMES

SERIES = 120  #: values of a curve with one value a second
SPARK = (120, 24)
WEEK_HOURS = 168
EVENTS_SHOWN = 60
ROWS_MAX = 500  #: of a table; a longer one says how many are missing
WELL = ("ready", "witness")
HOURS_MIN = 3  #: with fewer hours, growth is shown by the minute

Grown = tuple[Sequence[Growth], Sequence[Growth]]  #: by hour, by minute


class Tab(NamedTuple):
    name: str
    title: str
    key: str  #: key on the keyboard for this tab
    badge: int = 0
    worst: bool = False  #: True if the badge counts problems


class Head(NamedTuple):
    """The head of each page."""

    cluster: str
    state: str
    tone: str  #: "good", "warn", "bad", "old"
    nodes: str
    measured: bool  #: rates are known
    rate_in: float
    rate_out: float
    backlog: float
    shards: str
    old_ms: int  #: age of the counters if they are outdated; 0 = fresh
    tabs: list[Tab]


TONES = {
    "healthy": "good",
    "": "old",
    "degraded": "warn",
    "starting": "warn",
    "joining": "warn",
    "stale": "old",
}
NODE_TONES = dict.fromkeys(WELL, "good") | dict.fromkeys(("asking", "left"), "old")
NODE_TONES |= dict.fromkeys(("starting", "recovering", "leaving"), "warn")


def head(h: History, now_ms: int) -> Head:
    found = alarms(h)
    dead = sum(group.dead for group in h.groups.values())
    tabs = [
        Tab("overview", "Overview", "1"),
        Tab("nodes", "Nodes", "2", sum(node.state not in WELL for node in h.now.nodes), True),
        Tab("topics", "Topics", "3"),
        Tab("groups", "Groups", "4"),
        Tab("clients", "Clients", "5"),
        Tab("messages", "Messages", "6"),
        Tab("dead", "Dead letters", "7", dead, True),
        Tab("schedules", "Schedules", "8"),
        Tab("jobs", "Jobs", "w"),
        Tab("alarms", "Alarms", "9", len(found), any(alarm.severity == "critical" for alarm in found)),
        Tab("config", "Config", "0"),
    ]
    age_ms = max(0, now_ms - h.now.time_ms)
    old_ms = max(h.stale_ms, age_ms if age_ms > FRESH_MS else 0)
    well = sum(node.state in WELL for node in h.now.nodes)
    return Head(
        h.now.cluster or "gossipq",
        "stale" if age_ms > FRESH_MS else h.now.state,
        "old" if age_ms > FRESH_MS else "warn" if h.electing else TONES.get(h.now.state, "bad"),
        f"{well}/{len(h.now.nodes)}",
        h.measured,
        h.last("in"),
        h.last("out"),
        h.last("backlog"),
        f"{h.now.shards_led}/{h.now.shards_total}",
        old_ms,
        tabs,
    )


def small(h: History, about: str, *name: str) -> Curve:
    return curve(list(h.series(*name))[-60:], about, *SPARK, room=60)


def large(h: History, about: str, *name: str) -> Curve:
    return curve(list(h.series(*name))[-SERIES:], about, room=SERIES)


def names_of(kind: str) -> int:
    """Return the number of names of a row of this kind."""
    return len(NAMES.get(kind, ()))


# --- one for each page


def overview(h: History) -> dict[str, Any]:
    groups = sorted(h.groups.values(), key=lambda group: (-group.lag, group.topic, group.group))
    topics = sorted(h.topics, key=lambda name: (-h.last("topic", name), _late(name)))
    return {
        "curves": [
            ("Published", "records a second", large(h, "records published a second", "in")),
            ("Delivered", "records a second", large(h, "records delivered a second", "out")),
            ("Backlog", "records not done", large(h, "records that are not done", "backlog")),
        ],
        "alarms": alarms(h)[:4],
        "more_alarms": max(0, len(alarms(h)) - 4),
        "topics": [topic_row(h, name) for name in topics if not name.startswith("_")][:6],
        "groups": [group_row(h, group) for group in groups if not group.topic.startswith("_")][:6],
        "nodes": [node_row(h, node) for node in h.now.nodes],
        "shards": list(map(shard_cell, h.now.shards)),
        "events": list(reversed(h.events))[:8],
        "findings": h.now.findings,
    }


def nodes(h: History) -> dict[str, Any]:
    return {
        "nodes": [node_row(h, node) for node in h.now.nodes],
        "shards": list(map(shard_cell, h.now.shards)),
        "workers": sorted(h.now.workers, key=lambda worker: (worker.node, worker.worker)),
        "events": list(reversed(h.events))[:EVENTS_SHOWN],
        "findings": h.now.findings,
    }


class NodeRow(NamedTuple):
    node: Node
    tone: str
    rate: float
    cpu: float
    rate_curve: Curve


def node_row(h: History, node: Node) -> NodeRow:
    return NodeRow(
        node,
        NODE_TONES.get(node.state, "bad"),
        h.last("node", node.name),
        h.last("node-cpu", node.name),
        small(h, f"records a second of {node.name}", "node", node.name),
    )


class ShardCell(NamedTuple):
    shard: Shard
    tone: str
    title: str


def shard_cell(shard: Shard) -> ShardCell:
    tone = {"ok": "good", "degraded": "warn"}.get(shard.state, "bad")
    copies = "; ".join(
        f"{copy.node} {copy.role}"
        + (f", {copy.lag} behind" if copy.lag else "")
        + ("" if copy.reachable else ", away")
        for copy in shard.copies
    )
    title = f"shard {shard.shard}: {shard.state}; leader {shard.leader or 'none'}; {copies}"
    return ShardCell(shard, tone, title)


class TopicRow(NamedTuple):
    name: str
    sum: TopicSum
    rate: float
    curve: Curve
    groups: int
    system: bool


def topic_row(h: History, name: str) -> TopicRow:
    groups = sum(topic == name for topic, _ in h.groups) if len(h.groups) < ROWS_MAX else 0
    curve_ = small(h, f"records a second to {name}", "topic", name)
    return TopicRow(name, h.topics[name], h.last("topic", name), curve_, groups, name.startswith("_"))


def _late(name: str) -> tuple[bool, str]:
    """Return a sort key: system topics come last."""
    return name.startswith("_"), name


def topics(h: History, like: str) -> dict[str, Any]:
    names = [name for name in h.topics if like in name]
    names.sort(key=lambda name: (*_late(name),))
    return {
        "topics": [topic_row(h, name) for name in names[:ROWS_MAX]],
        "more": max(0, len(names) - ROWS_MAX),
        "of": len(h.topics),
        "weeks": weeks(h.growth_hours, h.growth_minutes),
        "like": like,
    }


def topic(h: History, name: str, growth: Grown) -> dict[str, Any] | None:
    """Return the content, or None if the topic does not exist."""
    if name not in h.topics:
        return None
    info = next((each for each in h.now.topics if each.name == name), None)
    parts = [part for part in h.now.partitions if part.topic == name]
    leaders = {shard.shard: shard.leader for shard in h.now.shards}
    return {
        "topic": topic_row(h, name),
        "rate": large(h, f"records a second to {name}", "topic", name),
        "config": sorted((info.config if info else {}).items()),
        "virtual": info.virtual if info else [],
        "partitions": [
            (part, leaders.get(part.shard, ""))
            for part in sorted(parts, key=lambda part: part.partition)[:ROWS_MAX]
        ],
        "groups": [group_row(h, each) for at, each in sorted(h.groups.items()) if at[0] == name][:ROWS_MAX],
        "weeks": weeks(*growth),
    }


class Week(NamedTuple):
    title: str
    unit: str
    bars: Bars


def weeks(hours: Sequence[Growth], minutes: Sequence[Growth]) -> list[Week]:
    """Return growth by hour; by minute for a cluster younger than a few hours."""
    step, rows = ("hour", hours[-WEEK_HOURS:]) if len(hours) > HOURS_MIN else ("minute", minutes)
    facts = (
        ("Published", f"records a {step}", "published"),
        ("Acked", f"records a {step}", "acked"),
        ("Kept", "bytes", "bytes"),
        ("Backlog", "records", "backlog"),
    )
    return [
        Week(
            title,
            unit,
            bars(
                [getattr(row, field) for row in rows],
                [f"{moment(row.time_ms)}: {getattr(row, field):,} {unit}" for row in rows],
                f"{title.lower()}, {unit}, by the {step}",
            ),
        )
        for title, unit, field in facts
    ]


class GroupRow(NamedTuple):
    group: GroupSum
    rate: float
    trend: float
    caught_up_s: float | None
    curve: Curve
    tone: str
    word: str


def group_row(h: History, group: GroupSum) -> GroupRow:
    at = group.topic, group.group
    trend, eta_s = h.trend(*at), h.eta_s(*at)
    word, tone = "idle", "good"
    if group.paused:
        word, tone = "paused", "warn"
    elif not group.lag:
        word = "caught up"
    elif not group.consumers:
        word, tone = "no consumers", "bad"
    elif not h.measured:
        word, tone = "measuring", "old"
    elif group.lag <= max(1.0, h.last("group", *at)):  # less than a second of its work
        word = "keeps up"
    elif trend > 0:
        word, tone = "falls behind", "warn"
    else:
        word = "stands still" if eta_s is None else "catches up"
    return GroupRow(
        group, h.last("group", *at), trend, eta_s, small(h, f"lag of {group.group}", "lag", *at), tone, word
    )


def groups(h: History, like: str) -> dict[str, Any]:
    found = [group for group in h.groups.values() if like in f"{group.topic} {group.group}"]
    found.sort(key=lambda group: (group.topic.startswith("_"), -group.lag, group.topic, group.group))
    return {
        "groups": [group_row(h, group) for group in found[:ROWS_MAX]],
        "more": max(0, len(found) - ROWS_MAX),
        "of": len(h.groups),
        "like": like,
    }


def group(h: History, topic: str, name: str) -> dict[str, Any] | None:
    found = h.groups.get((topic, name))
    if found is None:
        return None
    consumers = _consumers(h.now.clients, topic, name)
    return {
        "foreseen": foreseen(h, found, consumers),
        "group": group_row(h, found),
        "lag": large(h, f"records that {name} has not done", "lag", topic, name),
        "rate": large(h, f"records a second that {name} acks", "group", topic, name),
        "partitions": sorted(
            (part for part in h.now.groups if (part.topic, part.group) == (topic, name)),
            key=lambda part: part.partition,
        )[:ROWS_MAX],
        "consumers": consumers,
    }


class Consumer(NamedTuple):
    """Counters over all workers that know its session."""

    client: Client
    in_flight: int
    credit: int


def _consumers(clients: Iterable[Client], topic: str, group: str) -> list[Consumer]:
    rows: dict[str, Consumer] = {}
    for client in clients:
        mine = [sub for sub in client.subscriptions if sub.group == group and topic in sub.topic.split(", ")]
        if mine:
            old = rows.get(client.session, Consumer(client, 0, 0))
            held, lent = sum(sub.in_flight for sub in mine), sum(sub.credit_records for sub in mine)
            rows[client.session] = Consumer(old.client, old.in_flight + held, old.credit + lent)
    return sorted(rows.values(), key=lambda row: (-row.in_flight, row.client.client))


def foreseen(h: History, group: GroupSum, consumers: Sequence[Consumer]) -> list[str]:
    """Return the forecast of `gossipq why` for a group, from the last snapshots."""
    if not h.measured:
        return [f"{many(group.lag, 'record')} behind" if group.lag else "nothing waits", "measuring"]
    at, seconds = (group.topic, group.group), 10
    holders = tuple(Holder(row.client.client, row.in_flight, 0, 0) for row in consumers)
    first = Look(0, 0, 0, 0, 0, holders)
    rate_in, done = h.last("topic", group.topic), h.last("group", *at)
    now = Look(
        seconds * 1_000, round(rate_in * seconds), round(done * seconds), group.lag, group.oldest_ms, holders
    )
    return lines(outlook(first, now))[: 2 if group.lag else 1]


def clients(h: History, like: str) -> dict[str, Any]:
    found = [row for row in h.now.clients if like in f"{row.client} {row.session}"]
    found.sort(key=lambda row: (row.client, row.session, row.worker))
    return {
        "clients": found[:ROWS_MAX],
        "more": max(0, len(found) - ROWS_MAX),
        "of": len(h.now.clients),
        "like": like,
    }


def dead(h: History) -> dict[str, Any]:
    found = [group for group in h.groups.values() if group.dead]
    found.sort(key=lambda group: (-group.dead, group.topic, group.group))
    return {
        "groups": [group_row(h, group) for group in found[:ROWS_MAX]],
        "total": sum(group.dead for group in found),
        "curve": large(h, "dead letters", "dead"),
    }


def schedules(h: History) -> dict[str, Any]:
    found = [part for part in h.now.partitions if part.scheduled]
    found.sort(key=lambda part: (-part.scheduled, part.topic, part.partition))
    return {"partitions": found[:ROWS_MAX], "total": sum(part.scheduled for part in found)}


class JobRow(NamedTuple):
    job: Job
    age_ms: int  #: for which it has been running; until it is tried again; 0 = unknown
    slow: bool


def jobs(h: History, topic: str, group: str, found: Answer | None) -> dict[str, Any]:
    """Return the jobs of a group; without a group, the groups to choose from."""
    now_ms = h.now.time_ms
    work = found if isinstance(found, Working) else None
    groups = [each for each in h.groups.values() if not each.topic.startswith("_")]
    groups.sort(key=lambda each: (-each.in_flight, -each.dead, each.topic, each.group))
    rows = [
        JobRow(job, abs(now_ms - job.time_ms) if job.time_ms else 0, is_slow(job, now_ms))
        for job in (work.jobs if work else ())
    ]
    return {
        "topic": topic,
        "group": group,
        "sum": h.groups.get((topic, group)),
        "found": found,
        "jobs": rows,
        "slow": sum(row.slow for row in rows),
        "groups": [] if topic else groups[:ROWS_MAX],
    }


class RunRow(NamedTuple):
    run: Ran
    strip: Strip
    took_ms: int  #: from its tick to its end; 0 = it has not ended
    tone: str


RUN_TONES = dict.fromkeys(("succeeded", "running"), "good") | dict.fromkeys(("failed", "expired"), "bad")


def schedule(h: History, topic: str, group: str, name: str, found: Answer | None) -> dict[str, Any]:
    """Return the last hour of a schedule."""
    known = found if isinstance(found, Ticked) else None
    rows = []
    for run, lane in lanes(known.runs if known else [], h.now.time_ms):
        tone = RUN_TONES.get(run.state, "warn")
        took_ms = max(0, run.end_ms - run.tick_ms) if run.end_ms else 0
        about = f"{run.state}, due {moment(run.tick_ms)}"
        rows.append(RunRow(run, strip(lane.begin, lane.run, lane.end, about), took_ms, tone))
    return {"topic": topic, "group": group, "called": name, "found": found, "runs": rows}


def alarm_rows(h: History) -> dict[str, Any]:
    events: list[Event] = list(reversed(h.events))[:EVENTS_SHOWN]
    found: list[Alarm] = alarms(h)
    return {"alarms": found, "events": events}


def config(h: History) -> dict[str, Any]:
    """Return options by name with each node's value. Differences are marked."""
    told = [node for node in h.now.nodes if node.config]
    names = sorted({name for node in told for name in node.config})
    rows = []
    for name in names:
        values = [node.config.get(name, "") for node in told]
        rows.append((name, values, len(set(values)) > 1))
    return {"nodes": [node.name for node in told], "rows": rows}
