"""Converts answers of nodes to a snapshot: the only code that maps message fields to rows. Pure.

Several nodes describe a cluster: each knows its own workers, and the copies of the shards that it
leads. The last answer of a silent node is kept, and marked as old.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gossipq import limits
from gossipq.alarms import CRITICAL, WARNING
from gossipq.health import ALONE, MEANINGS, Finding, Health, State, health, of_cluster
from gossipq.messages import StatsReply, StatusReply
from gossipq.texts import typed
from gossipq.types import partition_of
from gossipq.values import Alarm as AlarmRow
from gossipq.values import (
    ClientRow,
    ConfigRow,
    Consuming,
    CopyStats,
    Member,
    TopicConfig,
    TopicInfo,
    WorkerStats,
)
from gossipq_ops.rows import (
    UNKNOWN,
    Alarm,
    Client,
    Copy,
    Event,
    Group,
    Growth,
    Node,
    Partition,
    Shard,
    Snapshot,
    Subscription,
    Topic,
    Worker,
)

SILENT_MS = 2_500  #: a node without an answer for this time counts as failed
SESSION_SHOWN = 4  #: bytes of a session's name
SERVING = ("ready", "full")
ALIKE_MS = 10_000  #: several nodes report the same event at slightly different times
MET_MS = 10_000  #: nodes met this soon after the start may have existed before it
#: finding about a cluster -> the alarm that its nodes raise for it; others have their own word
RAISED = {
    State.NO_QUORUM: "no_quorum",
    State.PAUSED: "worker_hangs",
    State.STOPPED: "shard_damaged",
    State.FULL: "store_full",
    State.STARTING: "worker_down",
}
UNTOLD = ("update",)  #: events of gossip itself that are not shown
KINDS = {"join": "member-join", "leave": "member-gone", "fail": "member-failed", "back": "member-back"}
GROUP_FIELDS = [field for field in Group.__struct_fields__ if field not in ("topic", "group", "partition")]
PARTITION_FIELDS = ("first", "next", "published", "removed", "bytes", "scheduled", "voided")
WORKER_FIELDS = [field for field in Worker.__struct_fields__ if field != "node"]
CLIENT_FIELDS = (
    "client",
    "version",
    "node",
    "worker",
    "connections",
    "age_ms",
    "silent_ms",
    "batches",
    "published",
    "bytes",
)


class Heard(NamedTuple):
    """The last answers of one node."""

    status: StatusReply
    endpoint: str
    age_ms: int = 0
    rtt_us: int = UNKNOWN
    alarms: Sequence[AlarmRow] = ()
    config: Sequence[ConfigRow] = ()


class Told(NamedTuple):
    """All that is known of a cluster. `nodes` begins with the one that was asked first."""

    nodes: Sequence[Heard]
    stats: StatsReply
    topics: Sequence[TopicInfo]
    clients: Sequence[ClientRow] = ()
    growth_hours: Sequence[Any] = ()
    growth_minutes: Sequence[Any] = ()
    counted_ms: int = 0  #: of `stats`, in unix milliseconds
    missing: Sequence[str] = ()
    unreachable: Sequence[str] = ()  #: endpoints that did not answer


def snapshot(told: Told, time_ms: int, server: str, silent_ms: int = SILENT_MS) -> Snapshot:
    """Return a snapshot. `silent_ms` is the silence after which a node counts as failed."""
    freshest = min(told.nodes, key=lambda heard: heard.age_ms)
    home = freshest.status
    nodes = node_rows(told.nodes, silent_ms, told.unreachable)
    gone = {node.name for node in nodes if node.state in ("failed", "left")}
    workers = [
        worker_row(heard.status.node, worker, gone) for heard in told.nodes for worker in heard.status.workers
    ]
    shards = shard_rows(told.nodes, workers, gone, silent_ms)
    gossip = home.gossip
    asking = not home.members or any(node.state == "asking" for node in nodes)
    findings = () if asking else health_of(told.nodes, home, silent_ms).findings
    return Snapshot(
        time_ms=time_ms,
        counted_ms=told.counted_ms,
        server=server,
        answered_by=home.node,
        cluster=home.cluster_name,
        version=home.version,
        mode=home.mode,
        uptime_ms=max(
            (heard.status.uptime_ms for heard in told.nodes if heard.age_ms <= silent_ms),
            default=home.uptime_ms,
        ),
        shards_total=home.shards,
        shards_led=sum(shard.state != "no leader" for shard in shards),
        serf={"": "ok", "off": ""}.get(gossip, f"degraded: {gossip}"),
        nodes=[replace(node, following=_following(node, shards)) for node in nodes],
        workers=workers,
        shards=shards,
        topics=[topic_row(topic) for topic in told.topics],
        partitions=[partition_row(part) for part in told.stats.partitions],
        groups=[group_row(part) for part in told.stats.groups],
        clients=[client_row(row) for row in told.clients],
        alarms=_alarm_rows(told, findings, time_ms, silent_ms),
        events=event_rows(told.nodes, time_ms),
        growth_hours=growth_rows(told.growth_hours),
        growth_minutes=growth_rows(told.growth_minutes),
        warnings=sorted({warning for heard in told.nodes for warning in heard.status.warnings}),
        missing=list(told.missing),
        state="" if asking else health(findings).state,
        findings=[f"{found.state}: {found.text}" for found in findings],
    )


def health_of(nodes: Sequence[Heard], home: StatusReply, silent_ms: int) -> Health:
    """Judge the cluster by the nodes that answered recently."""
    fresh = {heard.status.copy: heard.status for heard in nodes if heard.age_ms <= silent_ms}
    rows = [row for status in fresh.values() for row in status.copies]
    terms: dict[int, int] = {}
    for row in rows:
        terms[row.shard] = max(row.term, terms.get(row.shard, 0))
    return of_cluster(home, fresh, [row for row in rows if row.term == terms[row.shard]])


def _alarm_rows(told: Told, findings: Sequence[Finding], time_ms: int, silent_ms: int) -> list[Alarm]:
    """Return what needs attention: the alarms of the nodes, and first the findings without an alarm.

    A node that is away or hangs cannot raise one. `gossipq status` has the same findings.
    """
    raised = [row for heard in told.nodes if heard.age_ms <= silent_ms for row in heard.alarms]
    names = {row.name for row in raised}
    asked = told.nodes[0].status.node
    found = list[AlarmRow]()
    for each in findings:
        name, text = RAISED.get(each.state, str(each.state)), f"{each.state}: {each.text}"
        if ALONE in each.text:  # nodes raise it when it lasts; here it is shown at once
            name, text = "last_copy", each.text
        severity = CRITICAL if name == "last_copy" or not MEANINGS[each.state].serves else WARNING
        if name not in names:
            subject = each.subject
            row = AlarmRow(name, severity, subject or asked, subject, text, each.command, time_ms)
            found.append(row)
    warnings = sorted({warning for heard in told.nodes for warning in heard.status.warnings})
    found += [AlarmRow("warning", WARNING, asked, "", text, "gossipq status", time_ms) for text in warnings]
    texts = {row.text for row in raised}
    return list(map(alarm_row, [*(row for row in found if row.text not in texts), *raised]))


# --- nodes and workers


def members(nodes: Sequence[Heard]) -> list[Member]:
    """Return the roster of the node that answered last."""
    freshest = min(nodes, key=lambda heard: heard.age_ms)
    return freshest.status.members


def node_rows(nodes: Sequence[Heard], silent_ms: int, unreachable: Sequence[str] = ()) -> list[Node]:
    """Return the nodes of the roster, also silent ones, by name; without a
    roster, those that answered.
    """
    heard = {each.status.node: each for each in nodes}
    roster = members(nodes)
    if not roster:
        return [_node_row(each, silent_ms) for each in nodes]
    rows = []
    for member in sorted(roster, key=lambda member: member.name):
        each = heard.get(member.name)
        if each is None:
            state = "failed" if member.endpoint in unreachable else "asking"
            rows.append(Node(name=member.name, state=state, endpoint=member.endpoint, version=member.version))
            continue
        row = _node_row(each, silent_ms)
        state = row.state
        if member.witness and state == "ready":
            state = "witness"
        elif member.state != "in" and state == "ready":
            state = member.state
        rows.append(replace(row, state=state, endpoint=member.endpoint))
    return rows


def _node_row(heard: Heard, silent_ms: int) -> Node:
    """Return the sums of a node's workers, and the worst of their states."""
    status = heard.status
    states = {worker.state for worker in status.workers}
    state = next((state for state in ("down", "recovering", "full", "starting") if state in states), "ready")
    state = "recovering" if state == "down" else state
    if state in SERVING and any(worker.silent_ms > limits.FRESH_MS for worker in status.workers):
        state = "paused"
    processes: list[StatusReply | WorkerStats] = [status, *status.workers]
    sums = ("sessions", "published", "delivered", "acked", "refused", "restarts", "store_bytes")
    return Node(
        name=status.node,
        state="failed" if heard.age_ms > silent_ms else state,
        endpoint=heard.endpoint,
        version=status.version,
        uptime_ms=status.uptime_ms,
        silent_ms=heard.age_ms,
        rtt_us=heard.rtt_us,
        cpu_ms=sum(process.cpu_ms for process in processes) or UNKNOWN,
        rss_bytes=sum(process.rss_bytes for process in processes) or UNKNOWN,
        leading=0 if heard.age_ms > silent_ms else sum(worker.leading for worker in status.workers),
        disk_free_bytes=min(
            (w.disk_free_bytes for w in status.workers if w.disk_free_bytes), default=UNKNOWN
        ),
        commit_us=max((worker.commit_us for worker in status.workers), default=0),
        detail="; ".join(worker.detail for worker in status.workers if worker.detail),
        config={row.key: row.value for row in heard.config},
        **{field: sum(getattr(worker, field) for worker in status.workers) for field in sums},
    )


