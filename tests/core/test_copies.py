"""Three copies of a shard, driven by hand-delivered messages: the same code as one node's, with three
voters."""

import pytest

from core.harness import client
from core.seat import Seat
from gossipq import limits
from gossipq.core.copies import Mail
from gossipq.core.copies.peers import Peers
from gossipq.core.desk import Client
from gossipq.core.effects import Effects
from gossipq.core.ledger import records
from gossipq.core.raft import Replication
from gossipq.core.raft.replica import HardState
from gossipq.core.shard import Shard
from gossipq.core.storage import log, payloads
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import MemoryTables
from gossipq.errors import NotLeader
from gossipq.messages import Ack, Acked, Publish, Subscribe
from gossipq.peer_messages import ChangeVoters, Transfer
from gossipq.types import Now, Origin, partition_key
from gossipq.values import Message, Start, TopicConfig, TopicInfo
from gossipq.wire import batch as batches
from sim.small import small

NAMES = ["a", "b", "c"]
PARTITION = partition_key(9, 0)
TOPIC = TopicInfo(9, "orders", 1, TopicConfig(), [1])
ADA, BOB = client("ada"), client("bob")


class Copies:
    def __init__(self) -> None:
        self.now = Now(1_000_000, 1_700_000_000_000)
        self.tables = {name: MemoryTables() for name in NAMES}
        for tables in self.tables.values():
            tables.state.put(records.META, records.encode(records.Meta(voters=NAMES)))
        self.away: set[str] = set()
        self.seats: dict[str, Seat] = {}
        for name in NAMES:
            self.open(name)
        self.lead("a")
        self.turns()
        self.leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(TOPIC)))
        self.turns()

    def open(self, name: str, **settings: bool) -> None:
        self.seats[name] = Seat(
            name, 1, ShardSettings(name, **settings), self.tables[name], self.now, self._post
        )

    def _post(self, source: str, target: str, term: int, sent: Replication | Mail) -> None:
        if target in self.seats and not self.away & {source, target}:
            self.seats[target].hear(term, sent)

    @property
    def shards(self) -> dict[str, Shard]:
        return {name: seat.shard for name, seat in self.seats.items()}

    @property
    def leader(self) -> Shard:
        return self.led.shard

    def lead(self, name: str) -> None:
        """Makes a copy leader of the next term, as an election would."""
        self.led = self.seats[name]
        replica = self.leader.replica
        replica.hard = HardState(1 + max(shard.term for shard in self.shards.values()), name)
        replica.hard_changed = True
        replica.lead()

    def turns(self, rounds: int = 3) -> list[Effects]:
        """Runs turns of all copies and delivers their answers; returns the leader's effects."""
        seen = []
        for _ in range(rounds):
            for name in NAMES:
                seat = self.seats[name]
                seat.run(self.now)
                if seat is self.led:
                    seen += seat.seen
                seat.seen.clear()
            self.now = Now(self.now.boot_ms + 100, self.now.wall_ms + 100)
        return seen

    def step(self, origin: Origin, request_id: int, who: Client | None, message: Message) -> None:
        """Queues a request for the leader's next turn."""
        self.led.step(origin, request_id, who, message)

    def publish(self, *values: bytes) -> None:
        batch = bytes(batches.seal(values))
        self.led.publish((b"c", b"p"), 7, None, Publish(PARTITION), batches.check(batch), batch)

    def confirms(self, rounds: int = 3) -> list[tuple[int, int, int, bool]]:
        return [row for effects in self.turns(rounds) for rows in effects.confirms.values() for row in rows]

    def state(self, name: str) -> dict[bytes, bytes]:
        """State rows that entries wrote, without the rows that belong to one copy."""
        self.turns(2)
        return {key: row for key, row in self.tables[name].state.rows.items() if key not in records.OWN_ROWS}


@pytest.fixture
def copies() -> Copies:
    return Copies()


def test_a_publish_is_confirmed_by_two_of_three_and_not_by_one(copies: Copies) -> None:
    copies.publish(b"x")
    assert [row[:2] for row in copies.confirms()] == [(7, 0)]
    copies.away = {"b"}
    copies.publish(b"y")
    assert [row[1:3] for row in copies.confirms()] == [(1, 2)], "two copies"
    copies.away = {"b", "c"}
    copies.publish(b"z")
    assert copies.confirms() == []
    assert copies.leader.ledger.partitions[PARTITION].next == 2, "only what is committed is applied"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("level", ["stored", "none"])
