"""The C client, its shared library called by ctypes, as a driver of `gossipq client conformance`."""

import ctypes as c
import json
import os
import select
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIBRARY = c.CDLL(str(Path(__file__).resolve().parent / "build" / "libgossipq.so"))
OK, TIMEOUT = 0, 1
CODES = {6: "lease_lost"}  #: codes of errors that the library finds by itself
WAIT_MS = 80_000
PING_S = 1.0


class Header(c.Structure):
    _fields_ = [("name", c.c_char_p), ("value", c.c_char_p), ("value_size", c.c_size_t)]


class Record(c.Structure):
    _fields_ = [
        *(
            field
            for name in ("value", "key", "id")
            for field in ((name, c.c_char_p), (f"{name}_size", c.c_size_t))
        ),
        ("headers", c.POINTER(Header)),
        ("header_count", c.c_size_t),
    ]


class Place(c.Structure):
    _fields_ = [("partition", c.c_uint32), ("offset", c.c_int64), ("duplicate", c.c_int), ("code", c.c_int)]


class How(c.Structure):
    _fields_ = [
        ("route", c.c_char_p),
        ("delay_ms", c.c_int64),
        ("ttl_ms", c.c_int64),
        ("flow", c.c_char_p),
        ("has_priority", c.c_int),
        ("priority", c.c_int),
    ]


class Connection(c.Structure):
    _fields_ = [
        *((name, c.c_char_p) for name in ("servers", "credentials", "token", "door")),
        ("insecure", c.c_int),
        ("forward", c.c_int),
    ]


class Message(c.Structure):
    _fields_ = [
        ("partition", c.c_uint32),
        ("offset", c.c_int64),
        ("attempt", c.c_int32),
        ("time_ms", c.c_int64),
        *(
            field
            for name in ("value", "key", "id", "route")
            for field in ((name, c.c_void_p), (f"{name}_size", c.c_size_t))
        ),
        ("header_count", c.c_size_t),
        ("headers", c.c_void_p),
        ("headers_size", c.c_size_t),
    ]


LIBRARY.gq_error.restype = LIBRARY.gq_error_code.restype = c.c_char_p
LIBRARY.gq_ack.argtypes = [c.c_void_p, c.c_uint32, c.c_int64]
LIBRARY.gq_release.argtypes = [c.c_void_p, c.c_uint32, c.c_int64, c.c_int]
LIBRARY.gq_nack.argtypes = [c.c_void_p, c.c_uint32, c.c_int64, c.c_char_p, c.c_int64, c.c_int]


class RefusedError(Exception):
    pass


