"""The ports of moonmq: frames over TCP, messages over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gossipq.errors import GossipqError
from gossipq_client import Record
from gossipq_client.aio import Message
from gossipq_client.values import GIVEN_BACK
from gossipq_dialects import forms
from gossipq_dialects.acks import acked
from gossipq_dialects.lines import Lines
from gossipq_dialects.moonmq import wire
from gossipq_dialects.moonmq.broker import Broker
from gossipq_dialects.moonmq.lines import MoonLine
from gossipq_dialects.options import MoonMqOptions
from gossipq_gateway.dialect import Desk, Place
from gossipq_gateway.listener import listening
from gossipq_gateway.manners import Manners
from gossipq_gateway.problems import Refusal, problem, response

POLL_S = 60.0  #: a GET waits this long for a message
LOOK_S = 1.0  #: interval of the check whether its client is still connected
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


class MoonMq:
    """The dialect. A port of None is off.

    `hosts` are further names for HTTP requests. Other names are refused, because a web page can
    resolve its own name to this address (DNS rebinding).
    """

    name = "moonmq"

    def __init__(
        self, where: Place | None, http: Place | None, options: MoonMqOptions, hosts: Collection[str] = ()
    ) -> None:
        self._where, self._http, self._options, self._hosts = where, http, options, hosts
        self.at = self.http_at = Place("", 0)  #: its addresses

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        return ()

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        broker = Broker(desk, self._options)
        lines = Lines(lambda lines: MoonLine(lines, broker), desk.counters, self._options.keepalive)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(broker.close)
            if self._where is not None:
                self.at = await stack.enter_async_context(lines.listening(self._where))
            if self._http is not None:
                app = Starlette(routes=[Route("/msg", Messages(broker).answer, methods=METHODS)])
                door = Manners(app, self._http, self._hosts, ())
                self.http_at = await stack.enter_async_context(listening(door, self._http))
            tasks = [asyncio.create_task(_sweep(broker)), asyncio.create_task(broker.look())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()


async def _sweep(broker: Broker) -> None:
    while True:
        await asyncio.sleep(1)
        broker.sweep()


class Messages:
    """GET, POST and PUT of /msg."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def answer(self, request: Request) -> Response:
        counters = self._broker.desk.counters
        counters.request()
        if forms.is_of_page(request):
            counters.error()
            return _text("web pages are not served", 403)
        try:
            if request.method == "GET":
                return await self._get(request)
            if request.method in ("POST", "PUT"):
                return await self._publish(request)
        except Refusal as refusal:
            counters.error()
            return response(problem(refusal))
        except (GossipqError, forms.BadForm) as error:
            counters.error()
            return _text(str(error), 400 if not isinstance(error, GossipqError) else 500)
        counters.error()
        return _text("invalid http method", 405)

    async def _publish(self, request: Request) -> Response:
        asked = wire.publish(dict(request.query_params), await forms.body(request))
        if isinstance(asked, wire.Refusal):
            self._broker.desk.counters.error()
            return _text(asked.text, 400)
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(number: int, error: GossipqError | None) -> None:
            if told.done():
                return
            if error is None:
                told.set_result(number)
            else:
                told.set_exception(error)

        self._broker.publish(asked, done)
        return PlainTextResponse(str(await told))

    async def _get(self, request: Request) -> Response:
        """Return one message, acked after it is written to a connected client."""
        queue, key = (request.query_params.get(name, "") for name in ("queue", "routing_key"))
        if refused := wire.checked(queue, key):
            self._broker.desk.counters.error()
            return _text(refused.text, 400)
        once, loop, writes_for_all = Once(), asyncio.get_running_loop(), False
        feed, fanout, end_s = self._broker.join(queue, key, once), None, loop.time() + POLL_S
        try:
            fanout = self._broker.listen(queue, once.all)
            while not once.message.done() and loop.time() < end_s and not await request.is_disconnected():
                await asyncio.wait([once.message], timeout=LOOK_S)
            if once.message.cancel():
                return Response(status_code=204)
            message, is_for_all = once.message.result()
            if await request.is_disconnected():
                once.give_back()
                return Response(status_code=204)
            writes_for_all = is_for_all
        except BaseException:
            once.give_back()
            raise
        finally:
            feed.leave(once)
            if fanout is not None and not writes_for_all:
                fanout.leave(once.all)  # a client with a message leaves after the write

        async def settle() -> None:
            self._broker.desk.counters.acked()
            if is_for_all and fanout is not None:
                fanout.acked(once.all, message.offset)
                fanout.leave(once.all)
            elif isinstance(message, Message):
                acked(message)

        self._broker.desk.counters.delivered()
        return Response(
            message.value, media_type="text/plain; charset=utf-8", background=BackgroundTask(settle)
        )


class Once:
    """Takes one message of either kind."""

    def __init__(self) -> None:
        self.message: asyncio.Future[tuple[Record, bool]] = asyncio.get_running_loop().create_future()
        self.all = ForAll(self)

    def has_room(self) -> bool:
        return not self.message.done()

    def give(self, message: Message) -> None:
        self.message.set_result((message, False))

    def give_back(self) -> None:
        """Give a direct message back. Fanout messages stay for the next client."""
        if self.message.cancel() or self.message.exception() is not None:
            return
        record, _ = self.message.result()
        if isinstance(record, Message):
            record.settle(GIVEN_BACK)

    def ended(self, error: GossipqError) -> None:
        if not self.message.done():
            self.message.set_exception(error)


class ForAll:
    """The fanout part of it."""

    def __init__(self, once: Once) -> None:
        self._once = once

    def has_room(self) -> bool:
        return self._once.has_room()

    def give(self, message: Record) -> None:
        self._once.message.set_result((message, True))

    def ended(self, error: GossipqError) -> None:
        self._once.ended(error)


def _text(text: str, status: int) -> Response:
    """Return an error as Go's http.Error writes it."""
    return PlainTextResponse(text + "\n", status, {"x-content-type-options": "nosniff"})
