"""Checks of every HTTP request before it is processed.

It must name this gateway (against DNS rebinding). Pages of other origins are refused. Bodies are
bounded in size and time, and all bodies together in size.
"""

import asyncio
from collections.abc import Collection, Coroutine
from ipaddress import ip_address
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossipq import limits
from gossipq.errors import NoReply
from gossipq_gateway import probes
from gossipq_gateway.connection import STATE, BoundedConnection
from gossipq_gateway.dialect import Place
from gossipq_gateway.problems import Refusal, problem, response
from gossipq_gateway.room import Room, Share

Found = TypeVar("Found")

BODY_BYTES_MAX = 32 * limits.MIB
BODY_S = 30.0  #: from the end of the headers to the end of the body
_SAFE = ("GET", "HEAD", "OPTIONS")
#: headers of a streamed answer: without them nginx with gzip holds back all of it
STREAMED = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


def host_of(text: str) -> str:
    """Return the host in a Host header or an origin, without its port."""
    name = text.rpartition("//")[2]
    if name.startswith("["):
        return name[1:].partition("]")[0].lower()
    return name.rpartition(":")[0].lower() if ":" in name else name.lower()


class Manners:
    """ASGI middleware for hosts and origins.

    `hosts` are accepted names besides addresses. Pages of `origins` may read answers (CORS);
    requests of other pages are refused.
    """

    def __init__(self, app: ASGIApp, where: Place, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app, self._origins = app, frozenset(origins)
        self._hosts = frozenset(host.lower() for host in (*hosts, where.host)) | _LOCAL
        self._any_address = where.host in ("0.0.0.0", "::")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        if scope["type"] == "http" and scope["path"] in probes.PATHS and scope["method"] in _SAFE:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope.get("method", "GET"), scope["type"], headers)
        if refusal is not None:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await response(problem(refusal))(scope, receive, send)
            return
        origin = headers.get("origin", "")
        if scope["type"] == "http" and origin in self._origins:
            send = _readable(send, origin)
            if scope["method"] == "OPTIONS":
                await _preflight(headers, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, method: str, kind: str, headers: Headers) -> Refusal | None:
        host = host_of(headers.get("host", ""))
        if host not in self._hosts and not (self._any_address and _is_address(host)):
            hint = "use its address, or start it with --allow-host NAME"
            return Refusal(
                421,
                "unknown_host",
                f"this gateway does not answer for the host name {host or '(none)'}",
                hint,
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin not in self._origins
        if foreign and origin is not None and origin.partition("//")[2].lower() == headers["host"].lower():
            foreign = False  # its own page
        if foreign and (method not in _SAFE or kind == "websocket"):
            hint = "start the gateway with --allow-origin URL if that page is yours"
            return Refusal(
                403, "foreign_origin", f"pages of {origin} may not send requests to this gateway", hint
            )
        return None


class Bodies:
    """ASGI middleware for bodies on every HTTP port.

    Bounded are the size and time of each body, and the size of all unanswered ones. Compressed
    bodies are refused. A body without room is refused before it is read, if its length is known.
    """

    def __init__(self, app: ASGIApp, room: Room) -> None:
        self._app, self._room = app, room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: BoundedConnection = scope["state"][STATE]
        body, started = _Body(receive, Share(self._room)), False
        # trailers that came in the same read stand behind the headers, and are not headers
        scope["headers"] = scope["headers"][: connection.header_count]

        async def told(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if connection.is_refused and scope["path"] not in probes.PATHS:
                raise Refusal(503, "busy", "too many connections are open at this gateway", "send it again")
            self._check(Headers(scope=scope))
            await self._app(scope, body.heard, told)
        except Refusal as refusal:
            if not started:
                await response(problem(refusal))(scope, receive, send)
        except asyncio.CancelledError:
            # the gateway is stopping, and the time for running requests is over
            if not started:
                await response(problem(_ending()))(scope, receive, send)
        finally:
            body.share.end()
            connection.end_answer()

    def _check(self, headers: Headers) -> None:
        """Check the headers about a body. Raises Refusal."""
        if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            hint = "send it without Content-Encoding; the name of a header of the record may say what it is"
            raise Refusal(415, "encoded", "bodies are stored as they come, and not unpacked", hint)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > BODY_BYTES_MAX:
            raise _too_large()
        if not self._room.has(int(length)):
            raise _crowded()


class _Body:
    """A body while it is received."""

    def __init__(self, receive: Receive, share: Share) -> None:
        self.share = share
        self._receive, self._whole, self._size = receive, False, 0
        self._end_s = asyncio.get_running_loop().time() + BODY_S

    async def heard(self) -> Message:
        """Return the next message. Raises Refusal."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end_s):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                408, "too_slow", f"the body of the request did not arrive within {BODY_S:g} s"
            ) from None
        self._whole = not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > BODY_BYTES_MAX:
            raise _too_large()
        if not self.share.hold(self._size):
            raise _crowded()
        return message


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _too_large() -> Refusal:
    return Refusal(
        413, "too_large", f"a body of more than {BODY_BYTES_MAX} bytes", "send it in several requests"
    )


def _crowded() -> Refusal:
    return Refusal(
        503, "busy", "too many bytes of other requests are under way at this gateway", "send it again"
    )


def _ending() -> Refusal:
    return Refusal(
        504, NoReply.code, "the gateway ends: what was asked may be done or not", "ask another, or again"
    )


def _readable(send: Send, origin: str) -> Send:
    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(b"access-control-allow-origin", origin.encode()), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return told


async def _preflight(headers: Headers, send: Send) -> None:
    asked = headers.get("access-control-request-headers", "")
    allowed = [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", asked.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": allowed})
    await send({"type": "http.response.body"})


async def body_of(receive: Receive) -> bytes:
    """Return the whole body of a request. Raises Refusal."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(499, "gone", "the client is gone")
        if part := message.get("body", b""):
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def unless_gone(receive: Receive, waiting: Coroutine[Any, Any, Found]) -> Found:
    """Return the result, or cancel if the client disconnects first. Raises Refusal."""
    work = asyncio.ensure_future(waiting)
    watch = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refusal(499, "gone", "the client is gone")
        return work.result()
    finally:
        watch.cancel()
        work.cancel()
