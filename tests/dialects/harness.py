"""A gateway on a thread, over a real node; its clients are plain sockets."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossipq_client.aio import Client, connect
from gossipq_gateway import service
from gossipq_gateway.dialect import Dialect, Place
from gossipq_gateway.settings import Settings

PATIENCE_S = 30.0
ANYWHERE = Place("127.0.0.1", 0)


def vectors(name: str) -> Any:
    """Conversations of an ancestor, written down by hand."""
    return json.loads((Path(__file__).parent / "vectors" / f"{name}.json").read_text("utf-8"))


class Gateway:
    """One that speaks some dialects, until `stop`."""

    def __init__(self, endpoint: str, dialects: list[Dialect]) -> None:
        self._endpoint, self._dialects = endpoint, dialects
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.http = ANYWHERE
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the gateway is not ready"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()

        def ready(at: Place) -> None:
            self.http = at
            self._ready.set()

        await service.serve(self._connect, Settings(http=ANYWHERE), ready, self._ended, self._dialects)

    def _connect(self, token: bytes | None) -> Client:
        return connect(self._endpoint, name="gateway", timeout=10)

    async def _ended(self) -> None:
        assert self._end is not None
        await self._end.wait()

    def stop(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the gateway does not end"
        if self._error is not None:
            raise self._error

    def metrics(self) -> dict[str, float]:
        with socket.create_connection(self.http) as line:
            line.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            text = b"".join(iter(lambda: line.recv(65_536), b"")).decode()
        rows = [row.rpartition(" ") for row in text.splitlines() if row.startswith("gossipq_gateway")]
        return {name: float(number) for name, _, number in rows}

    def count(self, fact: str, dialect: str) -> float:
        """The present value of a counter."""
        return sum(
            number
            for name, number in self.metrics().items()
            if name.startswith(f"gossipq_gateway_{fact}_total") and f'"{dialect}"' in name
        )


@contextmanager
def gateway_of(endpoint: str, *dialects: Dialect) -> Iterator[Gateway]:
    running = Gateway(endpoint, list(dialects))
    try:
        yield running
    finally:
        running.stop()
