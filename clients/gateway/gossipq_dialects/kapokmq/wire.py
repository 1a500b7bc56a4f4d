"""Requests and answers of KapokMQ's protocol. Pure."""

import hmac
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

PROMPT = b"Please enter the secret key"
WRONG = b"Secret key matching error"
RIGHT = b"Secret key matching succeeded"
OK = b"ok"
EMPTY = "Required data cannot be empty"
WRONG_KEYS_MAX = 100  #: of one connection; the original asks forever

WAITING, DELAYED, CONSUMED, ALL = -1, 0, 1, 3  #: states of messages, and of a search
I64_MAX = 2**63 - 1

_PATH = re.compile(r"/(Producers|Consumers|Sync)/Conn(?:/([^/]+)/([^/]+))?")
_CODE = re.compile(r"[0-9a-f]{32}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")  # Python refuses to parse longer numbers
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_SPECIAL = re.compile("[<>&\u2028\u2029]")
_CONTROL = re.compile(r"\\[bf]|\\\\")
_CONTROLS = {"\\b": "\\u0008", "\\f": "\\u000c", "\\\\": "\\\\"}


class Malformed(Exception):
    """The original closes the socket without a frame."""


class Seat(NamedTuple):
    """The place of a WebSocket. `role` is Producers, Consumers or Sync."""

    role: str
    topic: str
    id: str


def seat(path: str) -> Seat | None:
    """Parse a decoded path. None: the route does not exist."""
    found = _PATH.fullmatch(path)
    if found is None or (found[1] == "Sync") != (found[2] is None):
        return None
    return Seat(found[1], found[2] or "", found[3] or "")


class Login:
    """The login of a connection: the first text, and the answer to each key."""

    def __init__(self, secret_key: str) -> None:
        self._key, self._wrong = secret_key.encode(), 0
        self.is_done = False

    def begin(self) -> list[bytes]:
        return [PROMPT]

    def enter(self, message: bytes) -> list[bytes]:
        """Check a key. Raises Malformed after too many wrong ones."""
        self.is_done = hmac.compare_digest(message, self._key)
        if self.is_done:
            return [RIGHT]
        self._wrong += 1
        if self._wrong >= WRONG_KEYS_MAX:
            raise Malformed("too many wrong keys")
        return [WRONG, PROMPT]


class Sent(NamedTuple):
    """A message of a producer."""

    text: str
    delay_s: int


def sent(frame: bytes) -> Sent:
    """Parse a JSON object, whose members can have any case. Raises Malformed."""
    try:
        members = msgspec.json.decode(frame)
    except UnicodeDecodeError:
        members = _lenient(frame)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(str(error)) from None
    if not isinstance(members, dict):
        raise Malformed("a message is a JSON object")
    text, delay_s = "", 0
    for name, value in members.items():
        match name.lower():
            case "messagedata" if isinstance(value, str):
                text = value
            case "delaytime" if type(value) is int and -I64_MAX <= value <= I64_MAX:
                delay_s = value
            case "messagedata" | "delaytime" if value is not None:
                raise Malformed(f"{name} is of another type")
    return Sent(text, delay_s)


def _lenient(frame: bytes) -> Any:
    """Decode like the original, which accepts invalid UTF-8."""
    try:
        return msgspec.json.decode(frame.decode(errors="replace"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(str(error)) from None


class Message(NamedTuple):
    """A message. Times are unix seconds."""

    code: str
    text: str
    topic: str
    created_s: int
    consumed_s: int
    delay_s: int
    status: int

    def json(self) -> bytes:
        """Encode like Go."""
        return (
            b'{"MessageCode":"%s","MessageData":%s,"Topic":%s,"CreateTime":%d,"ConsumedTime":%d,"DelayTime":%d,'
            b'"Status":%d}'
            % (
                self.code.encode(),
                quoted(self.text),
                quoted(self.topic),
                self.created_s,
                self.consumed_s,
                self.delay_s,
                self.status,
            )
        )


def frame(message: Message) -> bytes:
    """Return the frame for a consumer."""
    return message.json() + b"\n"


def quoted(text: str) -> bytes:
    """Encode a string like Go, which also escapes `<`, `>`, `&` and two line separators."""
    raw = msgspec.json.encode(text.encode("utf-8", "replace").decode())
    if b"\\" in raw:
        raw = _CONTROL.sub(lambda found: _CONTROLS[found[0]], raw.decode()).encode()
    if _SPECIAL.search(text):
        raw = _SPECIAL.sub(lambda found: _ESCAPES[found[0]], raw.decode()).encode()
    return raw


# --- HTTP


class Form(NamedTuple):
    """A message of POST /Producer/Send."""

    text: str
    topic: str
    delay_s: int


def form(fields: Mapping[str, str]) -> Form | bytes:
    """Return the message, or the answer for an invalid one."""
    text, topic, delay = (fields.get(name, "") for name in ("messageData", "topic", "delayTime"))
    if not (text and topic and delay):
        return told(-1, msg=EMPTY)
    if not _WHOLE.fullmatch(delay) or not -I64_MAX - 1 <= int(delay) <= I64_MAX:
        return b'{"code":-1,"msg":{"Func":"ParseInt","Num":%s,"Err":{}}}' % quoted(delay)
    return Form(text, topic, int(delay))


def told(code: int, **members: Any) -> bytes:
    """Return an answer with its members ordered by name, like a map in Go."""
    return msgspec.json.encode({"code": code, **dict(sorted(members.items()))})


def nodes(places: list[str]) -> bytes:
    """Return the answer to GetNodes for HOST:PORT of each node; b"" without nodes."""
    if not places:
        return b""
    found = [place.rpartition(":") for place in places]
    return msgspec.json.encode(
        [{"Name": f"mq:{host}:{port}", "Addr": host, "Port": port} for host, _, port in found]
    )


# --- codes: 32 hexadecimal digits, like those of the original


class Named(NamedTuple):
    """The record that a code names, by place or by id."""

    topic_crc: int
    partition: int
    offset: int
    id: str


def code_of(topic: str, partition: int, offset: int) -> str:
    return f"{crc32(topic.encode()):08x}{partition:08x}{offset:016x}"


def scheduled_code(topic: str, dice: bytes) -> str:
    """Return the code for a record without an offset: it is its id.
    `dice` are twelve random bytes.
    """
    return f"{crc32(topic.encode()):08x}f{dice.hex()[:23]}"


def named(code: str) -> Named | None:
    if not _CODE.fullmatch(code):
        return None
    crc, partition = int(code[:8], 16), int(code[8:16], 16)
    if code[8] == "f":
        return Named(crc, -1, -1, code)
    return Named(crc, partition, int(code[16:], 16), "") if partition < 65_536 and code[16] < "8" else None
