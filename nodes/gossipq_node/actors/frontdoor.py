"""The frontdoor: tells clients where the leaders are, forwards for those that know only this address, and
answers status.

Forwarding looks at the fixed header alone and keeps no state. What it knows of the cluster comes from the
reports of its own workers, from the other frontdoors, and from the supervisor; it shares it with both as it
changes.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import structs

from gossipq import __version__, limits
from gossipq.core.effects import INTERNAL, INTERNAL_HINT, refusal
from gossipq.core.register import ClusterView, check_member
from gossipq.errors import (
    BadRequest,
    Busy,
    Forbidden,
    GossipqError,
    Internal,
    NoSession,
    ProtocolError,
    UnknownVerb,
)
from gossipq.messages import (
    Bye,
    Challenge,
    Entrust,
    Hello,
    Join,
    Ping,
    Pong,
    RefusedMessage,
    Status,
    StatusReply,
    Welcome,
    WhoAmI,
)
from gossipq.operator_messages import Alarms, ConfigShown, ListAlarms, ShowConfig
from gossipq.peer_messages import AccessTold, Append, Report
from gossipq.peer_messages import View as Said
from gossipq.permissions import Rights
from gossipq.rates import SETTLES, Rates
from gossipq.types import META_SHARD, NODE_SHARD, Now, Origin, ShardId
from gossipq.values import AccessTable, CopyStats, Member, Message, WorkerStats
from gossipq.wire.frames import Header, decode, encode, peek
from gossipq_node.actors.admission import Admission
from gossipq_node.actors.board import Board, Facts
from gossipq_node.actors.discovery import Discovery
from gossipq_node.actors.faults import Faults
from gossipq_node.actors.guard import Guard
from gossipq_node.actors.oversight import Oversight
from gossipq_node.actors.post import Post
from gossipq_node.ports import DIRECT_ORIGIN_PARTS, Incoming, Mailbox, Measure, Membership, Use
from gossipq_node.settings import FrontdoorSettings, WorkerState, welcome

LOOK_MS = 1_000  #: between two looks at the node
RETRY_MS = 100  #: what a client is told to wait while a worker is away
SHARE_MS = 100  #: news that come together are shared together
ALONE_MS = 2 * limits.VIEW_AGAIN_MS  #: who hears no other node for so long asks whether it is one still
ANNOUNCE_MS = 1_000  #: between two words to a meta leader that does not have this node in its roster
REMOVED = "this node was taken off the roster: stop it; with an empty data directory it may join again"
SETTLING = frozenset(each.verb for each in SETTLES)
_LOST = encode(Bye(lost=True))
SERVING = ("ready", "full")  #: states in which a worker leads its shards

log = logging.getLogger(__name__)


class Keeping(NamedTuple):
    """Puts what the next start should know where it finds it."""

    roster: Callable[[int, list[Member]], None] = lambda version, members: None
    access: Callable[[AccessTable], None] = lambda table: None


NOTHING_KEPT = Keeping()


class Switchboard(Mailbox, Protocol):
    """A mailbox that can speak for a client."""

    def forward(self, connection: Origin, message: Incoming) -> bool:
        """Sends on in the client's name, over the connection on which an answer came. The answers go straight
        to the client, past this actor. False: the connection has ended."""


class Frontdoor:
    """Stateless for clients. Looks at the node once a second, and puts what it sees on its board."""

    def __init__(
        self,
        settings: FrontdoorSettings,
        mailbox: Switchboard,
        now: Now,
        keep: Keeping = NOTHING_KEPT,
        membership: Membership | None = None,
        measure: Measure = Use,
    ) -> None:
        self._settings, self._mailbox, self._started_ms, self._keep = settings, mailbox, now.boot_ms, keep
        self._measure, self._use = measure, Use()
        self._me = settings.member.copy
        self._view = ClusterView(settings.member, settings.version, settings.members)
        mailbox.admit(self._view.members.values())
        self._post = Post(settings, mailbox, self._view.keys_of)
        self._discovery = Discovery(membership, settings.cluster, settings.member, now)
        self._admission = Admission(settings, mailbox, now)
        self.board = Board(now.boot_ms)
        self._oversight = Oversight(settings.node, len(settings.forwards), settings.warnings, now)
        self._stats: dict[int, WorkerStats] = {}  #: last report of each worker
        self._copies: dict[int, list[CopyStats]] = {}  #: the same
        self._states: dict[int, WorkerState] = {}
        self._reached: set[int] = set()  #: workers that have proven themselves since they started
        self.ready = (
            False  #: every worker serves, has proven itself, and no other node is said to be this one
        )
        self._served = False  #: it was ready once
        #: when to share news, and when to say all again
        self._share_ms = self._again_ms = now.boot_ms + SHARE_MS
        self._listed = settings.version > 0  #: this node has been on the roster
        self._own_news = False  #: that only this node can tell the others
        self._moves = 0  #: shards that got another leader, since the start
        self._announce_ms = now.boot_ms
        self._heard_ms = now.boot_ms  #: when another node said something
        #: workers of other nodes, by copy and address: when something was forwarded there last
        self._remote: dict[tuple[str, str], int] = {}
        self.bad_messages = 0
        self._faults, self._rates = Faults("frontdoor"), Rates(settings.quota)
        self._user_rates = Rates(settings.quota, "user")
        self._guard = Guard(settings.access, settings.token, settings.clients_bind, settings.clear_tokens)
        self._greeted: dict[Origin, Rights | None] = {}  #: who greeted here, while the cluster is closed

    def next_deadline_ms(self) -> int | None:
        due = [self._share_ms, self.board.turned_ms + LOOK_MS, self._discovery.next_deadline_ms()]
        if not self._announced:
            due.append(self._announce_ms)
        due.append(self._admission.next_deadline_ms(self._view.roster.values()))
        return min(at for at in due if at is not None)

    def _serves(self) -> bool:
        """Whether every worker has said that it serves, and has proven itself. Who reports is greeted."""
        forwards = self._settings.forwards
        proven = {worker for worker in self._stats if self._post.connection(self._me, forwards[worker])}
        if not proven <= self._reached:
            self._reached |= proven
            self.board.outdate()
        return len(proven) == len(forwards) and all(s.state in SERVING for s in self._stats.values())

    def set_states(self, states: Sequence[WorkerState]) -> None:
        """What the supervisor sees of the worker processes. Reports of an earlier process are forgotten."""
        self._states = {state.worker: state for state in states}
        for worker, stats in list(self._stats.items()):
            state = self._states.get(worker)
            if state is None or not state.running or state.pid != stats.pid:
                del self._stats[worker]
                self._reached.discard(worker)
                self._copies.pop(worker, None)

    def turn(self, arrived: list[Incoming], now: Now) -> None:
        """Raises NotAdmitted when the cluster does not have this node as it is: then the node ends."""
        for message in arrived:
            header = None
            try:
                if self._mailbox.from_peer(message.origin):
                    self._hear(message, now)
                    continue
                header = peek(message.control)
                if (
                    self._mailbox.answerer(message.origin)
                    and header.verb == Challenge.verb
                    and not header.request_id
                ):
                    self._hear(message, now)  # of a process that was written to by `post`
                    continue
                if self._admission.hears(header.request_id, message, now):
                    continue
                self._check_rates(message, header, now)
                if header.shard == NODE_SHARD:
                    self._serve(message, header, now)
                else:
                    if header.verb == Hello.verb and self._guard.closed:
                        self._greet(message, now)  # a worker takes what is forwarded for words of this host
                    self._forward(message, header, now)
            except GossipqError as error:
                self.bad_messages += 1
                if header is not None or not self._mailbox.from_peer(message.origin):
                    said = refusal(error)
                    self._refuse(message, header, structs.replace(said, hint=said.hint or "see PROTOCOL.md"))
            except Exception as error:
                self._faults.met("a message", None, error)
                if not self._mailbox.from_peer(message.origin):
                    self._refuse(message, header, RefusedMessage(Internal.code, INTERNAL, INTERNAL_HINT))
        for origin in self._mailbox.gone():
            self._greeted.pop(origin, None)
            self._tell_lost(origin, now)
        serves = self._serves()
        self.ready = serves and self._admission.vouched(now)
        if serves and not self._served:  # the workers know each other's shards before anybody is told so
            self._served, self._share_ms = True, now.boot_ms
        if now.boot_ms >= self._share_ms:
            self._share(now)
        if not self._announced and now.boot_ms >= self._announce_ms:
            self._announce(now)
        alone = now.boot_ms >= self._heard_ms + ALONE_MS
        self._admission.turn(self._view.roster.values(), now, alone)
        if self._admission.refusal is not None:
            raise self._admission.refusal
        self._discovery.turn(sum(stats.published + stats.delivered for stats in self._stats.values()), now)
        self._post.flush()
        if self.board.due(now, LOOK_MS):
            self._look(now)

    def _look(self, now: Now) -> None:
        self._use = self._measure()
        self.board.audit.extend(self._guard.take_audit(now))
        status = self._status(now)
        alarms = self._oversight.alarms(status, now)
        timings, heard_ms = self._oversight.timings(), self._oversight.heard_ms()
        facts = Facts(status, timings, alarms, heard_ms, now.boot_ms, self._moves, self._discovery.queued)
        self.board.written(facts, now.boot_ms)

    # --- clients --------------------------------------------------------------------------------------------

    def _serve(self, message: Incoming, header: Header, now: Now) -> None:
        _, request = decode(message.control)
        if self._guard.closed and not isinstance(request, Hello | Ping | Bye):
            self._check(message, request, now)
        if isinstance(request, Hello):
            if self._guard.closed:
                self._greeted[message.origin] = self._greet(message, now)
            self._answer(message, header, self._welcome())
        elif isinstance(request, WhoAmI):
            self._answer(message, header, self._guard.identity(self._greeted.get(message.origin)))
        elif isinstance(request, Ping):
            self._answer(message, header, Pong())
        elif isinstance(request, Status):
            self._answer(message, header, self._status(now))
        elif isinstance(request, ListAlarms):
            self._answer(message, header, Alarms(self._oversight.alarms(self._status(now), now)))
        elif isinstance(request, ShowConfig):
            self._answer(message, header, ConfigShown(list(self._settings.config)))
        elif not isinstance(request, Bye):
            raise UnknownVerb(
                f"verb {header.verb} is not for the frontdoor: put the shard it is for in the header"
            )

    def _check_rates(self, message: Incoming, header: Header, now: Now) -> None:
        """Raises Busy."""
        size, settles = len(message.control) + len(message.batch), header.verb in SETTLING
        self._rates.check(self._mailbox.address(message.origin), size, now.boot_ms, settles)
        rights = self._greeted.get(message.origin)
        if rights is not None and header.shard == NODE_SHARD:  # what is forwarded counts at the worker
            self._user_rates.check(rights.user, size, now.boot_ms, settles)

    def _greet(self, message: Incoming, now: Now) -> Rights | None:
        """Raises Forbidden."""
        _, hello = decode(message.control)
        assert isinstance(hello, Hello), "by its verb"
        encrypted = self._mailbox.encrypted(message.origin)
        return self._guard.greet(hello, self._mailbox.address(message.origin), now, encrypted)

    def _check(self, message: Incoming, request: Message, now: Now) -> None:
        """Raises Forbidden, and BadRequest for who has not greeted."""
        if message.origin not in self._greeted:
            raise NoSession("this connection has no session", hint="say HELLO first")
        rights = self._greeted[message.origin]
        if rights is not None:
            if 0 < rights.expires_ms <= now.wall_ms:
                del self._greeted[message.origin]
                raise NoSession("the token of this session has expired", hint="say HELLO first")
            address = self._mailbox.address(message.origin)
            self._guard.check(rights, request, lambda topic_id: "", address, now)

    def _welcome(self) -> Welcome:
        """Also says where waiting for a leader is in vain."""
        names = {member.copy: member.name for member in self._view.roster.values()}
        leaderless = sorted(shard for stats in self._stats.values() for shard in stats.leaderless)
        away = sorted({names.get(copy, copy) for stats in self._stats.values() for copy in stats.away})
        said = welcome(self._settings, self._view.routes(), self._view.nodes())
        return structs.replace(said, leaderless=leaderless, away=away)

    def _forward(self, message: Incoming, header: Header, now: Now) -> None:
        if header.verb >= Append.verb:
            raise UnknownVerb(f"verb {header.verb} is for nodes only")
        if len(message.origin) > DIRECT_ORIGIN_PARTS:
            raise ProtocolError("a message is forwarded once")
        if _tells_secrets(message, header) and not self._mailbox.encrypted(message.origin):
            raise Forbidden(
                "a secret is told encrypted", hint="join by the invitation, at the doors it names"
            )
        if header.shard >= self._settings.shards:
            text = f"shard {header.shard} does not exist; this cluster has 0 to {self._settings.shards - 1}"
            self._refuse(
                message, header, RefusedMessage(BadRequest.code, text, "say HELLO again: it tells the shards")
            )
            return
        if elsewhere := self._elsewhere(header.shard):
            self._remote[self._view.leader(header.shard), elsewhere] = now.boot_ms
            if not self._pass_on(self._view.leader(header.shard), elsewhere, message):
                text = f"node {self._settings.node} has no connection to the leader of shard {header.shard}"
                self._refuse(message, header, RefusedMessage(Busy.code, text, retry_after_ms=RETRY_MS))
            return
        worker = header.shard % len(self._settings.forwards)
        state = self._states.get(worker)
        away = state is not None and not state.running
        if away or not self._pass_on(self._me, self._settings.forwards[worker], message):
            text = f"worker {worker} of node {self._settings.node} is starting again"
            self._refuse(message, header, RefusedMessage(Busy.code, text, retry_after_ms=RETRY_MS))

    def _pass_on(self, copy: str, worker: str, message: Incoming) -> bool:
        """To the worker of `copy` at that address. False: it is out of reach, or has yet to prove itself."""
        connection = self._post.connection(copy, worker)
        return connection is not None and self._mailbox.forward(connection, message)

    def _tell_lost(self, origin: Origin, now: Now) -> None:
        """Any worker may have heard of that client, whose connection is gone."""
        lost = Incoming(origin, _LOST, b"")
        for worker in self._settings.forwards:
            self._pass_on(self._me, worker, lost)
        lately_ms = now.boot_ms - 2 * limits.SESSION_SILENCE_MS
        self._remote = {place: at_ms for place, at_ms in self._remote.items() if at_ms > lately_ms}
        for copy, worker in self._remote:
            self._pass_on(copy, worker, lost)

    def _elsewhere(self, shard: ShardId) -> str:
        """Where another node's worker leads it; "": this node does, or nobody is known to."""
        return self._view.route(shard).endpoint if self._view.leader(shard) != self._me else ""

    def _answer(self, message: Incoming, header: Header | None, reply: Message) -> None:
        request_id = header.request_id if header else 0
        self._mailbox.reply(message.origin, encode(reply, header.shard if header else NODE_SHARD, request_id))

    _refuse = _answer

    # --- the cluster ----------------------------------------------------------------------------------------

    def _hear(self, message: Incoming, now: Now) -> None:
        for sender, _, said, _ in self._post.open(message, now.boot_ms):
            if sender != self._me:
                self._heard_ms = now.boot_ms
            if isinstance(said, Report) and sender == self._me:  # of its own workers only
                self._report(said, now)
            elif isinstance(said, Said):
                self._learn(said, now)
            elif isinstance(said, AccessTold):
                self._learn_access(said.table, now)
            else:
                raise UnknownVerb(f"verb {said.verb} is not for a frontdoor")

    def _report(self, report: Report, now: Now) -> None:
        worker, state = report.stats.worker, self._states.get(report.stats.worker)
        if state is not None and state.pid != report.stats.pid:
            return  # the last words of a process that is gone
        self._oversight.heard(report, now)
        self.board.audit.extend(report.audit)
        serves = report.stats.state in SERVING
        before = self._stats.get(worker)
        if before is None or (before.state, before.leaderless) != (
            report.stats.state,
            report.stats.leaderless,
        ):
            self.board.outdate()
        self._stats[worker], self._copies[worker] = report.stats, report.copies if serves else []
        if report.given_up and report.given_up == self._view.version:
            self._give_up(report, now)
        self._learn(Said(report.version, report.members, report.leads if serves else []), now)

    def _give_up(self, report: Report, now: Now) -> None:
        """The roster is that of this node's copy of the meta shard again."""
        for member in report.members:
            check_member(member)
        self._view.give_up(report.version, report.members, now.boot_ms)
        self._mailbox.admit(self._view.members.values())
        self._keep.roster(report.version, report.members)
        self._share_ms = min(self._share_ms, now.boot_ms + SHARE_MS)

    def _disowned(self, said: Said) -> bool:
        """Whether a newer roster than this node goes by is without it."""
        listed = self._me in self._view.roster and said.version > self._view.version
        return listed and bool(said.members) and self._me not in {member.copy for member in said.members}

    def _learn(self, said: Said, now: Now) -> None:
        """Raises BadName, BadRequest: a row that cannot be so would be kept, and met again at each start."""
        for member in said.members:
            check_member(member)
        before, members = self._view.leads, self._view.roster
        doors = {copy: self._view.frontdoor(copy) for copy in members}
        led, joined = self._view.follow(said.leads), self._view.learn(said.version, said.members, now.boot_ms)
        self._moves += sum(
            shard in before and before[shard].copy != lead.copy for shard, lead in self._view.leads.items()
        )
        if joined:
            self._mailbox.admit(self._view.members.values())
            if self._me in members and self._me not in self._view.roster:
                log.warning(REMOVED)
                self._admission.again()
            self._listed |= self._me in self._view.roster
            for copy in members.keys() - self._view.roster.keys() - {self._me}:
                self._post.put(copy, doors[copy], self._all_known(), NODE_SHARD)  # nobody else tells it
            self._keep.roster(self._view.version, list(self._view.roster.values()))
        elif self._disowned(said):
            self._admission.again()  # it may be a roster that was given up, and so; the leader knows
        if led or joined:
            self._share_ms = min(self._share_ms, now.boot_ms + SHARE_MS)
            mine = any(
                lead.copy == self._me for shard, lead in self._view.leads.items() if lead != before.get(shard)
            )
            self._own_news |= joined or mine

    def _learn_access(self, table: AccessTable, now: Now) -> None:
        """Who greeted before says so again."""
        if self._guard.learn(table):
            self._greeted.clear()
            self._keep.access(table)
            self._own_news, self._share_ms = True, now.boot_ms

    def _all_known(self) -> Said:
        return Said(self._view.version, list(self._view.roster.values()), list(self._view.leads.values()))

    def _share(self, now: Now) -> None:
        """All that is known, with the own workers and, when it is this node's to tell, with the other
        frontdoors."""
        settings, view, said = self._settings, self._view, self._all_known()
        own = structs.replace(said, given_up=view.given_up(now.boot_ms))
        access = [AccessTold(self._guard.users.table)] if self._guard.users.version else []
        for place in settings.siblings:
            for each in (own, *access):
                self._post.put(self._me, place, each, NODE_SHARD)
        if self._own_news or now.boot_ms >= self._again_ms:
            self._again_ms = now.boot_ms + limits.VIEW_AGAIN_MS
            for copy in view.roster.keys() - {self._me}:
                for each in (said, *access):
                    self._post.put(copy, view.frontdoor(copy), each, NODE_SHARD)
        self._share_ms, self._own_news = self._again_ms, False

    @property
    def _removed(self) -> bool:
        """Whether this node was on the roster, and is not any more: it does not enter it again by itself."""
        return self._listed and self._me not in self._view.roster

    @property
    def _announced(self) -> bool:
        """Whether the roster says of this node what is so, or this node is none of its any more. Who is lost
        has no copy that the leader hears: it says that it is there."""
        if self._removed:
            return True
        mine, known = self._settings.member, self._view.roster.get(self._me)
        if self._view.version == 0 or known is None or known.state == "lost":
            return False
        return structs.replace(known, state=mine.state) == mine

    def _announce(self, now: Now) -> None:
        self._announce_ms = now.boot_ms + ANNOUNCE_MS
        settings, leader = self._settings, self._view.leader(META_SHARD)
        endpoint = settings.siblings[0] if leader == self._me else self._view.peer(leader, META_SHARD)
        self._post.put(leader, endpoint, Join(settings.member, settings.cluster), META_SHARD)

    # --- status ---------------------------------------------------------------------------------------------

    def _status(self, now: Now) -> StatusReply:
        settings, leads = self._settings, list(self._view.leads.values())
        return StatusReply(
            node=settings.node,
            cluster_name=settings.cluster_name,
            cluster=settings.cluster,
            version=__version__,
            mode=settings.mode,
            uptime_ms=now.boot_ms - self._started_ms,
            shards=settings.shards,
            led=len({row.shard for rows in self._copies.values() for row in rows if row.role == "leader"}),
            workers=[self._worker(worker, now.boot_ms) for worker in range(len(settings.forwards))],
            routes=self._view.routes(),
            warnings=[*settings.warnings, *self._warnings()],
            bad_frames=self.bad_messages + self._mailbox.bad_frames,
            copy=self._me,
            members=list(self._view.members.values()),
            leads=leads,
            copies=[row for worker in sorted(self._copies) for row in self._copies[worker]],
            gossip=self._discovery.state,
            events=list(self._discovery.events),
            cpu_ms=self._use.cpu_ms,
            rss_bytes=self._use.rss_bytes,
            over_quota=self._rates.refused + self._user_rates.refused,
            turned_away=self._mailbox.turned_away,
            faults=self._faults.count,
            door=settings.keys.door if settings.keys is not None and settings.keys.encrypts else b"",
        )

    def _warnings(self) -> list[str]:
        """Of this node's part in its cluster."""
        if self._removed:
            return [REMOVED]
        return self._discovery.warnings(self._view.members.values())

    def _worker(self, worker: int, now_ms: int) -> WorkerStats:
        """The last report, its age, and what only the supervisor knows."""
        silent_ms = now_ms - self._oversight.heard_ms()[worker]
        state, stats = self._states.get(worker), self._stats.get(worker)
        restarts, detail, pid = (state.restarts, state.detail, state.pid) if state else (0, "", 0)
        if stats is not None:
            return structs.replace(
                stats,
                state=stats.state if worker in self._reached else "starting",
                restarts=restarts,
                detail=stats.detail or detail,
                silent_ms=silent_ms,
            )
        return WorkerStats(
            worker=worker,
            pid=pid,
            endpoint=self._settings.worker_endpoint(worker),
            state="down" if state and not state.running else "starting",
            restarts=restarts,
            leading=0,
            sessions=0,
            published=0,
            delivered=0,
            acked=0,
            refused=0,
            bad_frames=0,
            turns=0,
            commits=0,
            commit_us=0,
            store_bytes=0,
            detail=detail,
        )


def _tells_secrets(message: Incoming, header: Header) -> bool:
    """Whether a request shows an invitation: who heard it could join by that, and hear the secret."""
    if header.verb == Join.verb:
        _, join = decode(message.control)
        return isinstance(join, Join) and bool(join.invite)
    return header.verb == Entrust.verb
