"""One copy of a shard's log: append, match, conflict cut, majority commit. Raft (Ongaro 2014, chapter 3).

The replica decides; the shard stores. In a turn: `propose` or `on_append` any number of times, then the shard writes
what `take_unsaved` gives into the open transaction, calls `stored` when that is synced, and sends the answers only then.
`outgoing` may be sent before the sync: it promises nothing of this copy.
"""

from typing import NamedTuple

from gossipq import limits
from gossipq.core import log
from gossipq.core.log import Entry, LogState
from gossipq.errors import CorruptLog
from gossipq.peer_messages import Append, Appended
from gossipq.types import Index, Term

LEADER, FOLLOWER = "leader", "follower"


class HardState(NamedTuple):
    """Stored before it is spoken of (Raft figure 2, persistent state)."""

    term: Term = 0
    vote: str = ""


class Progress:
    """What the leader knows of one follower."""

    __slots__ = ("match", "next")

    def __init__(self, next_index: Index) -> None:
        self.match: Index = 0  #: on the follower's disk and equal to ours
        self.next: Index = next_index  #: first entry not sent yet


class Outgoing(NamedTuple):
    """An Append for a follower; entries `first` to `end` are read from disk by the shard when `entries` is None."""

    to: str
    append: Append
    entries: list[Entry] | None
    first: Index
    end: Index


class Unsaved(NamedTuple):
    cut_from: Index | None
    entries: list[Entry]
    hard: HardState | None


