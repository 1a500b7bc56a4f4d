"""WebSockets of KapokMQ's producers and consumers.

`websockets` makes and reads the frames. The rest is here, because a message should cost a producer
only a frame and its `ok`, and an idle consumer little memory.
"""

import asyncio
import logging
import socket
from functools import partial
from typing import Any
from urllib.parse import unquote

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import CONNECTING, OPEN
from websockets.server import ServerProtocol

from gossipq.errors import GossipqError
from gossipq_client.aio import Message
from gossipq_dialects.kapokmq import wire
from gossipq_dialects.kapokmq.broker import Broker
from gossipq_dialects.names import topic_of
from gossipq_gateway import connection

SOCKETS_MAX = 8_192
FRAME_BYTES_MAX = 17 << 20
PENDING_MAX = 2_048  #: messages of a producer that wait for a confirm; above this, it is not read
PENDING_BYTES_MAX = 4 << 20  #: likewise
#: unread bytes of a client; above this, records are not pushed, and its `ok`s are only counted
UNREAD_BYTES_MAX = 256 << 10
LOGIN_S = 300.0  #: a client without the key is disconnected after this time
QUIET = logging.getLogger("gossipq.gateway.kapokmq.websockets")  #: no log lines for connections
QUIET.setLevel(logging.WARNING)
OK_FRAME = Frame(Opcode.TEXT, wire.OK).serialize(mask=False)
OKS_AT_ONCE = 16_384


