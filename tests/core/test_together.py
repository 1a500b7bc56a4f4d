"""Rules of a shard that show only with several copies: entries are committed before they are
applied, and applied in runs.
"""

from array import array

import pytest

from core.fleet import CLIENT, ORIGIN, STEP_MS, Fleet
from gossipq import limits
from gossipq.core.ledger import records, retention
from gossipq.core.requests.consume import Client
from gossipq.core.storage import log, payloads
from gossipq.messages import Ack, Nack, Publish, RefusedMessage, Subscribe
from gossipq.peer_messages import Append, ChangeVoters, InstallTopic, Snapshot
from gossipq.types import ID_HASH, KEY_HASH, Now
from gossipq.values import GroupOptions, Start
from gossipq.wire import batch as batches

CREDIT = 100, limits.MIB


@pytest.fixture
def three() -> Fleet:
    return Fleet(1, "abc")


def subscribed(fleet: Fleet, mode: str | None = None, **config: object) -> int:
    partition = fleet.topic(**config)
    fleet.tell(Subscribe(1, "g", [Start(partition)], *CREDIT, GroupOptions(mode=mode)))
    fleet.run(4 * STEP_MS)
    return partition


def stored_bytes(fleet: Fleet, partition: int) -> tuple[int, int]:
    """The stored bytes: the partition's counter, and the sum of its rows."""
    ledger = fleet.leader.ledger
    state = ledger.partitions[partition]
    parts = ledger.slices.between(partition, state.first, state.next)
    return state.bytes, sum(part.share_bytes for _, _, part in parts)


def test_a_leader_hands_out_what_is_on_its_own_disk(three: Fleet) -> None:
    """With level "none" other copies may store the record before the leader does."""
    partition = subscribed(three)
    leader = three.leader
    three.publish(partition, b"quick", level="none")
    handed = []
    for _ in range(20):
        three.now = Now(three.now.boot_ms + 5, three.now.wall_ms + 5)
        for name in three.shards:
            three.turn(name)
        handed = [
            part
            for effects in three.seen[leader.replica.me]
            for each in effects.deliveries
            for part in each.parts
        ]
        assert leader.replica.commit <= leader.replica.saved
        if handed:
            break
    (part,) = handed
    assert leader.body(part.index)[0] is not None


@pytest.mark.parametrize("ranges", [[(-5, -5)], [(0, 0)], [(3, 1)], [(0, 2), (2, 0)]], ids=str)
def test_a_step_of_ranges_that_are_none_does_not_reach_the_log(
    three: Fleet, ranges: list[tuple[int, int]]
) -> None:
    partition = subscribed(three)
    three.publish(partition, b"a", b"b", b"c")
    three.run(100)
    three.tell(Nack(1, [(partition, 0, 1)], 60_000))
    three.run(200)
    leader, batch = three.leader, bytes(batches.seal([b"r"]))
    last = leader.replica.log.last
    acks = [(partition, *each) for each in ranges]
    led = three.led
    led.publish(ORIGIN, 9, CLIENT, Publish(partition, subscription=1, acks=acks), batches.check(batch), batch)
    three.turn(led.name)
    assert leader.replica.log.last == last
    (refused,) = [message for _, _, message in led.seen[-1].replies if isinstance(message, RefusedMessage)]
    assert refused.code == "bad_request"


def test_a_topic_may_end_in_the_turn_in_which_its_records_leave(three: Fleet) -> None:
    partition = subscribed(three, retention_ms=1_000)
    three.publish(partition, b"a", b"b")
    three.run(100)
    three.tell(Ack(1, [(partition, 0, 2)]))
    leader, info = three.leader, three.leader.ledger.topics[5]
    for _ in range(100):
        three.run(STEP_MS)
        if any(entry.kind == log.TRIM for entry in leader.desk.unapplied):
            break
    three.led.tell(InstallTopic(info, True))
    three.run(1_000)
    assert partition not in leader.ledger.partitions


def test_a_topic_may_end_in_the_turn_in_which_a_record_fails(three: Fleet) -> None:
    partition = subscribed(three, "key_ordered")
    three.publish(partition, b"a", b"b", fixed={KEY_HASH: array("I", [1, 2])})
    three.run(100)
    leader, info = three.leader, three.leader.ledger.topics[5]
    three.tell(Nack(1, [(partition, 0, 1)], 1_000))
    three.turn(leader.replica.me)  # now the failure is logged
    leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(info, True)))
    three.run(1_000)
    assert partition not in leader.ledger.partitions


def test_bytes_are_taken_off_once_however_many_trims_are_on_their_way(three: Fleet) -> None:
    partition = subscribed(three, retention_ms=1)
    for _ in range(40):
        three.publish(partition, b"x" * 100)
    three.run(100)
    three.tell(Ack(1, [(partition, 0, 40)]))
    three.run(200)
    leader = three.leader
    for first in (10, 20, 30):  # each is planned before the previous one is applied
        leader.desk.propose(log.TRIM, payloads.encode(payloads.Trim(partition, first)))
    three.run(100)
    counted, really = stored_bytes(three, partition)
    assert counted == really


