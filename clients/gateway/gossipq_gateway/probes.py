"""Probes for load balancers and Kubernetes, without a token and with any host name.

/livez tells whether the gateway runs, /readyz whether it reaches its cluster.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gossipq.clock import Clock
from gossipq.errors import GossipqError
from gossipq_client.aio import Client

LIVEZ, READYZ = PATHS = "/livez", "/readyz"
READY_S = 0.8  #: a probe is answered within this time; Kubernetes waits 1 s by default
KNOWN_MS = 1_000  #: an answer of the cluster is used this long for all probes
#: a pattern without matches, which the meta shard answers to every user
NO_TOPIC = "gossipq.readyz*"


class Probes:
    """The two routes of one gateway."""

    def __init__(self, mq: Client, clock: Clock) -> None:
        self._mq, self._clock = mq, clock
        self._asking: asyncio.Task[str] | None = None
        self._asked_ms = 0

    def routes(self) -> Sequence[BaseRoute]:
        return Route(LIVEZ, self._livez, methods=["GET"]), Route(READYZ, self._readyz, methods=["GET"])

    async def _livez(self, request: Request) -> Response:
        return _verdict("live", "")

    async def _readyz(self, request: Request) -> Response:
        now_ms = self._clock.now().boot_ms
        if self._asking is None or (self._asking.done() and now_ms - self._asked_ms >= KNOWN_MS):
            self._asking, self._asked_ms = asyncio.create_task(self._ask()), now_ms
        done, _ = await asyncio.wait((self._asking,), timeout=READY_S)
        why = self._asking.result() if done else f"the cluster has not answered within {READY_S:g} s"
        return _verdict("ready", why)

    async def _ask(self) -> str:
        """Return why the cluster does not serve; "" if it does."""
        try:
            await self._mq.topics(NO_TOPIC)
        except GossipqError as error:
            return error.message or error.code
        return ""

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking


def _verdict(name: str, why: str) -> Response:
    body = msgspec.json.encode({name: not why, "reasons": [why] if why else []}) + b"\n"
    headers = {"cache-control": "no-store"}
    return Response(body, 503 if why else 200, headers, "application/json")
