"""The native dialect: HTTP under /v1."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gossipq_gateway.callers import Callers
from gossipq_gateway.dialect import Desk
from gossipq_gateway.v1 import openapi, streams
from gossipq_gateway.v1.operation import JSON, routes
from gossipq_gateway.v1.table import OPERATIONS


@cache
def _document() -> bytes:
    return openapi.document(OPERATIONS)


class Native:
    """The API of gossipq itself, for callers with their own tokens."""

    name = "http"

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        async def describe(request: Request) -> Response:
            return Response(_document(), media_type=JSON)

        async def consume(socket: WebSocket) -> None:
            await streams.converse(socket, self._callers, desk.counters)

        return [
            *routes(OPERATIONS, self._callers, desk.counters),
            WebSocketRoute("/v1/topics/{topic}/consume", consume),
            Route("/v1/openapi.json", describe),
        ]

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        yield
