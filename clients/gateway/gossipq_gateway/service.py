"""Runs a gateway: its client, its dialects and the HTTP port."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from gossipq.clock import SystemClock
from gossipq.errors import ConfigError, GossipqError, NoPlace
from gossipq_gateway import plugins
from gossipq_gateway.callers import Callers, Connect
from gossipq_gateway.counters import Metrics
from gossipq_gateway.dialect import Desk, Dialect, Place, log, sparing
from gossipq_gateway.listener import listening
from gossipq_gateway.manners import Manners
from gossipq_gateway.probes import Probes
from gossipq_gateway.problems import Refusal, problem, response
from gossipq_gateway.settings import Settings
from gossipq_gateway.v1.dialect import Native

#: called when the gateway serves; awaited until it should end
Ready = Callable[[Place], None]
End = Callable[[], Awaitable[None]]
LOOPBACK = ("127.0.0.1", "::1")  #: a proxy on this machine is trusted
ELSEWHERE = "stop what listens there, or give another HOST:PORT"


def dialects(settings: Settings, callers: Callers) -> list[Dialect]:
    """Return the dialects for these settings, imported on demand. Raises ConfigError."""
    found: list[Dialect] = [Native(callers)]
    if settings.sqs:
        from gossipq_gateway.sqs.dialect import Sqs

        if not settings.sqs_keys:
            raise ConfigError(
                "--sqs needs access keys", "--sqs-keys FILE; docs/reference/http.md describes it"
            )
        found.append(Sqs(callers, settings.sqs_keys, settings.public_url))
    if settings.webhooks:
        from gossipq_gateway.webhooks.dialect import Webhooks
        from gossipq_gateway.webhooks.hooks import read

        found.append(Webhooks(read(settings.webhooks)))
    found += map(plugins.dialect_of, settings.dialects)
    return found


async def serve(
    connect: Connect, settings: Settings, ready: Ready, end: End, more: Sequence[Dialect] = ()
) -> None:
    """Serve all dialects of the settings, and `more`, until `end` returns.

    Then records are given back, and the client is closed. Raises Unreachable, and
    NoPlace if an address is in use.
    """
    settings.check()
    metrics, clock, mq = Metrics(), SystemClock(), connect(None)
    callers = Callers(connect, clock, os.urandom(4).hex())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(mq)
        stack.push_async_callback(callers.close)
        minded = asyncio.create_task(callers.mind())
        stack.callback(minded.cancel)
        probes = Probes(mq, clock)
        stack.push_async_callback(probes.close)
        routes: list[BaseRoute] = [*probes.routes(), Route("/metrics", _page(metrics), methods=["GET"])]
        for dialect in (*dialects(settings, callers), *more):
            its_log = stack.enter_context(sparing(log.getChild(dialect.name)))
            desk = Desk(mq, clock, metrics.of(dialect.name), its_log)
            routes += dialect.routes(desk)
            try:
                await stack.enter_async_context(dialect.serve(desk))
            except GossipqError:  # an unreachable node is a ConnectionError, too
                raise
            except OSError as error:
                raise NoPlace(f"{dialect.name} cannot listen: {error.strerror or error}", ELSEWHERE) from None
        app = Manners(
            Router(routes, default=_nowhere, redirect_slashes=False),
            settings.http,
            settings.known_hosts,
            settings.known_origins,
        )
        proxies = [*LOOPBACK, *settings.proxies]
        try:
            at = await stack.enter_async_context(listening(app, settings.http, proxies))
        except OSError as error:
            raise NoPlace(f"--http {settings.http}: {error.strerror or error}", ELSEWHERE) from None
        ended = asyncio.ensure_future(end())
        await asyncio.sleep(0)  # let it listen before that is announced
        ready(at)
        await ended


def _page(metrics: Metrics) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")

    return page


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer requests to unknown paths."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    refusal = Refusal(404, "not_found", f"there is nothing at {scope['path']}", "GET /v1/openapi.json")
    await response(problem(refusal))(scope, receive, send)


async def told_to_end() -> None:
    """Return at SIGTERM or Ctrl-C; a second one ends the process at once."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):

        def tell(number: signal.Signals = number) -> None:
            told.set()
            loop.remove_signal_handler(number)

        loop.add_signal_handler(number, tell)
    await told.wait()


def run(connect: Connect, settings: Settings, more: Sequence[Dialect] = ()) -> None:
    """Run a gateway in this process until SIGTERM or Ctrl-C.

    `more` are dialects besides the settings, such as the console. Raises Unreachable, ConfigError.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")

    def ready(at: Place) -> None:
        print(f"ready: HTTP at http://{at}", flush=True)

    async def whole() -> None:
        await serve(connect, settings, ready, told_to_end, more)

    try:
        import uvloop
    except ImportError:  # on Windows
        asyncio.run(whole())
    else:
        uvloop.run(whole())
