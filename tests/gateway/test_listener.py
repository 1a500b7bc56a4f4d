"""A port that speaks HTTP, and who listens no more at the other end."""

import asyncio
import base64
import socket
from typing import Any

import pytest

from gossipq_gateway import listener
from gossipq_gateway.dialect import Place
from gossipq_gateway.listener import listening

SILENT_S = 0.2


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