class Client:
    def __init__(self) -> None:
        self._client, self._subscription = c.c_void_p(), c.c_void_p()

    def _check(self, code: int) -> None:
        if code != OK:
            name, text = LIBRARY.gq_error_code(self._client), LIBRARY.gq_error(self._client)
            raise RefusedError(CODES.get(code) or name.decode() or f"code {code}", text.decode())

    def ping(self) -> None:
        if self._client:
            LIBRARY.gq_ping(self._client)  # what is refused is told by the next call

    def connect(self, servers: list[str], **keys: str) -> dict[str, Any]:
        self.close()
        raw = {name: text.encode() for name, text in keys.items()}
        how = Connection(servers=",".join(servers).encode(), **raw)
        self._check(LIBRARY.gq_open_with(c.byref(self._client), c.byref(how)))
        return {}

    def publish(
        self,
        topic: str,
        records: list[dict[str, Any]],
        route: str = "",
        delay_ms: int = 0,
        timeout_ms: int = WAIT_MS,
        apart: bool = False,
        flow: str = "",
        priority: int | None = None,
    ) -> dict[str, Any]:
        rows, places = (Record * len(records))(*map(record, records)), (Place * len(records))()
        name, count = topic.encode(), c.c_size_t(len(records))
        how = How(route.encode(), delay_ms, 0, flow.encode(), priority is not None, priority or 0)
        call = self._client, name, rows, count, c.byref(how), places, timeout_ms
        self._check(self._post_each(*call) if apart else LIBRARY.gq_publish(*call))
        return {"places": [(place.partition, place.offset) for place in places]}

    @staticmethod
    def _post_each(
        client: Any, name: bytes, rows: Any, count: Any, how: Any, places: Any, wait_ms: int
    ) -> int:
        """A client belongs to one thread: calls at the same time are those of gq_post."""
        for row, place in zip(rows, places, strict=True):
            one = c.c_size_t(1)
            code = LIBRARY.gq_post(client, name, c.byref(row), one, how, c.byref(place), wait_ms)
            if code != OK:
                return code
        return LIBRARY.gq_confirm(client, wait_ms)

    def subscribe(self, topic: str, group: str) -> dict[str, Any]:
        names = topic.encode(), group.encode()
        self._check(LIBRARY.gq_subscribe(self._client, *names, None, c.byref(self._subscription)))
        return {}

    def next(self, wait_ms: int) -> dict[str, Any]:
        message = Message()
        code = LIBRARY.gq_next(self._subscription, c.byref(message), wait_ms)
        if code == TIMEOUT:
            return {"record": None}
        self._check(code)
        found = {name: getattr(message, name) for name in ("partition", "offset", "attempt")}
        for name in ("value", "key", "id"):
            raw = c.string_at(getattr(message, name), getattr(message, f"{name}_size"))
            found[name] = b64encode(raw).decode()
        found["route"] = c.string_at(message.route, message.route_size).decode()
        return {"record": found | {"headers": dict(header(message, i) for i in range(message.header_count))}}

    def ack(self, partition: int, offset: int, wait: bool = True) -> dict[str, Any]:
        self._check(LIBRARY.gq_ack(self._subscription, partition, offset))
        if wait:
            self._check(LIBRARY.gq_flush(self._subscription, WAIT_MS))
        return {}

    def nack(self, partition: int, offset: int, reason: str) -> dict[str, Any]:
        self._check(LIBRARY.gq_nack(self._subscription, partition, offset, reason.encode(), -1, WAIT_MS))
        return {}

    def release(self, partition: int, offset: int) -> dict[str, Any]:
        self._check(LIBRARY.gq_release(self._subscription, partition, offset, WAIT_MS))
        return {}

    def close(self) -> dict[str, Any]:
        LIBRARY.gq_close(self._client)
        self._client = c.c_void_p()
        return {}


def record(given: dict[str, Any]) -> Record:
    value, key, name = (b64decode(given.get(field, "")) for field in ("value", "key", "id"))
    headers = [(each.encode(), b64decode(raw)) for each, raw in given.get("headers", {}).items()]
    rows = (Header * len(headers))(*(Header(each, raw, len(raw)) for each, raw in headers))
    return Record(value, len(value), key, len(key), name, len(name), rows, len(headers))


def header(message: Message, index: int) -> tuple[str, str]:
    name, value, sizes = c.c_void_p(), c.c_void_p(), (c.c_size_t(), c.c_size_t())
    places = c.byref(name), c.byref(sizes[0]), c.byref(value), c.byref(sizes[1])
    assert LIBRARY.gq_header_at(c.byref(message), c.c_size_t(index), *places) == OK
    raw = c.string_at(value, sizes[1].value) if value else b""
    return c.string_at(name, sizes[0].value).decode(), b64encode(raw).decode()


def lines(client: Client) -> Iterator[str]:
    """Of the input; the client shows that it is there meanwhile."""
    parts: list[bytes] = []
    while True:
        if select.select([0], [], [], PING_S)[0]:
            if not (read := os.read(0, 1 << 20)):
                return
            for number, part in enumerate(read.split(b"\n")):
                if number:
                    yield b"".join(parts).decode()
                    parts.clear()
                parts.append(part)
        client.ping()


def main() -> None:
    client = Client()
    for line in lines(client):
        said = json.loads(line)
        try:
            answer = getattr(client, said.pop("do"))(**said)
        except RefusedError as error:
            answer = {"error": error.args[0], "message": error.args[1]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
