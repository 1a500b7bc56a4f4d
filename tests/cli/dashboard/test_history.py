"""Rates, series, events and alarms from snapshots."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipq.alarms import KINDS
from gossipq_cli.dashboard.recordings import Recording, ordered, written
from gossipq_ops.history import SERIES_MAX, History, alarms
from gossipq_ops.rows import (
    Alarm,
    Copy,
    Event,
    Group,
    Node,
    Partition,
    Shard,
    Snapshot,
    Topic,
    Worker,
)
from gossipq_ops.sums import topic_sums


def at(second: int, **fields: object) -> Snapshot:
    return Snapshot(time_ms=1_000 * (second + 1), **fields)


def fed(*snapshots: Snapshot) -> History:
    history = History()
    for snapshot in snapshots:
        history.add(snapshot)
    return history


def part(published: int, number: int = 0, topic: str = "orders") -> Partition:
    return Partition(topic=topic, partition=number, shard=number, published=published, next=published)


def group(lag: int, acked: int = 0, **fields: object) -> Group:
    return Group(topic="orders", group="billing", partition=0, ready=lag, acked=acked, **fields)


def test_rates_are_per_second_whatever_the_interval() -> None:
    history = fed(at(0, partitions=[part(100), part(50, 1)]), at(2, partitions=[part(300), part(50, 1)]))
    assert history.last("topic", "orders") == 100.0
    assert history.last("in") == 100.0


def test_a_counter_that_fell_began_anew() -> None:
    history = fed(at(0, nodes=[Node(name="a", delivered=1_000)]), at(1, nodes=[Node(name="a", delivered=30)]))
    assert history.last("out") == 30.0


@pytest.mark.parametrize("state", ["asking", "failed"])
def test_what_a_node_counted_before_it_was_heard_is_no_rate(state: str) -> None:
    heard = [Node(name="b", uptime_ms=9_000, delivered=10_000 + count) for count in (0, 0, 50)]
    history = fed(*(at(n, nodes=[each]) for n, each in enumerate([Node(name="b", state=state), *heard])))
    assert list(history.series("out")) == [0.0, 0.0, 25.0]


def test_what_searches_of_the_dashboard_read_is_no_traffic() -> None:
    """Nodes tell it up to a second after it was read."""
    history = fed(at(0, nodes=[Node(name="a", delivered=0)]), at(1, nodes=[Node(name="a", delivered=100)]))
    history.read(5_000)
    history.add(at(2, nodes=[Node(name="a", delivered=200)]))
    history.add(at(3, nodes=[Node(name="a", delivered=5_300)]))
    history.add(at(4, nodes=[Node(name="a", delivered=5_400)]))
    assert max(history.series("out")) < 500.0, "of 2,600 that were handed out"
    for second in range(5, 9):
        history.add(at(second, nodes=[Node(name="a", delivered=5_000 + 100 * second)]))
    assert history.last("out") == 100.0


def test_rates_go_on_while_nothing_new_was_counted() -> None:
    counted = [(0, 100, 0), (1, 200, 1), (2, 200, 1), (3, 500, 3)]
    history, found = History(), []
    for second, published, when in counted:
        history.add(at(second, partitions=[part(published)], counted_ms=1_000 * (when + 1)))
        found.append(history.last("topic", "orders"))
    assert found == [0.0, 100.0, 100.0, 150.0]


def test_rates_of_nodes_are_taken_over_a_few_snapshots() -> None:
    steps = [0, 0, 300, 300, 600, 600, 900]  # one that reports every other second
    history = fed(
        *(at(second, nodes=[Node(name="a", delivered=count)]) for second, count in enumerate(steps))
    )
    assert list(history.series("out"))[-3:] == [150.0, 150.0, 150.0]


def test_the_load_of_a_node_is_in_percent_of_a_core_and_forgets_a_process_that_began_anew() -> None:
    steps = [1_000, 1_250, 1_500, 20, 270, 520]
    history = fed(*(at(second, nodes=[Node(name="a", cpu_ms=used)]) for second, used in enumerate(steps)))
    assert list(history.series("node-cpu", "a")) == [25.0, 25.0, 0.0, 0.0, 25.0]
    assert fed(at(0, nodes=[Node(name="a")]), at(1, nodes=[Node(name="a")])).series("node-cpu", "a") == []


def test_a_partition_that_was_removed_is_no_rate() -> None:
    history = fed(at(0, partitions=[part(1_000), part(2_000, 1)]), at(1, partitions=[part(1_000)]))
    assert history.last("topic", "orders") == 0.0


def test_what_appears_has_no_rate_yet() -> None:
    history = fed(at(0), at(1, partitions=[part(1_000_000)]))
    assert history.last("topic", "orders") == 0.0


def test_a_snapshot_that_is_not_newer_is_left_out() -> None:
    history = fed(at(1, partitions=[part(10)]), at(1, partitions=[part(20)]), at(0))
    assert (history.count, history.topics["orders"].published) == (1, 10)


def test_series_end_with_what_they_were_of() -> None:
    history = fed(at(0, partitions=[part(1)]), at(1, partitions=[part(2)]), at(2))
    assert list(history.series("topic", "orders")) == []


def test_series_are_bounded() -> None:
    topics = [part(1, 0, f"t{number}") for number in range(SERIES_MAX + 100)]
    history = fed(at(0, partitions=topics), at(1, partitions=topics))
    assert len(history._series) <= SERIES_MAX + 8
    history = History(length=5)
    for second in range(20):
        history.add(at(second, partitions=[part(second)]))
    assert list(history.series("topic", "orders")) == [1.0] * 5


def test_trend_and_eta() -> None:
    history = fed(*(at(second, groups=[group(1_000 - 100 * second)]) for second in range(5)))
    assert history.trend("orders", "billing") == -100.0
    assert history.eta_s("orders", "billing") == 6.0
    history = fed(*(at(second, groups=[group(100 * second)]) for second in range(5)))
    assert history.eta_s("orders", "billing") is None
    assert fed(at(0, groups=[group(0)])).eta_s("orders", "billing") == 0.0


def test_sums_of_a_topic() -> None:
    snapshot = at(0, topics=[Topic(name="empty")], partitions=[part(10), part(7, 1)], groups=[group(3, 14)])
    sums = topic_sums(snapshot)
    assert (
        sums["orders"].partitions,
        sums["orders"].published,
        sums["orders"].ready,
        sums["orders"].acked,
    ) == (2, 17, 3, 14)
    assert sums["empty"].partitions == 0


# --- events


def kinds(history: History) -> list[tuple[str, str]]:
    return [(event.kind, event.who) for event in history.events]


def test_events_of_what_changed() -> None:
    workers = [Worker(node="a", worker=0, pid=10), Worker(node="a", worker=1, pid=11)]
    before = at(
        0,
        nodes=[Node(name="a"), Node(name="b")],
        workers=workers,
        shards=[Shard(shard=number, leader="b") for number in range(3)],
        topics=[Topic(name="old")],
    )
    after = at(
        1,
        nodes=[Node(name="a"), Node(name="b", state="failed"), Node(name="c")],
        workers=[
            Worker(node="a", worker=0, pid=12, restarts=1),
            Worker(node="a", worker=1, pid=11, state="full"),
        ],
        shards=[Shard(shard=0, leader="a"), Shard(shard=1, leader="a"), Shard(shard=2, leader="")],
        topics=[Topic(name="new")],
    )
    assert kinds(fed(before, after)) == [
        ("member-failed", "b"),
        ("member-join", "c"),
        ("worker-restart", "a/0"),
        ("worker-full", "a/1"),
        ("leader-move", "2 shards"),
        ("leader-lost", "shard 2"),
        ("topic-made", "new"),
        ("topic-gone", "old"),
    ]
    assert kinds(fed(after, msgspec.structs.replace(after, time_ms=9_000, nodes=[Node(name="a")])))[0] == (
        "member-gone",
        "b",
    )


def test_events_that_the_cluster_keeps_come_once() -> None:
    event = Event(time_ms=1, kind="member-join", who="b")
    late = msgspec.structs.replace(event, time_ms=400)
    both = [Node(name="a"), Node(name="b")]
    history = fed(
        at(0, events=[event], nodes=both[:1]), at(1, events=[late], nodes=both), at(2, nodes=both[:1])
    )
    assert kinds(history) == [("member-join", "b"), ("member-gone", "b")], (
        "gossip tells it, twice, and it is seen from here"
    )


def test_what_gossip_told_first_is_not_told_again_when_the_roster_knows_it() -> None:
    joined = Event(time_ms=1_000, kind="member-join", who="b")
    both = [Node(name="a"), Node(name="b")]
    history = fed(
        at(0, nodes=both[:1]), at(2, events=[joined], nodes=both[:1]), at(31, events=[joined], nodes=both)
    )
    assert [(event.time_ms, event.kind) for event in history.events] == [(1_000, "member-join")]


# --- alarms


def told(history: History) -> list[tuple[str, str]]:
    return [(alarm.name, alarm.severity) for alarm in alarms(history)]


def test_a_sound_cluster_has_none() -> None:
    sound = at(0, nodes=[Node(name="a")], workers=[Worker(node="a", worker=0)], shards_total=1, shards_led=1)
    assert told(fed(sound)) == []
    assert told(History()) == []
    assert told(fed(at(0, nodes=[Node(name="a"), Node(name="b"), Node(name="c", state="witness")]))) == []


def test_alarms_of_one_node_come_from_that_node() -> None:
    """They are not derived here a second time: a node raises them with a text and a command."""
    nodes, workers = [Node(name="a"), Node(name="b")], [Worker(node="a", worker=0, restarts=1)]
    groups = [group(0, dead=5)]
    assert told(fed(at(0, nodes=nodes, workers=workers, serf="degraded: gone", groups=groups))) == []
    assert {"dead_letters", "worker_restarts", "pair", "gossip"} <= KINDS.keys()


def test_the_worst_alarm_comes_first() -> None:
    raised = [
        Alarm(name="lag", text="far behind"),
        Alarm(name="degraded", severity="critical", text="b is away"),
    ]
    history = fed(at(0, nodes=[Node(name="b", state="failed")], alarms=raised))
    assert told(history) == [("degraded", "critical"), ("lag", "warning")]


def test_shards_whose_leaders_move_are_no_emergency_until_that_lasts() -> None:
    """Nor the word for the cluster, which is as red as the alarm."""
    led = {"shards_total": 3, "shards_led": 3}
    none = {"shards_total": 3, "shards_led": 1, "state": "no quorum"}
    none["alarms"] = [Alarm(name="no_quorum", severity="critical", text="no quorum: 2 of 3 shards")]
    history = fed(at(0, **led), at(1, **none))
    assert history.electing
    assert told(history) == [("no_quorum", "warning")]
    for second in range(2, 7):
        history.add(at(second, **none))
    assert not history.electing
    assert told(history) == [("no_quorum", "critical")]
    assert not fed(at(0, **none)).electing, "who looks first does not know for how long"


# --- recordings


def test_a_recording_of_an_older_version_is_read(recording) -> None:
    snapshots = Recording(recording.FILE.read_bytes())
    assert list(snapshots) == list(map(ordered, recording.three_nodes()[-3:]))
    assert list(Recording(b'{"time_ms":5,"field_of_tomorrow":1}')) == [Snapshot(time_ms=5)]
    assert snapshots[0].shards[0].copies[0] == Copy(node="node-a", role="leader")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "it has no snapshots"),
        ([b"", b"  "], "it has no snapshots"),
        ([b"{}"], "line 1 is no snapshot: Object missing required field `time_ms`"),
        ([b'{"time_ms":1}', b"hello"], "line 2 is no snapshot"),
        ([b"\xff"], "line 1 is no snapshot"),
    ],
)
def test_a_damaged_recording_says_where(lines: list[bytes], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Recording(b"\n".join(lines))


def test_a_recording_says_only_what_changed_and_plays_as_it_was(recording) -> None:
    snapshots = recording.three_nodes(90) * 3  # longer than from one whole snapshot to the next
    snapshots = [msgspec.structs.replace(each, time_ms=1_000 * at) for at, each in enumerate(snapshots, 1)]
    data = written(snapshots)
    whole = sum(len(msgspec.json.encode(each)) for each in snapshots)
    assert len(data) < whole / 2, "though every counter moves in each"
    played = Recording(data)
    assert len(played) == 270
    assert list(played) == list(map(ordered, snapshots))
    for at in (269, 0, 121, 120, 119, 250, 3):
        assert played[at] == ordered(snapshots[at])
    assert (played.at_ms(0), played.at_ms(5_500), played.at_ms(10**9)) == (0, 4, 269)


def test_a_recording_that_broke_off_is_played_to_there(recording) -> None:
    data = written(recording.three_nodes(4))
    assert len(Recording(data[:-30])) == 3
    assert len(Recording(data + data)) == 8, "a second one was added to the same file"
    with pytest.raises(ValueError, match="line 1 says what changed, and there is nothing before it"):
        Recording(b"".join(data.splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="snapshot 2 cannot be read"):
        Recording(b'{"time_ms":1}\n{"time_ms":2,"nodes":5}\n')


NAMES = st.text(max_size=3)
ALARMS = st.builds(
    lambda name, subject, text: Alarm(name=name, subject=subject, text=text), NAMES, NAMES, NAMES
)
SNAPSHOTS = st.builds(
    lambda time_ms, state, nodes, alarms, missing: Snapshot(
        time_ms=time_ms, state=state, nodes=nodes, alarms=alarms, missing=missing
    ),
    st.integers(0, 9),
    NAMES,
    st.lists(
        st.builds(
            lambda name, leading, config: Node(name=name, leading=leading, config=config),
            NAMES,
            st.integers(0, 2),
            st.dictionaries(NAMES, NAMES, max_size=2),
        ),
        max_size=3,
    ),
    st.lists(ALARMS, max_size=3),
    st.lists(NAMES, max_size=2),
)


@given(st.lists(SNAPSHOTS, min_size=1, max_size=8))
def test_any_snapshots_are_played_as_they_were(snapshots: list[Snapshot]) -> None:
    """Also when two rows have one name, and when names are empty."""
    assert list(Recording(written(snapshots))) == list(map(ordered, snapshots))


def test_rates_of_counters_that_nobody_tells_any_more_are_not_shown() -> None:
    history = History()
    for second, counted in ((1, 1), (2, 2), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3)):
        part = Partition(topic="orders", shard=0, partition=0, next=100 * counted, published=100 * counted)
        history.add(Snapshot(time_ms=1_000 * second, counted_ms=1_000 * counted, partitions=[part]))
        fresh = second - counted <= 3
        assert (history.last("in") > 0, history.stale_ms) == (
            fresh and second > 1,
            0 if fresh else 1_000 * (second - counted),
        )
