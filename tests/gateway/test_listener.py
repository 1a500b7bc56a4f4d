"""A port that speaks HTTP, and clients that stop listening."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any
from unittest.mock import AsyncMock

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gossipq.errors import NoPlace
from gossipq_cli.failures import FAILED, explain
from gossipq_gateway import connection, listener, manners, room, seats, service
from gossipq_gateway.connection import BoundedConnection, Frames
from gossipq_gateway.dialect import Place
from gossipq_gateway.listener import listening
from gossipq_gateway.manners import body_of
from gossipq_gateway.settings import Settings

SILENT_S = 0.2
HEAD = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\n%s\r\n\r\n"


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def test_a_place_that_is_taken_may_be_free_at_the_next_start() -> None:
    """As with a node: a service manager tries again."""

    async def serve(taken: int) -> None:
        settings = Settings(http=Place("127.0.0.1", taken))
        await service.serve(lambda token: AsyncMock(), settings, lambda at: None, asyncio.Event().wait)

    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(NoPlace, match="in use") as refused:
        asyncio.run(serve(other.getsockname()[1]))
    assert explain(refused.value).exit_code == FAILED


def test_strangers_fill_no_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def malformed(times: int) -> None:
        async with listening(AsyncMock(), Place("127.0.0.1", 0)) as at:
            for _ in range(times):
                reader, writer = await asyncio.open_connection(*at)
                writer.write(b"no HTTP\r\n\r\n")
                await reader.read()
                writer.close()

    made, made_s = logging.getLogRecordFactory(), count(0.0, 10.0)

    def factory(*given: Any, **more: Any) -> logging.LogRecord:
        record = made(*given, **more)
        record.created = next(made_s)
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", factory)
    asyncio.run(malformed(8))
    said = [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"]
    assert said == ["Invalid HTTP request received.", "Invalid HTTP request received. (and 5 more before)"]


def test_a_socket_whose_reader_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers no ping and reads no data: waiting for a close would never end."""
    monkeypatch.setattr(connection, "FAREWELL_S", SILENT_S)
    monkeypatch.setattr(listener, "PING_S", SILENT_S)
    assert asyncio.run(_ended(bytes(32 << 20)))


def test_a_socket_whose_peer_vanished_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says no more, not even that it goes."""
    monkeypatch.setattr(listener, "PING_S", SILENT_S)
    assert asyncio.run(_ended(b"hello"))


async def _ended(said: bytes) -> bool:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": said})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        ended.set()

    async with listening(app, Place("127.0.0.1", 0)) as at:
        with socket.create_connection(at) as raw:
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(raw, UPGRADE)
            try:
                await asyncio.wait_for(ended.wait(), 5)
            except TimeoutError:
                return False
    return True


def test_a_socket_that_says_it_ends_and_takes_nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FAREWELL_S", SILENT_S)
    lost = asyncio.Event()
    connection_lost = BoundedConnection.connection_lost

    def lose(self: BoundedConnection, error: Exception | None) -> None:
        connection_lost(self, error)
        lost.set()

    monkeypatch.setattr(BoundedConnection, "connection_lost", lose)
    asyncio.run(_closed(lost))


async def _closed(lost: asyncio.Event) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(32 << 20)})
        await receive()

    async with listening(app, Place("127.0.0.1", 0)) as at, _socket(at) as (_, writer):
        writer.write(b"\x88\x82\0\0\0\0\x03\xe8")
        await asyncio.wait_for(lost.wait(), 5)


def test_what_comes_over_sockets_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless fragments, incomplete messages, unread answers to pings."""
    monkeypatch.setattr(room, "ROOM_BYTES_MAX", 1 << 20)
    made = list[BoundedConnection]()
    upgrade = BoundedConnection.upgrade
    monkeypatch.setattr(
        BoundedConnection, "upgrade", lambda self, protocol: made.append(self) or upgrade(self, protocol)
    )
    asyncio.run(_overrun(made))