class TestLeadershipGoes:
    """Every client that waits is named, so that the node can tell it that the
    shard has no leader here.
    """

    @pytest.mark.parametrize("how", ["higher term", "snapshot", "silence"])
    def test_in_the_turn_in_which_they_asked(self, three: Fleet, how: str) -> None:
        partition = subscribed(three)
        three.publish(partition, b"a", b"b", b"c")
        three.run(200)
        leader = three.leader
        me, term = leader.replica.me, leader.term
        other = next(name for name in three.shards if name != me)
        three.away = set(three.shards) - {me}
        if how == "silence":
            three.now = Now(three.now.boot_ms + limits.ELECTION_MS, three.now.wall_ms)
        led = three.led
        batch = bytes(batches.seal([b"z"]))
        led.publish(ORIGIN, 71, CLIENT, Publish(partition), batches.check(batch), batch)
        led.step(ORIGIN, 72, CLIENT, Ack(1, [(partition, 0, 1)]))
        led.step(ORIGIN, 73, CLIENT, Nack(1, [(partition, 1, 2)]))
        if how == "higher term":
            led.step((), 0, None, Append(other, 0, 0, 0, [], 1, log.NO_CHAIN), term + 1)
        elif how == "snapshot":
            voters = list(three.shards)
            part = Snapshot(other, 50, term + 1, log.NO_CHAIN, 1, voters, [], [], 0, "state")
            led.step((), 0, None, part, term + 1, [], b"\x90")
        three.turn(me)
        assert not leader.leading
        abandoned = {request_id for effects in three.seen[me] for _, request_id in effects.abandoned}
        assert {71, 72, 73} <= abandoned