def _following(node: Node, shards: Sequence[Shard]) -> int:
    return sum(
        copy.node == node.name and copy.role == "follower" and copy.reachable
        for shard in shards
        for copy in shard.copies
    )


def worker_row(node: str, worker: WorkerStats, gone: set[str]) -> Worker:
    fields = {field: getattr(worker, field) for field in WORKER_FIELDS}
    return Worker(node=node, **fields | ({"state": "down", "leading": 0} if node in gone else {}))


# --- shards


def shard_rows(
    nodes: Sequence[Heard], workers: Sequence[Worker], gone: set[str], silent_ms: int
) -> list[Shard]:
    """Return each shard with its leader, and its copies as the leader sees them."""
    roster = {member.copy: member for member in members(nodes)}
    leads = _leads(nodes, roster)
    if not leads:
        return _routed(nodes[0].status)
    by_place = {(worker.node, worker.worker): worker for worker in workers}
    names = {copy: member.name for copy, member in roster.items()}
    told = {
        heard.status.copy
        for heard in nodes
        if heard.status.copies or any(w.leaderless for w in heard.status.workers)
    }
    leading = {
        (row.shard, row.copy) for heard in nodes for row in heard.status.copies if row.role == "leader"
    }
    seen: dict[tuple[int, int], list[CopyStats]] = {}
    for heard in nodes:
        for row in heard.status.copies:
            seen.setdefault((row.shard, row.term), []).append(row)
    rows = []
    for shard in range(nodes[0].status.shards):
        term, copy = leads.get(shard, (0, ""))
        leader = names.get(copy, copy)
        led = bool(leader) and leader not in gone and (copy not in told or (shard, copy) in leading)
        number = shard % max(1, roster[copy].workers) if copy in roster else UNKNOWN
        place = by_place.get((leader, number))
        copies = [
            Copy(
                node=names.get(row.copy, row.copy),
                role=row.role,
                lag=row.behind,
                reachable=row.silent_ms <= silent_ms and names.get(row.copy, row.copy) not in gone,
            )
            for row in seen.get((shard, term), ())
        ]
        whole = all(each.reachable for each in copies)
        rows.append(
            Shard(
                shard=shard,
                state="no leader" if not led else "ok" if whole else "degraded",
                leader=leader if led else "",
                worker=number if led else UNKNOWN,
                pid=place.pid if place and led else 0,
                term=term,
                copies=copies,
            )
        )
    return rows


