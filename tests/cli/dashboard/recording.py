"""A recorded cluster of three nodes, made by hand. Run as a program it writes its last seconds to
three_nodes.jsonl.

Two minutes: node-d joins and takes shards, traffic swells and ebbs, node-c is killed in the end and its
shards move.
"""

import math
from pathlib import Path

import msgspec

from gossipq_ops.rows import (
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

FILE = Path(__file__).with_name("three_nodes.jsonl")
BEGIN_MS = 1_795_219_200_000  #: 2026-11-21 00:00 UTC
STEPS, SHARDS, WORKERS = 90, 8, 2
KILLED_AT = 82  #: node-c
NODES = ("node-a", "node-b", "node-c")
TOPICS = {
    "orders": (4, 900.0),
    "orders.dlq": (1, 3.0),
    "payments": (2, 350.0),
    "clickstream": (4, 2_400.0),
    "audit": (1, 40.0),
}
GROUPS = (
    ("orders", "billing", 0.97),
    ("orders", "shipping", 1.0),
    ("payments", "ledger", 0.99),
    ("clickstream", "fraud", 0.9),
)


def wave(step: int, phase: float) -> float:
    return 1.0 + 0.6 * math.sin(step / 9 + phase)


def published(topic: str, step: int) -> int:
    rate = TOPICS[topic][1]
    return 74_800 + round(sum(rate * wave(at, len(topic)) for at in range(step)))


def leader_of(shard: int, step: int) -> str:
    leader = NODES[shard % 3]
    return NODES[(shard + shard // 3) % 2] if leader == "node-c" and step >= KILLED_AT + 2 else leader


def shards(step: int) -> list[Shard]:
    rows = []
    for number in range(SHARDS):
        leader = leader_of(number, step)
        dead = step >= KILLED_AT
        copies = [
            Copy(
                node=node,
                role="leader" if node == leader else "follower",
                lag=0
                if node == leader
                else 120 * (step - KILLED_AT + 1)
                if dead and node == "node-c"
                else (number + step) % 3,
                reachable=not (dead and node == "node-c"),
            )
            for node in NODES
        ]
        lost = dead and leader == "node-c"
        state = "no leader" if lost else "degraded" if dead else "ok"
        rows.append(
            Shard(
                shard=number,
                state=state,
                leader="" if lost else leader,
                worker=number % WORKERS,
                pid=4_000 + 10 * NODES.index(leader) + number % WORKERS,
                term=2 if dead and number % 3 == 2 else 1,
                copies=copies,
            )
        )
    return rows


def nodes(step: int, told: list[Shard]) -> list[Node]:
    rows = []
    for at, name in enumerate(NODES):
        failed = name == "node-c" and step >= KILLED_AT
        lived = min(step, KILLED_AT) if name == "node-c" else step
        rows.append(
            Node(
                name=name,
                state="failed" if failed else "ready",
                endpoint=f"tcp://10.0.0.{11 + at}:7700",
                version="0.2.0",
                uptime_ms=187_860_000 + step * 1_000,
                silent_ms=(step - KILLED_AT + 1) * 1_000 if failed else 400,
                rtt_us=400 + 700 * at,
                cpu_ms=sum(round(200 + 90 * at + 80 * wave(each, at)) for each in range(lived)),
                rss_bytes=(94 + 27 * at) << 20,
                leading=0 if failed else sum(shard.leader == name for shard in told),
                following=0 if failed else sum(shard.leader != name for shard in told),
                sessions=0 if failed else 12,
                published=sum(published(topic, lived) for topic in TOPICS) // 3,
                delivered=sum(published(topic, lived) for topic in TOPICS) // 3,
                acked=sum(published(topic, lived) for topic in TOPICS) // 3,
                store_bytes=(512 + 11 * at) << 20,
                config={
                    "cluster.name": '"shop"',
                    "cluster.copies": "3",
                    "cluster.secret": '"***"',
                    "node.name": f'"{name}"',
                    "node.bind": f'"tcp://10.0.0.{11 + at}:7700"',
                    "node.workers": "2",
                },
            )
        )
    return rows


def workers(step: int) -> list[Worker]:
    return [
        Worker(
            node=name,
            worker=number,
            pid=4_000 + 10 * at + number,
            endpoint=f"tcp://10.0.0.{11 + at}:{7701 + number}",
            state="down" if name == "node-c" and step >= KILLED_AT else "ready",
            leading=SHARDS // 6 + 1,
            sessions=6,
            published=published("orders", step),
            delivered=published("orders", step),
            commits=31_000,
            commit_us=1_870,
            store_bytes=256 << 20,
        )
        for at, name in enumerate(NODES)
        for number in range(WORKERS)
    ]


def partitions(step: int) -> list[Partition]:
    rows = []
    for shard, (topic, (count, _)) in enumerate(TOPICS.items()):
        for number in range(count):
            sent = published(topic, step) // count
            rows.append(
                Partition(
                    topic=topic,
                    partition=number,
                    shard=(shard + number) % SHARDS,
                    first=sent // 10,
                    next=sent,
                    published=sent,
                    removed=sent // 10,
                    bytes=(sent - sent // 10) * 212,
                    scheduled=17 if topic == "orders" else 0,
                )
            )
    return rows


def groups(step: int) -> list[Group]:
    rows = []
    for topic, group, share in GROUPS:
        count = TOPICS[topic][0]
        for number in range(count):
            sent = published(topic, step) // count
            acked = round(sent * share)
            flying = min(120, sent - acked)
            rows.append(
                Group(
                    topic=topic,
                    group=group,
                    partition=number,
                    cursor=acked,
                    ready=sent - acked - flying,
                    in_flight=flying,
                    acked=acked,
                    dead=step // 20 if group == "billing" else 0,
                    redelivered=14,
                    consumers=0 if group == "shipping" else 3,
                    paused=group == "ledger",
                    oldest_ms=(sent - acked) * 3,
                    alarm_lag=500 if group == "fraud" else 0,
                )
            )
    return rows


def clients(step: int) -> list[Client]:
    reads = [Subscription(topic="orders", group="billing", partitions=4, credit_records=1_000, in_flight=120)]
    return [
        Client(
            session=f"{at * 77_777_777:08x}"[:8],
            client=f"{'billing' if at < 3 else 'orders-api'}-{at}",
            version="0.2.0",
            node=NODES[at % 3],
            worker=at % WORKERS,
            connections=1,
            age_ms=3_600_000 + step * 1_000,
            silent_ms=300 * at,
            batches=100 * step,
            published=0 if at < 3 else 300 * step,
            bytes=0 if at < 3 else 63_600 * step,
            subscriptions=reads if at < 3 else [],
        )
        for at in range(1, 6)
    ]


def events(step: int) -> list[Event]:
    told = [
        (-7_200, "member-join", "node-b", "host-b:7790"),
        (-3_600, "member-join", "node-c", "host-c:7790"),
        (-3_540, "rebalance", "3 shards", "moved to node-c"),
        (KILLED_AT, "member-failed", "node-c", "no answer"),
    ]
    return [
        Event(time_ms=BEGIN_MS + at * 1_000, kind=kind, who=who, text=text)
        for at, kind, who, text in told
        if at <= step
    ]


def hours(count: int = 168) -> list[Growth]:
    """Two copies joined, one takeover; the last hour ends where the recording begins."""
    return [
        Growth(
            time_ms=BEGIN_MS - (count - 1 - at) * 3_600_000,
            published=round(5_400_000 * wave(at, 0.0)),
            acked=round(5_300_000 * wave(at, 0.1)),
            dead=at // 40,
            records=300_000 + 2_000 * at,
            bytes=(300_000 + 2_000 * at) * 212,
            backlog=round(40_000 * wave(at, 2.0)),
            takeovers=int(at == count // 2),
            voters=1 + (at > count // 3) + (at > 2 * count // 3),
            joined=at in (count // 3 + 1, 2 * count // 3 + 1),
        )
        for at in range(count)
    ]


def minutes(count: int = 90) -> list[Growth]:
    return [
        Growth(
            time_ms=BEGIN_MS - (count - 1 - at) * 60_000,
            published=round(90_000 * wave(at, 0.0)),
            acked=round(88_000 * wave(at, 0.1)),
            dead=4,
            records=630_000 + 50 * at,
            bytes=(630_000 + 50 * at) * 212,
            backlog=round(40_000 * wave(at, 2.0)),
            takeovers=int(at == count // 2),
            voters=3,
        )
        for at in range(count)
    ]


def alarms(step: int) -> list[Alarm]:
    behind = sum(group.ready + group.in_flight for group in groups(step) if group.group == "fraud")
    found = [
        Alarm(
            name="lag",
            node="node-a",
            subject="clickstream/fraud",
            text=f"group fraud on clickstream is {behind:,} records behind; alarm_lag is 500",
            command="gossipq why clickstream --group fraud",
            since_ms=BEGIN_MS,
        )
    ]
    if step >= KILLED_AT:
        text = "8 shards are short of a copy: node-c is away"
        found.append(
            Alarm(
                name="shard_degraded",
                severity="critical",
                node="node-a",
                text=text,
                command="gossipq node, on node-c",
            )
        )
    return found


def snapshot(step: int) -> Snapshot:
    told = shards(step)
    return Snapshot(
        time_ms=BEGIN_MS + step * 1_000,
        server="tcp://10.0.0.11:7700",
        answered_by="node-a",
        cluster="shop",
        version="0.2.0",
        mode="serf",
        uptime_ms=187_860_000 + step * 1_000,
        shards_total=SHARDS,
        shards_led=sum(bool(shard.leader) for shard in told),
        serf="ok",
        nodes=nodes(step, told),
        workers=workers(step),
        shards=told,
        topics=[
            Topic(
                name=name,
                id=number,
                partitions=count,
                config={"retention": "7d", "level": "stored", "partitions": str(count)},
            )
            for number, (name, (count, _)) in enumerate(TOPICS.items(), 1)
        ],
        partitions=partitions(step),
        groups=groups(step),
        clients=clients(step),
        alarms=alarms(step),
        events=events(step),
        growth_hours=hours() if step == STEPS - 1 else [],
        growth_minutes=minutes() if step == STEPS - 1 else [],
    )


def three_nodes(steps: int = STEPS) -> list[Snapshot]:
    return [snapshot(step) for step in range(steps)]


if __name__ == "__main__":
    FILE.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in three_nodes()[-3:]))
