"""A dialect of forty lines: `PUT TOPIC TEXT` and `GET TOPIC` over TCP, a line each."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gossipq.errors import GossipqError
from gossipq_gateway.dialect import Desk, Place, Wanted


class Lines:
    name = "lines"

    def __init__(self, wanted: Wanted) -> None:
        self.at = wanted.own_place()

    def routes(self, desk: Desk) -> Sequence[object]:
        return ()  # nothing under the port of HTTP

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        callers = set[asyncio.StreamWriter]()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            callers.add(writer)
            async for line in reader:
                desk.counters.request()
                try:
                    writer.write(await answer(desk, *line.decode().split(maxsplit=2)) + b"\n")
                except (GossipqError, TypeError, ValueError) as error:
                    desk.counters.error()
                    writer.write(f"ERROR {error}\n".encode())
            callers.remove(writer)
            writer.close()

        server = await asyncio.start_server(talk, *self.at)
        self.at = Place(*server.sockets[0].getsockname()[:2])
        try:
            yield
        finally:
            server.close()
            for writer in callers:
                writer.close()


async def answer(desk: Desk, verb: str, topic: str, text: str = "") -> bytes:
    """Publish the text, or take and ack the next record of the group "lines"."""
    if verb == "PUT":
        return (await desk.mq.publish(topic, text.rstrip("\n"))).ref.encode()
    for message in await desk.mq.fetch(topic, "lines", n=1, wait=1.0):
        await message.ack()
        return message.value
    return b"EMPTY"
