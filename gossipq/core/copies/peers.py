"""A copy among the copies of its shard: applies the replica's decisions to this copy's tables.

A copy that was removed from its shard asks the leader after 30 s of silence (STRAY). If the answer
is no, it becomes hollow in one transaction, and deletes its state in small pieces. Term, vote and
log stay, so it keeps its promises as a voter. It comes back only through a snapshot.
"""

from collections.abc import Sequence
from itertools import islice

import msgspec

from gossipq import limits
from gossipq.core.copies.backups import Backups, OpenPoint
from gossipq.core.copies.mail import Mail
from gossipq.core.copies.snapshot import Receiving, Sending, wipe
from gossipq.core.desk import Asker
from gossipq.core.ledger import Ledger, records
from gossipq.core.raft import (
    LEADER,
    SNAPSHOT,
    ClockRow,
    ClusterTime,
    Dice,
    HardState,
    LogPoint,
    Progress,
    Replica,
    Unsaved,
    campaign,
    voters,
)
from gossipq.core.storage import Bodies, CopySet, Entry, LogState, ShardSettings, Tables, log
from gossipq.errors import BadRequest, Busy, CorruptLog, ProtocolError
from gossipq.export_messages import BackedUp
from gossipq.peer_messages import (
    ChangeVoters,
    Dismiss,
    Installed,
    Snapshot,
    Stray,
)
from gossipq.types import Index, Term
from gossipq.values import Message

READ_ROWS_MAX = 1_024  #: entries in one Append
_pack = log.INDEX_KEY.pack
_unpack = log.INDEX_KEY.unpack


