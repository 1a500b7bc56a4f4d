"""The cost of a publish in Python calls of the worker, and the rules for batches that share a turn."""

import sys
from statistics import median
from types import FrameType
from typing import Any

import pytest

from gossipq import limits
from gossipq.messages import Confirm, Hello, Publish, RefusedMessage
from gossipq.wire import batch as batches
from gossipq.wire import ownership
from node.test_worker import SETTINGS, Client, Hands

LONE_CALLS_MAX = 92  #: in one turn with one batch, without the calls of mailbox and store
SHARED_CALLS_MAX = 29  #: of each batch beyond the first one
SESSIONS = 16
TURNS = 20
FAKE = "storage/tables.py"  #: the tables in memory make more calls than those on disk


class Publishers:
    """Sessions with a producer each, and connections of their own."""

    def __init__(self, hands: Hands, count: int) -> None:
        self.hands = hands
        keys = [b"%02d" % number + bytes(30) for number in range(count)]
        self.producers = [ownership.producer_of(key, 1) for key in keys]
        self.clients: list[Client] = []
        for key in keys:
            client = Client(hands, hands.network.client(SETTINGS.clients_bind))
            client.ask(Hello(ownership.session_of(key), "test", "0", key=key))
            self.clients.append(client)
        self.partition, self.shard = self.clients[0].topic()

    def send(self, number: int, sequence: int, value: bytes = b"x") -> None:
        batch = batches.seal([value], producer=self.producers[number], sequence=sequence)
        self.clients[number].send(Publish(self.partition), self.shard, bytes(batch))

    def answer(self, number: int) -> Any:
        (answer,) = self.clients[number].inbox()
        return answer


def calls_of_a_turn(hands: Hands) -> int:
    """Give the worker a turn and count the calls of functions of gossipq in it."""
    count = 0

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        path = frame.f_code.co_filename
        ours = "/gossipq" in path.rpartition("/")[0] and not path.endswith(FAKE)
        count += event == "call" and ours

    arrived = hands.mailbox.receive(0)
    sys.setprofile(look)
    try:
        hands.worker.turn(arrived, hands.time)
    finally:
        sys.setprofile(None)
    return count


def test_a_publish_takes_few_calls() -> None:
    hands = Hands()
    publishers = Publishers(hands, SESSIONS)
    hands.turn(limits.LEASE_LOG_MS)
    lone, shared = list[int](), list[int]()
    for turn in range(1, TURNS + 1):
        publishers.send(0, 2 * turn - 1)
        lone.append(calls_of_a_turn(hands))
        for number in range(SESSIONS):
            publishers.send(number, turn if number else 2 * turn)
        shared.append(calls_of_a_turn(hands))
    assert median(lone) <= LONE_CALLS_MAX
    assert (median(shared) - median(lone)) / (SESSIONS - 1) <= SHARED_CALLS_MAX


def test_batches_of_one_turn_keep_their_own_sequences_and_answers() -> None:
    hands = Hands()
    publishers = Publishers(hands, 4)
    publishers.send(1, 1, b"known")
    hands.turn(limits.LEASE_LOG_MS)
    publishers.answer(1)
    commits = hands.store.commits
    publishers.send(0, 1, b"first")
    publishers.send(1, 1, b"known")
    publishers.send(2, 2, b"gap")
    publishers.send(3, 1, b"last")
    hands.turn()
    assert hands.store.commits == commits + 1
    window = SETTINGS.window_bytes
    assert publishers.answer(0) == Confirm([(9, 1, 1, False)], window)
    assert publishers.answer(1) == Confirm([(9, 0, 1, True)], window), (
        "a repeat is answered by its own window"
    )
    refused = publishers.answer(2)
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.detail) == ("out_of_sequence", 1)
    assert publishers.answer(3) == Confirm([(9, 2, 1, False)], window)
    for number, sequence in ((0, 2), (1, 2), (2, 1), (3, 2)):
        publishers.send(number, sequence, b"next")
    hands.turn()
    assert [publishers.answer(number).rows[0][1] for number in range(4)] == [3, 4, 5, 6]


@pytest.mark.parametrize("fail_in", range(1, 9))
def test_a_write_that_fails_confirms_nothing_of_its_turn(fail_in: int) -> None:
    hands = Hands()
    publishers = Publishers(hands, 3)
    hands.turn(limits.LEASE_LOG_MS)
    for number in range(3):
        publishers.send(number, 1)
    hands.store.fail_in = fail_in
    hands.turn()
    answers = [client.inbox() for client in publishers.clients]
    confirmed = [answer for inbox in answers for answer in inbox if isinstance(answer, Confirm)]
    assert len(confirmed) == (3 if hands.store.fail_in else 0), "all of them, or none"