class Hall:
    """All WebSockets of the dialect."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.open: set[Socket] = set()

    def protocol(self, config: Any, server_state: Any, app_state: Any) -> "Socket":
        """Return a protocol for an upgrade, as the HTTP server calls it."""
        return Socket(self)

    def sweep(self) -> None:
        self.broker.sweep()
        for each in list(self.open):
            each.look()

    async def close(self) -> None:
        for each in list(self.open):
            each.end(1001)
        await asyncio.sleep(0)
        for each in list(self.open):
            each.transport.abort()
        while self.open:
            await asyncio.sleep(0.01)


class Socket(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, hall: Hall) -> None:
        self._hall, self._broker = hall, hall.broker
        self._wire = ServerProtocol(max_size=FRAME_BYTES_MAX, logger=QUIET)
        self._login = wire.Login(hall.broker.options.secret_key)
        self.seat: wire.Seat | None = None
        self.joined_s = 0
        self.ip = ""
        self._topic = self._group = ""
        self._feed: Any = None
        self._parts: list[bytes] = []  #: of a message in several frames
        self._oks = self._pending = self._pending_bytes = self.in_hand = 0
        self._is_full = self._braked = self._flushing = self._greeted = False
        self._unread, self._moved_s = 0, 0.0  #: unread bytes, and when they last became fewer
        self._timer: asyncio.TimerHandle | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport, self._moved_s = transport, asyncio.get_running_loop().time()
        transport.set_write_buffer_limits(UNREAD_BYTES_MAX)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.ip = str((transport.get_extra_info("peername") or ("",))[0])
        self._hall.open.add(self)
        self._broker.desk.counters.connected()
        if len(self._hall.open) > SOCKETS_MAX:
            self._broker.desk.counters.error()
            transport.abort()
        self._timer = asyncio.get_running_loop().call_later(LOGIN_S, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._calm()
        self._hall.open.discard(self)
        self._broker.desk.counters.disconnected()
        if self._feed is not None:
            self._feed.leave(self)
            self._broker.give_back(self)

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        try:
            for event in self._wire.events_received():
                if isinstance(event, Request):
                    self._greet(event)
                elif isinstance(event, Frame):
                    self._heard(event)
        except wire.Malformed:
            self._broker.desk.counters.error()
            self._flush()
            self.transport.close()  # without a frame, like the original
            return
        self._flush()

    def eof_received(self) -> None:
        self._wire.receive_eof()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()
        if self._feed is not None:
            self._feed.roomy(self)

    def look(self) -> None:
        """Disconnect a stuck consumer. Producers need not read."""
        now_s, unread = asyncio.get_running_loop().time(), self.transport.get_write_buffer_size()
        if self._feed is None or not self._is_full or unread < self._unread:
            self._moved_s = now_s
        elif now_s - self._moved_s >= connection.STALLED_S:
            self.transport.abort()
        self._unread = unread

    def end(self, code: int, reason: str = "") -> None:
        """Close with a frame that has the reason."""
        if self._wire.state is OPEN:
            self._wire.send_close(code, reason)
            self._flush()
        self.transport.close()

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.transport.is_closing():
            return
        out = self._wire.data_to_send()
        # otherwise answers to pings that the client does not read
        if out and not (self._is_full and self._wire.state is OPEN):
            self.transport.write(b"".join(out))
        while self._oks and not self._is_full and self._wire.state is OPEN:
            count = min(self._oks, OKS_AT_ONCE)
            self._oks -= count
            self.transport.write(OK_FRAME * count)
        if self._wire.state is not OPEN and (self._greeted or self._wire.state is not CONNECTING):
            self.transport.close()
            return
        heavy = self._pending >= PENDING_MAX or self._pending_bytes >= PENDING_BYTES_MAX
        if heavy != self._braked:
            self._braked = heavy
            (self.transport.pause_reading if heavy else self.transport.resume_reading)()

    # --- the handshake

    def _greet(self, request: Request) -> None:
        self._greeted = True
        self.seat = wire.seat(unquote(request.path.partition("?")[0]))
        origin = request.headers.get("Origin")
        if self.seat is None or (origin is not None and origin not in self._broker.options.origins):
            self._refuse(404 if self.seat is None else 403)
            return
        try:
            if self.seat.role != "Sync":
                self._topic = topic_of(self.seat.topic)
                self._group = self._broker.group_of(self.seat.id)
        except GossipqError as error:
            self._refuse(400, str(error))
            return
        response = self._wire.accept(request)
        self._wire.send_response(response)
        if self._wire.state is OPEN:
            self._say(self._login.begin())
        else:
            self._broker.desk.counters.error()

    def _refuse(self, status: int, text: str = "") -> None:
        self._broker.desk.counters.error()
        texts = {404: "404 page not found", 403: "Forbidden\n"}
        self._wire.send_response(self._wire.reject(status, text or texts[status]))

    def _say(self, texts: list[bytes]) -> None:
        for text in texts:
            self._wire.send_text(text)

    # --- messages

    def _heard(self, frame: Frame) -> None:
        """Handle a frame. Raises Malformed."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if not frame.fin or self._parts:
            self._parts.append(bytes(frame.data))
            if not frame.fin:
                return
            message, self._parts = b"".join(self._parts), []
        else:
            message = bytes(frame.data)
        self._broker.desk.counters.request()
        if not self._login.is_done:
            self._enter(message)
        elif self.seat is not None and self.seat.role == "Producers":
            self._publish(message)
        elif self._feed is not None:
            self._ack(message)

    def _enter(self, message: bytes) -> None:
        texts = self._login.enter(message)
        if not self._login.is_done:
            self._broker.desk.counters.error()
            self._say(texts)
            return
        self._calm()
        self.joined_s = self._broker.desk.clock.now().wall_ms // 1_000
        # slaves do not exist here: the cluster keeps the copies
        if self.seat is not None and self.seat.role == "Sync":
            self._wire.send_close(1008, "gossipq keeps its own copies")
            return
        self._say(texts)
        if self.seat is not None and self.seat.role == "Consumers":
            self._flush()
            try:
                self._feed = self._broker.join(self._topic, self._group, self)
            except GossipqError as error:
                self.ended(error)

    def _publish(self, message: bytes) -> None:
        found = wire.sent(message)
        self._pending += 1
        self._pending_bytes += len(message)
        self._broker.send(self._topic, found.text, found.delay_s, partial(self._confirmed, len(message)))

    def _confirmed(self, size: int, code: str, error: GossipqError | None) -> None:
        self._pending -= 1
        self._pending_bytes -= size
        if error is None:
            self._oks += 1
            self._flush_soon()
        else:  # the protocol lacks an error: the producer reconnects and sends again
            self.end(1011, error.message[:100])

    # --- a consumer

    def has_room(self) -> bool:
        return (
            not self._is_full
            and self.in_hand < self._broker.options.in_hand_max
            and not self.transport.is_closing()
        )

    def give(self, message: Message) -> None:
        self.in_hand += 1
        shown = self._broker.show(self._group, message, self)
        self.transport.write(Frame(Opcode.TEXT, wire.frame(shown)).serialize(mask=False))

    def ended(self, error: GossipqError) -> None:
        self._broker.desk.log.warning("a consumer of %s ends: %s", self._topic, error)
        self._broker.desk.counters.error()
        self.end(1011, error.message[:100])

    def lost_one(self) -> None:
        """One message fewer is in flight here."""
        self.in_hand -= 1
        if self._feed is not None:
            self._feed.roomy(self)

    def _ack(self, message: bytes) -> None:
        self._broker.ack(self._group, message.decode(errors="replace"))