class Peers:
    """`term` of a message is the one in its header: the sender's own."""

    def __init__(
        self,
        shard: int,
        settings: ShardSettings,
        tables: Tables,
        bodies: Bodies,
        ledger: Ledger,
        dice: Dice | None,
    ) -> None:
        """Open the log. Raises CorruptLog."""
        self._shard = shard
        self._tables = tables
        self._bodies = bodies
        self.ledger = ledger
        meta, me, alone = ledger.meta, settings.me, settings.alone(ledger.meta.voters)
        self._witness, self._stray_ms = settings.witness, settings.stray_ms
        state = LogState.load(tables.log, meta.log_first, meta.chain, meta.epochs)
        # after a snapshot the log is empty, and only the meta row has its time
        state.time_ms = max(state.time_ms, meta.time_ms)
        if ledger.applied > state.last:
            raise CorruptLog(
                f"shard {shard}: entry {ledger.applied} was applied, and the log ends at {state.last}"
            )
        row = tables.state.get(records.HARD)
        hard = msgspec.msgpack.decode(row, type=HardState) if row else HardState()
        config = CopySet([me]) if alone else CopySet(meta.voters, meta.witnesses, meta.learners)
        row = tables.state.get(records.CLOCK)
        time = ClusterTime(me, settings.boot, msgspec.msgpack.decode(row, type=ClockRow) if row else None)
        self.replica = Replica(me, config, hard, state, self, dice, time, bodies.recent.shelf())
        self.replica.resume(ledger.applied, tables.state.get(records.INSTALLING) is not None)
        self._receiving: Receiving | None = None
        self.copying: dict[str, Sending] = {}
        self.backups = Backups()
        self._asked_ms = 0  # time of this copy's last STRAY
        #: True if this is no copy any more: each write deletes some of its rows
        self.emptying = False
        if not alone:
            for entry in self.after(ledger.applied):
                # the newest configuration in the log counts, committed or not (Raft thesis 4.1)
                if entry.kind == log.CONFIG:
                    self.replica.configure(entry.index, log.message_of(entry))

    # --- the log on disk ------------------------------------------------------------------------------------

    def read(self, first: Index, end: Index, bytes_max: int, rows_max: int = READ_ROWS_MAX) -> list[Entry]:
        """Return entries from `first` on, until one of these bounds is exceeded."""
        entries, size = [], 0
        for key, row in self._tables.log.scan(_pack(first), _pack(end)):
            entries.append(log.decode_row(_unpack(key)[0], row, self._tables.body.get(key) or b""))
            size += len(entries[-1].body) + len(row)
            if size >= bytes_max or len(entries) >= rows_max:
                break
        return entries

    def after(self, index: Index) -> list[Entry]:
        """Return all entries after `index`, also unwritten ones."""
        stored = self.read(index + 1, self.replica.saved + 1, 2**62, 2**62)
        return stored + [entry for entry in self.replica.unsaved if entry.index > index]

    def point(self, index: Index) -> LogPoint:
        """Return the point of an entry at `log.first - 1` or later. Raises CorruptLog."""
        if index < self.replica.log.first:
            return LogPoint(self.ledger.meta.chain, self.ledger.meta.time_ms)
        row = self._tables.log.get(_pack(index))
        if row is None:
            raise CorruptLog(f"shard {self._shard}: entry {index} is missing")
        entry = log.decode_row(index, row)
        return LogPoint(entry.chain, entry.time_ms)

    # --- messages -------------------------------------------------------------------------------------------

    def step(self, term: Term, message: Message, entries: Sequence[Entry], rows: bytes) -> Index | None:
        """Handle a message of another copy. Returns the index from which the log has changed, or
        None.

        Raises ProtocolError, CorruptLog.
        """
        replica = self.replica
        if isinstance(message, campaign.Consensus):
            return campaign.step(replica, term, message, entries)
        if isinstance(message, Snapshot):
            return self._on_snapshot(term, message, rows)
        if isinstance(message, Stray):
            self._on_stray(message)
        elif isinstance(message, Dismiss):
            return self._on_dismiss(term, message)
        elif isinstance(message, Installed) and replica.observe(term):
            self._on_installed(message)
        return None

    def _on_snapshot(self, term: Term, message: Snapshot, rows: bytes) -> Index | None:
        """Store one part. Returns 0 with the first and the last one: the ledger must be
        reopened.
        """
        replica = self.replica
        if not replica.observe(term):
            replica.say(message.leader, Installed(replica.me, message.index, 0, sent_ms=message.sent_ms))
            return None
        self._check_snapshot(term, message)
        replica.hear(message.leader)
        name = term, message.index, message.spooled_ms
        done = message.index <= replica.commit and not replica.hollow
        complete = begun = False
        if not done:
            if message.number == 0 and (self._receiving is None or self._receiving.name != name):
                self._receiving = Receiving(name)
                self.emptying = False
                begun = True
                replica.lose_state()
                self._tables.state.put(records.INSTALLING, _pack(message.index))
            receiving = self._receiving
            if receiving is not None and receiving.name == name and receiving.number == message.number:
                complete = receiving.take(message, rows, self._tables) and message.kind == "end"
        if complete:
            self._complete(message)
        number = self._receiving.number if self._receiving is not None and self._receiving.name == name else 0
        answer = Installed(replica.me, message.index, number, done or complete, message.sent_ms)
        replica.say(message.leader, answer)
        if complete:
            self._receiving = None
        return 0 if complete or begun else None

    def _check_snapshot(self, term: Term, message: Snapshot) -> None:
        """Raise ProtocolError for a snapshot that no leader of this term can have made.

        Raise CorruptLog if it contradicts a committed entry: the copy stops instead of losing that
        entry. The leader need not be a voter in the snapshot, because the entry that made it one
        may come later.
        """
        replica = self.replica
        if message.leader in message.witnesses or not 0 < message.term <= term:
            raise ProtocolError(
                f"a snapshot of term {message.term} by {message.leader}, which is no leader in it"
            )
        known = not replica.hollow and replica.log.first - 1 <= message.index <= replica.commit
        if known and replica.point(message.index).chain != message.chain:
            raise CorruptLog(
                f"the snapshot of {message.leader} contradicts entry {message.index}, which is committed here"
            )

    def _complete(self, message: Snapshot) -> None:
        """All parts have arrived: they are the state now, and the log continues behind them."""
        replica, tables = self.replica, self._tables
        index, place = message.index, LogPoint(message.chain, message.time_ms)
        config = CopySet(message.voters, message.witnesses, message.learners)
        if replica.restart(index, message.term, place, config):
            tables.log.delete_range(b"", b"\xff" * 8, 2**31)
            tables.body.delete_range(_pack(index + 1), b"\xff" * 8, 2**31)
        else:
            tables.log.delete_range(b"", _pack(index + 1), 2**31)
            # rows of an earlier, incomplete snapshot
            tables.body.delete_range(_pack(replica.saved + 1), b"\xff" * 8, 2**31)
        self._bodies.drop(self._shard)
        meta = records.Meta(index, place.time_ms, index + 1, [(message.term, index)], place.chain)
        meta.voters = config.voters
        meta.witnesses = config.witnesses
        meta.learners = config.learners
        tables.state.put(records.META, records.encode(meta))
        tables.state.delete(records.INSTALLING)

    def _on_installed(self, message: Installed) -> None:
        replica, name = self.replica, message.follower
        progress, sending = replica.heard_copy(name, message.sent_ms), self.copying.get(name)
        if progress is None or sending is None or progress.state != SNAPSHOT:
            return
        if message.done and message.index == sending.index:
            self._end_sending(name)
            progress.carried(message.index, self.replica.now_ms)
        elif not sending.answered(message, replica.now_ms):
            self._end_sending(name)

    def _end_sending(self, name: str) -> None:
        self.copying.pop(name).close()

    # --- removed copies -------------------------------------------------------------------------

    def stray(self, now_ms: int) -> Stray | None:
        """Return a STRAY if this copy has rows and has not heard a leader for long, else None."""
        replica, heard_ms = self.replica, self.replica.election.heard_ms
        silent = heard_ms is not None and now_ms >= max(heard_ms, self._asked_ms) + self._stray_ms
        if not silent or replica.role == LEADER or self._witness or self.emptying or not self._has_rows():
            return None
        self._asked_ms = now_ms
        return Stray(replica.me, now_ms)

    def _has_rows(self) -> bool:
        """True if `empty` has something to delete."""
        rows = islice(self._tables.state.scan(b"", b"\xff" * 8), len(records.OWN_ROWS) + 1)
        bodies = self._tables.body.scan(b"", _pack(self.ledger.applied + 1))
        return any(key not in records.OWN_ROWS for key, _ in rows) or next(bodies, None) is not None

    def _on_stray(self, message: Stray) -> None:
        """Answer a copy that asks whether it is still one.

        Only a leader that applied an entry of its own term, and holds its lease, knows the
        committed configuration.
        """
        replica, applied = self.replica, self.ledger.applied
        if (
            replica.role != LEADER
            or not replica.holds_lease
            or replica.log.term_at(applied) != replica.hard.term
        ):
            return
        config = replica.config
        if replica.config_index <= applied and message.copy not in (*config.voters, *config.learners):
            replica.say(message.copy, Dismiss(replica.me, message.sent_ms))

    def _on_dismiss(self, term: Term, message: Dismiss) -> Index | None:
        """Begin to delete this copy's rows, because its leader says that it is not a copy.

        It keeps term, vote and log, so its promises as a voter stay valid. It returns only by a
        snapshot. If it heard a leader since its STRAY, it may be a copy again, and the answer is
        ignored.
        """
        replica, heard_ms = self.replica, self.replica.election.heard_ms
        if (
            message.sent_ms != self._asked_ms
            or heard_ms is None
            or heard_ms >= self._asked_ms
            or not replica.observe(term)
        ):
            return None
        replica.hear(message.leader)
        self.emptying = True
        replica.lose_state()
        self._receiving = None
        self._tables.state.put(records.INSTALLING, _pack(0))
        self._bodies.drop(self._shard)
        return 0

    def _empty(self) -> None:
        """Delete some rows that a snapshot would replace. Batches of unapplied entries stay."""
        count = wipe(self._tables.state, limits.STRAY_ROWS)
        low, end = b"", _pack(self.ledger.applied + 1)
        count += self._tables.body.delete_range(low, end, limits.STRAY_ROWS - count)
        self.emptying = count == limits.STRAY_ROWS

    # --- what is sent ---------------------------------------------------------------------------------------

    @property
    def sending(self) -> bool:
        """True if a snapshot or a backup is being sent: they still read batches."""
        return bool(self.copying) or self.backups.point is not None

    @property
    def copied(self) -> bool:
        """True if a snapshot is being sent."""
        return bool(self.copying)

    @property
    def wants_spool(self) -> bool:
        """True if a snapshot or backup should begin at the next commit, which flushes the
        ledger.
        """
        if self.backups.askers:
            return True
        for name, other in self.replica.progress.items():
            if other.state == SNAPSHOT and self._wants(name, other):
                return True
        return False

    def _wants(self, name: str, progress: Progress) -> bool:
        """True if a copy waits for a snapshot and answers.

        A snapshot older than its known commit index would not help: the copy would lose entries
        that it has acknowledged.
        """
        if progress.state != SNAPSHOT or name in self.copying:
            return False
        replica, index = self.replica, self.ledger.applied
        hears = replica.now_ms < progress.heard_ms + limits.ELECTION_MS
        return hears and max(1, progress.knew) <= index and replica.log.term_at(index) is not None

    def spool(self) -> Sequence[tuple[Asker, BackedUp]]:
        """Begin snapshots and points, right after the commit that flushed the ledger.

        Returns the answers about a new point of a backup.
        """
        replica, index = self.replica, self.ledger.applied
        meta = self.ledger.meta
        config = CopySet(meta.voters, meta.witnesses, meta.learners)
        for name, progress in replica.progress.items():
            if self._wants(name, progress):
                place, term = replica.point(index), replica.log.term_at(index)
                assert term is not None, "a copy waits for what the log can name"
                self.copying[name] = Sending(
                    replica.me, index, term, place, config, self._tables, progress.full, replica.now_ms
                )
        term = replica.log.term_at(index)
        if not self.backups.askers or term is None:
            return ()
        place, left_over, tables = replica.point(index), self.ledger.left_over, self._tables
        point = OpenPoint(index, term, place, tables.state.reader(), tables.body, replica.now_ms, left_over)
        return self.backups.begin(point)

    def mail(self) -> list[Mail]:
        """Return answers, if everything is on disk, and parts of snapshots."""
        replica = self.replica
        if not replica.answers and not self.copying:
            return []
        mail = [] if replica.dirty else [Mail(to, message) for to, message in replica.take_answers()]
        progress = replica.progress
        for name, sending in list(self.copying.items()):
            other = progress.get(name)
            if other is None or other.state != SNAPSHOT or replica.now_ms >= other.heard_ms + self._stray_ms:
                self._end_sending(name)  # a copy that comes back after this time gets a newer one
            elif part := sending.due(replica.now_ms):
                message, rows = part
                mail.append(Mail(name, message, rows))
        return mail

    def deadline_ms(self) -> int | None:
        due_ms = campaign.deadline_ms(self.replica)
        if not self.copying:
            return due_ms
        due = [
            due_ms,
            *(sending.deadline_ms for sending in self.copying.values()),
        ]
        return min([at for at in due if at is not None], default=None)

    def keep_from(self) -> Index:
        """Return the first log row that a copy which is behind still needs."""
        copies = self.replica.progress.items()
        return min([self._needs(name, progress) for name, progress in copies], default=2**63)

    def _needs(self, name: str, progress: Progress) -> Index:
        """Return the first row that a copy needs.

        A copy with a running or just installed snapshot needs everything since, or it would need
        another snapshot.
        """
        replica = self.replica
        if name in self.copying:
            return self.copying[name].index + 1
        comes_in = (
            progress.match > 0
            and not progress.synced
            and replica.now_ms < progress.heard_ms + limits.ELECTION_MS
        )
        return (
            progress.match + 1
            if comes_in
            else max(progress.match + 1, replica.log.last - limits.LOG_LAG_ROWS)
        )

    # --- storing --------------------------------------------------------------------------------------------

    def write(self, unsaved: Unsaved) -> None:
        """Write new entries, term and vote into the open transaction."""
        if unsaved.hard is not None:
            self._tables.state.put(records.HARD, records.encode(unsaved.hard))
        if (mark := self.replica.time.mark()) is not None:
            self._tables.state.put(records.CLOCK, records.encode(mark))
        if unsaved.cut_from is not None:
            low = _pack(unsaved.cut_from)
            for table in (self._tables.log, self._tables.body):
                table.delete_range(low, b"\xff" * 8, 2**31)
        if unsaved.entries:
            self._append(unsaved.entries)
        if self.emptying:
            self._empty()

    def _append(self, entries: list[Entry]) -> None:
        self._tables.log.append_many(log.encode_rows(entries))
        keys, bodies = [], []
        for entry in entries:
            if entry.body:
                keys.append((_pack(entry.index), entry.body))
                bodies.append((entry.index, entry.body))
        if bodies and not self._witness:
            self._tables.body.append_many(keys)
            self._bodies.put(self._shard, bodies)

    def reset(self) -> None:
        """This copy lost leadership."""
        for name in list(self.copying):
            self._end_sending(name)

    # --- voters ---------------------------------------------------------------------------------------------

    def check_change(self, message: ChangeVoters) -> CopySet:
        """Return the configuration for the next CONFIG entry. Raises Busy, BadRequest.

        The leader serves, so an entry of its term is committed (Raft 4.1). An uncommitted change
        may be reverted, because the quorums of the voters before it meet its own.
        """
        replica = self.replica
        config = CopySet(message.voters, message.witnesses, message.learners)
        if replica.config_index > replica.commit and set(config.voters) != set(
            replica.committed_config.voters
        ):
            raise Busy("another change of the copies is under way", retry_after_ms=limits.HEARTBEAT_MS)
        voters.check_change(replica.config, config)
        if replica.me not in config.voters:
            raise BadRequest(f"{replica.me} leads and cannot leave", hint="hand leadership over first")
        alive = [name for name in config.voters if name == replica.me or replica.hears(name)]
        if len(alive) < voters.quorum_size(config.voters):
            raise Busy(f"only {len(alive)} of the new voters answer", retry_after_ms=limits.HEARTBEAT_MS)
        for name in set(config.voters) - set(replica.config.voters):
            progress = replica.progress.get(name)
            if name not in config.witnesses and (progress is None or not progress.synced):
                raise Busy(f"{name} is not caught up", retry_after_ms=limits.HEARTBEAT_MS)

        return config

    def check_hand_over(self, to: str) -> None:
        """Raise Busy or BadRequest if leadership cannot be handed over to `to` now."""
        replica = self.replica
        progress = replica.progress.get(to)
        if replica.config_index > replica.commit:
            raise Busy("a change of the copies is under way", retry_after_ms=limits.HEARTBEAT_MS)
        if progress is None or to not in replica.config.voters or not progress.full:
            raise BadRequest(f"{to} cannot lead", hint="name a voter with records")
        if not progress.synced:
            raise Busy(f"{to} is not caught up", retry_after_ms=limits.HEARTBEAT_MS)

    def hand_over(self, to: str) -> None:
        """Hand leadership over to `to`. Raises as `check_hand_over`."""
        self.check_hand_over(to)
        self.replica.hand_over(to)
