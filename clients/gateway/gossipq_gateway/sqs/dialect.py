"""SQS under the HTTP port: POST at /, /sqs and a queue's URL, in the JSON protocol."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gossipq.errors import GossipqError
from gossipq_gateway.callers import Callers
from gossipq_gateway.dialect import Desk
from gossipq_gateway.manners import body_of, unless_gone
from gossipq_gateway.problems import Refusal
from gossipq_gateway.sqs import signature
from gossipq_gateway.sqs.access_keys import AccessKeys
from gossipq_gateway.sqs.actions import Actions, Asked
from gossipq_gateway.sqs.faults import SqsFault, fault_of
from gossipq_gateway.sqs.queues import Queues

MEDIA_TYPE = "application/x-amz-json-1.0"
TARGET = "AmazonSQS."
LOOK_S = 1.0
REST_MS = 2_000


class Sqs:
    """Amazon SQS. Each access key is mapped to a user of the cluster.

    The table of queues is stored with the permissions of the gateway's own user.
    """

    name = "sqs"

    def __init__(self, callers: Callers, keys_file: str, public_url: str = "") -> None:
        """Raises ConfigError."""
        self._callers, self._keys, self._public_url = callers, AccessKeys(keys_file), public_url

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        self._desk = desk
        self._queues = Queues(desk.mq)
        self._actions = Actions(self._queues)
        paths = ("/", "/sqs", "/sqs/", "/sqs/{account}/{queue}")
        return [Route(path, _Door(self), methods=["POST"]) for path in paths]

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._mind())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self._queues.follow()
            except GossipqError as error:
                self._desk.log.warning("the queues cannot be read: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _mind(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._actions.rest(self._desk.clock.now().boot_ms, REST_MS)
                self._keys.look()
            except GossipqError as error:
                self._desk.log.warning("%s", error)

    async def answer(self, request: Request) -> Response:
        """Answer every request, also invalid ones."""
        self._desk.counters.request()
        try:
            return _response(200, await self._done(request))
        except SqsFault as fault:
            return self._refused(fault)
        except Refusal as refusal:
            return self._refused(SqsFault("InvalidRequest", refusal.message, status=refusal.status))
        except GossipqError as error:
            return self._refused(fault_of(error))
        except Exception:
            self._desk.log.exception("%s", request.headers.get("x-amz-target"))
            return self._refused(
                SqsFault(
                    "InternalFailure",
                    "Internal error of the gateway: its log has the details.",
                    status=500,
                )
            )

    def _refused(self, fault: SqsFault) -> Response:
        self._desk.counters.error()
        body = {"__type": f"com.amazonaws.sqs#{fault.kind}", "message": fault.message}
        sender = "Sender" if fault.status < 500 else "Receiver"
        return _response(fault.status, body, {"x-amzn-query-error": f"{fault.code};{sender}"})

    async def _done(self, request: Request) -> dict[str, Any]:
        headers = {name: ",".join(request.headers.getlist(name)) for name in request.headers}
        signed = signature.read(headers.get("authorization", ""))
        secret, token = self._keys.find(signed.key_id)
        body = await body_of(request.receive)
        path = request.scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
        now = self._desk.clock.now()
        asked = signature.Asked(request.method, path, request.url.query, headers, body)
        signature.check(asked, signed, secret, now.wall_ms, urlsplit(self._public_url).path)
        target = headers.get("x-amz-target", "")
        action = self._actions.known.get(target.removeprefix(TARGET))
        if action is None or not target.startswith(TARGET):
            raise SqsFault("UnsupportedOperation", f"The action {target or '(none)'} is not served here.")
        try:
            data = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SqsFault("SerializationException", f"The body is not JSON: {error}") from None
        await self._queues.ready()
        async with self._callers.of(token) as caller:
            base_url = self._public_url or f"{request.url.scheme}://{headers.get('host', '')}"
            what = Asked(caller, token, data, base_url, self._desk.counters, now.wall_ms)
            if action == self._actions.receive:
                return await unless_gone(request.receive, action(what))
            return await action(what)


class _Door:
    """The ASGI application of every path."""

    def __init__(self, sqs: Sqs) -> None:
        self._sqs = sqs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._sqs.answer(Request(scope, receive))
        await answer(scope, receive, send)


def _response(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)
