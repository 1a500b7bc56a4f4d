"""The sockets of a client: what has arrived is taken at once, though a socket is only looked at when its
descriptor tells of something, or when it was used."""

import random
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from gossipq_client.io.transport import Transport, wait
from ports import settled_port
from slow_line import SlowLine
from waiting import until

PATIENCE_S = 30
MESSAGES = 3_000


@pytest.fixture
def transport() -> Iterator[Transport]:
    transport = Transport()
    yield transport
    transport.close(0)


def connected(transport: Transport, endpoint: str) -> None:
    transport.open(endpoint)
    deadline = time.monotonic() + PATIENCE_S
    while not any(up for _, up in transport.events()):
        assert time.monotonic() < deadline, "nobody is there"
        wait(transport.fds, 50)


@pytest.mark.e2e
def test_where_nobody_takes_connections_is_known_at_once(transport: Transport) -> None:
    endpoint, deadline = f"tcp://127.0.0.1:{settled_port()}", time.monotonic() + PATIENCE_S
    transport.open(endpoint)
    while not transport.missed:
        assert time.monotonic() < deadline
        wait(transport.fds, 50)
        assert transport.events() == []
    assert transport.missed == {endpoint}


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_has_come_is_overlooked(transport: Transport, seed: int) -> None:
    """A server sends at any time while the client sends, takes and waits. As soon as no descriptor
    is readable, nothing has arrived.
    """
    dice, over = random.Random(seed), threading.Event()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"

    def serve() -> None:
        sent, name = 0, router.recv_multipart()[0]
        while sent < MESSAGES:
            for _ in range(dice.randrange(4)):
                router.send_multipart([name, b"%d" % sent, b"x" * dice.randrange(64)])
                sent += 1
            while router.poll(dice.choice((0, 0, 0, 1))):
                router.recv_multipart()
        over.set()

    server = threading.Thread(target=serve)
    connected(transport, endpoint)
    server.start()
    transport.send([(endpoint, [b"hello"])])
    mine, taken = random.Random(seed + 100), list[int]()
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < MESSAGES:
        if mine.random() < 0.3:
            transport.send([(endpoint, [b"a", b"b"])])
        arrived = transport.receive()
        taken += [int(message[0]) for _, message in arrived]
        if not arrived and mine.random() < 0.5 and not wait(transport.fds, 1_000):
            assert len(taken) >= MESSAGES or not over.is_set(), f"{len(taken)} taken, the rest lies there"
        assert time.monotonic() < deadline, f"{len(taken)} of {MESSAGES} have come"
    server.join()
    assert taken[:MESSAGES] == list(range(MESSAGES))
    router.close(0)
    context.term()


@pytest.mark.e2e
def test_one_that_is_closed_and_one_that_starts_anew_tell_of_nothing(transport: Transport) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    routers = [context.socket(zmq.ROUTER) for _ in range(2)]
    for router in routers:
        router.set(zmq.LINGER, 0)
    endpoints = [f"tcp://127.0.0.1:{each.bind_to_random_port('tcp://127.0.0.1')}" for each in routers]
    for endpoint in endpoints:
        connected(transport, endpoint)
    transport.close_peer(endpoints[0])
    assert transport.receive() == []
    transport.restart()
    assert transport.receive() == []
    connected(transport, endpoints[1])
    transport.send([(endpoints[1], [b"again"])])
    assert transport.receive() == []  # from here on the descriptor tells
    name, said = routers[1].recv_multipart()
    assert said == b"again"
    routers[1].send_multipart([name, b"answer"])
    assert wait(transport.fds, 1_000 * PATIENCE_S)
    assert transport.receive() == [(endpoints[1], [b"answer"])]
    for router in routers:
        router.close(0)
    context.term()


@pytest.mark.e2e
def test_a_message_that_is_under_way_moves_until_the_line_takes_no_more(transport: Transport) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with SlowLine(port, 1_000_000) as line:
        assert not transport.moving(line.endpoint), "it is not even open"
        connected(transport, line.endpoint)
        transport.send([(line.endpoint, [bytes(8_000_000)])])
        until(lambda: transport.moving(line.endpoint))
        line.open.clear()
        until(lambda: not any(pause(transport.moving(line.endpoint)) for _ in range(5)))
        line.open.set()
        until(lambda: transport.moving(line.endpoint))
        line.bytes_s = 20_000_000
        name, said = router.recv_multipart()
        assert len(said) == 8_000_000
        router.send_multipart([name, bytes(3_000_000)])
        until(lambda: transport.moving(line.endpoint))  # what comes moves as well
        until(transport.receive)
        transport.moving(line.endpoint)
        assert not pause(transport.moving(line.endpoint)), "all is through"
        transport.close_peer(line.endpoint)
        router.close(0)
        context.term()


def pause(moving: bool) -> bool:
    """Until the next look."""
    time.sleep(0.05)
    return moving
