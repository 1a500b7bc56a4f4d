"""When alarms are raised and cleared. The tests use ledgers, a clock they move, and a
frontdoor's view of its workers.
"""

import ast
from pathlib import Path

import pytest

from core.harness import FakeWorker, client, single
from gossipq import alarms
from gossipq.core.requests.alarms import (
    DEAD_WINDOW_MS,
    HANGS_MS,
    RESTART_WINDOW_MS,
    RaisedAlarms,
    Watch,
    alarm,
)
from gossipq.messages import Ack, Nack, StatusReply
from gossipq.peer_messages import Report
from gossipq.types import Now, partition_key
from gossipq.values import CopyStats, GroupOptions, Member, TopicOptions, WorkerStats
from gossipq_node.actors.oversight import GOSSIP_MS, LATE_MS, Oversight
from gossipq_node.actors.space import Space
from gossipq_node.actors.worker_alarms import WorkerAlarms
from node.test_worker import SETTINGS

ADA = client("ada")
HOME = Path(__file__).resolve().parents[2]


@pytest.fixture
def worker():
    return FakeWorker()


class Groups:
    """A watch over a worker's ledgers."""

    def __init__(self, worker):
        self.worker, self.watch = worker, Watch("n1")

    def look(self, after_ms=0):
        self.worker.advance(after_ms)
        ledgers = (shard.ledger for shard in self.worker.shards.values())
        return [
            (each.name, each.subject, each.text) for each in self.watch.look(ledgers, self.worker.now.boot_ms)
        ]


def test_lag_is_raised_above_its_limit_and_cleared_well_below(worker):
    orders = single(worker.topic("orders", TopicOptions(alarm_lag=10)))
    groups = Groups(worker)
    worker.subscribe(ADA, orders, records=100)
    worker.publish(orders, [b"x"] * 10)
    assert groups.look() == []
    worker.publish(orders, [b"x"])
    text = "group billing on orders is 11 records behind in partition 0; alarm_lag is 10"
    assert groups.look() == [("lag", "orders/billing", text)]
    worker.ask(1, ADA, Ack(1, [(orders, 0, 2)]))
    assert [name for name, _, _ in groups.look()] == ["lag"], "9 are behind, which is more than 80 %"
    worker.ask(1, ADA, Ack(1, [(orders, 2, 3)]))
    assert groups.look() == []


@pytest.mark.parametrize(
    ("topic_lag", "group_lag", "raised"), [(None, None, 0), (1, None, 1), (1, 0, 0), (0, 1, 1), (100, 1, 1)]
)
def test_the_group_says_it_before_the_topic(worker, topic_lag, group_lag, raised):
    orders = single(worker.topic("orders", TopicOptions(alarm_lag=topic_lag)))
    worker.subscribe(ADA, orders, records=0, config=GroupOptions(alarm_lag=group_lag))
    worker.publish(orders, [b"x"] * 5)
    assert len(Groups(worker).look()) == raised


