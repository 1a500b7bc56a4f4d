"""Silent or endless connections take neither places nor memory from other clients."""

import select
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import pytest

from attacks.test_strangers import serves
from e2e.harness import PATIENCE_S, Node, Raw, Tcp
from gossipq.values import Quota
from gossipq_client import connect
from gossipq_node.adapters.visitors import CROWD, ENDLESS_BYTES, FIRST_BYTES, Visitors
from waiting import until

pytestmark = pytest.mark.e2e
PIECE = bytes(1 << 20)


def open_still(crowd: list[Tcp]) -> list[Tcp]:
    """The connections that the other side has not closed."""
    poll = select.poll()
    for each in crowd:
        poll.register(each.socket, select.POLLRDHUP)
    ended = {fd for fd, _ in poll.poll(0)}
    return [each for each in crowd if each.socket.fileno() not in ended]


@pytest.mark.parametrize("step", [0, 1])
def test_of_a_crowd_that_says_nothing_few_stay(served: Node, raw: Callable[..., Raw], step: int) -> None:
    honest = raw(f"tcp://127.0.0.1:{served.port + step}").hello()
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(closing(Tcp(served.port + step).handshake())) for _ in range(CROWD + 100)
        ]

        def few() -> bool:
            honest.alive()
            return len(open_still(crowd)) <= CROWD

        until(few, 30)
        serves(served)
    if step:  # a worker tells how many
        with connect(served.endpoint) as mq:
            until(lambda: mq.admin.status().workers[0].turned_away >= 100)


@pytest.mark.parametrize("step", [40, 41])
def test_ports_between_nodes_keep_few_that_say_nothing(served: Node, step: int) -> None:
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(closing(Tcp(served.port + step).handshake())) for _ in range(CROWD + 100)
        ]
        until(lambda: len(open_still(crowd)) <= CROWD, 60)
        serves(served)


def poured(endless: Tcp, most: int) -> int:
    """Bytes of a message without end that go before the other side hangs up, or `most`. If its window is shut
    at that moment, only its end tells: who just sends waits until it gives up."""
    piece = endless.heading(len(PIECE), more=True) + PIECE
    sent, left = 0, memoryview(piece)
    endless.socket.setblocking(False)
    poll = select.poll()
    poll.register(endless.socket, select.POLLOUT | select.POLLRDHUP)
    with suppress(ConnectionError):  # it was hung up on
        while sent < most:
            ((_, events),) = poll.poll(1_000 * PATIENCE_S)
            if events & ~select.POLLOUT:
                break
            with suppress(BlockingIOError):
                count = endless.socket.send(left)
                sent, left = sent + count, left[count:] or memoryview(piece)
    return sent


@pytest.mark.parametrize("greeted", [False, True])
def test_a_message_without_end_is_cut(served: Node, greeted: bool) -> None:
    """The door takes parts for as long as more are announced."""
    pids = served.pids()
    with closing(Tcp(served.port + 1).handshake()) as endless:
        if greeted:
            endless.frame(b"not a message")
        assert poured(endless, 100 * ENDLESS_BYTES) < 100 * ENDLESS_BYTES
    serves(served)
    assert served.pids() == pids


def test_a_first_message_without_end_is_cut_at_once(served: Node) -> None:
    """Before the second is over that others are given: a host can send a gigabyte in one."""
    with closing(Tcp(served.port + 1).handshake()) as endless:
        sent, started_s = 0, time.monotonic()
        with suppress(OSError):
            while sent < 10 * ENDLESS_BYTES:
                endless.frame(bytes(FIRST_BYTES // 16), more=True)
                sent += FIRST_BYTES // 16
                time.sleep(0.01)  # a busy machine has seconds to look
        assert sent < ENDLESS_BYTES // 2, f"{sent} bytes in {time.monotonic() - started_s:.1f} s"
    serves(served)


def test_an_address_has_so_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """All programs of this host have one address: they are counted together with all others only."""
    addresses = {1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.9", 4: "127.0.0.1", 5: "127.0.0.1", 6: "::1"}
    monkeypatch.setattr("gossipq_node.adapters.visitors._address", addresses.get)
    ended: list[int] = []
    monkeypatch.setattr(Visitors, "_turn_away", lambda self, fd, why, now_s: ended.append(fd))
    visitors = Visitors(Quota(address_connections=2, connections=4))
    for fd in addresses:
        visitors.came(fd, 0)
    assert (ended, len(visitors)) == ([3, 6], 4)
    visitors.left(1)
    visitors.came(3, 1)
    assert (ended, len(visitors)) == ([3, 6], 4)


def test_who_speaks_zmtp_2_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq does not say by which connection its messages came: that is clear as long as no other has sent
    something without an end."""
    received = dict.fromkeys((1, 2, 3), 100)
    monkeypatch.setattr("gossipq_node.adapters.visitors._address", lambda fd: "10.0.0.9")
    monkeypatch.setattr("gossipq_node.adapters.visitors._received", received.__getitem__)
    ended: list[int] = []
    monkeypatch.setattr(Visitors, "_turn_away", lambda self, fd, why, now_s: ended.append(fd))
    visitors = Visitors(first_bytes=FIRST_BYTES)
    for fd in received:
        visitors.came(fd, 0)
    named = {3}  # it speaks ZMTP 3
    visitors.heard_nameless(2, named, 0.01)
    received[1] = ENDLESS_BYTES
    visitors.look_at_newcomers(named, 0.02, True)
    for now_s in range(2, 5):
        received[1] += FIRST_BYTES
        visitors.heard_nameless(1, named, now_s)
        visitors.look(now_s, True)
    assert not ended
    received[1] += FIRST_BYTES
    received[2] += ENDLESS_BYTES + 1
    visitors.heard_nameless(1, named, 6)  # either of them
    visitors.look(6, True)
    assert ended == [2]
