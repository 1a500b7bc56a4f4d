"""One copy of a shard's log. Raft (Ongaro 2014): votes, append with match check, conflict cut, commit by
majority.

The replica decides; the shard stores. In a turn: messages and `propose` any number of times, then the shard
writes what `take_unsaved` gives into the open transaction, calls `stored` when that is synced, and takes the
answers only then. `outgoing` may be sent before the sync: it promises nothing of this copy. Standing and
voting live in `campaign`.
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
from gossipq.types import DELAY, ID_HASH, Index, Now, Term
from gossipq.values import Message

LEADER, FOLLOWER, CANDIDATE, PRE_CANDIDATE = "leader", "follower", "candidate", "pre-candidate"
ROW_BYTES = 128  #: what an entry costs besides its body
TRANSITIONS = {  #: every change of role, and what makes it; ARCHITECTURE.md draws its picture from here
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
    """Stored before it is spoken of (Raft figure 2, persistent state)."""

    term: Term = 0
    vote: str = ""


class LogPoint(NamedTuple):
    """What must be known of our own entry at some index to continue the log from there."""

    chain: bytes
    time_ms: int


class Rows(Protocol):
    """This copy's log on disk."""

    def point(self, index: Index) -> LogPoint: ...
    def read(self, first: Index, end: Index, bytes_max: int) -> list[Entry]:
        """Entries from `first` on, at least one of those that are there."""


class Replication(NamedTuple):
    """An Append to another copy with its entries. Promises nothing of this copy, so it may leave before the
    sync."""

    to: str
    append: Append
    entries: list[Entry]


class Unsaved(NamedTuple):
    """What this disk does not know yet."""

    cut_from: Index | None  #: log rows to remove first, from there on
    entries: list[Entry]  #: to append then
    hard: HardState | None  #: None: as it was


NOTHING_UNSAVED = Unsaved(None, [], None)