class Replica:
    def __init__(self, me: str, voters: list[str], hard: HardState, state: LogState) -> None:
        self.me, self.voters, self.hard, self.log = me, voters, hard, state
        self.role, self.leader = FOLLOWER, ""
        self.commit: Index = 0
        self.saved: Index = state.last  #: on this disk
        self.unsaved: list[Entry] = []
        self.cut_from: Index | None = None
        self.hard_changed = False
        self.answers: list[tuple[str, Appended]] = []
        self.progress: dict[str, Progress] = {}
        self._recent: dict[Index, Entry] = {}  # newest entries, kept only while there are followers to send them to
        self._recent_bytes = 0
        self._told: Index = 0  # commit index the followers have been sent

    @property
    def sole(self) -> bool:
        """A quorum of one: what is on this disk is committed."""
        return self.voters == [self.me]

    # --- leading ---------------------------------------------------------------------------------------------------

    def lead(self, term: Term) -> None:
        """Takes leadership of `term`, which must be new. The caller proposes a NOOP next (R5)."""
        assert term > self.hard.term, "a term is led once"
        self.hard, self.hard_changed = HardState(term, self.me), True
        self.role, self.leader = LEADER, self.me
        self.progress = {voter: Progress(self.log.last + 1) for voter in self.voters if voter != self.me}
        self._recent, self._recent_bytes = {}, 0

    def propose(self, kind: int, payload: bytes, body: bytes, crc: int, time_ms: int) -> Entry:
        """The next entry of the leader's log."""
        state = self.log
        time_ms = max(time_ms, state.time_ms)
        entry = log.seal(state.chain, state.last + 1, self.hard.term, time_ms, kind, payload, body, crc)
        self._take(entry)
        return entry

    def _take(self, entry: Entry) -> None:
        self.log.took(entry)
        self.unsaved.append(entry)
        if self.progress:
            self._recent[entry.index] = entry
            self._recent_bytes += len(entry.body)
            while self._recent_bytes > limits.RECENT_BYTES_MAX:
                oldest = next(iter(self._recent))
                self._recent_bytes -= len(self._recent.pop(oldest).body)

    def outgoing(self) -> list[Outgoing]:
        """What followers should be sent now: entries they lack, or a moved commit index."""
        if self.role != LEADER:
            return []
        news = []
        for voter, progress in self.progress.items():
            if progress.next > self.log.last and self._told >= self.commit:
                continue
            first, end, size = progress.next, progress.next, 0
            entries: list[Entry] | None = []
            while end <= self.log.last and size < limits.REPLICATE_BYTES_MAX:
                entry = self._recent.get(end)
                if entry is None:
                    entries = None
                    end = min(self.log.last + 1, first + limits.TURN_MESSAGES_MAX)
                    break
                if entries is not None:
                    entries.append(entry)
                size += len(entry.body)
                end += 1
            prev_term = self.log.term_at(first - 1)
            append = Append(self.me, first - 1, prev_term or 0, self.commit, [])
            news.append(Outgoing(voter, append, entries, first, end))
            progress.next = end
        self._told = self.commit
        return news

    def on_appended(self, message: Appended) -> None:
        progress = self.progress.get(message.follower)
        if self.role != LEADER or progress is None:
            return
        if message.ok:
            progress.match = max(progress.match, message.match)
            progress.next = max(progress.next, progress.match + 1)
            self._advance()
        else:
            progress.next = max(progress.match, min(message.match, progress.next - 1)) + 1

    def _advance(self) -> None:
        """Commits what a majority has on disk, if it is of this term (Raft 3.6.2, R7)."""
        stored = sorted([self.saved, *(p.match for p in self.progress.values())], reverse=True)
        majority = stored[len(self.voters) // 2]
        if majority > self.commit and self.log.term_at(majority) == self.hard.term:
            self.commit = majority

    # --- following -------------------------------------------------------------------------------------------------

    def observe(self, term: Term) -> bool:
        """A peer speaks in `term`; False when that is the past (R1)."""
        if term > self.hard.term:
            self.hard, self.hard_changed = HardState(term), True
            self.role, self.leader, self.progress = FOLLOWER, "", {}
        return term == self.hard.term

    def on_append(self, term: Term, message: Append, entries: list[Entry], before: Entry | None) -> None:
        """Entries after `prev_index`; `before` is our own entry at `prev_index`, read by the shard when we have it.
        Raises CorruptLog when the leader contradicts what is committed, or a chain does not hold."""
        if not self.observe(term):
            self.answers.append((message.leader, Appended(self.me, False, self.log.last, message.sent_ms)))
            return
        assert self.role == FOLLOWER, "one leader per term (I1)"
        self.leader = message.leader
        if self.log.term_at(message.prev_index) != message.prev_term:
            hint = min(self.log.last, message.prev_index - 1)
            self.answers.append((message.leader, Appended(self.me, False, hint, message.sent_ms)))
            return
        chain, before_conflict = (before.chain if before else log.NO_CHAIN), before
        for entry in entries:
            if not log.chained(chain, entry):
                raise CorruptLog(f"entry {entry.index} does not continue the log of {self.me}")
            mine = self.log.term_at(entry.index)
            if mine is not None and mine != entry.term:
                self._cut(entry.index, before_conflict)
                mine = None
            if mine is None:
                self._take(entry)
            chain, before_conflict = entry.chain, entry
        match = message.prev_index + len(entries)
        self.commit = max(self.commit, min(message.commit, match))
        self.answers.append((message.leader, Appended(self.me, True, match, message.sent_ms)))

    def _cut(self, first: Index, before: Entry | None) -> None:
        """Removes the log from `first` on: the first conflict, never the commit mark (R6)."""
        if first <= self.commit:
            raise CorruptLog(f"the leader contradicts entry {first}, which is committed up to {self.commit}")
        self.unsaved = [entry for entry in self.unsaved if entry.index < first]
        self.cut_from = first if self.cut_from is None else min(first, self.cut_from)
        self.saved = min(self.saved, first - 1)
        self.log.cut(before)

    # --- storing ---------------------------------------------------------------------------------------------------

    def take_unsaved(self) -> Unsaved:
        """What must be written now: rows to cut first, then rows to add, and term and vote if they changed."""
        taken = Unsaved(self.cut_from, self.unsaved, self.hard if self.hard_changed else None)
        self.unsaved, self.cut_from, self.hard_changed = [], None, False
        return taken

    def stored(self) -> list[tuple[str, Appended]]:
        """All that was taken is on disk now. Returns the answers that this makes true."""
        self.saved = self.log.last
        if self.role == LEADER:
            self._advance()
        answers, self.answers = self.answers, []
        return answers
