"""The frontdoor: tells clients where the leaders are, forwards for those that know only this
address, and answers status.

Forwarding reads only the fixed header and keeps no state. The frontdoor learns about the cluster
from its own workers, the other frontdoors and the supervisor. It passes changes on to the workers
and the other frontdoors.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import structs

from gossipq import __version__, limits
from gossipq.core.desk import INTERNAL, INTERNAL_HINT, refusal
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
from gossipq.peer_messages import AccessTold, Append, Report, View
from gossipq.permissions import Rights
from gossipq.types import META_SHARD, NODE_SHARD, Now, Origin, ShardId
from gossipq.values import AccessTable, CopyStats, Member, Message, WorkerStats
from gossipq.wire.frames import Header, decode, encode, peek
from gossipq_node.actors.admission import Admission
from gossipq_node.actors.board import Board, Facts
from gossipq_node.actors.discovery import Discovery
from gossipq_node.actors.door import READ_ON_THE_WAY, Door
from gossipq_node.actors.faults import Faults
from gossipq_node.actors.oversight import Oversight
from gossipq_node.actors.post import Post
from gossipq_node.ports import DIRECT_ORIGIN_PARTS, Incoming, Mailbox, Measure, Membership, Use
from gossipq_node.settings import FrontdoorSettings, WorkerState, welcome

LOOK_MS = 1_000  #: time between two looks at the node
RETRY_MS = 100  #: how long a client should wait while a worker is away
SHARE_MS = 100  #: news that arrive within this time are shared together
#: after this time without another node, a node asks whether it is still a member
ALONE_MS = 2 * limits.VIEW_AGAIN_MS
ANNOUNCE_MS = 1_000  #: time between two announcements to a meta leader whose roster lacks this node
REMOVED = "this node was taken off the roster: stop it; with an empty data directory it may join again"
_LOST = encode(Bye(lost=True))
SERVING = ("ready", "full")  #: states in which a worker leads its shards

log = logging.getLogger(__name__)


class Keeping(NamedTuple):
    """Stores what the next start of the node should know."""

    roster: Callable[[int, list[Member]], None] = lambda version, members: None
    access: Callable[[AccessTable], None] = lambda table: None


NOTHING_KEPT = Keeping()


class Switchboard(Mailbox, Protocol):
    """A mailbox that can send in a client's name."""

    def forward(self, connection: Origin, message: Incoming) -> bool:
        """Forwards a message in the client's name, over the connection on which an answer
        came. The answers go directly to the client and bypass this actor. Returns False if
        the connection has ended.
        """


