"""A client in one file, of level "reconnect" in PROTOCOL.md: one socket to any node, and records as msgpack.
It imports nothing from gossipq.

It is the companion of PROTOCOL.md, to be copied into other languages. Publishing and consuming take a page;
the rest is recovery, groups, time limits, and invalid frames. It does one thing at a time and does not start
a thread. If you work on one record for longer than 4 s, call `ping` meanwhile.
"""

import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from struct import Struct
from struct import error as StructError
from typing import Any

import zmq
from msgspec import MsgspecError, msgpack  # any msgpack will do

HEADER = Struct("<2sBBHHQQ")  # magic, version, verb, shard, flags, request id, term
HELLO, PING, REFUSED, RESET, CONFIRM, PUBLISH_PLAIN = 1, 3, 6, 7, 17, 18
SHARE, SUBSCRIBE, UNSUBSCRIBE, ACK, NACK = 31, 32, 34, 37, 39
STARTED, DELIVER_PLAIN, RESOLVE = 45, 46, 64
OVER = ("no_session", "no_subscription", "not_leader")  # the shard is over: join it again
AWAY = ("not_leader", "busy", "joining")  # codes of a node that is cut off from the others
MOVED = ("unknown_topic", "wrong_shard")  # the topic was deleted and created again: look it up
LATER = (*OVER, *AWAY)
SHARDS = range(0xFFFF)
VERSION, SILENT_S, PING_S, REDIAL_S, AGAIN_S, HELLO_AGAIN_S = 2, 3.0, 1.0, 0.1, 0.05, 1.0
IO_THREADS = 8  # libzmq resolves names in them: a silent name server blocks the sockets of one thread
CONTEXT = zmq.Context(IO_THREADS)
LOST: int = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED  # lost, or could not be made


class Refused(Exception):
    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(f"{code}: {message}; {hint}")
        self.code = code


def doubtful(now: Refused) -> TimeoutError:
    return TimeoutError(f"it was sent before, and may be stored; now: {now}")


class Silence(Exception):
    """The connection is lost, or the node has not answered for 3 s."""