def test_what_is_logged_and_not_applied_is_not_refused_for_want_of_space(
    copies: Copies, full: bool, level: str
) -> None:
    bounded = TopicInfo(9, "orders", 2, TopicConfig(bytes_max=1_000), [1])
    copies.leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(bounded)))
    copies.turns()

    def publish(producer: bytes, request_id: int, level: str = "stored") -> None:
        batch = bytes(batches.seal([b"x"], producer=producer * 16, sequence=1))
        copies.led.publish(
            (b"c", b"p"), request_id, None, Publish(PARTITION, level), batches.check(batch), batch
        )

    def fill() -> None:
        if full:
            copies.leader.desk.full = "no space"
        else:
            copies.leader.ledger.partitions[PARTITION].bytes = 1_000

    publish(b"p", 1, level)
    copies.led.inbox.append(fill)
    publish(b"p", 2)  # publishes the same again, as after a lost connection
    publish(b"q", 3)
    seen = copies.turns()
    refused = [
        (request_id, getattr(answer, "code", ""))
        for effects in seen
        for _, request_id, answer in effects.replies
    ]
    assert refused == [(3, "busy" if full else "topic_full")], "a full store has others that can lead"
    confirmed = [row for effects in seen for rows in effects.confirms.values() for row in rows]
    assert [(row[0], row[1], row[3]) for row in confirmed] == [(1, 0, False)] * (level == "stored") + [
        (2, 0, True)
    ]


def test_every_copy_applies_the_same_and_stores_the_bodies(copies: Copies) -> None:
    for number in range(5):
        copies.publish(b"%d" % number)
    copies.turns()
    copies.step((b"c", b"1"), 1, ADA, Subscribe(1, "g", [Start(PARTITION)], 10, limits.MIB))
    copies.turns()
    copies.step((b"c", b"1"), 2, ADA, Ack(1, [(PARTITION, 0, 3)]))
    copies.turns()
    states = [copies.state(name) for name in NAMES]
    assert states[0] == states[1] == states[2]
    assert copies.tables["a"].body.rows == copies.tables["b"].body.rows == copies.tables["c"].body.rows
    assert copies.shards["c"].replica.log.chain == copies.leader.replica.log.chain


def test_a_follower_leads_on_with_everything_that_was_confirmed(copies: Copies) -> None:
    copies.publish(b"x", b"y")
    copies.confirms()
    copies.away = {"a"}
    copies.lead("b")
    copies.turns(4)
    copies.publish(b"z")
    assert [row[1] for row in copies.confirms(6)] == [2]
    copies.step((b"c", b"1"), 1, ADA, Subscribe(1, "g", [Start(PARTITION)], 10, limits.MIB))
    parts = [part for effects in copies.turns() for delivery in effects.deliveries for part in delivery.parts]
    assert [(part.offset, part.end) for part in parts] == [(0, 2), (2, 3)]


def test_what_an_old_leader_stored_alone_is_replaced(copies: Copies) -> None:
    copies.publish(b"kept")
    copies.confirms()
    copies.away = {"a"}
    copies.publish(b"alone")
    assert copies.confirms() == []
    copies.lead("b")
    copies.turns(4)
    copies.publish(b"new")
    copies.confirms(6)
    copies.away = set()
    copies.publish(b"later")
    copies.confirms(8)
    assert copies.state("a") == copies.state("b")
    assert copies.tables["a"].body.rows == copies.tables["b"].body.rows
    assert not copies.shards["a"].leading


def test_a_copy_that_was_restarted_goes_on_from_its_disk(copies: Copies) -> None:
    copies.publish(b"x")
    copies.confirms()
    copies.state("c")
    copies.open("c")
    copies.publish(b"y")
    copies.confirms(6)
    assert copies.state("c") == copies.state("a")


# --- elections, other voters, snapshots ---------------------------------------------------------------------


def ask(copies: Copies, message: Message) -> Message:
    """Sends a request to the leader and returns the answer."""
    copies.step((b"c", b"op"), 3, None, message)
    return next(m for effects in copies.turns(6) for _, request_id, m in effects.replies if request_id == 3)


def elected(copies: Copies) -> str:
    """Lets time pass until another copy leads."""
    before = copies.leader
    for _ in range(60):
        copies.turns(1)
        for name, shard in copies.shards.items():
            if shard.leading and shard is not before and name not in copies.away:
                copies.led = copies.seats[name]
                copies.turns(4)
                return name
    raise AssertionError("nobody was elected")


def test_when_the_leader_falls_silent_another_one_is_elected_and_serves(copies: Copies) -> None:
    copies.publish(b"x")
    copies.confirms()
    copies.away = {"a"}
    elected(copies)
    assert copies.leader.serving
    copies.publish(b"y")
    assert [row[1] for row in copies.confirms(6)] == [1]
    old = copies.shards["a"]
    assert not old.leading, "it heard no majority"
    with pytest.raises(NotLeader):
        old._leading()