class Frontdoor:
    """Keeps no state for clients. Looks at the node once a second and
    writes the result to its board.
    """

    def __init__(
        self,
        settings: FrontdoorSettings,
        mailbox: Switchboard,
        now: Now,
        keep: Keeping = NOTHING_KEPT,
        membership: Membership | None = None,
        measure: Measure = Use,
    ) -> None:
        self._settings = settings
        self._mailbox = mailbox
        self._started_ms = now.boot_ms
        self._keep = keep
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
        self._copies: dict[int, list[CopyStats]] = {}  #: copies in the last report of each worker
        self._states: dict[int, WorkerState] = {}
        #: workers that have proven their identity since they started
        self._reached: set[int] = set()
        self.ready = (
            #: every worker serves and has proven its identity, and no other
            #: node claims to be this one
            False
        )
        self._served = False  #: it was ready before
        self._greet_ms: int | None = None  #: when workers that have not proven themselves are greeted again
        #: when to share news, and when to send everything again
        self._share_ms = self._again_ms = now.boot_ms + SHARE_MS
        self._listed = settings.version > 0  #: whether this node has been on the roster
        self._own_news = False  #: whether there is news that only this node can tell
        self._moves = 0  #: how often a shard got another leader, since the start
        self._announce_ms = now.boot_ms
        self._heard_ms = now.boot_ms  #: when another node last sent something
        #: (copy, address) of other nodes' workers -> when a message was last forwarded there
        self._remote: dict[tuple[str, str], int] = {}
        self.bad_messages = 0
        self._faults = Faults("frontdoor")
        self._door = Door(settings, mailbox)
        self._guard = self._door.guard
        #: clients that sent HELLO here, while the cluster is closed
        self._greeted: dict[Origin, Rights | None] = {}

    def next_deadline_ms(self) -> int | None:
        due = [self._share_ms, self.board.turned_ms + LOOK_MS, self._discovery.next_deadline_ms()]
        due.append(self._greet_ms)
        if not self._announced:
            due.append(self._announce_ms)
        due.append(self._admission.next_deadline_ms(self._view.roster.values()))
        return min(at for at in due if at is not None)

    def _serves(self) -> bool:
        """True if every worker reports that it serves and has proven its identity at both
        of its addresses. One receives requests; the other receives news of the leaders. A
        worker that reports is greeted.
        """
        forwards, siblings, connection = (
            self._settings.forwards,
            self._settings.siblings,
            self._post.connection,
        )
        proven = set[int]()
        for worker in self._stats:
            for_requests = connection(self._me, forwards[worker])
            for_views = connection(self._me, siblings[worker])
            if for_requests and for_views:
                proven.add(worker)
        if not proven <= self._reached:
            self._reached |= proven
            self.board.outdate()
        return len(proven) == len(forwards) and all(s.state in SERVING for s in self._stats.values())

    def set_states(self, states: Sequence[WorkerState]) -> None:
        """Takes over the supervisor's view of the worker processes, and forgets
        reports of earlier processes.
        """
        self._states = {state.worker: state for state in states}
        for worker, stats in list(self._stats.items()):
            state = self._states.get(worker)
            if state is None or not state.running or state.pid != stats.pid:
                del self._stats[worker]
                self._reached.discard(worker)
                self._copies.pop(worker, None)

    def turn(self, arrived: list[Incoming], now: Now) -> None:
        """Raises NotAdmitted if the cluster refuses this node as it is; then the node ends."""
        for message in arrived:
            self._receive(message, now)
        for origin in self._mailbox.gone():
            self._greeted.pop(origin, None)
            self._tell_lost(origin, now)
        serves = self._serves()
        self._greet_ms = None if serves else now.boot_ms + SHARE_MS
        self.ready = serves and self._admission.vouched(now)
        if serves and not self._served:  # workers must know each other's shards before clients are told
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

    def _receive(self, message: Incoming, now: Now) -> None:
        header = None
        try:
            if self._mailbox.from_peer(message.origin):
                self._hear(message, now)
                return
            header = peek(message.control)
            if self._mailbox.answerer(message.origin):
                self._take_answer(message, header, now)
                return
            # a worker charges the user of a request that is forwarded to it
            rights = self._greeted.get(message.origin) if header.shard == NODE_SHARD else None
            address = self._mailbox.address(message.origin)
            self._door.charge(message, header.verb, address, rights, now)
            if header.shard == NODE_SHARD:
                reply = self._serve(message, header, now)
            else:
                if header.verb == Hello.verb and self._guard.closed:
                    # a worker trusts forwarded messages as coming from this host
                    self._greet(message, now)
                reply = self._forward(message, header, now)
            if reply is not None:
                self._door.answer(message.origin, header, reply)
        except GossipqError as error:
            self.bad_messages += 1
            said = refusal(error)
            self._refuse(message, header, structs.replace(said, hint=said.hint or "see PROTOCOL.md"))
        except Exception as error:
            self._faults.met("a message", None, error)
            self._refuse(message, header, RefusedMessage(Internal.code, INTERNAL, INTERNAL_HINT))

    def _refuse(self, message: Incoming, header: Header | None, said: RefusedMessage) -> None:
        """Only a client gets a refusal. A process would refuse it in turn, for ever."""
        if self._mailbox.from_client(message.origin):
            self._door.answer(message.origin, header, said)

    def _take_answer(self, message: Incoming, header: Header, now: Now) -> None:
        """Take what a process says over a connection that this one made."""
        if header.verb == Challenge.verb and not header.request_id:
            self._hear(message, now)  # the answer of a process that `post` wrote to
        elif not self._admission.hears(header.request_id, message, now):
            self.bad_messages += 1  # as the end of a session that is no longer needed

    def _look(self, now: Now) -> None:
        self._use = self._measure()
        self.board.audit.extend(self._guard.take_audit(now))
        status = self._status(now)
        alarms = self._oversight.alarms(status, now)
        timings, heard_ms = self._oversight.timings(), self._oversight.heard_ms()
        facts = Facts(
            status=status,
            timings=timings,
            alarms=alarms,
            heard_ms=heard_ms,
            turned_ms=now.boot_ms,
            moves=self._moves,
            queued=self._discovery.queued,
        )
        self.board.written(facts, now.boot_ms)

    # --- clients --------------------------------------------------------------------------------------------

    def _serve(self, message: Incoming, header: Header, now: Now) -> Message | None:
        """Returns the answer; None for a message without one."""
        _, request = decode(message.control)
        if self._guard.closed and not isinstance(request, Hello | Ping | Bye):
            self._check(message, request, now)
        if isinstance(request, Hello):
            if self._guard.closed:
                self._greeted[message.origin] = self._greet(message, now)
            return self._welcome()
        if isinstance(request, WhoAmI):
            return self._guard.identity(self._greeted.get(message.origin))
        if isinstance(request, Ping):
            return Pong()
        if isinstance(request, Status):
            return self._status(now)
        if isinstance(request, ListAlarms):
            return Alarms(self._oversight.alarms(self._status(now), now))
        if isinstance(request, ShowConfig):
            return ConfigShown(list(self._settings.config))
        if isinstance(request, Bye):
            return None
        text = f"verb {header.verb} is not for the frontdoor: put the shard it is for in the header"
        raise UnknownVerb(text)

    def _greet(self, message: Incoming, now: Now) -> Rights | None:
        """Checks a HELLO. Raises Forbidden."""
        _, hello = decode(message.control)
        assert isinstance(hello, Hello), "by its verb"
        return self._door.greet(message.origin, hello, now)

    def _check(self, message: Incoming, request: Message, now: Now) -> None:
        """Raises Forbidden if the request is not allowed, or BadRequest if the
        connection has sent no HELLO.
        """
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
        """The answer to HELLO. It also names shards for which waiting for a leader is useless."""
        names = {member.copy: member.name for member in self._view.roster.values()}
        leaderless = sorted(shard for stats in self._stats.values() for shard in stats.leaderless)
        away = sorted({names.get(copy, copy) for stats in self._stats.values() for copy in stats.away})
        said = welcome(self._settings, self._view.routes(), self._view.nodes())
        return structs.replace(said, leaderless=leaderless, away=away)

    def _forward(self, message: Incoming, header: Header, now: Now) -> RefusedMessage | None:
        """Returns an answer if no worker that serves the message can be reached."""
        settings, shard = self._settings, header.shard
        if header.verb >= Append.verb:
            raise UnknownVerb(f"verb {header.verb} is for nodes only")
        if len(message.origin) > DIRECT_ORIGIN_PARTS:
            raise ProtocolError("a message is forwarded once")
        if _tells_secrets(message, header) and not self._mailbox.encrypted(message.origin):
            raise Forbidden(READ_ON_THE_WAY, hint="join by the invitation, at the doors it names")
        if shard >= settings.shards:
            text = f"shard {shard} does not exist; this cluster has 0 to {settings.shards - 1}"
            return RefusedMessage(BadRequest.code, text, "say HELLO again: it tells the shards")
        if elsewhere := self._elsewhere(shard):
            leader = self._view.leader(shard)
            self._remote[leader, elsewhere] = now.boot_ms
            if self._pass_on(leader, elsewhere, message):
                return None
            text = f"node {settings.node} has no connection to the leader of shard {shard}"
        else:
            worker = shard % len(settings.forwards)
            state = self._states.get(worker)
            away = state is not None and not state.running
            if not away and self._pass_on(self._me, settings.forwards[worker], message):
                return None
            text = f"worker {worker} of node {settings.node} is starting again"
        return RefusedMessage(Busy.code, text, retry_after_ms=RETRY_MS)

    def _pass_on(self, copy: str, worker: str, message: Incoming) -> bool:
        """Forwards to the worker of `copy` at that address. Returns False if the worker is out of
        reach or has yet to prove its identity.
        """
        connection = self._post.connection(copy, worker)
        return connection is not None and self._mailbox.forward(connection, message)

    def _tell_lost(self, origin: Origin, now: Now) -> None:
        """Tells all workers that may know this client that its connection is gone."""
        lost = Incoming(origin, _LOST, b"")
        for worker in self._settings.forwards:
            self._pass_on(self._me, worker, lost)
        lately_ms = now.boot_ms - 2 * limits.SESSION_SILENCE_MS
        self._remote = {place: at_ms for place, at_ms in self._remote.items() if at_ms > lately_ms}
        for copy, worker in self._remote:
            self._pass_on(copy, worker, lost)

    def _elsewhere(self, shard: ShardId) -> str:
        """The address of the worker that leads the shard on another node. "" if this node leads it
        or the leader is unknown.
        """
        return self._view.route(shard).endpoint if self._view.leader(shard) != self._me else ""

    # --- the cluster ----------------------------------------------------------------------------------------

    def _hear(self, message: Incoming, now: Now) -> None:
        for sender, _, said, _ in self._post.open(message, now.boot_ms):
            if sender != self._me:
                self._heard_ms = now.boot_ms
            # accepted only from this node's own workers
            if isinstance(said, Report) and sender == self._me:
                self._report(said, now)
            elif isinstance(said, View):
                self._learn(said, now)
            elif isinstance(said, AccessTold):
                self._learn_access(said.table, now)
            else:
                raise UnknownVerb(f"verb {said.verb} is not for a frontdoor")

    def _report(self, report: Report, now: Now) -> None:
        worker, state = report.stats.worker, self._states.get(report.stats.worker)
        if state is not None and state.pid != report.stats.pid:
            return  # the last report of a process that is gone
        self._oversight.heard(report, now)
        self.board.audit.extend(report.audit)
        serves = report.stats.state in SERVING
        before = self._stats.get(worker)
        if before is None:
            self._share_ms = min(self._share_ms, now.boot_ms + SHARE_MS)
        if before is None or (before.state, before.leaderless) != (
            report.stats.state,
            report.stats.leaderless,
        ):
            self.board.outdate()
        self._stats[worker], self._copies[worker] = report.stats, report.copies if serves else []
        if report.given_up and report.given_up == self._view.version:
            self._give_up(report, now)
        self._learn(View(report.version, report.members, report.leads if serves else []), now)

    def _give_up(self, report: Report, now: Now) -> None:
        """Returns to the roster of this node's own copy of the meta shard."""
        for member in report.members:
            check_member(member)
        self._view.give_up(report.version, report.members, now.boot_ms)
        self._mailbox.admit(self._view.members.values())
        self._keep.roster(report.version, report.members)
        self._share_ms = min(self._share_ms, now.boot_ms + SHARE_MS)

    def _disowned(self, said: View) -> bool:
        """True if a newer roster than this node's lacks this node."""
        listed = self._me in self._view.roster and said.version > self._view.version
        return listed and bool(said.members) and self._me not in {member.copy for member in said.members}

    def _learn(self, said: View, now: Now) -> None:
        """Raises BadName or BadRequest for an impossible row, which would otherwise be stored and
        found again at each start.
        """
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
                # otherwise a removed node would never hear of it
                self._post.put(copy, doors[copy], self._all_known(), NODE_SHARD)
            self._keep.roster(self._view.version, list(self._view.roster.values()))
        elif self._disowned(said):
            # the roster may have been discarded by others; the leader knows
            self._admission.again()
        if led or joined:
            self._share_ms = min(self._share_ms, now.boot_ms + SHARE_MS)
            mine = any(
                lead.copy == self._me for shard, lead in self._view.leads.items() if lead != before.get(shard)
            )
            self._own_news |= joined or mine

    def _learn_access(self, table: AccessTable, now: Now) -> None:
        """Clients must send HELLO again, so that the new table applies to them."""
        if self._guard.learn(table):
            self._greeted.clear()
            self._keep.access(table)
            self._own_news, self._share_ms = True, now.boot_ms

    def _all_known(self) -> View:
        return View(self._view.version, list(self._view.roster.values()), list(self._view.leads.values()))

    def _share(self, now: Now) -> None:
        """Sends all that is known to the own workers, and also to the other frontdoors if this node
        has news or the time has come.
        """
        settings, view, said = self._settings, self._view, self._all_known()
        own = structs.replace(said, given_up=view.given_up(now.boot_ms))
        access = [AccessTold(self._guard.users.table)] if self._guard.users.version else []
        for (
            worker
        ) in self._stats:  # before its first report a worker may not listen, and would be dialled late
            for each in (own, *access):
                self._post.put(self._me, settings.siblings[worker], each, NODE_SHARD)
        if self._own_news or now.boot_ms >= self._again_ms:
            self._again_ms = now.boot_ms + limits.VIEW_AGAIN_MS
            for copy in view.roster.keys() - {self._me}:
                for each in (said, *access):
                    self._post.put(copy, view.frontdoor(copy), each, NODE_SHARD)
        self._share_ms, self._own_news = self._again_ms, False

    @property
    def _removed(self) -> bool:
        """True if this node was on the roster and no longer is. It does
        not enter again by itself.
        """
        return self._listed and self._me not in self._view.roster

    @property
    def _announced(self) -> bool:
        """True if the roster describes this node correctly, or if this node was removed. A "lost"
        node must announce itself: the leader hears no copy of it.
        """
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
            over_quota=self._door.over_quota,
            turned_away=self._mailbox.turned_away,
            faults=self._faults.count,
            door=settings.keys.door if settings.keys is not None and settings.keys.encrypts else b"",
        )

    def _warnings(self) -> list[str]:
        """Warnings about this node's part in its cluster."""
        if self._removed:
            return [REMOVED]
        return self._discovery.warnings(self._view.members.values())

    def _worker(self, worker: int, now_ms: int) -> WorkerStats:
        """The last report with its age and the supervisor's counts."""
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
    """True if a request shows an invitation. An eavesdropper could join with it and
    get the cluster's secret.
    """
    if header.verb == Join.verb:
        _, join = decode(message.control)
        return isinstance(join, Join) and bool(join.invite)
    return header.verb == Entrust.verb