async def _overrun(made: list[BoundedConnection]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    large = b"\x82\xff" + (2 << 20).to_bytes(8, "big") + bytes(4 + (900 << 10))
    async with listening(app, Place("127.0.0.1", 0)) as at:
        async with _socket(at) as (reader, writer):
            writer.write(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 20_000)
            assert await _is_over(reader)
        for _ in range(2):
            async with _socket(at) as (reader, writer), _socket(at) as (late, other):
                writer.write(large)
                await _until(lambda: made[-2].message_bytes > 800 << 10)
                other.write(large)
                assert await _is_over(late)
                assert not made[-2].is_closing
        async with _socket(at) as (reader, writer):
            with suppress(ConnectionError):
                for _ in range(300):
                    writer.write((b"\x89\xfd\0\0\0\0" + bytes(125)) * 500)
                    await writer.drain()
            await _until(lambda: made[-1].is_closing)


def _frame(payload: bytes, opcode: int = 2, is_last: bool = True) -> bytes:
    size = len(payload)
    length = bytes((128 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes((is_last << 7 | opcode,)) + length + b"mask" + payload


@pytest.mark.parametrize("step", [1, 3, 1_000])
def test_a_message_over_a_socket_is_counted_until_its_end(step: int) -> None:
    """However its bytes arrive, also if pings stand between its fragments."""
    parts = [
        (_frame(bytes(100), is_last=False), 100, 1),
        (_frame(bytes(50), opcode=9), 100, 1),
        (_frame(bytes(300), opcode=0, is_last=False), 400, 2),
        (_frame(b"", opcode=0), 0, 0),
        (_frame(bytes(200)), 0, 0),
        (_frame(bytes(200))[:-1], 199, 1),
    ]
    frames = Frames()
    for sent, size, fragments in parts:
        for at in range(0, len(sent), step):
            frames.feed(sent[at : at + step])
        assert (frames.size, frames.fragments) == (size, fragments)


def test_a_socket_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the WebSocket is that of a dialect with a protocol of its own."""
    monkeypatch.setattr(seats, "CONNECTIONS_MAX", 1)

    async def run() -> None:
        made = list[asyncio.Protocol]()

        def protocol(**given: Any) -> asyncio.Protocol:
            made.append(asyncio.Protocol())
            return made[-1]

        async with listening(_hello, Place("127.0.0.1", 0), ws=protocol) as at:
            _, writer = await asyncio.open_connection(*at)
            writer.write(UPGRADE)
            await _until(lambda: len(made) == 1)
            async with _asked(at, _sized(0)) as reader:
                assert await _status(reader) == b"503"
            writer.close()
            async with asyncio.timeout(30):
                while True:
                    async with _asked(at, _sized(0)) as reader:
                        if await _status(reader) == b"200":
                            break

    asyncio.run(run())


@asynccontextmanager
async def _socket(at: Place) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*at, limit=1 << 12)
    try:
        writer.write(UPGRADE)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        yield reader, writer
    finally:
        writer.transport.abort()


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _asked(at: Place, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """The answer to bytes that are sent over a connection of their own."""
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
    """A client that finds no room is told so before its body is read; small requests always have
    room. When the others are answered, there is room again.
    """
    monkeypatch.setattr(room, "ROOM_BYTES_MAX", 1 << 20)
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


async def _is_over(reader: asyncio.StreamReader) -> bool:
    """True if the other end closes the connection soon."""
    try:
        await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await Response("hello")(scope, receive, send)


@pytest.mark.parametrize("more", [b"x", b"\r\n"])
def test_what_comes_behind_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    """The unread rest of a body, or lines before a next request that never comes."""
    monkeypatch.setattr(connection, "HEADERS_S", SILENT_S)
    head = _sized(100) if more == b"x" else _sized(0)
    assert asyncio.run(_goes_on(head, more))


def test_trailers_have_an_end() -> None:
    """They would be kept, as many as come."""
    head = HEAD % b"transfer-encoding: chunked" + b"0\r\n"
    assert asyncio.run(_goes_on(head, b"a: b\r\n" * 100_000))


async def _goes_on(head: bytes, more: bytes) -> bool:
    async with listening(_hello, Place("127.0.0.1", 0)) as at:
        reader, writer = await asyncio.open_connection(*at)
        try:
            writer.write(head)
            assert await _status(reader) == b"200"
            await reader.readuntil(b"hello")
            writer.write(more)
            return await _is_over(reader)
        finally:
            writer.transport.abort()


def test_trailers_are_no_headers() -> None:
    """The handler has read the headers already and does not look again."""
    assert asyncio.run(_trailed()) == b"204"


async def _trailed() -> bytes:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        await request.body()
        names = {name for name, _ in scope["headers"]}
        await Response(status_code=500 if b"authorization" in names else 204)(scope, receive, send)

    sent = HEAD % b"transfer-encoding: chunked" + b"0\r\nauthorization: x\r\n\r\n"
    async with listening(app, Place("127.0.0.1", 0)) as at, _asked(at, sent) as reader:
        return await _status(reader)


def test_requests_ahead_of_the_answers_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PIPELINED_MAX", 4)
    asyncio.run(_ahead())


async def _ahead() -> None:
    may_go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while not may_go.is_set():
            await Request(scope, receive).is_disconnected()
            await asyncio.sleep(0.01)
        await _hello(scope, receive, send)

    async with listening(app, Place("127.0.0.1", 0)) as at:
        async with _asked(at, _sized(0) * 6) as reader:
            assert await _is_over(reader)
        async with _asked(at, _sized(0) * 5) as reader:
            may_go.set()
            for _ in range(5):
                assert await _status(reader) == b"200"
                await asyncio.wait_for(reader.readuntil(b"hello"), 5)


def test_answers_that_nobody_takes_have_a_common_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without room is disconnected; a client that reads an answer
    makes room for the next one.
    """
    monkeypatch.setattr(room, "ROOM_BYTES_MAX", 40 << 20)
    asyncio.run(_untaken())


async def _untaken() -> None:
    size = 32 << 20  # of which the kernel takes some

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(bytes(size))(scope, receive, send)

    async with listening(app, Place("127.0.0.1", 0)) as at:
        for _ in range(2):
            async with _asked(at, _sized(0)) as first:
                assert await _status(first) == b"200"
                async with _asked(at, _sized(0)) as second:
                    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                        await asyncio.wait_for(second.readexactly(size), 5)
                await asyncio.wait_for(first.readuntil(b"\r\n\r\n"), 5)
                assert len(await asyncio.wait_for(first.readexactly(size), 5)) == size


def test_who_takes_nothing_of_an_answer_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALLED_S", SILENT_S)
    asyncio.run(_stalled())


async def _stalled() -> None:
    sent = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(3):
            await send({"type": "http.response.body", "body": bytes(16 << 20), "more_body": True})
        sent.set()

    async with listening(app, Place("127.0.0.1", 0)) as at:
        with socket.create_connection(at) as raw:
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(raw, _sized(0))
            await asyncio.wait_for(sent.wait(), 5)


def test_who_is_not_answered_when_the_gateway_ends_hears_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says nothing of a fault."""
    monkeypatch.setattr(listener, "GRACE_S", 1)
    assert asyncio.run(_unanswered()) == b"504"
    assert not [record for record in caplog.records if record.exc_info]


async def _unanswered() -> bytes:
    asked = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        asked.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        async with listening(app, Place("127.0.0.1", 0)) as at:
            await stack.enter_async_context(_asked(at, _sized(0).replace(b"/", b"/stream", 1)))
            await asyncio.wait_for(asked.wait(), 5)
            asked.clear()
            reader = await stack.enter_async_context(_asked(at, _sized(0)))
            await asyncio.wait_for(asked.wait(), 5)
        return await _status(reader)


@pytest.mark.parametrize(
    ("size", "status"), [(connection.HEADER_BYTES_MAX - 200, b"200"), (70_000, b"431"), (700_000, b"431")]
)
@pytest.mark.parametrize("in_url", [False, True])
def test_headers_have_a_bound_also_in_one_piece(size: int, status: bytes, in_url: bool) -> None:
    """70,000 bytes come in one read of the socket, and are refused like those that come byte by byte."""
    filler = b"y" * size
    head = HEAD.replace(b" / ", b" /" + filler + b" ") % b"a: b" if in_url else HEAD % (b"x: " + filler)

    async def run() -> None:
        async with listening(_hello, Place("127.0.0.1", 0)) as at, _asked(at, head) as reader:
            assert await _status(reader) == status

    asyncio.run(run())


def test_half_sent_headers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest connection is closed for a new one; if none is slow, an idle one is closed."""
    monkeypatch.setattr(seats, "CONNECTIONS_MAX", 4)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            at = await stack.enter_async_context(listening(_hello, Place("127.0.0.1", 0)))
            half, kept = HEAD[:30], []
            for _ in range(3):
                slow = await stack.enter_async_context(_asked(at, half))
                idle = await stack.enter_async_context(_asked(at, _sized(0)))
                assert await _status(idle) == b"200"
                kept.append((slow, idle))
            for slow, _ in kept[:-1]:
                assert await _is_over(slow)
            for _ in range(4):
                async with _asked(at, _sized(0)) as reader:
                    assert await _status(reader) == b"200"

    asyncio.run(run())


def test_a_probe_is_answered_if_everybody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GRACE_S", 1)
    monkeypatch.setattr(seats, "CONNECTIONS_MAX", 1)

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/livez":
            await _hello(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.Event().wait()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            at = await stack.enter_async_context(listening(stream, Place("127.0.0.1", 0)))
            at_work = await stack.enter_async_context(_asked(at, _sized(0)))
            assert await _status(at_work) == b"200"
            refused = await stack.enter_async_context(_asked(at, _sized(0)))
            assert await _status(refused) == b"503"
            probe = await stack.enter_async_context(
                _asked(at, HEAD.replace(b"POST /", b"GET /livez") % b"a: b")
            )
            assert await _status(probe) == b"200"

    asyncio.run(run())
