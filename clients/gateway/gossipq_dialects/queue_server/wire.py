"""Requests and answers of queue_server: one JSON object each, over TCP or UDP. Pure."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

REQUEST_BYTES_MAX = 40_959  #: over TCP
DATAGRAM_BYTES_MAX = 20_480
TTL_S = 3_600  #: default, counted from the delay
LOCAL = 100  #: added to an action: never forwarded

_STEP = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}"]', re.DOTALL)
_STRING_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SPACE = b" \t\r\n"

Members = dict[str, Any]


class Malformed(Exception):
    """The input is not answered: a TCP connection is closed, a datagram ignored."""


class Splitter:
    """Splits a stream into objects.

    The original took a segment that ends in `}` for a whole message. This class counts braces, so
    segments can begin and end anywhere.
    """

    def __init__(self, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self._buffer, self._bytes_max = b"", bytes_max
        self._at = 0  #: bytes already scanned
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete objects. Raises Malformed for other input, or a too long object."""
        buffer, found, start = self._buffer + data, list[bytes](), 0
        at, depth = self._at, self._depth
        if self._in_string:
            at = self._past_string(buffer, at)
        for step in () if self._in_string else _STEP.finditer(buffer, at):
            begin, first = step.start(), buffer[step.start()]
            if not depth and (first != 0x7B or buffer[start:begin].strip(_SPACE)):
                raise Malformed("a request is a JSON object")
            at = step.end()
            if first == 0x7B:
                start, depth = start if depth else begin, depth + 1
            elif first == 0x7D:
                depth -= 1
                if not depth:
                    found.append(buffer[start:at])
                    start = at
            elif at - begin == 1:
                self._in_string = True
                at = self._past_string(buffer, at)
                break
        rest = buffer[start:] if depth else buffer[start:].lstrip(_SPACE)
        if not depth and rest:
            raise Malformed("a request is a JSON object")
        if len(rest) > self._bytes_max or any(len(each) > self._bytes_max for each in found):
            raise Malformed("a request that is too long")
        at = at - start if self._in_string else len(rest)
        self._buffer, self._at, self._depth = rest, at, depth
        return found

    def _past_string(self, buffer: bytes, at: int) -> int:
        """Return the end of the string that continues at `at`, or the scanned
        length if it is incomplete.
        """
        inside = _STRING_END.match(buffer, at)
        assert inside is not None, "it also fits nothing"
        end = inside.end()
        self._in_string = buffer[end : end + 1] != b'"'
        return end if self._in_string else end + 1


class Produce(NamedTuple):
    """Times are unix seconds. `retry_s` 0: at most once."""

    members: Members
    queue: str
    data: str
    due_s: int
    ttl_s: int
    retry_s: int


class Consume(NamedTuple):
    members: Members
    queue: str


class Confirm(NamedTuple):
    members: Members
    queue: str
    number: int


class Monitor(NamedTuple):
    members: Members
    queue: str
    is_local: bool


class Listing(NamedTuple):
    """Queues whose names contain `pattern`."""

    members: Members
    pattern: str
    is_local: bool


class Leader(NamedTuple):
    members: Members


class Answered(NamedTuple):
    """A request that can be answered at once; b"" = no answer."""

    answer: bytes
    is_error: bool


Request = Produce | Consume | Confirm | Monitor | Listing | Leader | Answered


class Told(NamedTuple):
    """The address of a cluster's leader."""

    node: int
    host: str
    port: int


def parse(raw: bytes, now_s: int) -> Request:
    """Parse one request. Raises Malformed."""
    try:
        members = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from None
    if not isinstance(members, dict):
        raise Malformed("a request is a JSON object")
    action = whole(members, "action", 0)
    if action <= 0:
        raise Malformed("a request has an action")
    queue = text(members, "queue")
    match action:
        case 1 | 2 | 3 if queue is None:
            return Answered(b"", True)
        case 1:
            return _produce(members, queue or "", now_s)
        case 2:
            return Consume(members, queue or "")
        case 3:
            return Confirm(members, queue or "", whole(members, "msg_id", 0))
        case 4 | 104:
            return Monitor(members, queue or "", action > LOCAL)
        case 7 | 107:
            return Listing(members, text(members, "pattern") or "", action > LOCAL)
        case 8:
            return Leader(members)
        case 5 | 6:
            return Answered(refusal(members, "not support"), True)
    return Answered(refusal(members, "invalid action"), True)


def _produce(members: Members, queue: str, now_s: int) -> Request:
    data, retry_s = text(members, "data"), whole(members, "retry", 0)
    if data is None or not queue:
        return Answered(refusal(echo(members), "field error"), True)
    due_s = whole(members, "delay", now_s)
    ttl_s = whole(members, "ttl", due_s + TTL_S)
    if due_s > ttl_s:
        return Answered(refusal(echo(members), "time error"), True)
    if retry_s < 0:  # like the original: without a code
        return Answered(msgspec.json.encode(echo(members)), True)
    return Produce(members, queue, data, due_s, ttl_s, retry_s)


def whole(members: Members, name: str, default: int) -> int:
    """Return a whole number that every JSON reader can represent, else the default."""
    found = members.get(name, default)
    return found if type(found) is int and abs(found) < NUMBER_END else default


def text(members: Members, name: str) -> str | None:
    found = members.get(name)
    return found if isinstance(found, str) else None


def echo(members: Members) -> Members:
    """Return the members of a produce that its answer repeats."""
    return {key: each for key, each in members.items() if key not in ("data", "delay", "ttl", "retry")}


def answer(members: Members, **results: Any) -> bytes:
    """Return an answer: the request's members and the results, with `code` 0."""
    return msgspec.json.encode({**members, "code": 0, **results})


def produced(members: Members, numbers: Sequence[int]) -> bytes:
    """Return a code and a msg_id for each queue. A virtual topic repeats
    members, like the original.
    """
    head = msgspec.json.encode({key: each for key, each in echo(members).items() if key != "msg_id"})[:-1]
    comma = b"," if len(head) > 1 else b""
    return head + comma + b",".join(b'"code":0,"msg_id":%d' % number for number in numbers) + b"}"


def refusal(members: Members, reason: str) -> bytes:
    return msgspec.json.encode({**members, "code": -1, "reason": reason})


def redirected(to: Told) -> bytes:
    """Return the answer of a node that does not forward: the leader,
    without the request's members.
    """
    return answer({}, **leader(to))


def leader(to: Told) -> Members:
    return {"leader_node_id": to.node, "leader_host": to.host, "leader_port": to.port}


# --- numbers of messages

PARTITION_BITS = 42
NUMBER_END = 1 << 53
SCHEDULED = 1 << 52  #: numbers from here on were assigned before the record had an offset


def number_of(partition: int, offset: int) -> int:
    """Return a number that fits into a JSON number of every reader."""
    return (partition << PARTITION_BITS | offset) + 1


def scheduled_number(dice: bytes) -> int:
    """Return a number made of seven random bytes."""
    return SCHEDULED | int.from_bytes(dice[:7], "big") & (SCHEDULED - 1)
