"""A worker's view of the cluster: it sends the messages of its shards to their other copies, and knows the
roster and the leader of each shard."""

from collections.abc import Iterable, Iterator, Sequence

from gossipq import limits
from gossipq.core.copies import Mail, Target, plan, shipment
from gossipq.core.raft import Replication
from gossipq.core.register import ClusterView, check_member
from gossipq.core.shard import Shard
from gossipq.core.storage import Columns, Entry
from gossipq.errors import ProtocolError, UnknownVerb
from gossipq.peer_messages import (
    AccessTold,
    Append,
    Greet,
    Prove,
    Report,
    Snapshot,
    View,
)
from gossipq.types import META_SHARD, ShardId
from gossipq.values import AccessTable, Alarm, AuditRow, Lead, Member, Message, Timing, WorkerStats
from gossipq.verbs import SPEAKERS
from gossipq.wire.frames import Header
from gossipq_node.actors.post import Post
from gossipq_node.ports import Incoming, Mailbox
from gossipq_node.settings import WorkerSettings


class OtherNodes:
    def __init__(self, settings: WorkerSettings, mailbox: Mailbox, columns: Columns) -> None:
        self._settings, self._columns = settings, columns
        self._me = settings.member.copy
        self._heard_ms: dict[str, int] = {}  # copy -> when one of its processes sent a message last
        self._begun_ms: int | None = None  # when this process called `leaderless` first
        self.view = ClusterView(settings.member, settings.version, settings.members)
        self._mailbox, self._post = mailbox, Post(settings, mailbox, self.view.keys_of)
        self.parcels = self._post.parcels  #: messages for the next flush, by address
        self.targets = self._plan()

    # --- knowing --------------------------------------------------------------------------------------------

    def learn(self, said: View, now_ms: int) -> bool:
        """Adopt the roster and the leaders that the frontdoor sent. Return True if the roster changed;
        `targets` then changed too. Raises BadName, BadRequest."""
        for member in said.members:
            check_member(member)
        if said.given_up and said.given_up == self.view.version:
            self.view.give_up(said.version, said.members, now_ms)
            self.targets = self._plan()
            return True
        self.view.follow(said.leads)
        return self._roster(said.version, said.members, now_ms)

    def doubt(self, meta: Shard | None, now_ms: int) -> bool:
        """Once a second, compare the roster in use with the one in this worker's copy of the meta shard.
        Return True if the roster in use was given up, because that copy does not catch up with it."""
        if meta is None or meta.blind:
            return False
        version, members = meta.roster()
        if not version and self._settings.joins:
            return False  # a node that joins has only the roster that its cluster sent
        if not self.view.doubt(version, members, meta.applied, now_ms):
            return False
        self.targets = self._plan()
        return True

    def learn_from(self, shard: Shard) -> tuple[bool, bool]:
        """Adopt the leader, and the roster if it is the meta shard, of a shard of this worker. Return whether
        the leader changed, and whether the roster changed."""
        led = bool(shard.leader) and self.view.follow([Lead(shard.id, shard.term, shard.leader)])
        return led, shard.id == META_SHARD and self._roster(*shard.roster())

    def _roster(self, version: int, members: Iterable[Member], now_ms: int | None = None) -> bool:
        if not self.view.learn(version, members, now_ms):
            return False
        self.targets = self._plan()
        return True

    def _plan(self) -> dict[ShardId, Target]:
        """Return the nodes that should keep each shard; {} while the roster is not known. Also let the
        mailbox admit the members of the roster."""
        view, settings = self.view, self._settings
        self._mailbox.admit(view.members.values())
        return plan(view.members.values(), settings.shards, settings.copies) if view.version else {}

    # --- saying ---------------------------------------------------------------------------------------------

    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None:
        """Send entries to the other copies, before this copy has stored them: they promise nothing about this
        disk, and both disks sync at the same time."""
        for sent in appends:
            append, pieces = shipment.pack(sent)
            self._post.put(sent.to, self.view.peer(sent.to, shard.id), append, shard.id, shard.term, pieces)

    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None:
        for to, message, rows in answers:
            self._post.put(
                to, self.view.peer(to, shard.id), message, shard.id, shard.term, (rows,) if rows else ()
            )

    def tell(self, shard: ShardId, message: Message, term: int) -> None:
        """Send a message to the leader of another shard. It is dropped if the leader is not known; callers
        send it again until they see its effect."""
        leader = self.view.leader(shard)
        if leader == self._me:
            self._post.put(
                leader, self._settings.siblings[shard % len(self._settings.siblings)], message, shard, term
            )
        else:
            self._post.put(leader, self.view.peer(leader, shard), message, shard, term)

    def seek_leaders(self, shards: Iterable[Shard], now_ms: int) -> None:
        """Copies that should not be here and hear no leader ask whether they are still copies. The meta shard
        stays: it is small, and its roster says where the others are."""
        for shard in shards:
            target = self.targets.get(shard.id)
            if target is None or shard.id == META_SHARD or self._me in (*target.voters, *target.learners):
                continue
            if question := shard.stray(now_ms):
                self.tell(shard.id, question, shard.term)

    def leaderless(
        self, shards: Iterable[Shard], stopped: Iterable[ShardId], now_ms: int
    ) -> tuple[list[int], list[str]]:
        """Return the shards whose voting copy here knows no leader, and the copies that are away.

        A copy is away if it is silent, and if it is a voter of a shard that cannot elect a leader without
        it, or the leader of a shard that has stopped here.
        """
        self._begun_ms = now_ms if self._begun_ms is None else self._begun_ms
        without = [shard for shard in shards if not shard.leader and self._me in shard.voters]
        away: set[str] = set()
        for voters in {tuple(shard.voters) for shard in without}:
            silent = [
                copy
                for copy in voters
                if copy != self._me and self._silent_ms(copy, now_ms) >= limits.FRESH_MS
            ]
            if 2 * (len(voters) - len(silent)) <= len(voters):
                away |= set(silent)
        leaders = {self.view.leader(shard) for shard in stopped} - {"", self._me}
        away |= {copy for copy in leaders if self._silent_ms(copy, now_ms) >= limits.FRESH_MS}
        return [shard.id for shard in without], sorted(away)

    def _silent_ms(self, copy: str, now_ms: int) -> int:
        return now_ms - self._heard_ms.get(copy, self._begun_ms or 0)

    def report(
        self,
        stats: WorkerStats,
        shards: Sequence[Shard],
        timings: list[Timing],
        alarms: list[Alarm],
        audit: list[AuditRow],
        now_ms: int,
    ) -> None:
        """Send the state of this worker, the leaders that its shards know, and the roster to the frontdoor.
        The report leaves now."""
        leads = [Lead(shard.id, shard.term, shard.leader) for shard in shards if shard.leader]
        told = (self.view.leads.get(shard) for shard in stats.stopped)  # `overhear` learned it from appends
        leads += [lead for lead in told if lead is not None and lead.copy != self._me]
        copies = [row for shard in shards for row in shard.copies()]
        version, members = self.view.version, list(self.view.roster.values())
        given_up = self.view.given_up(now_ms)
        report = Report(
            stats=stats,
            leads=leads,
            copies=copies,
            version=version,
            members=members,
            timings=timings,
            alarms=alarms,
            given_up=given_up,
            audit=audit,
        )
        self._post.put(self._me, self._settings.frontdoor, report, META_SHARD)
        self._post.flush()

    def tell_access(self, table: AccessTable) -> None:
        """Send the table of users and roles to the other processes of this node."""
        for endpoint in (self._settings.frontdoor, *self._settings.siblings):
            if endpoint != self._settings.siblings[self._settings.worker]:
                self._post.put(self._me, endpoint, AccessTold(table), META_SHARD)

    def flush(self) -> None:
        self._post.flush()

    # --- hearing --------------------------------------------------------------------------------------------

    def open(self, message: Incoming, now_ms: int) -> Iterator[tuple[Header, Message, list[Entry], bytes]]:
        """Yield the messages that another process sent in one bundle. Raises ProtocolError, CorruptLog,
        BadBatch."""
        for sender, header, inner, frame in self._post.open(message, now_ms):
            self._heard_ms[sender] = now_ms
            if isinstance(inner, View | AccessTold) and sender != self._me:
                raise UnknownVerb("a worker hears of the cluster from its own frontdoor")
            self._check_speaker(sender, inner)
            if isinstance(inner, Append):
                yield header, inner, shipment.unpack(inner, frame, self._columns), b""
            else:
                yield header, inner, [], bytes(frame)

    def greeted(self, message: Incoming, said: Greet | Prove, now_ms: int) -> None:
        """Answer a frontdoor that asks for a proof before it forwards clients to this worker."""
        self._post.greeted(message, said, now_ms)

    def overhear(self, header: Header, message: Message) -> None:
        """Note the leader of a shard that has stopped here: it keeps sending appends to this copy."""
        if isinstance(message, Append):
            self.view.follow([Lead(header.shard, header.term, message.leader)])

    def _check_speaker(self, sender: str, message: Message) -> None:
        """Raise ProtocolError if `sender` names another copy in its message, or sends a snapshot and is not
        on the roster."""
        field = SPEAKERS.get(type(message))
        if field is not None and (named := getattr(message, field)) != sender:
            raise ProtocolError(f"{sender} speaks for {named}")
        if isinstance(message, Snapshot) and self.view.version and sender not in self.view.members:
            raise ProtocolError(f"a snapshot of {sender}, which is not on the roster")

    def complain(self, error: str, now_ms: int) -> None:
        """Log a message that cannot be decoded, so its sender is unknown."""
        self._post.say("", "junk", f"cannot be used: {error}", now_ms)