def _leads(nodes: Sequence[Heard], roster: Mapping[str, Member]) -> dict[int, tuple[int, str]]:
    """Return shard -> (term, leading copy), with the highest term that any node reports."""
    found: dict[int, tuple[int, str]] = {}
    for heard in nodes:
        for lead in heard.status.leads:
            if lead.term > found.get(lead.shard, (-1, ""))[0]:
                found[lead.shard] = lead.term, lead.copy
    return found


def _routed(status: StatusReply) -> list[Shard]:
    """Return the shards of a node that has the only copies: the routes name the leader."""
    by_endpoint = {worker.endpoint: worker for worker in status.workers}
    rows = []
    for route in sorted(status.routes, key=lambda route: route.shard):
        worker = by_endpoint.get(route.endpoint)
        serves = worker is not None and worker.state in SERVING and route.term > 0
        rows.append(
            Shard(
                shard=route.shard,
                state="ok" if serves else "no leader",
                leader=status.node if serves else "",
                worker=worker.worker if worker else UNKNOWN,
                pid=worker.pid if worker else 0,
                term=route.term,
                copies=[Copy(node=status.node, role="leader", reachable=serves)],
            )
        )
    return rows


# --- other rows


def event_rows(nodes: Sequence[Heard], time_ms: int) -> list[Event]:
    """Return events of gossip from all nodes, each once, at its first time. `time_ms` is now.

    A starting node meets all others; these events are left out, except for the oldest node.
    """
    oldest_ms = max((heard.status.uptime_ms for heard in nodes), default=0)
    told = []
    for heard in nodes:
        began_ms = time_ms - heard.age_ms - heard.status.uptime_ms
        newcomer = heard.status.uptime_ms < oldest_ms
        for event in heard.status.events:
            met = event.what == "join" and event.time_ms - began_ms < MET_MS
            if event.what not in UNTOLD and not (newcomer and met):
                told.append(event)
    found: list[Event] = []
    last_ms: dict[tuple[str, str], int] = {}
    for event in sorted(told, key=lambda event: event.time_ms):
        kind = KINDS.get(event.what, f"gossip-{event.what}")
        if event.time_ms - last_ms.get((kind, event.node), -ALIKE_MS) >= ALIKE_MS:
            found.append(Event(time_ms=event.time_ms, kind=kind, who=event.node, text=event.detail))
            last_ms[kind, event.node] = event.time_ms
    return found


