"""Frames of moonmq: lengths, a JSON header, a body. Pure."""

import re
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

FRAME_BYTES_MAX = 17 << 20
HEADER_BYTES_MAX = 64 << 10
NAME_BYTES_MAX = 200  #: of a queue and of a routing key

AUTH, PUBLISH, BIND, UNBIND = 0, 10, 20, 30
OK = 1  #: added to the method of a request
ERROR, HEARTBEAT, PUSH, ACK = 10_010, 10_020, 10_030, 10_040

DIRECT, FANOUT = "direct", "fanout"
_PLAIN = re.compile(r"[A-Za-z0-9_:-]+(?:\.[A-Za-z0-9_:-]+)*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")  # Python refuses to parse longer numbers
I64_MAX = 2**63 - 1


class Malformed(Exception):
    """The connection is closed without an answer."""


class Frame(NamedTuple):
    method: int
    fields: Mapping[str, str]
    body: bytes


class _Header(msgspec.Struct):
    method: int = -1
    fields: dict[str, str] | None = None


_decode = msgspec.json.Decoder(_Header).decode


class Splitter:
    """Splits a stream into frames."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer, self._bytes_max = bytearray(), bytes_max

    def __len__(self) -> int:
        """Number of bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the complete frames. Raises Malformed."""
        buffer, found, at = self._buffer, list[Frame](), 0
        buffer += data
        while len(buffer) - at >= 8:
            total, header = struct.unpack_from(">II", buffer, at)
            if not 4 + header <= total <= self._bytes_max or header > HEADER_BYTES_MAX:
                raise Malformed("lengths of a frame that cannot be")
            if len(buffer) - at < 4 + total:
                break
            behind = at + 8 + header
            found.append(_frame(bytes(buffer[at + 8 : behind]), bytes(buffer[behind : at + 4 + total])))
            at += 4 + total
        del buffer[:at]
        return found


def _frame(header: bytes, body: bytes) -> Frame:
    try:
        read = _decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
    return Frame(read.method, read.fields or {}, body)


def encode(method: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    header = msgspec.json.encode({"method": method, "fields": fields})
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def error(code: int, text: str) -> bytes:
    return encode(ERROR, {"code": str(code)}, text.encode())


# --- requests


class Refusal(NamedTuple):
    """An error answer; the connection stays open."""

    code: int
    text: str

    @property
    def frame(self) -> bytes:
        return error(self.code, self.text)


class Publish(NamedTuple):
    queue: str
    key: str
    is_fanout: bool
    body: bytes


class Bind(NamedTuple):
    queue: str
    key: str
    acks: bool


class Unbind(NamedTuple):
    """`queue` "" means all."""

    queue: str


class Ack(NamedTuple):
    queue: str
    number: int


class Auth(NamedTuple):
    """A login of old clients, accepted without a check."""


class Heartbeat(NamedTuple):
    """The client is alive."""


Request = Publish | Bind | Unbind | Ack | Auth | Heartbeat | Refusal


def request(frame: Frame, bound: Mapping[str, object]) -> Request:
    """Parse a frame. `bound` are the queues of its connection. Raises Malformed."""
    match frame.method:
        case 10:
            return publish(frame.fields, frame.body)
        case 20:
            queue, key = frame.fields.get("queue", ""), frame.fields.get("routing_key", "")
            return checked(queue, key) or Bind(queue, key, frame.fields.get("no_ack") != "1")
        case 30:
            return Unbind(frame.fields.get("queue", ""))
        case 10_040:
            return _ack(frame.fields, bound)
        case 10_020:
            return Heartbeat()
        case 0:
            return Auth()
    raise Malformed(f"method {frame.method}")


def publish(fields: Mapping[str, str], body: bytes) -> Publish | Refusal:
    """Parse a publish, also of HTTP."""
    queue, key = fields.get("queue", ""), fields.get("routing_key", "")
    kind = fields.get("pub_type", "")
    if not body:
        return Refusal(400, "publish empty data forbidden")
    if refused := checked(queue, key):
        return refused
    if kind.lower() not in (DIRECT, FANOUT):
        return Refusal(400, f"invalid publish type {kind}")
    return Publish(queue, key, kind.lower() == FANOUT, body)


def checked(queue: str, key: str) -> Refusal | None:
    """Check the names of a queue and a routing key."""
    if not queue:
        return Refusal(400, "queue empty forbidden")
    if len(queue.encode()) > NAME_BYTES_MAX:
        return Refusal(400, "queue too long")
    if len(key.encode()) > NAME_BYTES_MAX:
        return Refusal(400, "routingkey too long")
    return None


def _ack(fields: Mapping[str, str], bound: Mapping[str, object]) -> Ack | Refusal:
    queue, number = fields.get("queue", ""), fields.get("msg_id", "")
    if not queue:
        return Refusal(403, "queue must supplied")
    if queue not in bound:
        return Refusal(403, "invalid queue")
    if not _WHOLE.fullmatch(number):
        return Refusal(500, f'strconv.ParseInt: parsing "{number}": invalid syntax')
    if not -I64_MAX - 1 <= int(number) <= I64_MAX:
        return Refusal(500, f'strconv.ParseInt: parsing "{number}": value out of range')
    return Ack(queue, int(number))


def authenticated() -> bytes:
    return encode(AUTH + OK, {})


def bound(queue: str) -> bytes:
    return encode(BIND + OK, {"queue": queue})


def unbound(queue: str) -> bytes:
    return encode(UNBIND + OK, {"queue": queue})


def published(number: int) -> bytes:
    return encode(PUBLISH + OK, {}, b"%d" % number)


def push(queue: str, number: int, body: bytes) -> bytes:
    return encode(PUSH, {"queue": queue, "msg_id": str(number)}, body)


# --- names in gossipq


def route_of(key: str) -> str:
    """Return a route for a routing key, different for each key. Invalid routes are hashed."""
    if not key:
        return "-"
    if _PLAIN.fullmatch(key) and key[0] != "-":
        return key
    return "-" + sha256(key.encode()).hexdigest()


PARTITION_BITS = 46
FANOUT_BIT = 1 << 62


def number_of(partition: int, offset: int, is_fanout: bool) -> int:
    """Return the number of a message in its queue: above 0, 63 bits."""
    return (FANOUT_BIT if is_fanout else 0) + (partition << PARTITION_BITS | offset) + 1
