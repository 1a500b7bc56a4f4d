"""Metrics and health over HTTP: /metrics, /livez, /readyz, /statusz.

The server has threads of its own beside the frontdoor's loop. It reads the board, and asks the
workers as a client. The loop never waits for it. A bad request only ends its own connection.
"""

import hmac
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gossipq.alarms import CRITICAL
from gossipq.clock import Clock
from gossipq.core.requests import HANGS_MS
from gossipq.errors import GossipqError, NoPlace
from gossipq.health import MEANINGS, State, of_node
from gossipq.messages import StatsReply
from gossipq_node.actors.board import Board, Facts

if TYPE_CHECKING:
    from gossipq_client import Client

#: requests at the same time; above this, the oldest incomplete request is dropped
REQUESTS_MAX = 16
OF_ADDRESS_MAX = 8  #: requests from one other host at the same time
READ_S = 2.0  #: time for a request to arrive completely
CONNECTION_S = 10.0  #: time until the answer is read, so that slow clients do not block others
ASK_S = 2.0  #: time for the workers to answer a scrape
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
LIVEZ = "/livez"
PROBES = (LIVEZ, "/readyz")
PAGES = ("/metrics", *PROBES, "/statusz")

log = logging.getLogger(__name__)

Answer = tuple[HTTPStatus, str, bytes]


