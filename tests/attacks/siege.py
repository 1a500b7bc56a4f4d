"""All attacks at once, in a process of their own: the attackers must not share a Python interpreter
with the process that measures honest clients.

    python -m attacks.siege FACTS NICE

attacks until its standard input ends, and prints the rounds of each attack as JSON. Start it in a
session of its own: NICE is the niceness of that session, too.
"""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import msgspec
import zmq

from e2e.harness import Raw, Tcp
from gossipq import limits
from gossipq.messages import (
    CreateTopic,
    Hello,
    Nack,
    Publish,
    Resolve,
    SetMember,
    SetOptions,
    Show,
    Subscribe,
)
from gossipq.operator_messages import Clients, ListClients
from gossipq.peer_messages import Bundle, Snapshot, View, VoteRequest
from gossipq.types import META_SHARD
from gossipq.values import Lead, Member, Ref, Start, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire.frames import encode


class Facts(msgspec.Struct, frozen=True):
    """The attackers' knowledge of the cluster: everything that a client may
    ask, and a node's status.
    """

    ports: list[int]  #: of the frontdoors; workers follow
    names: list[str]
    copies: list[str]
    cluster: str
    shard: int  #: of a topic that has a record of 2 MiB
    key: int  #: of its partition


class Siege:
    """Each attack goes round on a thread of its own, against one node after the other."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self.rounds = facts, Counter[str]()
        self._shard, self._key = facts.shard, facts.key
        self._over = threading.Event()

    def _ports(self, step: int) -> Iterator[int]:
        for port in self._facts.ports:
            yield port + step

    @contextmanager
    def _raw(self, port: int, shard: int = META_SHARD, unread: int = 0) -> Iterator[Raw]:
        with zmq.Context() as context:
            client = Raw(context, f"tcp://127.0.0.1:{port}", *([unread] if unread else []))
            try:
                yield client.hello(shard, b"\x01" + os.urandom(15))
            finally:
                client.close()

    def strangers(self, port: int) -> None:
        high, copy = limits.NUMBER_MAX, self._facts.copies[0]
        said = [
            VoteRequest(copy, high, high, high, transfer=True),
            Snapshot(copy, high, 1, bytes(8), 1, [copy], [], [], 0, "state"),
            View(
                limits.ROSTER_VERSION_MAX,
                [Member("dead.beef", "x", "tcp://127.0.0.1:1", 1)],
                [Lead(0, high, copy)],
            ),
        ]
        with zmq.Context() as context, closing(Raw(context, f"tcp://127.0.0.1:{port + 40}")) as peer:
            for to in self._facts.copies:
                for each in said:
                    peer.send(encode(Bundle(self._facts.cluster, copy, to, [encode(each, 0, 0, high)])))

    def operators(self, port: int) -> None:
        with self._raw(port) as client:
            client.ask(SetMember(self._facts.names[0], "leaving"), META_SHARD)
            client.ask(SetOptions({"cluster.replace_ms": "1"}), META_SHARD)

    def thieves(self, port: int) -> None:
        with self._raw(port) as client:
            found = client.ask(ListClients(), META_SHARD)
            for row in found.rows if isinstance(found, Clients) else []:
                client.ask(Hello(row.session, "thief", "1"), META_SHARD)
            forged = bytes(batches.seal([b"x"], producer=os.urandom(16), sequence=1))
            client.ask(Publish(self._key), self._shard, forged)

    def crowds(self, port: int) -> None:
        with ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(closing(Tcp(port).handshake()))
            self._over.wait(5)

    def endless(self, port: int) -> None:
        with closing(Tcp(port).handshake()) as wire:
            for _ in range(200):
                wire.frame(bytes(1 << 20), more=True)

    def unread(self, port: int) -> None:
        with self._raw(port, self._shard, 1) as client:
            for number in range(60):
                client.say(Show(Ref(self._key, 0)), self._shard, number)
            self._over.wait(1)

    def topics(self, port: int) -> None:
        with self._raw(port) as client:
            for _ in range(3):
                name = f"flood-{os.urandom(4).hex()}"
                client.say(CreateTopic(name, TopicOptions(partitions=200)), META_SHARD, 1)
            self._over.wait(2)

    def questions(self, port: int) -> None:
        with self._raw(port, self._shard) as client:
            client.say(Resolve([f"*{at}*" for at in range(30_000)]), META_SHARD, 1)
            client.say(Nack(1, [(self._key, 2 * at, 2 * at + 1) for at in range(30_000)]), self._shard, 2)
            self._over.wait(0.5)

    def readers(self, port: int) -> None:
        with self._raw(port, self._shard) as client:
            for number in range(300):
                client.say(Subscribe(number, "", [Start(self._key)], 1_000, 1 << 20), self._shard)
                client.say(Subscribe(number, os.urandom(4).hex(), [Start(self._key)], 1, 1), self._shard)

    @contextmanager
    def going(self) -> Iterator[None]:
        attacks: dict[Callable[[int], None], tuple[int, ...]] = {
            self.strangers: (0, 1),
            self.operators: (1,),
            self.thieves: (1, 2),
            self.crowds: (0, 1),
            self.endless: (1, 2),
            self.unread: (1, 2),
            self.topics: (1,),
            self.questions: (1, 2),
            self.readers: (1, 2),
        }
        threads = [threading.Thread(target=self._again, args=each) for each in attacks.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _again(self, attack: Callable[[int], None], steps: tuple[int, ...]) -> None:
        while not self._over.is_set():
            for step in steps:
                for port in self._ports(step):
                    if not self._over.is_set():
                        with suppress(OSError, AssertionError, zmq.ZMQError):
                            attack(port)
                        self.rounds[attack.__name__] += 1
                        self._over.wait(0.1)


def give_way(nice: int) -> None:
    """Gives way to all other processes. Schedulers that weigh sessions first need the
    session's niceness as well.
    """
    os.nice(nice)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def main(facts: str, nice: str) -> None:
    give_way(int(nice))
    siege = Siege(msgspec.json.decode(facts, type=Facts))
    with siege.going():
        sys.stdin.read()
    print(json.dumps(siege.rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