class TestSnapshots:
    def test_one_that_takes_long_comes_to_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """During the snapshot, more entries arrive than the log keeps for a copy that is behind."""
        monkeypatch.setattr(limits, "LOG_LAG_ROWS", 200)
        monkeypatch.setattr(retention, "LOG_KEEP", 64)
        monkeypatch.setattr(limits, "SNAPSHOT_PART_BYTES", 512)
        fleet = Fleet(1)
        fleet.open("b")
        partition = fleet.topic()
        for _ in range(300):
            fleet.publish(partition, b"x", level="none")
        fleet.run(200)
        fleet.tell(ChangeVoters(["a"], [], ["b"]))
        leader = fleet.shards["a"]
        for _ in range(400):
            for _ in range(8):
                fleet.publish(partition, b"x", level="none")
            fleet.run(STEP_MS)
            if leader.replica.progress["b"].synced:
                break
        assert leader.replica.progress["b"].synced

    def test_who_dies_in_it_holds_nothing_up_for_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retention, "LOG_KEEP", 16)
        monkeypatch.setattr(limits, "SNAPSHOT_PART_BYTES", 512)
        fleet = Fleet(1)
        fleet.open("b")
        partition = subscribed(fleet, retention_ms=1, dedup_ms=1)

        def work(count: int) -> None:
            for number in range(count):
                fleet.publish(
                    partition, b"x" * 100, fixed={ID_HASH: array("Q", [fleet.leader.last + number + 1])}
                )
            fleet.run(100)
            state = fleet.leader.ledger.partitions[partition]
            fleet.tell(Ack(1, [(partition, state.first, state.next)]))
            fleet.run(200)

        work(200)
        fleet.tell(ChangeVoters(["a"], [], ["b"]))
        fleet.run(2 * STEP_MS)
        leader = fleet.shards["a"]
        assert leader.peers.sending
        fleet.away = {"b"}
        fleet.run(limits.STRAY_MS + 1_000)
        assert not leader.peers.sending
        work(50)
        fleet.run(5_000)
        state = leader.ledger.partitions[partition]
        assert len(fleet.tables["a"].body.keys) <= 60 + state.next - state.first
        fleet.away = set()
        fleet.run(10_000)
        assert leader.replica.progress["b"].synced

    def test_a_topic_that_is_swept_leaves_nothing_at_who_comes_in(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SNAPSHOT_PART_BYTES", 4_096)
        fleet = Fleet(1)
        fleet.open("b")
        partition = fleet.topic()
        for number in range(1_500):
            fleet.publish(partition, b"x", producer=number.to_bytes(16, "big"), sequence=1)
            if number % 100 == 0:
                fleet.turn("a")
        leader = fleet.shards["a"]
        info = leader.ledger.topics[5]
        leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(info, True)))
        fleet.turn("a")
        fleet.tell(ChangeVoters(["a"], [], ["b"]))
        fleet.run(20_000)
        assert leader.replica.progress["b"].synced
        for name in "ab":
            assert [key for key in fleet.tables[name].state.keys if key[:1] in b"DOS"] == [], name
            assert len(fleet.tables[name].body.keys) == 0, name

    def test_none_begins_that_would_take_away_what_a_copy_has_acknowledged(self, three: Fleet) -> None:
        """A leader that has applied less learns from that copy what is committed, and the two
        continue without the third.
        """
        partition = three.topic()
        me = three.leader.replica.me
        other, hollow = [name for name in three.shards if name != me]
        for _ in range(20):
            three.publish(partition, b"x")
        three.run(200)
        early = three.tables[other].copy()
        for _ in range(20):
            three.publish(partition, b"y")
        three.run(1_000)
        has = three.shards[hollow].replica.log.last
        three.tables[hollow].state.put(records.INSTALLING, bytes(8))
        three.open(hollow)
        behind = three.tables[other]
        behind.state, behind.body = early.state, behind.body
        three.open(other)
        assert three.shards[other].ledger.applied < has == three.shards[other].replica.log.last
        three.away = {me}
        while not three.shards[other].leading:
            three.run(STEP_MS)
        assert three.shards[hollow].replica.hollow
        for _ in range(5_000 // STEP_MS):
            three.run(STEP_MS)
            assert three.shards[hollow].replica.log.last >= has
            brought = three.tables[hollow].state.get(records.INSTALLING)
            assert brought in (None, bytes(8)) or log.INDEX_KEY.unpack(brought)[0] >= has
        assert three.shards[other].serving
        assert not three.shards[hollow].replica.hollow
        three.away = set()
        three.run(20_000)
        assert all(
            shard.ledger.applied >= has and not shard.replica.hollow for shard in three.shards.values()
        )

    @pytest.mark.parametrize("knows_itself", [True, False])
    def test_one_may_come_from_a_leader_that_became_a_voter_later(self, knows_itself: bool) -> None:
        """That leader has not applied the entry that made it a voter. If it ended at that moment,
        it has not even applied the one that made it a learner. Without the copy that lost its
        state it can commit nothing.
        """
        fleet = Fleet(1, "ab")
        partition, old = fleet.topic(), fleet.leader.replica.me
        hollow = "b" if old == "a" else "a"
        fleet.open("c")
        fleet.tell(ChangeVoters([old, hollow], [], ["c"]))
        early = fleet.tables["c"].copy()
        while not fleet.shards["c"].last:
            early = fleet.tables["c"].copy()
            fleet.run(STEP_MS)
        fleet.publish(partition, b"x")
        fleet.run(1_000)
        fleet.tables[hollow].state.put(records.INSTALLING, bytes(8))
        fleet.away = {hollow}
        fleet.open(hollow)
        fleet.tell(ChangeVoters([old, hollow, "c"], [], []))
        while "c" not in fleet.shards["c"].replica.config.voters:
            fleet.run(STEP_MS)
        if not knows_itself:
            fleet.tables["c"].state = early.state
            fleet.open("c")
        leader = fleet.shards["c"]
        voters, applied = leader.ledger.meta.voters, leader.ledger.applied
        assert "c" not in voters
        assert (applied > 0) == knows_itself
        fleet.away = {old}
        fleet.run(10_000)
        assert leader.serving
        assert not fleet.shards[hollow].replica.hollow
        assert "c" in fleet.shards[hollow].ledger.meta.voters


def test_a_copy_is_not_synced_before_it_has_an_entry_of_the_leaders_own(three: Fleet) -> None:
    """A new leader does not know yet how much is committed."""
    partition = three.topic()
    leader = three.leader
    me = leader.replica.me
    one, two = [name for name in three.shards if name != me]
    three.away = {two}
    for _ in range(3_000):
        three.publish(partition, b"x")
    three.run(STEP_MS)
    three.away = {me}
    found = []
    for _ in range(400):
        three.run(STEP_MS)
        shard = three.shards[one]
        if shard.leading:
            progress = shard.replica.progress[two]
            found.append((progress.synced, progress.match))
            assert not progress.synced or shard.replica.log.term_at(progress.match) == shard.term
    assert found
    assert found[-1][0]


@pytest.mark.parametrize("cut_off", [True, False])
def test_a_key_stays_closed_until_its_ack_is_committed(three: Fleet, cut_off: bool) -> None:
    """A leader that is cut off gets an ack; the next leader never does, and
    delivers the record again.
    """
    partition, options = three.topic(), GroupOptions(mode="key_ordered")
    three.tell(Subscribe(1, "g", [Start(partition)], 1, limits.MIB, options))
    three.publish(partition, b"a", fixed={KEY_HASH: array("I", [7])})
    three.run(200)
    other = Client(b"other".ljust(16, b"."), "other")
    three.led.step((b"c", b"o"), 8, other, Subscribe(1, "g", [Start(partition)], *CREDIT, options))
    three.publish(partition, b"b", fixed={KEY_HASH: array("I", [7])})
    three.run(200)
    me = three.leader.replica.me
    three.away = {me} if cut_off else set()
    before = len(three.seen[me])
    three.seats[me].step(ORIGIN, 7, CLIENT, Ack(1, [(partition, 0, 1)]))
    for _ in range(10):
        three.now = Now(three.now.boot_ms + 10, three.now.wall_ms + 10)
        for name in [me] if cut_off else three.shards:
            three.turn(name)
    assert three.shards[me].replica.holds_lease
    handed = [
        part.offset
        for each in three.seen[me][before:]
        for delivery in each.deliveries
        for part in delivery.parts
    ]
    assert handed == ([] if cut_off else [1])