class Pages:
    """The content of each page, made from a board and the answers of a node."""

    def __init__(self, board: Board, endpoint: str, clock: Clock) -> None:
        self._board = board
        self._endpoint = endpoint
        self._clock = clock
        self._lock = threading.Lock()
        self._client: Client | None = None

    def answer(self, path: str) -> Answer:
        pages = {
            "/metrics": self.metrics,
            "/livez": self.livez,
            "/readyz": self.readyz,
            "/statusz": self.statusz,
        }
        page = pages.get(path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, TEXT, f"there are {' '.join(PAGES)}\n".encode()
        return page()

    def livez(self) -> Answer:
        """/livez: 503 if a loop of the node hangs."""
        stuck = self._stuck()
        return _verdict("live", State.PAUSED if stuck else State.HEALTHY, stuck)

    def _late(self) -> str:
        """Return why the board is outdated, or "" if it is current."""
        late_ms = self._clock.now().boot_ms - self._board.turned_ms
        return f"the frontdoor has not turned for {late_ms // 1_000} s" if late_ms > HANGS_MS else ""

    def _stuck(self) -> list[str]:
        now_ms, facts = self._clock.now().boot_ms, self._board.facts
        if late := self._late():
            return [late]
        found = []
        for worker in facts.status.workers if facts else ():
            silent_ms = now_ms - facts.heard_ms[worker.worker] if facts else 0
            if worker.state == "down":
                found.append(f"worker-{worker.worker} is not running")
            elif silent_ms > HANGS_MS:
                found.append(
                    f"worker-{worker.worker} (pid {worker.pid}) has not responded for {silent_ms // 1_000} s"
                )
        return found

    def readyz(self) -> Answer:
        """/readyz: 200 while clients are served, with the health word of the node.

        That means that every loop runs, each worker has its shards, every shard has a leader,
        and publishes are accepted.
        """
        facts, late, stuck = self._board.facts, self._late(), self._stuck()
        if late:
            return _verdict("ready", State.PAUSED, [late])
        if facts is None:
            return _verdict("ready", State.STARTING, ["the node is starting"])
        health = of_node(facts.status)
        if stuck and health.serves:
            return _verdict("ready", State.PAUSED, stuck)
        return _verdict(
            "ready", health.state, [f.text for f in health.findings if not MEANINGS[f.state].serves]
        )

    def statusz(self) -> Answer:
        facts = self._board.facts
        if facts is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, JSON, b'{"error":"the node is starting"}\n'
        return HTTPStatus.OK, JSON, json.dumps(_as_object(facts), separators=(",", ":")).encode() + b"\n"

    def metrics(self) -> Answer:
        from gossipq_node.adapters import metrics

        facts = self._board.facts
        if facts is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"the node is starting\n"
        text = metrics.exposition(
            facts.status, facts.timings, facts.alarms, self._stats(facts), facts.moves, facts.queued
        )
        return HTTPStatus.OK, metrics.CONTENT_TYPE, text

    def _stats(self, facts: Facts) -> StatsReply | None:
        """Return the counters of this node's workers, or None if one does not answer in time."""
        with self._lock:
            try:
                if self._client is None:
                    from gossipq_client import connect

                    self._client = connect(self._endpoint, name="gossipq-admin", timeout=ASK_S, wait=ASK_S)
                parts = [
                    self._client.admin.raw.stats(endpoint=worker.endpoint) for worker in facts.status.workers
                ]
            except GossipqError as error:
                log.debug("a scrape without the workers: %s", error)
                return None
        return StatsReply(
            [row for part in parts for row in part.partitions], [row for part in parts for row in part.groups]
        )

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                with suppress(GossipqError):
                    self._client.close(flush=False)
                self._client = None


def _verdict(name: str, state: State, reasons: list[str]) -> Answer:
    body = json.dumps({name: not reasons, "state": state, "reasons": reasons}).encode() + b"\n"
    return HTTPStatus.OK if not reasons else HTTPStatus.SERVICE_UNAVAILABLE, JSON, body


def _named(value: Any) -> Any:
    """Convert arrays of the wire to objects with field names."""
    if isinstance(value, msgspec.Struct):
        return {field: _named(getattr(value, field)) for field in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(name): _named(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


def _as_object(facts: Facts) -> dict[str, Any]:
    critical = sum(alarm.severity == CRITICAL for alarm in facts.alarms)
    found: dict[str, Any] = _named(facts.status)
    return found | {"alarms": _named(facts.alarms), "critical": critical, "timings": _named(facts.timings)}


class Callers(NamedTuple):
    """Rules for clients of the pages.

    A browser page of another site can resolve its own name to this address (DNS rebinding), but
    cannot send another Host header. So only known names are answered.
    """

    hosts: frozenset[str] = frozenset()  #: allowed names, besides addresses and localhost
    token: bytes = b""  #: the token that a client must send, b"" = none; probes need none

    def refusal(self, path: str, host: str, shown: str) -> Answer | None:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name.strip("[]").lower() not in ("", "localhost", *self.hosts) and not _is_address(name):
            text = "this name is not known here: add it to node.admin_hosts\n"
            return HTTPStatus.MISDIRECTED_REQUEST, TEXT, text.encode()
        if self.token and path not in PROBES:
            expected = b"Bearer " + self.token
            if not hmac.compare_digest(shown.encode("utf-8", "replace"), expected):
                return HTTPStatus.UNAUTHORIZED, TEXT, b"show the token of node.admin_token_file\n"
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_S
    server_version, sys_version = "gossipq", ""
    error_content_type, error_message_format = TEXT, "%(code)d %(message)s\n"
    pages: Pages
    callers: Callers
    server: "_Server"

    def _answer(self) -> Answer:
        path = self.path.partition("?")[0]
        if not self.server.answers(self.connection, path):
            return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"too many ask at the same time\n"
        host, shown = self.headers.get("Host", ""), self.headers.get("Authorization", "")
        return self.callers.refusal(path, host.strip(), shown) or self.pages.answer(self.path)

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except Exception as error:  # the client gets an error, the log the cause
            log.exception("%s: %s", self.path[:100], error)
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"see the log of the node\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Place(NamedTuple):
    """A connection in progress."""

    address: str
    until_s: float  #: the connection is closed at this time
    page: str = ""  #: the page that it requested; "" = unknown yet


class _Server(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False
    request_queue_size = REQUESTS_MAX

    def __init__(self, place: tuple[str, int], handler: type[_Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._places: dict[socket.socket, _Place] = {}
        super().__init__(place, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        address = str(client_address[0])
        if not self._has_place(address):
            self.shutdown_request(request)
            return
        self._places[request] = _Place(address, time.monotonic() + READ_S)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            del self._places[request]
            raise

    def _has_place(self, address: str) -> bool:
        """Return whether the connection may stay. It may displace another one."""
        local = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        places = list(self._places.items())
        if not local and sum(place.address == address for _, place in places) >= OF_ADDRESS_MAX:
            return False
        if len(places) < REQUESTS_MAX:
            return True
        reading = [(place.until_s, request) for request, place in places if not place.page]
        if not reading:
            return False
        _, longest = min(reading, key=lambda each: each[0])
        self._places.pop(longest, None)
        with suppress(OSError):  # it has just ended
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def answers(self, request: socket.socket, page: str) -> bool:
        """Return whether a complete request is answered. The last place is reserved for /livez."""
        others = sum(place.page not in ("", LIVEZ) for place in list(self._places.values()))
        if page != LIVEZ and others >= REQUESTS_MAX - 1:
            self._places.pop(request, None)  # it gets 503 at once and needs no place
            return False
        place = self._places.get(request)
        if place is not None:
            self._places[request] = place._replace(until_s=time.monotonic() + CONNECTION_S, page=page)
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.pop(request, None)

    def service_actions(self) -> None:
        """Close connections that take too long. Called several times a second."""
        now_s = time.monotonic()
        for request, place in list(self._places.items()):
            if now_s >= place.until_s:
                with suppress(OSError):  # it is closed already
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection from %s ended badly", client_address, exc_info=True)


class Admin:
    """The server on `place` (HOST:PORT), until `close`."""

    def __init__(self, place: str, pages: Pages, callers: Callers | None = None) -> None:
        """Raises ConfigError if the address cannot be bound."""
        host, _, port = place.rpartition(":")
        handler = type("Handler", (_Handler,), {"pages": pages, "callers": callers or Callers()})
        try:
            self._server = _Server((host.strip("[]"), int(port)), handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise NoPlace(
                f"metrics and health cannot listen on {place}: {why}",
                'choose another --admin HOST:PORT, or ""',
            ) from None
        self.port: int = self._server.server_address[1]
        self._pages = pages
        serve: Callable[[], None] = lambda: self._server.serve_forever(poll_interval=0.2)  # noqa: E731
        self._thread = threading.Thread(target=serve, name="gossipq-admin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._pages.close()