class Replica:
    """Attributes are for reading; what changes them are the messages and the clock."""

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
        """`recent` is this shard's part of what the worker keeps in memory of new entries."""
        self.me, self.hard, self.log = me, hard, state
        self.time = time or ClusterTime(me, "", None)
        self.role, self.leader = FOLLOWER, ""
        self.commit: Index = 0
        self.saved: Index = state.last  #: on this disk
        self.unsaved: list[Entry] = []
        self.cut_from: Index | None = None
        self.hard_changed = False
        self.answers: list[tuple[str, Message]] = []  #: true once everything is stored
        self.progress: dict[str, Progress] = {}
        self.warnings: list[str] = []  #: for whoever looks after the node
        self.election = Election(dice or dice_of(me))
        self.now_ms = 0  #: boot time of this turn
        self.hollow = False  #: a snapshot is being installed: it votes, and does not lead
        self.handing = ""  #: who leadership is being handed to
        self.handed = False  #: and has been told: the lease is over
        self._handing_ms = 0
        self.no_space = False  #: this copy's store takes no publishes; the others are told
        self._rows = rows
        self._configs: list[tuple[Index, CopySet]] = [(0, config)]
        self._configured()
        # filled while there are others to send entries to
        self._recent = recent or Recent(limits.RECENT_BYTES_MAX).shelf()
        self._beat_ms = 0
        self._tell_ms: int | None = None  # when to tell what is committed, if no entry does so before

    def begin(self, now: Now, no_space: bool = False, ahead_ms: int | None = None) -> None:
        """The clocks of this turn, and whether the store of this copy takes publishes;
        `ahead_ms`: what another shard of this process knows of leader time."""
        self.now_ms, self.no_space = now.boot_ms, no_space
        self.time.begin(now)
        if ahead_ms is not None and now.boot_ms + ahead_ms >= self.log.time_ms and not self.time.sure:
            self.time.adopt(
                ahead_ms, self.role == LEADER
            )  # a time before the last entry is known to be wrong
        if self.role == LEADER and not self.time.sure:
            self.time.correct(self.config.voters)  # a copy that is alone hears of nothing but its own clock

    # --- the copies -----------------------------------------------------------------------------------------

    @property
    def config(self) -> CopySet:
        """In force from the moment it is appended, committed or not (R16)."""
        return self._configs[-1][1]

    @property
    def committed_config(self) -> CopySet:
        """The newest one that is committed."""
        return next(config for index, config in reversed(self._configs) if index <= self.commit)

    @property
    def config_index(self) -> Index:
        return self._configs[-1][0]

    def configure(self, index: Index, config: CopySet) -> None:
        """Entry `index` names the copies from here on."""
        while len(self._configs) > 1 and self._configs[1][0] <= self.commit:
            del self._configs[0]
        self._configs.append((index, config))
        self._configured()

    def _configured(self) -> None:
        config = self.config
        self.sole = config.voters == [self.me] and not config.learners  #: what is on this disk is committed
        self.electable = self.me in config.voters and self.me not in config.witnesses  #: and so may lead
        if self.role == LEADER:
            self._follow_members(config)

    def _follow_members(self, config: CopySet) -> None:
        """The leader looks after exactly the others of `config`."""
        others = [name for name in (*config.voters, *config.learners) if name != self.me]
        known = self.progress
        self.progress = {
            name: known.get(name) or Progress(self.log.last + 1, name not in config.witnesses, self.now_ms)
            for name in others
        }

    # --- leading --------------------------------------------------------------------------------------------

    def resume(self, applied: Index, hollow: bool) -> None:
        """Right after opening: what the ledger of this copy has applied is committed. `hollow`: its state is
        not whole."""
        self.commit, self.hollow = applied, hollow

    def at(self, boot_ms: int) -> None:
        """Time has passed within a turn."""
        self.now_ms = boot_ms

    def say(self, to: str, message: Message) -> None:
        """To another copy, as soon as all that this one knows is on its disk."""
        self.answers.append((to, message))

    def enter(self, term: Term, vote: str = "") -> None:
        """The term that this copy is in, and whom it votes for there."""
        self.hard, self.hard_changed = HardState(term, vote), True

    def lose_state(self) -> None:
        """A snapshot comes, or this copy lets go of its rows: from now on it votes by its log and does
        nothing else."""
        self.hollow = True

    def lead(self) -> None:
        """Takes leadership of the next term if this copy alone decides; of the current one if it was elected.
        The caller proposes a NOOP next (R5)."""
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
        """The next entry of the leader's log."""
        state = self.log
        time_ms = max(time_ms, state.time_ms)
        entry = log.seal(state.chain, state.last + 1, self.hard.term, time_ms, kind, payload, body, crc)
        self._take(entry)
        return entry

    def _take(self, entry: Entry) -> None:
        self.log.took(entry)
        self.unsaved.append(entry)
        if entry.kind == log.CONFIG:
            self.configure(entry.index, msgspec.msgpack.decode(entry.payload, type=CopySet))
        if self.progress:
            self._recent.put(entry, len(entry.body) + ROW_BYTES)

    def retract(self, last: Index) -> None:
        """Takes back what this leader has proposed after `last`, and has neither stored nor sent."""
        if self.log.last > last:
            assert last >= self.saved, "what is on disk is not taken back"
            for index in range(last + 1, self.log.last + 1):
                self._recent.pop(index)
            self._cut(last + 1)

    def outgoing(self) -> list[Replication]:
        """What the others should be sent now: entries they lack, a moved commit index, a sign of life."""
        if self.role != LEADER or self.hard_changed or not self.progress:
            return []
        beat = self.now_ms >= self._beat_ms
        if beat:  # all shards of a worker in one turn
            self._beat_ms = (self.now_ms // limits.HEARTBEAT_MS + 1) * limits.HEARTBEAT_MS
        late = self._tell_ms is not None and self.now_ms >= self._tell_ms
        news: list[Replication] = []
        for name, progress in self.progress.items():
            if progress.next < self.log.first and progress.state != SNAPSHOT:
                progress.carry()
            progress.flying &= not beat
            told = beat
            while progress.may_send() and (progress.next <= self.log.last or progress.state == PROBE):
                # nobody answers a probe for long
                append = self._append(name, progress, with_entries=progress.state == STREAM)
                if not append.entries and progress.state == STREAM:
                    break  # they are on their way to our own disk
                news.append(append)
                told = False
            if told or (late and progress.told < self.commit and progress.state == STREAM):
                news.append(self._append(name, progress, with_entries=False))
        behind = any(
            progress.told < self.commit for progress in self.progress.values() if progress.state == STREAM
        )
        self._tell_ms = (None if late else self._tell_ms) or (
            self.now_ms + limits.COMMIT_TOLD_MS if behind else None
        )
        return news

    def _append(self, name: str, progress: Progress, with_entries: bool) -> Replication:
        if progress.state == SNAPSHOT:
            return Replication(
                name, Append(self.me, 0, 0, 0, [], self.now_ms, log.NO_CHAIN, *self.time.told()), []
            )
        entries, size = self._entries(progress.next, progress.full) if with_entries else ([], 0)
        if progress.full and any(lacks_body(entry) for entry in entries):
            progress.carry()
            return self._append(name, progress, with_entries=False)
        if not progress.full:
            entries = [msgspec.structs.replace(entry, body=b"") if entry.body else entry for entry in entries]
        prev = progress.next - 1
        term = self.log.term_at(prev)
        assert term is not None, "nothing beyond the end of the log was sent"
        append = Append(
            self.me, prev, term, self.commit, [], self.now_ms, self.point(prev).chain, *self.time.told()
        )
        if with_entries or progress.state == PROBE:
            progress.sent(prev + 1 + len(entries), size)
        progress.told = self.commit
        return Replication(name, append, entries)

    def _entries(self, first: Index, full: bool) -> tuple[list[Entry], int]:
        """Entries from `first` on, as many as one Append carries, and their size. What is for a witness, and
        what may make the copy unable to lead, is on our own disk before: lost here, it would keep a copy that
        cannot lead from voting for us."""
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
        """Another copy has answered, in this term, what was sent at `sent_ms`; None unless it is one that
        this leader looks after."""
        progress = self.progress.get(name)
        if self.role != LEADER or progress is None:
            return None
        progress.heard(self.now_ms, sent_ms)
        return progress

    def on_appended(self, message: Appended) -> None:
        """An answer of this term."""
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
        """A copy that has lost its state knew this entry to be committed. A leader has all that was committed
        before its term (Raft 3.6.3), and an index and a term name one entry, so it is committed here, too. A
        leader that knows of less and needs that copy for a majority would commit nothing otherwise: the copy
        takes no entries before it has a snapshot, and no snapshot of less than it knew."""
        if self.commit < index <= self.saved and self.log.term_at(index) == term < self.hard.term:
            self.commit = index

    def _advance(self) -> None:
        """Commits what a majority has on disk, and two full copies while another one keeps up (R7, R8), if it
        is of this term (Raft 3.6.2)."""
        if self.commit >= self.saved:
            return  # what is applied here is read from this disk
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
        """How many full copies have an entry on disk, as far as the leader knows."""
        own = int(self.saved >= index)
        if not self.progress:
            return own
        return own + sum([other.full and other.match >= index for other in self.progress.values()])

    def hears(self, name: str) -> bool:
        """Whether another copy answers this leader: not something that was long on its way."""
        other = self.progress.get(name)
        return other is not None and other.match > 0 and self.now_ms < other.acked_ms + limits.ELECTION_MS

    def _majority_ms(self, times: dict[str, int]) -> int:
        """The time that a majority of the voters has reached; this copy is always at now."""
        reached = sorted([self.now_ms if name == self.me else times[name] for name in self.config.voters])
        return reached[len(reached) - voters.quorum_size(self.config.voters)]

    @property
    def holds_lease(self) -> bool:
        """Whether nobody else can have been elected: records may be handed out, questions answered (R11)."""
        if self.sole or self.role != LEADER:
            return self.role == LEADER
        if self.handed:
            return False
        acked = {name: other.acked_ms for name, other in self.progress.items()}
        return self.now_ms < self._majority_ms(acked) + limits.LEADER_LEASE_MS

    def keep_leading(self) -> None:
        """Time passes for a leader: copies fall silent, a majority may (check-quorum), a hand-over may
        fail."""
        for other in self.progress.values():
            other.judge(self.saved, self.now_ms)
        heard = {name: other.heard_ms for name, other in self.progress.items()}
        if self.now_ms >= self._majority_ms(heard) + limits.ELECTION_MS:
            self.follow("")
            return
        self._advance()

    def hand_over(self, to: str) -> None:
        """Leadership goes to `to` as soon as it has everything; nothing new is taken meanwhile."""
        self.handing, self.handed, self._handing_ms = to, False, self.now_ms + limits.TRANSFER_READY_MS
        self._hand_over()

    def _hand_over(self) -> None:
        if self.handing and not self.handed and self.progress[self.handing].match == self.log.last:
            self.handed, self._handing_ms = True, self.now_ms + limits.TRANSFER_MS
            self.answers.append((self.handing, TimeoutNow(self.me)))

    def handing_failed(self) -> bool:
        """The hand-over took too long. True: the other was told, so that only a new term makes sure that it
        is not elected."""
        if not self.handing or (self.now_ms < self._handing_ms and self.handing in self.progress):
            return False
        self.handing = ""
        return self.handed

    # --- following ------------------------------------------------------------------------------------------

    def check_term(self, term: Term) -> None:
        """Raises ProtocolError for one that no election can have reached: if it were taken over, terms could
        be used up. A copy that has no term yet takes that of its cluster."""
        if self.hard.term and term > self.hard.term + limits.TERM_LEAP_MAX:
            raise ProtocolError(
                f"term {term} is too far from the term {self.hard.term} of {self.me}: it is not taken over"
            )

    def observe(self, term: Term) -> bool:
        """A peer speaks in `term`; False when that is the past (R1). Raises ProtocolError, see
        `check_term`."""
        self.check_term(term)
        if term > self.hard.term:
            self.enter(term)
            self.answers.clear()  # said in a term that is over
            self.follow("")
        return term == self.hard.term

    def follow(self, leader: str) -> None:
        """Somebody else leads, or nobody is known to."""
        if self.role == LEADER:
            self.election.voted(self.now_ms)
        self._become(FOLLOWER, leader)

    def stand(self, role: str) -> None:
        """A campaign begins."""
        self._become(role, "")
        self.answers.clear()

    def _become(self, role: str, leader: str) -> None:
        assert role == self.role or (self.role, role) in TRANSITIONS, f"{self.role} to {role}"
        if self.role != FOLLOWER and role != LEADER:
            self.answers.clear()  # what a leader or candidate had to say
            self.progress = {}
            self._recent.clear()
        if role == FOLLOWER:
            self.time.follow()
        self.role, self.leader, self.handing = role, leader, ""

    def hear(self, leader: str) -> None:
        """A sign of life of the leader of this term."""
        if self.role == LEADER:
            raise ProtocolError(f"{leader} leads a term of {self.me}")
        if self.leader not in ("", leader):
            raise ProtocolError(f"{leader} leads a term of {self.leader}")
        self.follow(leader)
        others = [name for name in self.config.voters if name != leader and name not in self.config.witnesses]
        self.election.heard(self.now_ms, first=others[:1] == [self.me])

    def on_append(self, term: Term, message: Append, entries: list[Entry]) -> Index | None:
        """Returns the index from which on the log has changed. Raises ProtocolError when the entries do not
        hold together, CorruptLog when the leader contradicts what this copy has."""
        if not self.observe(term):
            self.say(message.leader, Appended(self.me, False, self.log.last, message.sent_ms))
            return None
        self.hear(message.leader)
        self.time.heard_leader(message.time_ms, message.sure)
        if self.hollow:  # entries would mix with what the snapshot brings
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
        elif end >= self.commit:  # what is committed is equal, or one of both is damaged
            if entries[self.commit - prev - 1].chain != self.point(self.commit).chain:
                raise CorruptLog(
                    f"{message.leader} contradicts entry {self.commit} of {self.me}, which is committed"
                )
            changed = self._add(entries[self.commit - prev :])
        self.commit = max(self.commit, min(message.commit, end))
        self.answers.append((message.leader, Appended(self.me, True, end, message.sent_ms)))
        return changed

    def _reject(self, message: Append) -> None:
        hint = max(self.commit, self.log.below(message.prev_index, message.prev_term))
        term = self.log.term_at(hint) or 0
        answer = Appended(self.me, False, hint, message.sent_ms, message.prev_index, term)
        self.answers.append((message.leader, answer))

    def _add(self, entries: list[Entry]) -> Index | None:
        """Entries that continue what is here, or are here already; from the first conflict on, what is here
        goes (R6)."""
        changed: Index | None = None
        for entry in entries:
            mine = self.log.term_at(entry.index)
            if mine is not None and mine != entry.term:
                self._cut(entry.index)
                mine = None
            if mine is None:
                self._take(entry)
                changed = changed or entry.index
        return changed

    def _cut(self, first: Index) -> None:
        """Removes the log from `first` on: the first conflict, never the commit mark (R6)."""
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
        """A snapshot stands for everything up to `index`, and the state is whole. False: the log had that
        entry, and what follows it stays. True: the caller removes all rows of the log."""
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
        self._configured()
        return not kept

    # --- storing --------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether the disk does not know yet what this copy knows: no answer may leave."""
        return self.hard_changed or self.cut_from is not None or bool(self.unsaved)

    def take_unsaved(self) -> Unsaved:
        """What must be written now: rows to cut first, then rows to add, and term and vote if they
        changed."""
        taken = Unsaved(self.cut_from, self.unsaved, self.hard if self.hard_changed else None)
        self.unsaved, self.cut_from, self.hard_changed = [], None, False
        return taken

    def stored(self) -> None:
        """All that was taken is on disk now."""
        self.saved = self.log.last
        if self.role == LEADER:
            if self.sole:
                self.commit = self.saved
            else:
                self._advance()

    def take_answers(self) -> list[tuple[str, Message]]:
        """Each with this copy's clocks as they are when it leaves."""
        answers, self.answers = self.answers, []
        return [(to, self.time.stamped(message, self.no_space)) for to, message in answers]

    @property
    def deadline_ms(self) -> int | None:
        """When a leader has something to say or to find out, though nothing arrives."""
        known = self.progress
        if self.role != LEADER or not known:
            return None
        for other in known.values():
            if other.next <= (self.log.last if other.full else self.saved) and other.may_send():
                return self.now_ms
        due = [self._beat_ms, self._tell_ms, self._handing_ms if self.handing else None]
        return min([at for at in due if at is not None])


def lacks_body(entry: Entry) -> bool:
    """Whether the batch that it came with is gone, and applying it asks for that batch."""
    if entry.body or not entry.body_crc:
        return False
    return entry.kind != log.PUBLISH or bool(log.parse_publish(entry.payload)[1].columns & (DELAY | ID_HASH))
