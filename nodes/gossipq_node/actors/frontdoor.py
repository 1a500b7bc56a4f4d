"""The frontdoor: tells clients where the leaders are, forwards for those that know only this address, and answers status.

Forwarding looks at the fixed header alone and keeps no state. What it knows of the workers comes from their reports and
from the supervisor.
"""

from collections.abc import Sequence
from typing import Protocol

from gossipq import __version__
from gossipq.errors import BadRequest, Busy, ProtocolError, UnknownVerb
from gossipq.messages import Bye, Hello, Ping, Pong, Refused, Status, StatusReply
from gossipq.peer_messages import Append, Report
from gossipq.types import NODE_SHARD, Now
from gossipq.values import Message, Route, WorkerStats
from gossipq.wire.frames import Header, decode, encode, peek
from gossipq_node.ports import DIRECT_ORIGIN_PARTS, Incoming, Mailbox
from gossipq_node.settings import FrontdoorSettings, WorkerState, welcome

RETRY_MS = 100  #: what a client is told to wait while a worker is away
SERVING = ("ready", "full")  #: states in which a worker leads its shards


class Switchboard(Mailbox, Protocol):
    """A mailbox that can speak for a client."""

    def forward(self, endpoint: str, message: Incoming) -> bool:
        """Sends on in the client's name; the answers go straight to the client, past this actor. False: cannot be reached."""


class Frontdoor:
    """Stateless for clients; has no timer of its own."""

    def __init__(self, settings: FrontdoorSettings, mailbox: Switchboard, now: Now) -> None:
        self._settings, self._mailbox, self._started_ms = settings, mailbox, now.boot_ms
        self._routes = {route.shard: route for route in settings.routes}
        self._workers = {shard: shard % len(settings.forwards) for shard in range(settings.shards)}
        self._led: dict[int, list[Route]] = {}  #: by worker
        self._stats: dict[int, WorkerStats] = {}  #: last report of each worker
        self._states: dict[int, WorkerState] = {}
        self.bad_messages = 0

    def next_deadline_ms(self) -> int | None:
        return None

    @property
    def ready(self) -> bool:
        """Every worker has said that it serves."""
        return len(self._stats) == len(self._settings.forwards) and all(s.state in SERVING for s in self._stats.values())

    def set_states(self, states: Sequence[WorkerState]) -> None:
        """What the supervisor sees of the worker processes. Reports of an earlier process are forgotten."""
        self._states = {state.worker: state for state in states}
        for worker, stats in list(self._stats.items()):
            state = self._states.get(worker)
            if state is None or not state.running or state.pid != stats.pid:
                del self._stats[worker]
                self._led.pop(worker, None)

    def turn(self, arrived: list[Incoming], now: Now) -> None:
        for message in arrived:
            header = None
            try:
                header = peek(message.control)
                if self._mailbox.from_peer(message.origin):
                    self._report(message)
                elif header.shard == NODE_SHARD:
                    self._serve(message, header, now)
                else:
                    self._forward(message, header)
            except ProtocolError as error:
                self.bad_messages += 1
                self._refuse(message, header, Refused(error.code, error.message, "see PROTOCOL.md"))

    def _serve(self, message: Incoming, header: Header, now: Now) -> None:
        _, request = decode(message.control)
        if isinstance(request, Hello):
            self._answer(message, header, welcome(self._settings, list(self._routes.values())))
        elif isinstance(request, Ping):
            self._answer(message, header, Pong())
        elif isinstance(request, Status):
            self._answer(message, header, self._status(now))
        elif not isinstance(request, Bye):
            raise UnknownVerb(f"verb {header.verb} is not for the frontdoor: put the shard it is for in the header")

    def _forward(self, message: Incoming, header: Header) -> None:
        if header.verb >= Append.verb:
            raise UnknownVerb(f"verb {header.verb} is for nodes only")
        if len(message.origin) > DIRECT_ORIGIN_PARTS:
            raise ProtocolError("a message is forwarded once")
        worker = self._workers.get(header.shard)
        if worker is None:
            text = f"shard {header.shard} does not exist; this cluster has 0 to {self._settings.shards - 1}"
            self._refuse(message, header, Refused(BadRequest.code, text, "say HELLO again: it tells the shards"))
            return
        state = self._states.get(worker)
        away = state is not None and not state.running
        if away or not self._mailbox.forward(self._settings.forwards[worker], message):
            text = f"worker {worker} of node {self._settings.node} is starting again"
            self._refuse(message, header, Refused(Busy.code, text, retry_after_ms=RETRY_MS))

    def _report(self, message: Incoming) -> None:
        _, report = decode(message.control)
        if not isinstance(report, Report):
            raise UnknownVerb("workers send the frontdoor REPORT only")
        worker, state = report.stats.worker, self._states.get(report.stats.worker)
        if state is not None and state.pid != report.stats.pid:
            return  # the last words of a process that is gone
        self._stats[worker] = report.stats
        self._led[worker] = report.routes if report.stats.state in SERVING else []
        for route in report.routes:
            self._routes[route.shard] = route
            self._workers[route.shard] = worker

    def _answer(self, message: Incoming, header: Header | None, reply: Message) -> None:
        request_id = header.request_id if header else 0
        self._mailbox.reply(message.origin, encode(reply, header.shard if header else NODE_SHARD, request_id))

    _refuse = _answer

    def _status(self, now: Now) -> StatusReply:
        settings = self._settings
        return StatusReply(
            node=settings.node,
            cluster_name=settings.cluster_name,
            cluster=settings.cluster,
            version=__version__,
            mode=settings.mode,
            uptime_ms=now.boot_ms - self._started_ms,
            shards=settings.shards,
            led=len({route.shard for routes in self._led.values() for route in routes}),
            workers=[self._worker(worker) for worker in range(len(settings.forwards))],
            routes=list(self._routes.values()),
            warnings=list(settings.warnings),
            bad_frames=self.bad_messages + self._mailbox.bad_frames,
        )

    def _worker(self, worker: int) -> WorkerStats:
        """The last report, with what only the supervisor knows."""
        state, stats = self._states.get(worker), self._stats.get(worker)
        restarts, detail, pid = (state.restarts, state.detail, state.pid) if state else (0, "", 0)
        if stats is not None:
            fields = {name: getattr(stats, name) for name in stats.__struct_fields__}
            return WorkerStats(**fields | {"restarts": restarts, "detail": stats.detail or detail})
        return WorkerStats(
            worker=worker,
            pid=pid,
            endpoint=next((r.endpoint for r in self._settings.routes if self._workers[r.shard] == worker), ""),
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
