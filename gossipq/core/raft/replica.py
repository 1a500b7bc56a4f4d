"""Raft for one copy of a shard's log (Ongaro 2014): votes, log matching, commit by majority.

The replica decides and the shard stores. In a turn, messages and `propose` come any number of
times. Then the shard writes `take_unsaved` into the open transaction, syncs it and calls `stored`.
Only then it takes the answers. `outgoing` may be sent before the sync, because Appends do not
promise anything about this copy's disk. Elections are in `campaign`.

Differences from the textbook: a leader *serves* only after its own NOOP is committed. A confirm
needs a majority and two full copies while a second full copy keeps up, so a witness does not reduce
it to one disk. Voters change one at a time, effective when appended.

A hand-over ends the lease when TIMEOUT_NOW is sent. If it fails, the leader stands for a new term,
so that a late TIMEOUT_NOW has no effect. A copy that did not take leadership is not asked again for
10 s, then for twice as long each time.
"""

from typing import NamedTuple, Protocol

import msgspec

from gossipq import limits
from gossipq.core.raft import voters
from gossipq.core.raft.cluster_time import ClusterTime
from gossipq.core.raft.election import Dice, Election, dice_of
from gossipq.core.raft.progress import PROBE, SNAPSHOT, STREAM, Progress
from gossipq.core.storage import CopySet, Entry, LogState, Recent, Shelf, log
from gossipq.errors import CorruptLog, ProtocolError
from gossipq.peer_messages import Append, Appended, TimeoutNow
from gossipq.types import PLACED, Index, Now, Term
from gossipq.values import Message

LEADER, FOLLOWER, CANDIDATE, PRE_CANDIDATE = "leader", "follower", "candidate", "pre-candidate"
ROW_BYTES = 128  #: cost of an entry besides its body
TRANSITIONS = {  #: every change of role with its cause; ARCHITECTURE.md draws its picture from here
    (FOLLOWER, PRE_CANDIDATE): "the leader is silent: who would vote for me?",
    (PRE_CANDIDATE, CANDIDATE): "a majority would: next term",
    (CANDIDATE, LEADER): "a majority voted",
    (FOLLOWER, CANDIDATE): "the leader hands over",
    (FOLLOWER, LEADER): "the only voter",
    (CANDIDATE, PRE_CANDIDATE): "nobody won",
    (PRE_CANDIDATE, FOLLOWER): "somebody leads",
    (CANDIDATE, FOLLOWER): "somebody leads, or a higher term",
    (LEADER, FOLLOWER): "a higher term, or no majority answers",
    (LEADER, CANDIDATE): "a hand-over failed half way",
}


class HardState(NamedTuple):
    """Term and vote, stored before they are used (Raft figure 2, persistent state)."""

    term: Term = 0
    vote: str = ""


class LogPoint(NamedTuple):
    """Facts about an entry of our log that are needed to continue the log behind it."""

    chain: bytes
    time_ms: int


class Rows(Protocol):
    """The log of this copy on disk."""

    def point(self, index: Index) -> LogPoint: ...
    def read(self, first: Index, end: Index, bytes_max: int) -> list[Entry]:
        """Return entries from `first` on, at least one if it exists."""


class Replication(NamedTuple):
    """An Append to another copy with its entries.

    It may be sent before the sync, because it does not promise anything about this copy's disk.
    """

    to: str
    append: Append
    entries: list[Entry]


class Unsaved(msgspec.Struct, frozen=True):
    """State that must be written to this disk."""

    cut_from: Index | None  #: log rows to remove first, from this index on
    entries: list[Entry]  #: entries to append then
    hard: HardState | None  #: None: unchanged


NOTHING_UNSAVED = Unsaved(None, [], None)