def growth_rows(points: Sequence[Any]) -> list[Growth]:
    return [Growth(**point._asdict()) for point in points]


def partition_row(part: Any) -> Partition:
    fields = {field: getattr(part, field) for field in PARTITION_FIELDS}
    return Partition(topic=part.topic, partition=partition_of(part.partition), shard=part.shard, **fields)


def group_row(part: Any) -> Group:
    fields = {field: getattr(part, field) for field in GROUP_FIELDS}
    return Group(topic=part.topic, group=part.group, partition=partition_of(part.partition), **fields)


def client_row(row: ClientRow) -> Client:
    return Client(
        session=row.session[:SESSION_SHOWN].hex(),
        subscriptions=[subscription_row(each) for each in row.subscriptions],
        **{field: getattr(row, field) for field in CLIENT_FIELDS},
    )


def subscription_row(each: Consuming) -> Subscription:
    return Subscription(**{field: getattr(each, field) for field in Subscription.__struct_fields__})


def alarm_row(row: AlarmRow) -> Alarm:
    return Alarm(**{field: getattr(row, field) for field in Alarm.__struct_fields__})


def topic_row(topic: TopicInfo) -> Topic:
    return Topic(
        name=topic.name,
        id=topic.id,
        partitions=len(topic.shards),
        virtual=topic.config.virtual,
        config=_policy(msgspec.msgpack.encode(topic.config)),
    )


@lru_cache(maxsize=256)
def _policy(packed: bytes) -> dict[str, str]:
    """Return a policy for people. Cached, because most topics have the same."""
    config = msgspec.msgpack.decode(packed, type=TopicConfig)
    return {
        field.removesuffix("_ms"): shown(field, getattr(config, field))
        for field in config.__struct_fields__
        if field != "virtual"
    }


def shown(field: str, value: Any) -> str:
    """Return a value of a policy for people."""
    if value is None:
        return "as the cluster says"
    if isinstance(value, list):
        return ", ".join(typed(each) if field.endswith("_ms") else str(each) for each in value)
    return typed(value) if field.endswith("_ms") else str(value)
