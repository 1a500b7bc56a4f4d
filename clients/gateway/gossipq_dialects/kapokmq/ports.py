"""The port of KapokMQ: WebSockets and HTTP."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute

from gossipq_dialects.kapokmq.broker import Broker
from gossipq_dialects.kapokmq.pages import Pages
from gossipq_dialects.kapokmq.sockets import Hall
from gossipq_dialects.options import KapokMqOptions
from gossipq_gateway.dialect import Desk, Place
from gossipq_gateway.listener import listening


class KapokMq:
    """The dialect."""

    name = "kapokmq"

    def __init__(self, where: Place, options: KapokMqOptions) -> None:
        self._where, self._options = where, options
        self.at = where  #: its address

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        return ()

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        broker = Broker(desk, self._options)
        hall = Hall(broker)
        app = Pages(broker, hall).app()
        async with listening(app, self._where, ws=hall.protocol) as at:
            self.at = at
            sweeper = asyncio.create_task(_sweep(hall))
            try:
                yield
            finally:
                sweeper.cancel()
                await hall.close()
                await broker.close()


async def _sweep(hall: Hall) -> None:
    while True:
        await asyncio.sleep(1)
        hall.sweep()
