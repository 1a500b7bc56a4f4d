"""Runs many members of groups in one process, each a session over a DEALER of its own. They cost less than
Python clients, so that one machine can run thousands.

    python perf/throng.py ROWS COUNT CREDIT PING_S

ROWS: a JSON list of [endpoint, shard, partition, group]; the members take them in turns. Each grants a credit
of CREDIT records and acks every delivery at once. Prints `there` when all are subscribed. At the end of its
input it prints the number of acked records and ends.
"""

import json
import resource
import select
import sys
import time
from collections import deque
from itertools import count

import stage  # noqa: F401  puts the product on the path
import zmq

from gossipq.messages import (
    Ack,
    Acked,
    Deliver,
    Hello,
    Ping,
    Pong,
    ReadyMessage,
    RefusedMessage,
    Share,
    Subscribe,
    Subscribed,
    Welcome,
)
from gossipq.values import Message, Start
from gossipq.wire import frames, ownership

WAIT_S, JOINED_PER_S, LOOK_S = 60.0, 25, 0.05  #: patience, and more of it for more members
AT_ONCE = 20  #: new connections between two looks
BYTES = 1 << 20  #: credit in bytes that each member grants


Place = tuple[str, int, int, str]


class Member:
    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", row: Place, number: int, credit: int
    ) -> None:
        self.number, self.credit = number, credit
        self.endpoint, self.shard, self.partition, self.group = row
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.connect(self.endpoint)
        self.fd = int(self.socket.get(zmq.FD))
        self.acked = self.requests = 0
        self.joined = False

    def say(self, message: Message) -> None:
        self.requests += 1
        self.socket.send(frames.encode(message, self.shard, self.requests))

    def join(self) -> None:
        key = self.number.to_bytes(ownership.KEY_BYTES, "big")
        self.say(Hello(ownership.session_of(key), "throng", "1", key=key))
        starts = [Start(self.partition, "first")]
        self.say(Subscribe(1, self.group, starts, self.credit, BYTES, auto=True, holding=[]))

    def hear(self) -> None:
        """Read all deliveries that have arrived, and ack their records."""
        while int(self.socket.get(zmq.EVENTS)) & int(zmq.POLLIN):
            _, body = frames.decode(self.socket.recv_multipart()[0])
            if isinstance(body, Deliver):
                done = [(each.partition, each.offset, each.offset + each.count) for each in body.slices]
                self.say(Ack(1, done))
                self.acked += sum(each.count for each in body.slices)
            elif isinstance(body, Subscribed):
                self.joined = True
            elif isinstance(body, RefusedMessage) and body.code == "no_session":
                if self.joined:  # its pings came too late: this machine is busy
                    self.joined = False
                    self.join()
            elif not isinstance(body, Welcome | Pong | Acked | ReadyMessage | Share):
                raise SystemExit(f"unexpected: {body}")


class Throng:
    def __init__(self, rows: list[Place], members: int, credit: int, ping_s: float) -> None:
        self._rows, self._members, self._credit, self._ping_s = rows, members, credit, ping_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, members + 8)
        self._numbers = count(time.time_ns())
        self._poll, self._by_fd = select.epoll(), dict[int, Member]()
        self._due = deque[tuple[float, Member]]()  #: when each is to ping, the next one first

    def run(self) -> int:
        """How many records were acked until the input ended."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each member has two open files and more
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        told, end_s = False, time.monotonic() + WAIT_S + self._members / JOINED_PER_S
        while True:
            self._come()
            for fd, _ in self._poll.poll(LOOK_S):
                if fd == sys.stdin.fileno():
                    return sum(member.acked for member in self._by_fd.values())
                self._by_fd[fd].hear()
            self._ping()
            missing = self._members - sum(member.joined for member in self._by_fd.values()) if not told else 0
            if not told and not missing:
                told = True
                print("there", flush=True)
            elif not told and time.monotonic() > end_s:
                raise SystemExit(f"{missing} of {self._members} are not in")

    def _come(self) -> None:
        """A few more of them."""
        for at in range(len(self._by_fd), min(self._members, len(self._by_fd) + AT_ONCE)):
            member = Member(
                self._context, self._rows[at % len(self._rows)], next(self._numbers), self._credit
            )
            member.join()
            self._by_fd[member.fd] = member
            self._due.append((time.monotonic() + self._ping_s, member))
            self._poll.register(member.fd, select.EPOLLIN)

    def _ping(self) -> None:
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            _, member = self._due.popleft()
            member.say(Ping())
            member.hear()
            self._due.append((now_s + self._ping_s, member))


if __name__ == "__main__":
    throng = Throng(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    print(throng.run(), flush=True)