def test_dead_letters_raise_an_alarm_while_they_are_new(worker):
    orders = single(worker.topic("orders", TopicOptions(attempts_max=1)))
    groups = Groups(worker)
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders)
    assert groups.look() == []
    for offset, says in (0, "1 new dead letter"), (1, "2 new dead letters"):
        worker.ask(1, ADA, Nack(1, [(orders, offset, offset + 1)]))
        assert groups.look() == [
            ("dead_letters", "orders/billing", f"at least {says} in group billing on orders")
        ]
    assert groups.look(DEAD_WINDOW_MS // 2) != []
    assert groups.look(DEAD_WINDOW_MS) == [], "the same ones are no news"


def test_counters_that_do_not_add_up_are_told_of_all_partitions_together(worker):
    orders = worker.topic("orders", TopicOptions(partitions=4))
    ledger = worker.shards[1].ledger
    mine = [partition_key(orders.id, at) for at, shard in enumerate(orders.shards) if shard == 1]
    assert len(mine) > 1
    for number, partition in enumerate(mine):
        worker.publish(partition, [b"x"] * 3)
        worker.subscribe(ADA, partition, number=number)
        worker.ask(1, ADA, Ack(number, [(partition, 0, 2)]))
    assert Groups(worker).look() == []
    for partition, by in zip(mine, (-1, 1), strict=False):
        (cursor,) = ledger.cursors[partition].values()
        cursor.state.acked += by
    assert Groups(worker).look() == [
        ("unaccounted", "orders/billing", "the counters of group billing on orders differ by 2")
    ]


# --- a worker, and a frontdoor


@pytest.mark.parametrize(
    ("state", "full", "free", "commit_us", "damaged", "names"),
    [
        ("ready", "", 10_000, 900, {}, []),
        ("full", "the disk has 9 bytes free", 9, 900, {}, ["store_full"]),
        ("recovering", "the disk refused a write", 10_000, 900, {}, ["write_failed"]),
        ("ready", "", 1_500, 900, {}, ["disk_low"]),
        ("ready", "", 10_000, 200_000, {}, ["slow_disk"]),
        ("ready", "", 10_000, 900, {7: "entry 3 is damaged"}, ["shard_damaged"]),
    ],
)
def test_what_a_worker_has_to_say(state, full, free, commit_us, damaged, names):
    alarms, space = WorkerAlarms("n1", 0), Space(SETTINGS)
    alarms.space(free, 1_000)
    space.full = full
    raised = alarms.raised(state, space, commit_us, damaged)
    assert [each.name for each in raised] == names
    assert all(each.text and each.command for each in raised)


def stats(state="ready", restarts=0, detail=""):
    return WorkerStats(0, 99, "", state, restarts, 1, *[0] * 10, detail)


def status(*workers, **more):
    return StatusReply("n1", "c", b"", "0", "serf", 0, 2, 2, list(workers), [], **more)


def test_a_worker_that_is_down_and_one_that_hangs():
    house = Oversight("n1", 1, (), Now(0, 0))
    house.heard(Report(stats(), [], alarms=[alarm("slow_disk", "n1", "worker-0", "slow")]), Now(0, 0))
    assert [each.name for each in house.alarms(status(stats()), Now(HANGS_MS, 7))] == ["slow_disk"]
    hanging = house.alarms(status(stats()), Now(HANGS_MS + 2_000, 8))
    assert [(each.name, each.text) for each in hanging if each.name == "worker_hangs"] == [
        ("worker_hangs", "worker-0 (pid 99) has not responded for 7 s")
    ]
    down = house.alarms(status(stats("down", detail="exit code 9")), Now(HANGS_MS + 3_000, 9))
    assert [(each.name, each.text) for each in down] == [
        ("worker_down", "worker-0 is not running: exit code 9")
    ]
    assert house.alarms(status(stats("starting")), Now(HANGS_MS + 3_001, 9)) == [], (
        "what it said before is forgotten"
    )


def test_restarts_are_told_for_a_while():
    house = Oversight("n1", 1, (), Now(0, 0))
    at = Now(0, 0)

    def names(restarts, after_ms):
        nonlocal at
        at = Now(at.boot_ms + after_ms, 0)
        house.heard(Report(stats(restarts=restarts), []), at)
        return [each.text for each in house.alarms(status(stats(restarts=restarts)), at)]

    assert names(0, 1_000) == []
    assert names(1, 1_000) == ["worker-0 was started again once in the last 10 minutes"]
    assert names(3, RESTART_WINDOW_MS // 2) == ["worker-0 was started again 3 times in the last 10 minutes"]
    assert names(3, RESTART_WINDOW_MS // 2 + 1_000) == [
        "worker-0 was started again 2 times in the last 10 minutes"
    ]
    assert names(3, RESTART_WINDOW_MS) == []


def test_an_open_node_says_so():
    house = Oversight("n1", 0, ("--insecure: anybody may", "something else"), Now(0, 0))
    assert [(each.name, each.text) for each in house.alarms(status(), Now(0, 5))] == [
        ("insecure", "--insecure: anybody may")
    ]


def test_a_cluster_that_is_not_whole_says_so():
    house = Oversight("n1", 0, (), Now(0, 0))
    members = [Member(f"n{n}/1", f"n{n}", f"tcp://n{n}:7700", 1) for n in (1, 2, 3)]

    def named(members, *rows, gossip="", at_ms=0):
        copies = [CopyStats(shard, 3, copy, role, 1, 0, 0, synced) for shard, copy, role, synced in rows]
        raised = house.alarms(status(members=members, copies=copies, gossip=gossip), Now(at_ms, 5))
        assert not any("this node" in each.text for each in raised), (
            "alarms of several nodes stand in one list"
        )
        return [(each.name, each.subject) for each in raised]

    whole = [
        (shard, f"n{n}/1", "leader" if n == 1 else "follower", True) for shard in (0, 1) for n in (1, 2, 3)
    ]
    assert named(members, *whole) == []
    one_late = (*whole[:2], (0, "n3/1", "follower", False), *whole[3:])
    assert named(members, *one_late) == [], "it may be catching up"
    assert named(members, *one_late, at_ms=LATE_MS) == [("copy_behind", "n3")]
    two_late = (whole[0], (0, "n2/1", "follower", False), (0, "n3/1", "follower", False))
    named(members, *two_late, at_ms=LATE_MS)
    assert named(members, *two_late, at_ms=2 * LATE_MS) == [
        ("copy_behind", "n2"),
        ("copy_behind", "n3"),
        ("last_copy", ""),
    ]
    off = [
        CopyStats(0, 3, f"n{n}/1", "follower", 1, 0, 0, True, ms)
        for n, ms in ((1, 2_000), (2, -2_001), (3, 86_400_000))
    ]
    house.alarms(status(members=members, copies=off), Now(0, 5))
    raised = house.alarms(status(members=members, copies=off), Now(LATE_MS, 5))
    assert [(each.name, each.subject, each.text) for each in raised] == [
        ("clock", "n2", "the wall clock of n2 is 2 s behind the time of its cluster"),
        ("clock", "n3", "the wall clock of n3 is 1 d ahead of the time of its cluster"),
    ]
    assert named(members[:2]) == [("pair", "")]
    assert named(members, gossip="no other Serf agent answers", at_ms=GOSSIP_MS - 1) == [], (
        "it may just be starting"
    )
    assert named(members, gossip="no other Serf agent answers", at_ms=GOSSIP_MS) == [("gossip", "")]
    assert named(members, gossip="off", at_ms=GOSSIP_MS) == []


def test_the_time_of_an_alarm_is_when_it_came():
    standing = RaisedAlarms()
    first = alarm("lag", "n1", "a/b", "11 behind")
    assert standing.stamp([first], 10)[0].since_ms == 10
    assert standing.stamp([alarm("lag", "n1", "a/b", "12 behind")], 20)[0].since_ms == 10
    assert standing.stamp([], 30) == []
    assert standing.stamp([first], 40)[0].since_ms == 40


# --- every alarm is explained


def _is_called(node, name):
    return any(getattr(target, "id", "") == name for target in node.targets)


def raised_by_the_code() -> set[str]:
    """Names that any module passes to `alarm(...)`, directly or through a table."""
    found = set()
    for room in ("gossipq", "nodes/gossipq_node"):
        for path in (HOME / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and getattr(node.func, "id", "") == "alarm"
                    and isinstance(node.args[0], ast.Constant)
                ):
                    found.add(node.args[0].value)
                elif (
                    isinstance(node, ast.Assign)
                    and isinstance(node.value, ast.Dict)
                    and _is_called(node, "said")
                ):
                    found |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return found


def test_every_alarm_that_the_code_raises_is_explained_and_no_other():
    assert raised_by_the_code() == set(alarms.KINDS)


@pytest.mark.parametrize("name", alarms.KINDS)
def test_every_alarm_has_its_entry_in_the_reference(name):
    """The reference has one entry per alarm: the meaning, what to check, the command."""
    text = " ".join((HOME / "docs" / "reference" / "alarms.md").read_text("utf-8").split())
    kind = alarms.KINDS[name]
    assert f"## {name} *{kind.severity}.*" in text
    assert all(part in text for part in (kind.meaning, kind.check, kind.verb))