class Client:
    def __init__(self, *addresses: str, token: bytes = b"", wait_s: float = inf) -> None:
        """token: 32 bytes, for a closed cluster; they are sent unencrypted. wait_s: time after which a call
        raises TimeoutError."""
        self.wait_s = wait_s
        self._end_s = inf  # end of the current call
        self._session = bytes([os.urandom(1)[0] & 0x7F]) + os.urandom(15)
        self._request, self._asked, self._ping_s = 0, 0, 0.0  # _asked: request whose answer is awaited
        self._waiting: deque[tuple[int, list[Any]]] = deque()  # (shard, record) that the user has not taken
        self._terms: dict[int, int] = {}  # shard -> term of its newest leader
        self._socket: zmq.Socket[bytes] | None = None
        self._dials = 0
        self._dialed_s = self._patient_s = 0.0  # _patient_s: no HELLO before, after a refusal
        self.connect(*addresses or ("tcp://127.0.0.1:7700",), token=token)

    def connect(self, *addresses: str, token: bytes = b"") -> None:
        """Connect to one of these addresses; to the next one when it fails. Ends all subscriptions."""
        self._addresses, self._token = deque(addresses), token
        self._groups: dict[int, list[Any]] = {}  # shard -> fields of its SUBSCRIBE
        self._held: tuple[int, list[Any]] | None = None  # the record that the user works on
        #: refusal of a shard of the group: raised after the records of the other shards
        self._ended: Refused | None = None
        self._topics: dict[str, tuple[int, list[int]]] = {}
        self._dial()

    def publish(
        self,
        topic: str,
        value: bytes,
        key: bytes = b"",
        headers: dict[str, bytes] | None = None,
        name: bytes = b"",
        route: str = "",
        delay_ms: int = 0,
    ) -> tuple[int, int]:
        """Publish a record and return (partition, offset) when it is stored. A record with the same `name`
        (its id) is stored once. Each record gets an id, so that a repeated request is safe. With a delay, the
        offset is -1."""
        self._begin()
        name = name or os.urandom(8).hex().encode()
        body = msgpack.encode([[value, key, headers or {}, name]])

        def put(number: int, shards: list[int]) -> tuple[int, int]:
            part = zlib.crc32(key or name) % len(shards)
            fields = [number * 65536 + part, "stored", route, delay_ms]
            answer = self._ask(PUBLISH_PLAIN, shards[part], fields, body)
            return part, answer[3][0][1][0][1]  # offset of the first run: where it was stored first

        stored: tuple[int, int] = self._with(topic, False, put)
        return stored

    def consume(self, topic: str, group: str) -> Iterator[list[Any]]:
        """Yield each record as [partition, offset, attempt, value, key, headers, id, route, time_ms]. Ack it,
        or give it back, before you take the next one."""
        self.subscribe(topic, group)
        while True:
            record = self.next(PING_S)
            if record is not None:
                yield record

    def subscribe(self, topic: str, group: str) -> None:
        """Subscribe to a topic, and leave the topic of the subscription before."""
        self._begin()
        self._with(topic, True, lambda number, shards: self._subscribe(number, shards, group))

    def _subscribe(self, number: int, shards: list[int], group: str) -> None:
        self._held = self._ended = None
        self._leave()
        for shard in set(shards):
            self._joined.discard(shard)
            mine = [[number * 65536 + i, "first"] for i, each in enumerate(shards) if each == shard]
            lent = 100, 1 << 20
            self._groups[shard] = [
                1 + shard,
                group,
                mine,
                *lent,
                [],
                False,
                [],
                [],
                True,
                [],
                True,
                True,
                True,
            ]
        try:
            self._go_on()
            if self._ended:
                raise self._ended
        except Refused:
            self._leave()
            self._ended = None
            raise

    def _leave(self) -> None:
        """Stop consuming. The record that the user holds can still be acked."""
        for shard in [shard for shard in self._groups if not self._held or shard != self._held[0]]:
            self._send(UNSUBSCRIBE, shard, self._groups.pop(shard)[:1], None)
        self._waiting.clear()

    def next(self, wait_s: float) -> list[Any] | None:
        """Return the next record, or None if `wait_s` ends before."""
        end_s = time.monotonic() + wait_s
        while not self._waiting and (left_s := end_s - time.monotonic()) > 0:
            self.ping()
            if self._ended and not self._waiting:
                self._leave()
                raise self._ended
            self._hear(min(left_s, PING_S))
        if not self._waiting:
            return None
        self._held = shard, (partition, offset, *_) = self._waiting.popleft()
        self._send(STARTED, shard, [1 + shard, [[partition, offset, offset + 1]]], None)
        return self._held[1]

    def ack(self, verb: int = ACK, *more: Any) -> bool:
        """Ack the last record. False: another consumer has it, or it will be redelivered."""
        if self._held is None:
            return False
        self._begin()
        shard, (partition, offset, *_) = self._held
        answer = self._ask(verb, shard, [1 + shard, [[partition, offset, offset + 1]], *more])
        self._held, stored = None, not (answer and answer[0])
        if stored:  # a new leader may have redelivered it before it got this ack
            self._waiting = deque(
                row for row in self._waiting if (row[0], *row[1][:2]) != (shard, partition, offset)
            )
        if self._ended and not self._waiting:
            self._leave()
        return stored

    def nack(self, reason: str) -> bool:
        """Mark the last record as failed. It is redelivered after a pause."""
        return self.ack(NACK, -1, True, reason[:2048])  # nodes keep 2 KiB

    def release(self) -> bool:
        """Give the last record back. It is redelivered at once, and has not failed."""
        return self.ack(NACK, -1, False)

    def ping(self) -> None:
        """Send signs of life, and join ended shards again. It returns after 6 s of silence; the next call
        continues."""
        self._begin()
        self._go_on()

    def _begin(self) -> None:
        self._end_s = time.monotonic() + self.wait_s

    def _go_on(self) -> None:
        self._end_s = min(self._end_s, time.monotonic() + 2 * SILENT_S)
        self._show()
        self._listen()
        with suppress(TimeoutError):
            for shard in [shard for shard in self._groups if shard not in self._joined]:
                self._ask(PING, shard, [])

    def _share(self, shard: int, keep: int) -> None:
        """Give back records that are not started, the last first, because another consumer is idle."""
        mine = [row for row in self._waiting if row[0] == shard]
        back = mine[max(0, keep - bool(self._held and self._held[0] == shard)) :]
        self._waiting = deque(row for row in self._waiting if row not in back)
        if back:
            ranges = [[key, offset, offset + 1] for _, (key, offset, *_) in back]
            self._send(NACK, shard, [1 + shard, ranges, -1, False], None)

    def _listen(self) -> None:
        """Read the frames that have arrived. Open a new socket if the connection is lost or silent."""
        assert self._socket is not None
        while self._socket.poll(0):
            self._hear(0)
        if self._lost or any(time.monotonic() > since_s + SILENT_S for since_s in self._unanswered.values()):
            self._dial()

    def _show(self) -> None:
        """Send one PING a second to each shard, all at once: in a slow network, one after the other would
        take longer than a session lasts."""
        now_s = time.monotonic()
        if now_s < self._ping_s + PING_S:
            return
        self._ping_s = now_s
        for shard in self._joined & self._groups.keys():
            self._send(PING, shard, [], None)
            self._unanswered.setdefault(shard, now_s)

    # --- the one rule of recovery: join each ended shard again, and repeat each unanswered request ---

    def _ask(self, verb: int, shard: int, fields: list[Any], body: bytes | None = None) -> list[Any]:
        """Send a request, repeat it until it is answered, and return the fields of the answer. Raises Refused
        for a final refusal, and TimeoutError."""
        move_s = time.monotonic() + SILENT_S
        unsure = False  # True: the record was sent before, and may be stored
        while True:
            if time.monotonic() >= self._end_s:
                raise TimeoutError("no answer came in time: it may be done")
            try:
                self._listen()
                if verb not in (HELLO, SUBSCRIBE) and shard not in self._joined:
                    self._join(shard)
                if self._ended and verb in (ACK, NACK) and shard not in self._groups:
                    raise self._ended
                said, answer = self._once(verb, shard, fields, body)
            except Silence:
                unsure = verb == PUBLISH_PLAIN
                if time.monotonic() < self._end_s:  # otherwise the next call finds out
                    self._dial()
                continue
            except Refused as error:
                if unsure:
                    raise doubtful(error) from error
                raise
            if said != REFUSED:
                return answer
            code, message, hint, retry_ms = (*answer, "", "", "", 0)[:4] if len(answer) < 4 else answer[:4]
            if code not in LATER:
                refused = Refused(code, message, hint)
                raise doubtful(refused) if unsure and code not in MOVED else refused
            unsure |= verb == PUBLISH_PLAIN and code == "not_leader"
            if code in OVER:
                self._over(shard)
            if code == "no_session" and verb == SUBSCRIBE:
                self._greet(shard)
            if code in AWAY and time.monotonic() > move_s and len(self._addresses) > 1:
                self._dial()
                move_s = time.monotonic() + SILENT_S
            retry_s = retry_ms / 1000 if isinstance(retry_ms, int) and retry_ms > 0 else AGAIN_S
            time.sleep(min(retry_s, max(0.0, self._end_s - time.monotonic())))

    def _join(self, shard: int) -> None:
        self._greet(shard)
        if shard in self._groups:
            try:
                self._ask(SUBSCRIBE, shard, self._holding(shard))
            except Refused as error:  # this concerns the consumer, not a publish
                self._end(shard, error)
        self._joined.add(shard)
        if self._held and self._held[0] == shard and shard in self._groups:  # this leader may not know of it
            partition, offset, *_ = self._held[1]
            self._send(STARTED, shard, [1 + shard, [[partition, offset, offset + 1]]], None)

    def _holding(self, shard: int) -> list[Any]:
        """Return the fields of SUBSCRIBE, with the records that the client still has. The leader takes back
        the others."""
        here = [each for each in (self._held, *self._waiting) if each and each[0] == shard]
        self._groups[shard][7] = [[key, offset, offset + 1] for _, (key, offset, *_) in here]
        return self._groups[shard]

    def _end(self, shard: int, error: Refused) -> None:
        """End the subscription in a shard, and withdraw the credit from the other shards of the group."""
        self._ended, self._patient_s = error, time.monotonic() + AGAIN_S
        del self._groups[shard]
        for other, fields in self._groups.items():
            fields[3:5] = 0, 0
            if other in self._joined:
                self._send(SUBSCRIBE, other, self._holding(other), None)

    def _greet(self, shard: int) -> None:
        time.sleep(max(0.0, min(self._patient_s, self._end_s) - time.monotonic()))
        try:
            self._ask(HELLO, shard, [self._session, "minimal", "1", self._token, "", b"", True])
        except Refused:
            self._patient_s = time.monotonic() + HELLO_AGAIN_S
            raise

    def _over(self, shard: int) -> None:
        self._joined.discard(shard)
        self._unanswered.pop(shard, None)
        self._waiting = deque(row for row in self._waiting if row[0] != shard)

    def _dial(self) -> None:
        """Open a new socket, because an old one would first send its queue. Invalid addresses are skipped at
        once, and addresses without a node when the connection fails."""
        time.sleep(max(0.0, self._dialed_s + REDIAL_S - time.monotonic()))
        for left in reversed(range(len(self._addresses))):
            if self._socket is not None:
                self._socket.disable_monitor()
                self._monitor.close(0)
                self._socket.close(0)
            self._addresses.rotate(-1)
            self._socket = CONTEXT.socket(zmq.DEALER)
            self._dials += 1
            self._socket.set(zmq.AFFINITY, 1 << self._dials % IO_THREADS)
            self._socket.set(zmq.IPV6, int("[" in self._addresses[-1]))
            self._monitor = self._socket.get_monitor_socket(LOST)
            try:
                self._socket.connect(self._addresses[-1])
                break
            except zmq.ZMQError:
                if not left:
                    raise
        self._dialed_s, self._lost = time.monotonic(), False
        self._joined: set[int] = set()
        self._unanswered: dict[int, float] = {}  # shard -> time of its oldest unanswered frame
        self._waiting.clear()

    def _once(self, verb: int, shard: int, fields: list[Any], body: bytes | None) -> tuple[int, list[Any]]:
        """Send a request once and return (verb, fields) of its answer. Raises Silence, also at the end of the
        call's time."""
        self._show()
        self._send(verb, shard, fields, body)
        self._asked, now_s = self._request, time.monotonic()
        self._unanswered.setdefault(shard, now_s)
        while not self._lost:
            left_s = min(self._unanswered.get(shard, now_s) + SILENT_S, self._end_s) - time.monotonic()
            if left_s <= 0:
                break
            said, request, answer = self._hear(left_s)
            if said and request == self._asked:
                return said, answer
        raise Silence

    def _send(self, verb: int, shard: int, fields: list[Any], body: bytes | None) -> None:
        self._request += 1
        frame = HEADER.pack(b"GQ", VERSION, verb, shard, 0, self._request, 0) + msgpack.encode(fields)
        assert self._socket is not None
        self._socket.send_multipart([frame] if body is None else [frame, body])

    def _hear(self, wait_s: float) -> tuple[int, int, list[Any]]:
        """Return (verb, request, fields) of the next message; verb 0 if none came in time."""
        assert self._socket is not None
        heard, _, _ = zmq.select([self._socket, self._monitor], [], [], wait_s)
        if self._socket not in heard:
            self._lost = bool(heard)
            return 0, 0, []
        frame, *body = self._socket.recv_multipart()
        try:
            magic, version, verb, shard, _, request, term = HEADER.unpack_from(frame)
            if magic == b"GQ" and version != VERSION and request in (0, self._asked):
                raise Refused(
                    "wrong_version", f"the node speaks version {version}, this client {VERSION}", ""
                )
            fields = msgpack.decode(frame[HEADER.size :])
            records = list(msgpack.decode(body[0])) if verb == DELIVER_PLAIN else []
            over = [int(each) for each in fields[0]] if verb == RESET else []
            if verb == REFUSED and request != self._asked and fields[0] in (*OVER, *AWAY):
                over = [shard]  # a PING
            request = fields[0][0][0] if verb == CONFIRM else request
        except (StructError, MsgspecError, IndexError, TypeError, ValueError, KeyError, RecursionError):
            magic = b""
        if magic != b"GQ" or version != VERSION or not isinstance(fields, list):  # an invalid frame
            return 0, 0, []
        known = self._terms[shard] = max(term, self._terms.get(shard, 0))
        self._unanswered.pop(shard, None)
        if (
            verb == DELIVER_PLAIN and shard in self._joined and term == known and not self._ended
        ):  # otherwise from an old leader
            self._waiting += [(shard, record) for record in records]
        if verb == SHARE and shard in self._joined and fields[:1] == [1 + shard]:
            self._share(shard, int(fields[1]))
        for each in over:
            self._over(each)
        return verb, request, fields

    def _with(self, name: str, made: bool, call: Callable[[int, list[int]], Any]) -> Any:
        """Call with the topic's id and the shards of its partitions. If the topic was deleted and created
        again under another id, look it up and call once more. `made`: create a missing topic then."""
        old = name in self._topics
        try:
            return call(*self._topic(name, True))
        except Refused as error:
            if error.code in MOVED:
                self._topics.pop(name, None)
            if not old or name in self._topics:
                raise
        return call(*self._topic(name, made))

    def _topic(self, name: str, made: bool) -> tuple[int, list[int]]:
        if "*" in name:  # the answer would be any topic that matches
            raise Refused("bad_name", f"{name} is a pattern", "name the topic")
        if name not in self._topics:
            answer = self._ask(RESOLVE, 0, [[name], made])
            try:
                rows = [(int(row[0]), [SHARDS.index(each) for each in row[4]]) for row in answer[0]]
            except (TypeError, ValueError, LookupError, StructError):
                raise Refused("protocol", "the node's answer cannot be read", "") from None
            if not rows:
                raise Refused("unknown_topic", f"no topic {name}", f"gossipq topic create {name}")
            if not rows[0][1]:
                raise Refused("bad_request", f"{name} is a virtual topic", "name the real ones")
            self._topics[name] = rows[0]
        return self._topics[name]
