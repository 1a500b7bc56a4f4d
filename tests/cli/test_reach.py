"""Why an address does not answer: told at once, and each reason apart."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import zmq

from gossipq.errors import Unreachable
from gossipq.limits import DOOR_PORT_STEP
from gossipq_cli import contexts, reach
from ports import settled_port


@contextmanager
def listener(says: bytes) -> Iterator[str]:
    """A port that greets each connection with these bytes."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                connection.sendall(says)

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for each in held:
            each.close()


def why(*addresses: str, timeout_s: float = 0.3) -> str:
    with pytest.raises(Unreachable) as raised:
        reach.require(addresses, timeout_s)
    assert raised.value.hint
    return raised.value.message


def test_a_refused_port_is_told_at_once() -> None:
    address, began = f"tcp://127.0.0.1:{settled_port()}", time.monotonic()
    assert why(address, timeout_s=30) == f"no node answers at {address}: nothing listens on that port"
    assert time.monotonic() - began < 10


def test_an_unknown_host_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert (
        why("tcp://nobody:7700") == "host nobody of tcp://nobody:7700 is not known: Name or service not known"
    )


@pytest.mark.parametrize(
    ("says", "told"),
    [(b"HTTP/1.1 400 Bad Request", "does not speak as a gossipq node does"), (b"", "says nothing")],
)
def test_the_port_of_another_program_is_told(says: bytes, told: str) -> None:
    with listener(says) as address:
        assert why(address) == f"{address} takes connections and {told}"


def test_one_address_that_may_answer_is_enough() -> None:
    with listener(reach.SIGNATURE) as address:
        assert reach.require([f"tcp://127.0.0.1:{settled_port()}", address], 1.0) == 1
    reach.require(["ipc:///nowhere"], 1.0)
    reach.require([], 1.0)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("10.0.0.7:7700", "tcp://10.0.0.7:7700"),
        ("[::1]:7700", "tcp://[::1]:7700"),
        ("db-1.shop:1", "tcp://db-1.shop:1"),
        ("tcp://a:1", "tcp://a:1"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)
def test_an_address_may_be_host_and_port(given: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contexts.servers_of([given]) == [address]
    monkeypatch.setenv("GOSSIPQ_SERVER", f"{given}, {given}")
    assert contexts.servers_of([]) == [address, address]


def test_an_encrypted_port_is_told_to_a_client_without_its_key() -> None:
    port = settled_port(doors=True)
    address = f"tcp://127.0.0.1:{port}"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as door:
        door.curve_server, door.curve_secretkey = True, zmq.curve_keypair()[1]
        door.bind(f"tcp://127.0.0.1:{port + DOOR_PORT_STEP}")
        assert "nothing listens on that port" in why(address)
        with pytest.raises(
            Unreachable, match=f"answers encrypted only, at .*:{port + DOOR_PORT_STEP},"
        ) as told:
            reach.require([address], 0.3, has_key=False)
        assert "--credentials FILE" in told.value.hint
    with zmq.Context() as context, context.socket(zmq.ROUTER) as plain:
        plain.bind(f"tcp://127.0.0.1:{port + DOOR_PORT_STEP}")
        with pytest.raises(Unreachable, match="nothing listens on that port"):
            reach.require([address], 0.3, has_key=False)
