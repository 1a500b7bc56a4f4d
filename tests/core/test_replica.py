"""Three replicas driven by hand-delivered messages: append, match, conflict cut, majority commit. No votes yet: who leads
is said by the test, with a new term each time."""

import pytest

from gossipq.core import log
from gossipq.core.log import LogState
from gossipq.core.replica import HardState, Replica
from gossipq.errors import CorruptLog
from gossipq.peer_messages import Append, Appended

NAMES = ["a", "b", "c"]


class Copy:
    """A replica and its disk: `sync` is the end of a turn."""

    def __init__(self, name: str) -> None:
        self.replica = Replica(name, NAMES, HardState(), LogState())
        self.rows: dict[int, log.Entry] = {}
        self.inbox: list[tuple[int, Append, list[log.Entry]]] = []

    def sync(self) -> list[tuple[str, Appended]]:
        unsaved = self.replica.take_unsaved()
        if unsaved.cut_from is not None:
            self.rows = {index: entry for index, entry in self.rows.items() if index < unsaved.cut_from}
        self.rows |= {entry.index: entry for entry in unsaved.entries}
        return self.replica.stored()

    def propose(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.replica.propose(log.PUBLISH, payload, b"", 0, 1)

    @property
    def payloads(self) -> list[bytes]:
        return [self.rows[index].payload for index in sorted(self.rows)]


class Trio:
    def __init__(self) -> None:
        self.copies = {name: Copy(name) for name in NAMES}
        self.cut: set[str] = set()

    def __getitem__(self, name: str) -> Copy:
        return self.copies[name]

    def lead(self, name: str, term: int) -> None:
        self[name].replica.lead(term)
        self[name].replica.propose(log.NOOP, b"", b"", 0, 1)

    def exchange(self, rounds: int = 6) -> None:
        """Delivers everything between those that are not cut off, until it is quiet."""
        for _ in range(rounds):
            for name, copy in self.copies.items():
                term = copy.replica.hard.term
                for out in copy.replica.outgoing():
                    if name not in self.cut and out.to not in self.cut:
                        entries = out.entries
                        if entries is None:
                            entries = [copy.rows[i] for i in range(out.first, out.end)]
                        self._append(out.to, term, out.append, entries)
                answers = copy.sync()
                for to, answer in answers:
                    self._appended(name, to, answer)

    def _append(self, to: str, term: int, append: Append, entries: list[log.Entry]) -> None:
        follower = self[to]
        before = follower.rows.get(append.prev_index) or next(
            (e for e in follower.replica.unsaved if e.index == append.prev_index), None
        )
        follower.replica.on_append(term, append, entries, before)
        for leader, answer in follower.sync():
            self._appended(to, leader, answer)

    def _appended(self, sender: str, to: str, answer: Appended) -> None:
        if sender not in self.cut and to not in self.cut and self[to].replica.observe(self[sender].replica.hard.term):
            self[to].replica.on_appended(answer)


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
    trio.cut = {"b", "c"}
    trio.lead("a", 1)
    trio["a"].propose(b"x")
    trio.exchange()
    assert trio["a"].replica.commit == 0
    trio.cut = {"c"}
    trio["a"].replica.progress["b"].next = 1
    for out in trio["a"].replica.outgoing():
        if out.to == "b":
            trio._append("b", 1, out.append, out.entries or [])
    assert trio["a"].replica.commit == 2, "a and b are two of three"


def test_the_leader_counts_itself_only_after_its_own_sync():
    trio = Trio()
    trio.cut = {"c"}
    trio.lead("a", 1)
    for out in trio["a"].replica.outgoing():
        if out.to == "b":
            trio._append("b", 1, out.append, out.entries or [])
    assert trio["a"].replica.commit == 0
    trio["a"].sync()
    assert trio["a"].replica.commit == 1


def test_a_follower_that_was_away_is_found_by_probing_back():
    trio = Trio()
    trio.cut = {"c"}
    trio.lead("a", 1)
    trio["a"].propose(*[b"%d" % i for i in range(20)])
    trio.exchange()
    trio.cut = set()
    trio.lead("b", 2)
    trio.exchange(rounds=30)
    assert trio["c"].payloads == trio["b"].payloads
    assert trio["c"].replica.commit == 22


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
    trio.exchange(rounds=10)
    assert trio["a"].payloads == [b"", b"kept", b"", b"new", b"later"]
    assert trio["a"].replica.log.chain == trio["b"].replica.log.chain
    assert trio["a"].replica.log.epochs == [(1, 1), (2, 3)]


def test_an_entry_of_an_older_term_is_not_committed_by_counting_it():
    """Raft figure 8: only an entry of the leader's own term commits what lies before it (R7)."""
    trio = Trio()
    trio.cut = {"b", "c"}
    trio.lead("a", 1)
    trio["a"].propose(b"old")
    trio["a"].sync()
    trio["a"].replica.lead(3)
    trio["a"].sync()
    for name in ("b",):
        progress = trio["a"].replica.progress[name]
        progress.match = progress.next = 2
    trio["a"].replica._advance()
    assert trio["a"].replica.commit == 0
    trio["a"].replica.propose(log.NOOP, b"", b"", 0, 1)
    trio["a"].sync()
    trio["a"].replica.progress["b"].match = 3
    trio["a"].replica._advance()
    assert trio["a"].replica.commit == 3


def test_lower_terms_are_refused_and_higher_ones_end_a_leadership():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange()
    trio["b"].replica.observe(5)
    trio["b"].replica.on_append(1, Append("a", 1, 1, 1, []), [], None)
    to, answer = trio["b"].sync()[-1]
    assert (to, answer.ok) == ("a", False)
    trio["a"].replica.observe(5)
    assert trio["a"].replica.role == "follower"
    assert trio["a"].replica.hard == HardState(5, "")


def test_a_leader_that_contradicts_what_is_committed_is_corruption():
    trio = Trio()
    trio.lead("a", 1)
    trio["a"].propose(b"x")
    trio.exchange()
    forged = log.seal(trio["b"].rows[1].chain, 2, 9, 1, log.PUBLISH, b"other", b"", 0)
    with pytest.raises(CorruptLog, match="committed"):
        trio["b"].replica.on_append(9, Append("c", 1, 1, 0, []), [forged], trio["b"].rows[1])


def test_an_entry_that_was_changed_on_the_way_is_corruption():
    trio = Trio()
    trio.lead("a", 1)
    trio.exchange()
    good = log.seal(trio["a"].rows[1].chain, 2, 1, 1, log.PUBLISH, b"x", b"", 0)
    bad = log.decode_row(2, log.encode_row(good)[:-1] + b"y")
    with pytest.raises(CorruptLog, match="does not continue"):
        trio["b"].replica.on_append(1, Append("a", 1, 1, 0, []), [bad], trio["b"].rows[1])


def test_rows_survive_encoding():
    entry = log.seal(b"12345678", 9, 4, 1_700_000_000_000, log.ACK, b"payload", b"body", 77)
    assert log.decode_row(9, log.encode_row(entry), b"body") == entry
    assert log.chained(b"12345678", entry)
    assert not log.chained(b"87654321", entry)