class Replica:
    """Attributes are for reading. Only messages and the clock change them."""

    def __init__(
        self,
        me: str,
        config: CopySet,
        hard: HardState,
        state: LogState,
        rows: Rows,
        dice: Dice | None = None,
        time: ClusterTime | None = None,
        recent: Shelf | None = None,
    ) -> None:
        """`recent` is this shard's part of the worker's cache of new entries."""
        self.me = me
        self.hard = hard
        self.log = state
        self.time = time or ClusterTime(me, "", None)
        self.role, self.leader = FOLLOWER, ""
        self.commit: Index = 0
        self.saved: Index = state.last  #: on this disk
        self.unsaved: list[Entry] = []
        self.cut_from: Index | None = None
        self.hard_changed = False
        self.answers: list[tuple[str, Message]] = []  #: valid once everything is stored
        self.progress: dict[str, Progress] = {}
        self.warnings: list[str] = []  #: for the operator of the node
        self.election = Election(dice or dice_of(me))
        self.now_ms = 0  #: boot time of this turn
        self.hollow = False  #: a snapshot is being installed: the copy votes but does not lead
        self.handing = ""  #: the copy to which leadership is being handed over
        self.handed = False  #: True if that copy was told: the lease has ended
        self._handing_ms = 0
        self.no_space = False  #: True if this copy's store refuses publishes; other copies are told
        self._rows = rows
        self._configs: list[tuple[Index, CopySet]] = [(0, config)]
        self._configured()
        # filled while there are other copies
        self._recent = recent or Recent(limits.RECENT_BYTES_MAX).shelf()
        self._beat_ms = 0
        # when to send the commit index, unless an entry does so before
        self._tell_ms: int | None = None

    def begin(self, now: Now, no_space: bool = False, ahead_ms: int | None = None) -> None:
        """Set the clocks of this turn.

        `no_space`: the store of this copy refuses publishes. `ahead_ms`: leader time minus boot
        time, as another shard of this process knows it.
        """
        self.now_ms, self.no_space = now.boot_ms, no_space
        self.time.begin(now)
        if ahead_ms is not None and now.boot_ms + ahead_ms >= self.log.time_ms and not self.time.sure:
            self.time.adopt(
                ahead_ms, self.role == LEADER
            )  # a time before the last entry is known to be wrong
        if self.role == LEADER and not self.time.sure:
            self.time.correct(self.config.voters)  # a single copy hears only its own clock

    # --- the copies -----------------------------------------------------------------------------------------

    @property
    def config(self) -> CopySet:
        """In force from the moment it is appended, committed or not (Raft 4.1)."""
        return self._configs[-1][1]

    @property
    def committed_config(self) -> CopySet:
        """The newest committed configuration."""
        return next(config for index, config in reversed(self._configs) if index <= self.commit)

    @property
    def config_index(self) -> Index:
        return self._configs[-1][0]

    def configure(self, index: Index, config: CopySet) -> None:
        """Entry `index` sets the copies from here on."""
        while len(self._configs) > 1 and self._configs[1][0] <= self.commit:
            del self._configs[0]
        self._configs.append((index, config))
        self._configured()

    def _configured(self) -> None:
        config = self.config
        #: True if every entry on this disk is committed
        self.sole = config.voters == [self.me] and not config.learners
        #: True if this copy may become leader
        self.electable = self.me in config.voters and self.me not in config.witnesses
        if self.role == LEADER:
            self._follow_members(config)

    def _follow_members(self, config: CopySet) -> None:
        """Track exactly the other copies of `config`."""
        others = [name for name in (*config.voters, *config.learners) if name != self.me]
        known = self.progress
        self.progress = {
            name: known.get(name) or Progress(self.log.last + 1, name not in config.witnesses, self.now_ms)
            for name in others
        }

    # --- leading --------------------------------------------------------------------------------------------

    def resume(self, applied: Index, hollow: bool) -> None:
        """After opening: entries applied by this copy's ledger are committed.

        `hollow`: its state is incomplete.
        """
        self.commit, self.hollow = applied, hollow

    def at(self, boot_ms: int) -> None:
        """Set the time within a turn."""
        self.now_ms = boot_ms

    def say(self, to: str, message: Message) -> None:
        """Answer another copy, as soon as everything is on this disk."""
        self.answers.append((to, message))

    def enter(self, term: Term, vote: str = "") -> None:
        """Set the term of this copy, and its vote there."""
        self.hard, self.hard_changed = HardState(term, vote), True

    def lose_state(self) -> None:
        """A snapshot begins, or this copy deletes its rows: from now on it only votes, by its
        log.
        """
        self.hollow = True

    def lead(self) -> None:
        """Lead: in the next term if this copy decides alone, else in the term of its election.

        The caller must propose a NOOP next (Raft 6.4).
        """
        if self.sole:
            self.enter(self.hard.term + 1, self.me)
            self.commit = self.saved
        self._become(LEADER, self.me)
        self.progress = {}
        self._recent.clear()
        self._beat_ms, self._tell_ms = self.now_ms, None
        self.handing, self.handed = "", False
        self.time.lead(self.config.voters, self.log.time_ms)
        self._follow_members(self.config)

    def propose(self, kind: int, payload: bytes, body: bytes, crc: int, time_ms: int) -> Entry:
        """Append an entry to the leader's log."""
        state = self.log
        time_ms = max(time_ms, state.time_ms)
        entry = log.seal(state.chain, state.last + 1, self.hard.term, time_ms, kind, payload, body, crc)
        state.took(entry)
        self.unsaved.append(entry)
        if kind == log.CONFIG or self.progress:
            self._note(entry)
        return entry

    def _note(self, entry: Entry) -> None:
        """Follow a new entry: it may name the copies, and others may need it soon."""
        if entry.kind == log.CONFIG:
            self.configure(entry.index, log.message_of(entry))
        if self.progress:
            self._recent.put(entry, len(entry.body) + ROW_BYTES)

    def retract(self, last: Index) -> None:
        """Remove proposed entries after `last`. They must be neither stored nor sent."""
        if self.log.last > last:
            assert last >= self.saved, "what is on disk is not taken back"
            for index in range(last + 1, self.log.last + 1):
                self._recent.pop(index)
            self._cut(last + 1)

    def outgoing(self) -> list[Replication]:
        """Return the Appends to send now: missing entries, a new commit index, or a heartbeat."""
        if self.role != LEADER or self.hard_changed or not self.progress:
            return []
        beat = self.now_ms >= self._beat_ms
        if beat:  # all shards of a worker in one turn
            self._beat_ms = (self.now_ms // limits.HEARTBEAT_MS + 1) * limits.HEARTBEAT_MS
        late = self._tell_ms is not None and self.now_ms >= self._tell_ms
        news: list[Replication] = []
        behind = False
        for name, progress in self.progress.items():
            if progress.next < self.log.first and progress.state != SNAPSHOT:
                progress.carry()
            progress.flying &= not beat
            told = beat
            while progress.may_send() and (progress.next <= self.log.last or progress.state == PROBE):
                # a probe carries no entries: most are rejected
                append = self._append(name, progress, with_entries=progress.state == STREAM)
                if not append.entries and progress.state == STREAM:
                    break  # these entries are still being written to our own disk
                news.append(append)
                told = False
            if told or (late and progress.told < self.commit and progress.state == STREAM):
                news.append(self._append(name, progress, with_entries=False))
            behind = behind or (progress.told < self.commit and progress.state == STREAM)
        self._tell_ms = (None if late else self._tell_ms) or (
            self.now_ms + limits.COMMIT_TOLD_MS if behind else None
        )
        return news

    def _append(self, name: str, progress: Progress, with_entries: bool) -> Replication:
        if progress.state == SNAPSHOT:
            return Replication(name, self._append_at(0, 0, 0, log.NO_CHAIN), [])
        entries, size = self._entries(progress.next, progress.full) if with_entries else ([], 0)
        if progress.full and any(lacks_body(entry) for entry in entries):
            progress.carry()
            return self._append(name, progress, with_entries=False)
        if not progress.full:
            entries = [msgspec.structs.replace(entry, body=b"") if entry.body else entry for entry in entries]
        prev = progress.next - 1
        term = self.log.term_at(prev)
        assert term is not None, "nothing beyond the end of the log was sent"
        append = self._append_at(prev, term, self.commit, self.point(prev).chain)
        if with_entries or progress.state == PROBE:
            progress.sent(prev + 1 + len(entries), size)
        progress.told = self.commit
        return Replication(name, append, entries)

    def _append_at(self, index: Index, term: int, commit: Index, chain: bytes) -> Append:
        """Return an Append for entries after `index`, with the clocks of this turn."""
        time_ms, sure, behind_ms = self.time.told()
        return Append(
            leader=self.me,
            prev_index=index,
            prev_term=term,
            commit=commit,
            sizes=[],
            sent_ms=self.now_ms,
            prev_chain=chain,
            time_ms=time_ms,
            sure=sure,
            behind_ms=behind_ms,
        )

    def _entries(self, first: Index, full: bool) -> tuple[list[Entry], int]:
        """Return entries for one Append, from `first` on, and their size.

        Entries for a witness, and configurations that may end this copy's ability to lead, are sent
        only from our own disk. If this copy lost them, the receiver would keep a copy that cannot
        lead, and would not vote for us.
        """
        entries, size = [], 0
        found = self._recent.get(first)
        while found is not None and size < limits.REPLICATE_BYTES_MAX:
            if found.index > self.saved and (found.kind == log.CONFIG or not full):
                break
            entries.append(found)
            size += len(found.body) + ROW_BYTES
            found = self._recent.get(first + len(entries))
        if not entries and first <= self.saved:
            entries = self._rows.read(first, self.saved + 1, limits.REPLICATE_BYTES_MAX)
            chain = self.point(first - 1).chain
            for entry in entries:
                if not log.chained(chain, entry):
                    raise CorruptLog(f"log row {entry.index} does not continue row {entry.index - 1}")
                chain = entry.chain
            size = sum(len(entry.body) + ROW_BYTES for entry in entries)
        return entries, size

    def point(self, index: Index) -> LogPoint:
        if index == self.log.last:
            return LogPoint(self.log.chain, self.log.time_ms)
        if self.unsaved and index >= self.unsaved[0].index:
            entry = self.unsaved[index - self.unsaved[0].index]
            return LogPoint(entry.chain, entry.time_ms)
        return self._rows.point(index)

    def heard_copy(self, name: str, sent_ms: int) -> Progress | None:
        """Record an answer of this term to a message of `sent_ms`. None if the copy is not
        tracked.
        """
        progress = self.progress.get(name)
        if self.role != LEADER or progress is None:
            return None
        progress.heard(self.now_ms, sent_ms)
        return progress

    def on_appended(self, message: Appended) -> None:
        """Handle an answer of this term to an Append."""
        progress = self.progress.get(message.follower)
        if self.role != LEADER or progress is None:
            return
        progress.heard(self.now_ms, message.sent_ms)
        progress.no_space = message.no_space
        self.time.heard_copy(message.follower, message, message.sent_ms)
        self.time.correct(self.config.voters)
        if message.hollow:
            progress.knew = message.match
            self._learn(message.match, message.hint_term)
            if progress.state != SNAPSHOT:
                progress.carry()
        elif progress.state == SNAPSHOT:
            pass  # its answers are INSTALLED
        elif message.ok:
            progress.accepted(min(message.match, self.log.last), self.now_ms)
            progress.synced |= (
                progress.match >= self.commit and self.log.term_at(progress.match) == self.hard.term
            )
            self._advance()
            self._hand_over()
        elif message.rejected == progress.next - 1 or (
            progress.state == STREAM and message.rejected > progress.match
        ):
            if progress.has_lost(message.rejected, message.sent_ms):
                self.warnings.append(
                    f"{message.follower} has lost entries up to {progress.match} that were on its disk: it "
                    f"is an older one, or did not sync; it gets them again"
                )
                progress.lose()
            progress.probe(self.log.below(min(message.match, message.rejected), message.hint_term) + 1)

    def _learn(self, index: Index, term: Term) -> None:
        """A copy that lost its state knew this entry to be committed, so commit it here.

        A leader has all entries committed before its term (Raft 3.6.3), and index and term identify
        an entry. Without this, a leader that needs the copy for a majority would wait forever: the
        copy takes entries only after a snapshot, and only a snapshot that includes what it knew.
        """
        if self.commit < index <= self.saved and self.log.term_at(index) == term < self.hard.term:
            self.commit = index

    def _advance(self) -> None:
        """Commit entries of this term (Raft 3.6.2) that a majority has on disk.

        Two full copies must have them while another full copy keeps up.
        """
        if self.commit >= self.saved:
            return  # applying reads this disk
        config, progress = self.config, self.progress
        stored = sorted([progress[name].match if name in progress else self.saved for name in config.voters])
        index = stored[len(stored) - voters.quorum_size(config.voters)]
        full = [other for other in progress.values() if other.full]
        if any(other.synced for other in full):
            index = min(index, sorted([self.saved, *(other.match for other in full)])[-2])
        index = min(index, self.saved)
        if index > self.commit and self.log.term_at(index) == self.hard.term:
            self.commit = index

    def copies(self, index: Index) -> int:
        """Number of full copies with an entry on disk, as far as the leader knows."""
        own = int(self.saved >= index)
        if not self.progress:
            return own
        return own + sum([other.full and other.match >= index for other in self.progress.values()])

    def hears(self, name: str) -> bool:
        """True if another copy answers recent messages of this leader, not only old ones."""
        other = self.progress.get(name)
        return other is not None and other.match > 0 and self.now_ms < other.acked_ms + limits.ELECTION_MS

    def _majority_ms(self, times: list[int]) -> int:
        """Return the time that a majority of voters has reached, of one time for each voter."""
        times.sort()
        return times[len(times) - voters.quorum_size(self.config.voters)]

    @property
    def holds_lease(self) -> bool:
        """True if no other copy can have been elected: records may be delivered, questions
        answered.
        """
        if self.sole or self.role != LEADER:
            return self.role == LEADER
        if self.handed:
            return False
        me, progress, now_ms = self.me, self.progress, self.now_ms
        acked = [now_ms if name == me else progress[name].acked_ms for name in self.config.voters]
        return now_ms < self._majority_ms(acked) + limits.LEADER_LEASE_MS

    def keep_leading(self) -> None:
        """Advance a leader's timers: silent copies, check-quorum, a failed hand-over."""
        me, progress, now_ms = self.me, self.progress, self.now_ms
        for other in progress.values():
            other.judge(self.saved, now_ms)
        heard = [now_ms if name == me else progress[name].heard_ms for name in self.config.voters]
        if now_ms >= self._majority_ms(heard) + limits.ELECTION_MS:
            self.follow("")
            return
        self._advance()

    def hand_over(self, to: str) -> None:
        """Start a hand-over to copy `to`: it leads as soon as it has everything; requests wait."""
        self.handing = to
        self.handed = False
        self._handing_ms = self.now_ms + limits.TRANSFER_READY_MS
        self._hand_over()

    def _hand_over(self) -> None:
        if self.handing and not self.handed and self.progress[self.handing].match == self.log.last:
            self.handed, self._handing_ms = True, self.now_ms + limits.TRANSFER_MS
            self.answers.append((self.handing, TimeoutNow(self.me)))

    def handing_failed(self) -> bool:
        """The hand-over took too long. True if the copy was told to stand.

        Then only a new term makes sure that it is not elected.
        """
        if not self.handing or (self.now_ms < self._handing_ms and self.handing in self.progress):
            return False
        self.handing = ""
        return self.handed

    # --- following ------------------------------------------------------------------------------------------

    def check_term(self, term: Term) -> None:
        """Raise ProtocolError for a term that no election can have reached.

        Otherwise one bad message could use up all terms. A copy without a term accepts any.
        """
        if self.hard.term and term > self.hard.term + limits.TERM_LEAP_MAX:
            raise ProtocolError(
                f"term {term} is too far from the term {self.hard.term} of {self.me}: it is not taken over"
            )

    def observe(self, term: Term) -> bool:
        """Take over a newer term. False if `term` is old. Raises ProtocolError, see
        `check_term`.
        """
        self.check_term(term)
        if term > self.hard.term:
            self.enter(term)
            self.answers.clear()  # they belong to an old term
            self.follow("")
        return term == self.hard.term

    def follow(self, leader: str) -> None:
        """Become follower of `leader`, or of an unknown leader ("")."""
        if self.role == LEADER:
            self.election.voted(self.now_ms)
        self._become(FOLLOWER, leader)

    def stand(self, role: str) -> None:
        """Become (pre-)candidate."""
        self._become(role, "")
        self.answers.clear()

    def _become(self, role: str, leader: str) -> None:
        assert role == self.role or (self.role, role) in TRANSITIONS, f"{self.role} to {role}"
        if self.role != FOLLOWER and role != LEADER:
            self.answers.clear()  # answers of a leader or candidate
            self.progress = {}
            self._recent.clear()
        if role == FOLLOWER:
            self.time.follow()
        self.role = role
        self.leader = leader
        self.handing = ""

    def hear(self, leader: str) -> None:
        """The leader of this term was heard."""
        if self.role == LEADER:
            raise ProtocolError(f"{leader} leads a term of {self.me}")
        if self.leader not in ("", leader):
            raise ProtocolError(f"{leader} leads a term of {self.leader}")
        self.follow(leader)
        others = [name for name in self.config.voters if name != leader and name not in self.config.witnesses]
        self.election.heard(self.now_ms, first=others[:1] == [self.me])

    def on_append(self, term: Term, message: Append, entries: list[Entry]) -> Index | None:
        """Append entries of a leader. Returns the index from which the log has changed, or None.

        Raises ProtocolError if the entries do not follow each other, CorruptLog if the leader
        contradicts a committed entry of this copy.
        """
        if not self.observe(term):
            self.say(message.leader, Appended(self.me, False, self.log.last, message.sent_ms))
            return None
        self.hear(message.leader)
        self.time.heard_leader(message.time_ms, message.sure, term, message.behind_ms)
        if self.hollow:  # entries would mix with the rows of the snapshot
            knew, term = self.commit, self.log.term_at(self.commit) or 0
            answer = Appended(self.me, False, knew, message.sent_ms, hint_term=term, hollow=True)
            self.answers.append((message.leader, answer))
            return None
        prev, chain, end = message.prev_index, message.prev_chain, message.prev_index + len(entries)
        for index, entry in enumerate(entries, prev + 1):
            if entry.index != index or not log.chained(chain, entry):
                raise ProtocolError(
                    f"entry {index} from {message.leader} does not continue what was sent with it"
                )
            chain = entry.chain
        changed = None
        if prev >= self.commit:
            if self.log.term_at(prev) != message.prev_term:
                self._reject(message)
                return None
            if self.point(prev).chain != message.prev_chain:
                raise CorruptLog(
                    f"entry {prev} of {self.me} is not that of {message.leader}, in the same term"
                )
            changed = self._add(entries)
        elif end >= self.commit:  # both are committed: a difference means damage
            if entries[self.commit - prev - 1].chain != self.point(self.commit).chain:
                raise CorruptLog(
                    f"{message.leader} contradicts entry {self.commit} of {self.me}, which is committed"
                )
            changed = self._add(entries[self.commit - prev :])
        # The leader has all that this copy has; or it has the entries that came now, and its timer time
        # is not ahead of that by which their records wait.
        if self.log.term == term or changed is not None:
            self.time.settle(term)
        self.commit = max(self.commit, min(message.commit, end))
        self.answers.append((message.leader, Appended(self.me, True, end, message.sent_ms)))
        return changed

    def _reject(self, message: Append) -> None:
        hint = max(self.commit, self.log.below(message.prev_index, message.prev_term))
        term = self.log.term_at(hint) or 0
        answer = Appended(
            follower=self.me,
            ok=False,
            match=hint,
            sent_ms=message.sent_ms,
            rejected=message.prev_index,
            hint_term=term,
        )
        self.answers.append((message.leader, answer))

    def _add(self, entries: list[Entry]) -> Index | None:
        """Add entries; existing ones are skipped, and the log is cut at the first conflict (Raft
        3.5).
        """
        changed: Index | None = None
        for entry in entries:
            mine = self.log.term_at(entry.index)
            if mine is not None and mine != entry.term:
                self._cut(entry.index)
                mine = None
            if mine is None:
                self.log.took(entry)
                self.unsaved.append(entry)
                self._note(entry)
                changed = changed or entry.index
        return changed

    def _cut(self, first: Index) -> None:
        """Remove the log from `first` on, never below the commit index."""
        assert first > self.commit, "what is committed was compared before, and is never replaced"
        before = self.point(first - 1)
        self.unsaved = [entry for entry in self.unsaved if entry.index < first]
        self.cut_from = first if self.cut_from is None else min(first, self.cut_from)
        self.saved = min(self.saved, first - 1)
        self.log.cut(first - 1, before.chain, before.time_ms)
        while self._configs[-1][0] >= first:
            self._configs.pop()
        self._configured()

    def restart(self, index: Index, term: Term, place: LogPoint, config: CopySet) -> bool:
        """Continue behind a snapshot that replaces everything up to `index`.

        Returns False if the log has that entry: the entries behind it stay. True: the caller
        deletes all rows of the log.
        """
        kept = self.log.first - 1 <= index <= self.log.last and self.point(index).chain == place.chain
        if kept:
            self.log.first = index + 1
            self.unsaved = [entry for entry in self.unsaved if entry.index > index]
            self._configs = [(index, config), *((at, value) for at, value in self._configs if at > index)]
        else:
            self.log.restart(index, term, place.chain, place.time_ms)
            self.unsaved, self.cut_from = [], None
            self._configs = [(index, config)]
        self.saved = min(max(self.saved, index), self.log.last)
        self.commit = max(self.commit, index)
        self.hollow = False
        self.time.settle(self.hard.term)
        self._configured()
        return not kept

    # --- storing --------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """True if this copy knows more than its disk: no answer may be sent."""
        return self.hard_changed or self.cut_from is not None or bool(self.unsaved)

    def take_unsaved(self) -> Unsaved:
        """Return the state to write now: rows to cut, entries to append, and a changed term or
        vote.
        """
        taken = Unsaved(self.cut_from, self.unsaved, self.hard if self.hard_changed else None)
        self.unsaved = []
        self.cut_from = None
        self.hard_changed = False
        return taken

    def stored(self) -> None:
        """Everything taken by `take_unsaved` is on disk."""
        self.saved = self.log.last
        if self.role == LEADER:
            if self.sole:
                self.commit = self.saved
            else:
                self._advance()

    def take_answers(self) -> list[tuple[str, Message]]:
        """Return the answers, with this copy's clocks at the time of sending."""
        answers, self.answers = self.answers, []
        return [(to, self.time.stamped(message, self.no_space)) for to, message in answers]

    @property
    def deadline_ms(self) -> int | None:
        """Boot time at which a leader must act without a message."""
        known = self.progress
        if self.role != LEADER or not known:
            return None
        for other in known.values():
            if other.next <= (self.log.last if other.full else self.saved) and other.may_send():
                return self.now_ms
        due_ms = self._beat_ms if self._tell_ms is None else min(self._beat_ms, self._tell_ms)
        return min(due_ms, self._handing_ms) if self.handing else due_ms


def lacks_body(entry: Entry) -> bool:
    """True if the entry's batch is gone, but is needed to apply the entry."""
    if entry.body or not entry.body_crc:
        return False
    return entry.kind != log.PUBLISH or bool(log.parse_publish(entry.payload)[1].columns & PLACED)
