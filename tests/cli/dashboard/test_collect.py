"""What nodes answer becomes rows: one node, a cluster of three, one of them silent."""

from types import SimpleNamespace
from typing import Any

import pytest

from gossipq.messages import StatsReply
from gossipq.values import (
    Alarm,
    ClientRow,
    ConfigRow,
    Consuming,
    GroupStats,
    PartitionStats,
    Route,
    WorkerStats,
)
from gossipq_ops.collect import Heard, Told, event_rows, snapshot
from gossipq_ops.rows import UNKNOWN, Copy, Shard, Snapshot, Subscription

SHARDS = 3


def worker(node: str, number: int, state: str = "ready", **more: Any) -> WorkerStats:
    counts = dict.fromkeys(("sessions", "acked", "refused", "bad_frames", "turns", "commits", "commit_us"), 1)
    counts |= {"published": 5, "delivered": 7, "store_bytes": 100} | more
    pid, endpoint = 100 * (ord(node[-1]) - 96) + number, f"tcp://{node}:{7701 + number}"
    return WorkerStats(
        worker=number, pid=pid, endpoint=endpoint, state=state, restarts=0, leading=2, **counts
    )


def status(node: str, workers: list[WorkerStats] | None = None, **cluster: Any) -> Any:
    """As a node of a cluster answers; without `cluster` as one that knows of none."""
    fields = {
        "node": node,
        "cluster_name": "shop",
        "version": "0.2.0",
        "mode": "static",
        "uptime_ms": 5_000,
        "shards": SHARDS,
        "led": SHARDS,
        "workers": [worker(node, 0), worker(node, 1)] if workers is None else workers,
        "routes": [Route(shard, 4, f"tcp://{node}:{7701 + shard % 2}") for shard in range(SHARDS)],
        "warnings": [],
        "cpu_ms": 50,
        "rss_bytes": 1 << 20,
    }
    return SimpleNamespace(
        **{"copy": "", "members": [], "leads": [], "copies": [], "gossip": "off", "events": [], "door": b""}
        | fields
        | cluster
    )


NODES = ("node-a", "node-b", "node-c")
ROSTER = [
    SimpleNamespace(
        copy=f"id-{name}",
        name=name,
        endpoint=f"tcp://{name}:7700",
        workers=2,
        witness=False,
        state="in",
        version="0.2.0",
        encrypts=False,
    )
    for name in NODES
]
LEADS = [SimpleNamespace(shard=shard, term=4, copy=f"id-{NODES[shard]}") for shard in range(SHARDS)]


def copies(
    shard: int, term: int = 4, leader: str | None = None, silent_ms: int = 300, silent: str = ""
) -> list[Any]:
    leader = leader or NODES[shard]
    return [
        SimpleNamespace(
            shard=shard,
            term=term,
            copy=f"id-{name}",
            role="leader" if name == leader else "follower",
            behind=0 if name == leader else 9,
            silent_ms=silent_ms if name == silent else 0,
            synced=name != silent,
        )
        for name in NODES
    ]


def cluster(node: str, shard: int, **more: Any) -> Any:
    return status(
        node,
        **{"copy": f"id-{node}", "members": ROSTER, "leads": LEADS, "copies": copies(shard), "gossip": ""}
        | more,
    )


def taken(*heard: Heard, **more: Any) -> Snapshot:
    return snapshot(Told(heard, StatsReply([], []), [], **more), 1_000, "tcp://here:7700")


def test_that_all_is_on_one_disk_is_an_alarm_at_once() -> None:
    rows = [each for each in copies(0) if each.role == "leader"]
    heard = [
        Heard(cluster(name, at, copies=[] if at else rows), f"tcp://{name}:7700", 0, 1)
        for at, name in enumerate(NODES)
    ]
    (alarm,) = [alarm for alarm in taken(*heard).alarms if alarm.name == "last_copy"]
    assert alarm.severity == "critical"
    assert "on one disk alone (copies=1)" in alarm.text


# --- one node


def test_one_node() -> None:
    found = taken(Heard(status("vm"), "tcp://vm:7700", 0, 450))
    (node,) = found.nodes
    assert (node.name, node.state, node.rtt_us, node.sessions, node.published, node.leading) == (
        "vm",
        "ready",
        450,
        2,
        10,
        4,
    )
    assert found.shards[1] == Shard(
        shard=1,
        leader="vm",
        worker=1,
        pid=worker("vm", 1).pid,
        term=4,
        copies=[Copy(node="vm", role="leader")],
    )
    assert (found.shards_total, found.shards_led, found.serf) == (SHARDS, SHARDS, "")


@pytest.mark.parametrize(
    ("state", "shown"), [("down", "recovering"), ("full", "full"), ("starting", "starting")]
)
def test_a_node_is_as_well_as_its_worst_worker(state: str, shown: str) -> None:
    found = taken(Heard(status("vm", [worker("vm", 0), worker("vm", 1, state)]), ""))
    assert found.nodes[0].state == shown
    assert [shard.state for shard in found.shards] == ["ok", "ok" if state == "full" else "no leader", "ok"]
    assert found.shards_led == (SHARDS if state == "full" else 2)


