"""Three replicas driven by hand: votes, append, match, conflict cut, majority commit, leases.
Messages arrive or are lost.
"""

import pytest

from gossipq import limits
from gossipq.core.raft import campaign
from gossipq.core.raft.progress import SNAPSHOT, STREAM
from gossipq.core.raft.replica import (
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    HardState,
    LogPoint,
    Replica,
    Replication,
)
from gossipq.core.storage import log
from gossipq.core.storage.log import Entry, LogState
from gossipq.core.storage.payloads import CopySet, encode
from gossipq.errors import CorruptLog, ProtocolError
from gossipq.peer_messages import Append, Appended, TimeoutNow, VoteRequest
from gossipq.values import Message

NAMES = ["a", "b", "c"]


class Copy:
    """A replica and its disk. `sync` is the end of a turn."""

    def __init__(self, name: str, config: CopySet | None = None) -> None:
        self.rows: dict[int, Entry] = {}
        self.replica = Replica(name, config or CopySet(NAMES), HardState(), LogState(), self)
        self.replica.election.heard(0, first=False)

    def point(self, index: int) -> LogPoint:
        return (
            LogPoint(self.rows[index].chain, self.rows[index].time_ms) if index else LogPoint(log.NO_CHAIN, 0)
        )

    def read(self, first: int, end: int, bytes_max: int) -> list[Entry]:
        return [self.rows[index] for index in range(first, end)][: max(1, bytes_max // 128)]

    def sync(self) -> list[tuple[str, Message]]:
        unsaved = self.replica.take_unsaved()
        if unsaved.cut_from is not None:
            self.rows = {index: entry for index, entry in self.rows.items() if index < unsaved.cut_from}
        self.rows |= {entry.index: entry for entry in unsaved.entries}
        self.replica.stored()
        return self.replica.take_answers()

    def propose(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.replica.propose(log.PUBLISH, payload, b"", 0, 1)

    @property
    def payloads(self) -> list[bytes]:
        return [self.rows[index].payload for index in sorted(self.rows)]


class Trio:
    def __init__(self, config: CopySet | None = None) -> None:
        self.copies = {name: Copy(name, config) for name in NAMES}
        self.cut: set[str] = set()
        self.now_ms = 10_000
        self.advance(0)

    def __getitem__(self, name: str) -> Copy:
        return self.copies[name]

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for copy in self.copies.values():
            copy.replica.now_ms = self.now_ms

    def lead(self, name: str, term: int) -> None:
        """Makes a copy leader, as an election would."""
        replica = self[name].replica
        replica.hard, replica.hard_changed = HardState(term, name), True
        replica.lead()
        replica.propose(log.NOOP, b"", b"", 0, 1)
        self[name].sync()

    def exchange(self, rounds: int = 6) -> None:
        """Delivers all messages between connected copies until no more come."""
        for _ in range(rounds):
            for name, copy in self.copies.items():
                term = copy.replica.hard.term  # an answer to the first message may raise the term
                for out in copy.replica.outgoing():
                    self.append(name, out, term)
                self.mail(name)
            self.advance(limits.HEARTBEAT_MS)

    def append(self, name: str, out: Replication, term: int) -> None:
        if name not in self.cut and out.to not in self.cut and out.to in self.copies:
            campaign.step(self[out.to].replica, term, out.append, out.entries)
            self.mail(out.to)

    def mail(self, name: str) -> None:
        for to, message in self[name].sync():
            if name not in self.cut and to not in self.cut:
                campaign.step(self[to].replica, self[name].replica.hard.term, message)

    def leader(self) -> str:
        leaders = [name for name, copy in self.copies.items() if copy.replica.role == LEADER]
        return max(leaders, key=lambda name: self[name].replica.hard.term, default="")


# --- votes --------------------------------------------------------------------------------------------------


def test_silence_elects_the_first_in_order_and_its_first_entry_is_committed():
    trio = Trio()
    for _ in range(200):
        trio.advance(20)
        for name in NAMES:
            campaign.tick(trio[name].replica)
        for name in NAMES:
            trio.mail(name)
        if trio.leader():
            break
    name = trio.leader()
    assert trio[name].replica.hard == HardState(1, name)
    trio[name].replica.propose(log.NOOP, b"", b"", 0, 1)
    trio.exchange(3)
    assert [copy.replica.commit for copy in trio.copies.values()] == [1, 1, 1]
    assert {copy.replica.leader for copy in trio.copies.values()} == {name}


def test_a_vote_is_given_once_in_a_term_and_only_to_a_log_that_has_everything():
    trio = Trio()
    trio.advance(limits.ELECTION_MS)
    b = trio["b"].replica
    campaign.on_vote_request(b, VoteRequest("a", 1, 0, 0))
    campaign.on_vote_request(b, VoteRequest("c", 1, 0, 0))
    assert [vote.granted for _, vote in trio["b"].sync()] == [True, False]
    trio.lead("b", 2)
    trio["b"].propose(b"x")
    trio["b"].sync()
    b.follow("")
    b.election.heard_ms = 0
    for term, index in ((1, 9), (2, 1), (2, 2), (3, 0)):
        assert campaign.up_to_date(b, VoteRequest("c", 9, term, index)) == ((term, index) >= (2, 2))


def test_nobody_votes_while_a_leader_is_heard_and_no_term_is_taken_over():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(1)
    for pre in (True, False):
        campaign.on_vote_request(trio["b"].replica, VoteRequest("c", 9, 9, 9, pre))
    assert [vote.granted for _, vote in trio["b"].sync()] == [False, False]
    assert trio["b"].replica.hard.term == 1
    campaign.on_vote_request(trio["b"].replica, VoteRequest("c", 9, 9, 9, transfer=True))
    assert trio["b"].sync()[0][1].granted


def test_who_is_asked_by_one_that_has_less_stands_itself_instead_of_waiting_for_its_turn():
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x")
    trio["a"].sync()
    trio.exchange(1)
    c = trio["c"].replica
    c.election.due_ms = c.now_ms + limits.ELECTION_MS + limits.ELECTION_FIRST_MS + limits.ELECTION_REST_MS
    less = VoteRequest("b", c.hard.term + 1, c.log.term, c.log.last - 1, pre=True)
    campaign.on_vote_request(c, less)
    assert c.election.due_ms > c.now_ms + limits.ELECTION_MS, "its leader is there"
    trio.advance(limits.ELECTION_MS)
    campaign.on_vote_request(c, less)
    assert c.now_ms <= c.election.due_ms <= c.now_ms + limits.ELECTION_FIRST_MS
    assert [vote.granted for _, vote in trio["c"].sync()] == [False, False]


def test_who_was_just_opened_waits_before_it_votes():
    copy = Copy("b")
    copy.replica.now_ms = limits.ELECTION_MS - 1
    campaign.on_vote_request(copy.replica, VoteRequest("c", 1, 0, 0))
    assert not copy.sync()[0][1].granted
    copy.replica.now_ms += 1
    campaign.on_vote_request(copy.replica, VoteRequest("c", 1, 0, 0))
    assert copy.sync()[0][1].granted


def test_a_pre_vote_changes_nothing():
    trio = Trio()
    trio.advance(limits.ELECTION_MS)
    campaign.stand(trio["a"].replica, pre=True)
    assert (trio["a"].replica.role, trio["a"].replica.hard) == (PRE_CANDIDATE, HardState())
    campaign.on_vote_request(trio["b"].replica, VoteRequest("a", 1, 0, 0, pre=True))
    assert trio["b"].replica.hard == HardState()
    assert not trio["b"].replica.dirty


def test_term_and_vote_are_dirty_until_they_are_stored():
    trio = Trio()
    trio.advance(limits.ELECTION_MS)
    campaign.stand(trio["a"].replica, pre=False)
    assert trio["a"].replica.dirty
    assert trio["a"].replica.take_unsaved().hard == HardState(1, "a")


@pytest.mark.parametrize("config", [CopySet(["b", "c"]), CopySet(NAMES, ["a"]), CopySet(["b"], [], ["a"])])
def test_who_has_no_vote_or_no_records_does_not_stand(config):
    copy = Copy("a", config)
    copy.replica.now_ms = 60_000
    campaign.tick(copy.replica)
    assert copy.replica.role == FOLLOWER
    assert copy.sync() == []


def test_a_hollow_copy_does_not_stand():
    copy = Copy("a")
    copy.replica.hollow = True
    assert not campaign.may_stand(copy.replica)


def test_leadership_is_handed_to_who_has_everything_and_stands_at_once():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    trio["a"].propose(b"x")
    trio["a"].replica.hand_over("b")
    assert not trio["a"].replica.handed
    trio.exchange(1)
    trio.exchange(1)
    assert trio.leader() == "b"
    assert trio["b"].replica.hard == HardState(2, "b")
    assert trio["b"].payloads == [b"", b"x"]


def test_a_hand_over_that_fails_ends_in_a_new_term_if_the_other_was_told():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    trio["a"].replica.hand_over("b")
    trio.cut = {"b"}
    trio.mail("a")
    assert not trio["a"].replica.holds_lease
    trio.advance(limits.TRANSFER_MS)
    for name in ("c", "a"):
        trio[name].replica.election.heard_ms = trio.now_ms
    campaign.tick(trio["a"].replica)
    trio.mail("a")
    trio.mail("c")
    assert (trio.leader(), trio["a"].replica.hard.term) == ("a", 2)
    campaign.on_timeout_now(trio["b"].replica, 1, TimeoutNow("a"))
    assert trio["b"].replica.hard.term <= 2


# --- the log ------------------------------------------------------------------------------------------------


def test_entries_reach_all_copies_and_are_committed_by_a_majority():
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x", b"y")
    trio.exchange()
    for copy in trio.copies.values():
        assert copy.payloads == [b"", b"x", b"y"]
        assert copy.replica.commit == 3
        assert copy.replica.log.chain == trio["a"].replica.log.chain


def test_nothing_is_committed_by_a_leader_alone_nor_before_its_own_sync():
    trio = Trio()
    trio.lead("a", 1)
    trio.cut = {"b", "c"}
    trio["a"].propose(b"x")
    trio.exchange(2)
    assert trio["a"].replica.commit == 0
    trio["a"].propose(b"y")
    trio.cut = {"c"}
    replica = trio["a"].replica
    trio.advance(limits.HEARTBEAT_MS)
    for _ in range(2):
        for out in replica.outgoing():
            if out.to == "b":
                trio["b"].replica.on_append(1, out.append, out.entries)
                for _, answer in trio["b"].sync():
                    replica.on_appended(answer)
    assert (replica.progress["b"].match, replica.commit) == (3, 2), "its own disk does not have the last one"
    trio["a"].sync()
    assert replica.commit == 3


def test_a_follower_that_was_away_is_found_by_probing_back():
    trio = Trio()
    trio.cut = {"c"}
    trio.lead("a", 1)
    trio["a"].propose(*[b"%d" % i for i in range(20)])
    trio.exchange()
    trio.cut = set()
    trio.lead("b", 2)
    trio.exchange(6)
    assert trio["c"].payloads == trio["b"].payloads
    assert trio["c"].replica.commit == 22
    assert trio["b"].replica.progress["c"].state == STREAM


def test_what_was_lost_on_the_way_is_sent_again():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    trio["a"].propose(b"x")
    trio["a"].sync()
    assert len(trio["a"].replica.outgoing()) == 2, "and nothing of it arrives"
    trio["a"].propose(b"y")
    trio.exchange(3)
    assert trio["b"].payloads == trio["c"].payloads == [b"", b"x", b"y"]


def test_a_window_bounds_what_is_on_the_way():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    body = bytes(limits.REPLICATE_BYTES_MAX)
    for _ in range(12):
        trio["a"].replica.propose(log.PUBLISH, b"", body, 1, 1)
    sent = [out for out in trio["a"].replica.outgoing() if out.to == "b"]
    assert sum(len(entry.body) for out in sent for entry in out.entries) == limits.IN_FLIGHT_APPEND_BYTES_MAX
    assert trio["a"].replica.outgoing() == []


def test_what_an_old_leader_wrote_alone_is_cut_from_the_first_conflict():
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"kept")
    trio.exchange()
    trio.cut = {"a"}
    trio["a"].propose(b"lost-1", b"lost-2", b"lost-3")
    trio["a"].sync()
    trio.lead("b", 2)
    trio["b"].propose(b"new")
    trio.exchange()
    trio.cut = set()
    trio.exchange()
    trio["b"].propose(b"later")
    trio.exchange(10)
    assert trio["a"].payloads == [b"", b"kept", b"", b"new", b"later"]
    assert trio["a"].replica.log.chain == trio["b"].replica.log.chain
    assert trio["a"].replica.log.epochs == [(1, 1), (2, 3)]


def test_an_entry_of_an_older_term_is_not_committed_by_counting_it():
    """Raft figure 8: only an entry of the leader's own term commits the entries before it (R7)."""
    trio = Trio()
    trio.lead("a", 1)
    replica = trio["a"].replica
    replica.hard = HardState(3, "a")
    replica.lead()
    replica.progress["b"].match = 1
    replica._advance()
    assert replica.commit == 0
    trio["a"].propose(b"of this term")
    trio["a"].sync()
    replica.progress["b"].match = 2
    replica._advance()
    assert replica.commit == 2


def test_lower_terms_are_refused_and_higher_ones_end_a_leadership():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    trio["b"].replica.observe(5)
    trio["b"].replica.on_append(1, Append("a", 1, 1, 1, []), [])
    to, answer = trio["b"].sync()[-1]
    assert (to, answer.ok) == ("a", False)
    trio["a"].replica.observe(5)
    assert trio["a"].replica.role == FOLLOWER
    assert trio["a"].replica.hard == HardState(5, "")


def test_a_leader_that_contradicts_what_is_committed_is_corruption():
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x")
    trio.exchange()
    first = trio["b"].rows[1]
    forged = log.seal(first.chain, 2, 9, 1, log.PUBLISH, b"other", b"", 0)
    with pytest.raises(CorruptLog, match="contradicts"):
        trio["b"].replica.on_append(9, Append("c", 1, 1, 0, [], prev_chain=first.chain), [forged])


def test_another_chain_at_the_same_index_and_term_is_corruption():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    with pytest.raises(CorruptLog, match="same term"):
        trio["b"].replica.on_append(1, Append("a", 1, 1, 0, [], prev_chain=b"12345678"), [])


def test_entries_that_were_changed_on_the_way_are_refused_and_change_nothing():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    first = trio["a"].rows[1]
    good = log.seal(first.chain, 2, 1, 1, log.PUBLISH, b"x", b"", 0)
    bad = log.decode_row(2, log.encode_row(good)[:-1] + b"y")
    with pytest.raises(ProtocolError, match="does not continue"):
        trio["b"].replica.on_append(1, Append("a", 1, 1, 0, [], prev_chain=first.chain), [bad])
    assert trio["b"].replica.log.last == 1
    assert not trio["b"].replica.dirty


def test_who_lacks_rows_that_are_gone_needs_a_snapshot():
    trio = Trio()
    trio.cut = {"c"}
    trio.lead("a", 1)
    trio["a"].propose(b"x", b"y")
    trio.exchange()
    trio["a"].replica.log.first = 3
    trio.cut = set()
    trio.exchange(2)
    assert trio["a"].replica.progress["c"].state == SNAPSHOT
    assert trio["c"].payloads == []


def test_a_hint_that_is_late_moves_nothing():
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x")
    trio.exchange(3)
    progress = trio["a"].replica.progress["b"]
    trio["a"].replica.on_appended(Appended("b", False, 0, 0, rejected=1))
    assert (progress.state, progress.match, progress.next) == (STREAM, 2, 3)
    trio["a"].replica.on_appended(Appended("b", False, 0, 0, hollow=True))
    assert progress.state == SNAPSHOT


def test_a_leader_learns_from_a_copy_without_state_what_was_committed_before_its_term():
    """The hollow copy stores nothing until it has a snapshot, and accepts no snapshot that ends
    before what it knew to be committed.
    """
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x", b"y")
    trio.exchange(3)
    assert trio["b"].replica.commit == 3
    trio.cut = {"a"}
    leader = trio["c"].replica
    leader.commit = 1  # the leader was not told yet, or has restarted
    trio["b"].replica.lose_state()
    trio.lead("c", 2)
    trio["c"].propose(b"z")
    trio.exchange(3)
    assert (leader.commit, leader.saved) == (3, 5)
    # too small, of the leader's own term, and beyond the log
    for claimed, term in ((2, 1), (4, 2), (5, 2), (6, 2)):
        leader.on_appended(Appended("b", False, claimed, 0, hint_term=term, hollow=True))
        assert leader.commit == 3


def test_a_leader_learns_nothing_of_an_entry_that_it_does_not_have():
    """A copy that reports such an entry has another history, for example from before a recovery."""
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x", b"y")
    trio.exchange(3)
    trio["a"].replica.commit = 1
    trio.lead("a", 5)
    leader = trio["a"].replica
    for term in (0, 2, 4):
        leader.on_appended(Appended("b", False, 3, 0, hint_term=term, hollow=True))
        assert leader.commit == 1
    leader.on_appended(Appended("b", False, 3, 0, hint_term=1, hollow=True))
    assert leader.commit == 3


# --- time ---------------------------------------------------------------------------------------------------


def test_a_lease_lasts_from_the_sending_of_the_round_that_a_majority_answered():
    trio = Trio()
    trio.lead("a", 1)
    replica = trio["a"].replica
    assert not replica.holds_lease, "nobody has answered"
    sent = replica.outgoing()
    trio.advance(100)
    trio.append("a", sent[0], trio["a"].replica.hard.term)
    trio.advance(limits.LEADER_LEASE_MS - 101)
    assert replica.holds_lease
    trio.advance(1)
    assert not replica.holds_lease
    assert replica.role == LEADER


def test_a_leader_that_hears_no_majority_steps_down():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    trio.cut = {"b", "c"}
    trio.advance(limits.ELECTION_MS)
    campaign.tick(trio["a"].replica)
    assert trio["a"].replica.role == FOLLOWER
    assert not trio["a"].replica.holds_lease


# --- the copies ---------------------------------------------------------------------------------------------


def test_voters_change_when_the_entry_is_appended_and_back_when_it_is_cut():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange(2)
    trio.cut = {"a"}
    trio["a"].replica.propose(log.CONFIG, encode(CopySet([*NAMES, "d"])), b"", 0, 1)
    trio["a"].sync()
    assert trio["a"].replica.config.voters == [*NAMES, "d"]
    assert "d" in trio["a"].replica.progress
    trio.lead("b", 2)
    trio.cut = set()
    trio.exchange()
    assert trio["a"].replica.config.voters == NAMES


def test_a_witness_gets_no_bodies_and_counts_for_the_majority():
    trio = Trio(CopySet(NAMES, ["c"]))
    trio.lead("a", 1)
    trio.cut = {"b"}
    trio["a"].replica.propose(log.PUBLISH, b"p", b"body", 1, 1)
    trio.exchange(3)
    assert trio["a"].replica.commit == 2
    assert trio["c"].rows[2].body == b""
    assert trio["a"].replica.copies(2) == 1


def test_a_confirm_waits_for_the_second_full_copy_while_it_keeps_up():
    """R8: with a witness or a standby learner, a majority alone would leave records on one disk."""
    for config in (CopySet(NAMES, ["c"]), CopySet(["a"], [], ["b"])):
        trio = Trio(config)
        trio.lead("a", 1)
        trio.exchange(2)
        trio.cut = {"b"}
        trio["a"].propose(b"x")
        for _ in range(2):
            for out in trio["a"].replica.outgoing():
                trio.append("a", out, trio["a"].replica.hard.term)
            trio.mail("a")
        assert trio["a"].replica.commit == 1
        trio.advance(limits.ELECTION_MS)
        if "c" in trio["a"].replica.progress:
            trio["a"].replica.progress["c"].heard_ms = trio.now_ms
        campaign.tick(trio["a"].replica)
        assert (trio["a"].replica.role, trio["a"].replica.commit) == (LEADER, 2)


def test_what_could_keep_a_copy_that_cannot_lead_from_voting_is_stored_here_first():
    """The leader stores two kinds of entries before it sends them: those that only a witness
    has, and those that take the other copy's vote. If the leader lost such an entry, no
    election could succeed any more.
    """
    trio = Trio(CopySet(NAMES, ["c"]))
    trio.lead("a", 1)
    trio.exchange(3)
    leader = trio["a"]

    def sent() -> dict[str, int]:
        return {out.to: len(out.entries) for out in leader.replica.outgoing() if out.entries}

    leader.propose(b"x")
    assert sent() == {"b": 1}
    leader.sync()
    assert sent() == {"c": 1}
    config = encode(CopySet(["a"], [], ["b"]))
    leader.propose(b"y")
    leader.replica.propose(log.CONFIG, config, b"", 0, 1)
    assert sent() == {"b": 1}, "what stands before it goes ahead"
    leader.sync()
    assert sent() == {"b": 1}
    assert leader.replica.deadline_ms is not None


def test_rows_survive_encoding():
    entry = log.seal(b"12345678", 9, 4, 1_700_000_000_000, log.ACK, b"payload", b"body", 77)
    assert log.decode_row(9, log.encode_row(entry), b"body") == entry
    assert log.chained(b"12345678", entry)
    assert not log.chained(b"87654321", entry)


def test_a_snapshot_of_what_is_in_the_log_keeps_what_follows():
    trio = Trio()
    trio.cut = {"b", "c"}
    trio.lead("a", 1)
    trio["a"].propose(b"x", b"y")
    trio["a"].replica.propose(log.CONFIG, encode(CopySet([*NAMES, "d"])), b"", 0, 1)
    trio["a"].sync()
    replica = trio["a"].replica
    assert not replica.restart(2, 1, trio["a"].point(2), CopySet(NAMES))
    assert (replica.log.first, replica.log.last, replica.commit, replica.config.voters[-1]) == (3, 4, 2, "d")
    assert replica.restart(9, 2, LogPoint(b"12345678", 5), CopySet(NAMES))
    assert (replica.log.first, replica.log.last, replica.log.term, replica.saved, replica.config.voters) == (
        10,
        9,
        2,
        9,
        NAMES,
    )