def test_who_waits_at_a_leader_that_falls_is_named_as_abandoned(copies: Copies) -> None:
    copies.away = {"b", "c"}
    copies.publish(b"x")
    effects = copies.turns(30)
    assert [row for each in effects for row in each.abandoned] == [((b"c", b"p"), 7)]


def test_a_leader_serves_nothing_before_its_own_entry_is_committed(copies: Copies) -> None:
    copies.publish(b"x")
    copies.confirms()
    copies.away = {"a", "c"}
    copies.lead("b")
    copies.turns(1)
    copies.publish(b"y")
    refused = [m for effects in copies.turns(2) for _, _, m in effects.replies]
    assert [message.code for message in refused] == ["busy"]


def test_without_a_lease_nothing_is_handed_out(copies: Copies) -> None:
    copies.publish(b"x")
    copies.confirms()
    copies.step((b"c", b"1"), 1, ADA, Subscribe(1, "g", [Start(PARTITION)], 10, limits.MIB))
    copies.turns(2)
    copies.publish(b"y")
    copies.turns(2)
    copies.now = Now(copies.now.boot_ms + limits.LEADER_LEASE_MS, copies.now.wall_ms)
    copies.led.inbox.clear()
    copies.led.inbox.append(lambda: copies.led.turn.end_session(ADA.session))
    copies.step((b"c", b"2"), 1, BOB, Subscribe(1, "g", [Start(PARTITION)], 10, limits.MIB))
    copies.led.run(copies.now)
    (effects,) = copies.led.seen
    assert effects.deliveries == []
    assert [message.code for _, _, message in effects.replies] == ["busy"]


def test_leadership_is_handed_over(copies: Copies) -> None:
    copies.publish(b"x")
    copies.confirms()
    assert ask(copies, Transfer("c")) == Acked()
    copies.turns(4)
    assert copies.shards["c"].serving
    assert not copies.shards["a"].leading


def test_voters_change_one_at_a_time_and_a_newcomer_must_be_caught_up(copies: Copies) -> None:
    copies.publish(b"x")
    copies.confirms()
    assert ask(copies, ChangeVoters(["a"], [], [])).code == "bad_request"
    assert ask(copies, ChangeVoters(["b", "c"], [], [])).code == "bad_request"
    assert ask(copies, ChangeVoters(["a", "b", "c", "d"], [], [])).code == "busy"
    assert ask(copies, ChangeVoters(["a", "b"], [], [])) == Acked()
    assert ask(copies, ChangeVoters(["a", "b"], [], ["c"])) == Acked()
    assert ask(copies, ChangeVoters(["a", "b", "c"], [], [])) == Acked()
    assert copies.leader.ledger.meta.voters == NAMES


def join_d(copies: Copies, monkeypatch: pytest.MonkeyPatch, witness: bool = False) -> None:
    """A fourth copy joins and catches up."""
    copies.tables["d"] = MemoryTables()
    copies.open("d", joins=True, witness=witness)
    monkeypatch.setitem(globals(), "NAMES", [*NAMES, "d"])
    assert ask(copies, ChangeVoters(["a", "b", "c"], ["d"] * witness, ["d"])) == Acked()
    copies.turns(40)


@pytest.mark.parametrize("witness", [False, True])
def test_a_copy_that_the_log_cannot_help_gets_a_snapshot(
    copies: Copies, witness: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small():
        for number in range(60):
            copies.publish(b"%d" % number)
            copies.confirms(1)
        copies.confirms()
        assert copies.leader.replica.log.first > 1
        join_d(copies, monkeypatch, witness)
        assert copies.shards["d"].ledger.applied == copies.leader.ledger.applied
        if witness:
            assert copies.tables["d"].body.rows == {}
            assert copies.shards["d"].ledger.partitions == {}
        else:
            assert copies.state("d") == copies.state("a")
            assert copies.tables["d"].body.rows == copies.tables["a"].body.rows


def test_a_copy_keeps_no_batch_that_its_leader_had_left_over(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may be kept for a reader only; the snapshot marks such batches, and the
    copy does not store them.
    """
    with small():
        for number in range(60):
            copies.publish(b"%d" % number)
            copies.confirms(1)
        copies.confirms()
        monkeypatch.setattr(Peers, "sending", property(lambda self: self.replica.me == "a"))
        before = len(copies.tables["a"].body.rows)
        batch = bytes(batches.seal([b"x"], producer=b"p" * 16, sequence=1))
        for _ in range(2):
            copies.led.publish((b"c", b"p"), 7, None, Publish(PARTITION), batches.check(batch), batch)
        copies.confirms()
        assert len(copies.tables["a"].body.rows) == before + 2, "the repeat waits"
        join_d(copies, monkeypatch)
        assert len(copies.tables["d"].body.rows) == before + 1