# --- a cluster


def heard(*silent: str, **more: Any) -> list[Heard]:
    return [
        Heard(cluster(name, number, **more), f"tcp://{name}:7700", 9_000 if name in silent else 200)
        for number, name in enumerate(NODES)
    ]


def test_what_a_node_uses_is_the_sum_of_its_processes() -> None:
    busy = [
        worker("node-a", 0, cpu_ms=700, rss_bytes=3 << 20),
        worker("node-a", 1, cpu_ms=250, rss_bytes=1 << 20),
    ]
    node = taken(*heard(workers=busy)).nodes[0]
    assert (node.cpu_ms, node.rss_bytes) == (1_000, 5 << 20)
    older = taken(*heard(cpu_ms=0, rss_bytes=0)).nodes[0]
    assert (older.cpu_ms, older.rss_bytes) == (UNKNOWN, UNKNOWN), "a node of an older version tells neither"


def test_three_nodes_with_leaders_followers_and_lag() -> None:
    found = taken(*heard())
    assert [(node.name, node.state, node.following) for node in found.nodes] == [
        (name, "ready", 2) for name in NODES
    ]
    shard = found.shards[1]
    assert (shard.leader, shard.worker, shard.pid, shard.state) == (
        "node-b",
        1,
        worker("node-b", 1).pid,
        "ok",
    )
    assert [(copy.node, copy.role, copy.lag) for copy in shard.copies] == [
        ("node-a", "follower", 9),
        ("node-b", "leader", 0),
        ("node-c", "follower", 9),
    ]
    assert (found.shards_led, found.serf) == (SHARDS, "ok")


def test_up_is_the_time_of_the_node_that_runs_longest() -> None:
    old, young = cluster("a", 0, uptime_ms=90_000), cluster("b", 1, uptime_ms=2_000)
    assert taken(Heard(old, ""), Heard(young, "")).uptime_ms == 90_000
    assert taken(Heard(old, "", age_ms=60_000), Heard(young, "")).uptime_ms == 2_000


def test_a_silent_node_has_failed_and_what_it_led_has_no_leader() -> None:
    found = taken(*heard("node-c"))
    node = found.nodes[2]
    assert (node.state, node.silent_ms, node.leading) == ("failed", 9_000, 0)
    assert node.published == 10, "its counters stay, so that no rate jumps when it comes back"
    assert [worker.state for worker in found.workers if worker.node == "node-c"] == ["down", "down"]
    assert [shard.state for shard in found.shards] == ["degraded", "degraded", "no leader"]
    assert not next(copy for copy in found.shards[0].copies if copy.node == "node-c").reachable
    assert found.answered_by != "node-c"


def test_the_word_for_the_cluster_and_its_alarm() -> None:
    found = taken(*heard())
    assert (found.state, found.findings) == ("healthy", [])
    assert taken(*heard()[:2]).state == "", "one is still being asked"
    silent = heard("node-b", "node-c")
    alone = silent[0]._replace(
        status=cluster("node-a", 0, copies=[], workers=[worker("node-a", 0, leaderless=[0, 1, 2])])
    )
    found = taken(alone, *silent[1:])
    assert (found.state, found.shards_led) == ("no quorum", 0)
    text = "no quorum: 3 of 3 shards have no leader (2 of 3 nodes are away: node-b, node-c)"
    assert found.findings[0] == found.alarms[0].text == text
    assert (found.alarms[0].severity, found.alarms[0].command) == ("critical", "gossipq cluster ls")


def test_a_finding_is_an_alarm_unless_a_node_raised_it() -> None:
    """A node that is away raises none. The text is that of `gossipq status`."""
    full = worker("node-a", 0, "full", detail="1 GiB free")
    told = heard("node-c")
    told = [told[0]._replace(status=cluster("node-a", 0, workers=[full], warnings=["no secret"])), *told[1:]]
    found = {alarm.name: alarm for alarm in taken(*told).alarms}
    assert found["store_full"].text == "full: worker-0 of node-a refuses publishes: 1 GiB free"
    assert found["degraded"].severity == "warning"
    assert (found["warning"].text, found["warning"].severity) == ("no secret", "warning")
    raised = Alarm("store_full", "critical", "node-a", "worker-0", "1 GiB is left", "gossipq topic ls", 0)
    told[0] = told[0]._replace(alarms=[raised])
    assert [alarm.text for alarm in taken(*told).alarms if alarm.name == "store_full"] == ["1 GiB is left"]


def test_the_highest_term_says_who_leads() -> None:
    moved = [*LEADS[:2], SimpleNamespace(shard=2, term=5, copy="id-node-a")]
    told = heard("node-c")
    told[0] = told[0]._replace(
        status=cluster("node-a", 0, leads=moved, copies=copies(0) + copies(2, 5, "node-a", 9_000, "node-c"))
    )
    shard = taken(*told).shards[2]
    assert (shard.leader, shard.term, shard.state) == ("node-a", 5, "degraded")
    assert [copy.node for copy in shard.copies if not copy.reachable] == ["node-c"]


