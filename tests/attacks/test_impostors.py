"""A process that listens at the address of a node that has died: it cannot prove that it knows the secret, so
it gets greetings, and nothing else."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import zmq
from minimal import Client as PlainClient

from e2e.cluster import Member, cluster
from gossipq import limits
from gossipq.messages import Bye, Challenge, Hello, Join
from gossipq.peer_messages import Greet
from gossipq.wire.frames import decode, encode
from gossipq_client import connect
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]
PORTS = (0, 1, limits.FRONTDOOR_PEER_PORT_STEP, limits.PEER_PORT_STEP)
LISTENS_S = 5.0
#: messages that a node sends to an address of its roster before the other side has proven itself
GREETINGS = (Greet, Hello, Join, Bye)


class Impostor(threading.Thread):
    """Notes each message at the ports of `node`. `answers`: it answers greetings with a made-up proof."""

    def __init__(self, node: Member, answers: bool) -> None:
        super().__init__(daemon=True)
        self.heard: list[tuple[int, object]] = []
        self._node, self._answers, self._over = node, answers, threading.Event()

    def run(self) -> None:
        with zmq.Context() as context:
            poller, ports = zmq.Poller(), {}
            for step in PORTS:
                router = context.socket(zmq.ROUTER)
                router.linger = 0
                until(partial(self._bind, router, f"tcp://127.0.0.1:{self._node.port + step}"))
                poller.register(router, zmq.POLLIN)
                ports[router] = step
            while not self._over.is_set():
                for router, _ in poller.poll(50):
                    self._hear(router, ports[router])
            for router in ports:
                router.close()

    @staticmethod
    def _bind(router: "zmq.Socket[bytes]", address: str) -> bool:
        """False while the kernel still has the dead process's port."""
        with suppress(zmq.ZMQError):
            router.bind(address)
            return True
        return False

    def _hear(self, router: "zmq.Socket[bytes]", step: int) -> None:
        name, *frames = router.recv_multipart()
        said: object = frames
        with suppress(Exception):  # a message with a client's envelope does not begin with a header
            said = decode(frames[0])[1]
        self.heard.append((step, said))
        if self._answers and isinstance(said, Greet):
            router.send_multipart([name, encode(Challenge(bytes(16), said.to, bytes(32)))])

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def impostor(node: Member, answers: bool) -> Iterator[Impostor]:
    listener = Impostor(node, answers)
    listener.start()
    try:
        yield listener
    finally:
        listener.end()


def test_whoever_listens_at_the_address_of_a_dead_node_gets_greetings_only(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as nodes, ExitStack() as ends:
        nodes.wait_healthy(3, balanced=True, patience_s=120)
        first, second, dead = nodes.members
        mq = ends.enter_context(connect(first.endpoint, second.endpoint, timeout=30))
        plain = PlainClient(first.endpoint, wait_s=30)
        ends.callback(lambda: (plain._socket.close(0), plain._monitor.close(0)))
        mq.create_topic("spread", partitions=12)
        for number in range(24):  # through the node that it knows to all leaders
            plain.publish("spread", b"before", key=b"%d" % number)
        dead.kill()
        for answers in (False, True):
            with impostor(dead, answers) as listener:
                end, sent = time.monotonic() + LISTENS_S, 0
                while time.monotonic() < end:
                    mq.publish("spread", b"secret", key=b"%d" % sent, timeout=30)
                    plain.publish("spread", b"secret", key=b"%d" % sent)
                    sent += 1
            kinds = {type(said).__name__ for _, said in listener.heard}
            others = [(step, said) for step, said in listener.heard if not isinstance(said, GREETINGS)]
            assert not others, f"{len(others)} of {len(listener.heard)} messages, {kinds}: {others[:3]}"
            assert "Greet" in kinds, "nodes look for the one that is away"
