"""xxl-mq's OpenAPI, under the HTTP port."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gossipq.errors import GossipqError
from gossipq_dialects import forms
from gossipq_dialects.options import XxlMqOptions
from gossipq_dialects.xxl_mq import wire
from gossipq_dialects.xxl_mq.broker import Broker
from gossipq_gateway.dialect import Desk

#: headers; the second is that of older clients
TOKENS = ("xxl-mq-access-token", "xxl_mq_access_token")


class XxlMq:
    """The dialect."""

    name = "xxl_mq"

    def __init__(self, options: XxlMqOptions) -> None:
        self._options = options
        self._broker: Broker | None = None

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        async def answer(request: Request) -> Response:
            desk.counters.request()
            said = await self._answer(desk, request)
            if not said.startswith(b'{"code":200,'):
                desk.counters.error()
            return Response(said, media_type="application/json")

        methods = ["GET", "POST", "PUT", "DELETE", "PATCH"]
        return [Route("/openapi/{method}", answer, methods=methods)]

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        broker = self._broker = Broker(desk, self._options)
        sweeper = asyncio.create_task(_sweep(broker))
        try:
            yield
        finally:
            sweeper.cancel()
            await broker.close()

    async def _answer(self, desk: Desk, request: Request) -> bytes:
        try:
            if forms.is_of_page(request):
                raise wire.Refused("invalid request, web pages are not served.")
            token = next((request.headers[name] for name in TOKENS if name in request.headers), "")
            body = await forms.body(request)
            wire.check(request.method, body, token, self._options.access_token)
            if self._broker is None:
                raise wire.Refused("the gateway is not ready")
            method = request.path_params["method"]
            return await self._broker.do(method, wire.request(method, body))
        except wire.Refused as refusal:
            return wire.refused(refusal)
        except (GossipqError, forms.BadForm) as error:
            desk.log.warning("%s: %s", request.url.path, error)
            return wire.refused(wire.Refused(f"openapi invoke error: {error}"))


async def _sweep(broker: Broker) -> None:
    while True:
        await asyncio.sleep(1)
        broker.sweep()