def test_a_node_that_never_answered_has_a_row_all_the_same() -> None:
    asked = taken(*heard()[:2])
    assert asked.nodes[2].state == "asking"
    assert asked.shards[2].leader == "node-c", "nothing speaks against it yet"
    found = taken(*heard()[:2], unreachable=["tcp://node-c:7700"])
    assert [(node.name, node.state, node.silent_ms) for node in found.nodes][2] == (
        "node-c",
        "failed",
        UNKNOWN,
    )
    assert found.shards[2].state == "no leader"


def test_witnesses_and_nodes_that_leave() -> None:
    roster = [
        *ROSTER[:1],
        SimpleNamespace(**vars(ROSTER[1]) | {"witness": True}),
        SimpleNamespace(**vars(ROSTER[2]) | {"state": "leaving"}),
    ]
    assert [node.state for node in taken(*heard(members=roster)).nodes] == ["ready", "witness", "leaving"]


def test_gossip_and_its_events() -> None:
    events = [
        SimpleNamespace(time_ms=5, what="join", node="node-b", detail="10.0.0.2"),
        SimpleNamespace(time_ms=9, what="degraded", node="", detail="agent gone"),
    ]
    found = taken(*heard(events=events, gossip="agent gone"))
    assert [(event.kind, event.who) for event in found.events] == [
        ("member-join", "node-b"),
        ("gossip-degraded", ""),
    ]
    assert found.serf == "degraded: agent gone"


def told_by(name: str, uptime_ms: int, *events: tuple[int, str, str]) -> Heard:
    rows = [
        SimpleNamespace(time_ms=time_ms, what=what, node=node, detail="") for time_ms, what, node in events
    ]
    return Heard(cluster(name, 0, uptime_ms=uptime_ms, events=rows), "")


def test_a_newcomer_meets_the_others_and_says_nothing_new_of_them() -> None:
    now_ms = 1_000_000
    nodes = [
        told_by("a", 900_000, (100_700, "join", "b"), (801_000, "join", "c")),
        told_by("b", 899_500, (101_200, "join", "a"), (801_400, "join", "c")),
        told_by("c", 200_000, (800_900, "join", "a"), (800_900, "join", "b"), (900_000, "leave", "b")),
    ]
    found = event_rows(nodes, now_ms)
    assert [(event.time_ms, event.kind, event.who) for event in found] == [
        (100_700, "member-join", "b"),
        (801_000, "member-join", "c"),
        (900_000, "member-gone", "b"),
    ]


def test_each_failure_of_a_node_is_told_and_each_once() -> None:
    one, other = (
        ((10_000, "fail", "c"), (300_000, "fail", "c")),
        ((12_000, "fail", "c"), (301_000, "fail", "c")),
    )
    found = event_rows([told_by("a", 900_000, *one), told_by("b", 900_000, *other)], 1_000_000)
    assert [event.time_ms for event in found] == [10_000, 300_000]


# --- rows


def test_partitions_groups_clients_alarms_and_configuration() -> None:
    stats = StatsReply(
        [PartitionStats(7 << 16 | 3, "orders", 1, 1, 10, 30, 40, 10, 999, 4, 2)],
        [
            GroupStats(
                7 << 16 | 3,
                "orders",
                "billing",
                12,
                5,
                6,
                7,
                8,
                2,
                9,
                retrying=1,
                parked=2,
                dead=3,
                paused=True,
            )
        ],
    )
    alarm = Alarm(
        "lag", "warning", "vm", "orders/billing", "far behind", "gossipq why orders --group billing", 5
    )
    client = ClientRow(
        b"\xab" * 16,
        "py",
        "0.2.0",
        "vm",
        1,
        1,
        50,
        60,
        7,
        8,
        9,
        [Consuming("orders", "billing", 4, 100, 999, 3)],
    )
    told = Told(
        [Heard(status("vm"), "", 0, 1, [alarm], [ConfigRow("cluster.secret", '"***"', "file")])],
        stats,
        [],
        [client],
    )
    found = snapshot(told, 1_000, "")
    assert (found.partitions[0].partition, found.partitions[0].next, found.partitions[0].scheduled) == (
        3,
        30,
        4,
    )
    group = found.groups[0]
    assert (group.partition, group.ready, group.in_flight, group.retrying, group.dead, group.paused) == (
        3,
        5,
        6,
        1,
        3,
        True,
    )
    assert found.alarms[0].command == "gossipq why orders --group billing"
    assert found.nodes[0].config == {"cluster.secret": '"***"'}
    assert found.clients[0].session == "abababab"
    assert found.clients[0].subscriptions == [
        Subscription(topic="orders", group="billing", partitions=4, credit_records=100, in_flight=3)
    ]
