"""A port that speaks HTTP, and who listens no more at the other end."""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gossipq_gateway import listener, manners
from gossipq_gateway.dialect import Place
from gossipq_gateway.listener import listening
from gossipq_gateway.manners import body_of

SILENT_S = 0.2
HEAD = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\n%s\r\n\r\n"


def test_a_socket_whose_reader_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers no ping, and takes nothing of what lies there for it: a close that waits for that never
    comes."""
    monkeypatch.setattr(listener, "FAREWELL_S", SILENT_S)
    assert asyncio.run(_ended())


async def _ended() -> bool:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(32 << 20)})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        ended.set()

    here, loop = Place("127.0.0.1", 0), asyncio.get_running_loop()
    async with listening(app, here, ws_ping_interval=SILENT_S, ws_ping_timeout=SILENT_S) as at:
        with socket.create_connection(at) as raw:
            raw.setblocking(False)
            key = base64.b64encode(bytes(16)).decode()
            lines = (
                f"GET / HTTP/1.1\r\nHost: {at}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
            )
            await loop.sock_sendall(raw, lines.encode())
            try:
                await asyncio.wait_for(ended.wait(), 5)
            except TimeoutError:
                return False
    return True


@asynccontextmanager
async def _asked(at: Place, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """The answer to what is sent over a connection of its own."""
    reader, writer = await asyncio.open_connection(*at)
    try:
        writer.write(sent)
        await asyncio.wait_for(writer.drain(), 5)
        yield reader
    finally:
        writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> bytes:
    return (await asyncio.wait_for(reader.readline(), 5)).split()[1]


def _sized(size: int) -> bytes:
    return HEAD % b"content-length: %d" % size


def _chunk(size: int) -> bytes:
    return b"%x\r\n%s\r\n" % (size, bytes(size))


def test_bodies_that_are_under_way_have_a_common_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when there is no room is told so before the body is read; small ones have room always; and
    when the others are answered there is room again."""
    monkeypatch.setattr(manners, "BODIES_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(manners, "BODY_BYTES_MAX", 700 << 10)
    asyncio.run(_crowd())


async def _crowd() -> None:
    arrived, may_go = asyncio.Semaphore(0), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = len(await body_of(receive))
        if size > 100:
            arrived.release()
            await may_go.wait()
        await Response(str(size))(scope, receive, send)

    half, chunked = 600 << 10, HEAD % b"transfer-encoding: chunked"
    async with listening(app, Place("127.0.0.1", 0)) as at:
        async with _asked(at, chunked + _chunk(900 << 10)) as large:
            assert await _status(large) == b"413"
        async with _asked(at, _sized(half) + bytes(half)) as first:
            await asyncio.wait_for(arrived.acquire(), 5)
            async with _asked(at, _sized(half)) as second:
                assert await _status(second) == b"503"
                told = await asyncio.wait_for(second.readuntil(b"\r\n\r\n"), 5)
                assert b"retry-after: 1" in told
            async with _asked(at, chunked + _chunk(half)) as third:
                assert await _status(third) == b"503"
            async with _asked(at, _sized(100) + bytes(100)) as small:
                assert await _status(small) == b"200"
            may_go.set()
            assert await _status(first) == b"200"
        async with _asked(at, chunked + _chunk(half) + b"0\r\n\r\n") as fourth:
            assert await _status(fourth) == b"200"


def test_no_door_waits_without_end_for_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that reads the body by itself, as that of forms does."""
    monkeypatch.setattr(manners, "BODY_S", SILENT_S)
    assert asyncio.run(_late()) == b"408"


async def _late() -> bytes:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(await Request(scope, receive).body())(scope, receive, send)

    async with listening(app, Place("127.0.0.1", 0)) as at, _asked(at, _sized(10) + b"x") as reader:
        return await _status(reader)
