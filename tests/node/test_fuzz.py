"""A worker survives any message of a client or another node; it refuses
messages that it cannot serve.
"""

import logging
from array import array
from collections.abc import Callable, Iterator

import pytest

from gossipq import limits
from gossipq.export_messages import ListAcks, ListStates
from gossipq.messages import (
    MESSAGES,
    Ack,
    AckDelivered,
    Bye,
    ListDead,
    Nack,
    Publish,
    RefusedMessage,
    Show,
    Subscribe,
)
from gossipq.operator_messages import Growth
from gossipq.peer_messages import Bundle
from gossipq.types import DELAY, Now
from gossipq.values import GroupConfig, Message, Ref, Start
from gossipq.verbs import OF_NODES
from gossipq.wire import batch as batches
from gossipq.wire.frames import decode, encode
from node.fuzz import Fuzz
from node.test_worker import PEERS, PRODUCER, SETTINGS, Client, Hands

ROUNDS, SAID = 12, 250  #: workers, and messages that each one hears
WAITS_MS = (0, 0, 0, 1, 60, 1_000)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lively() -> tuple[Hands, Client, int, int]:
    """A worker with records in every state, the client that holds some, and where they are."""
    hands = Hands()
    client = hands.client()
    partition, shard = client.topic()
    for sequence in range(1, 9):
        client.publish(partition, shard, sequence)
    later = batches.seal([b"x"] * 3, fixed={DELAY: array("Q", [60_000] * 3)}, producer=PRODUCER, sequence=9)
    client.ask(Publish(partition), shard, bytes(later))
    client.ask(
        Subscribe(1, "g", [Start(partition)], 6, limits.MIB, config=GroupConfig(attempts_max=1)), shard
    )
    client.ask(Ack(1, [(partition, 0, 1)]), shard)
    client.ask(Nack(1, [(partition, 1, 1)], dead=True), shard)
    client.ask(Nack(1, [(partition, 2, 1)], delay_ms=10_000), shard)
    client.inbox()
    return hands, client, partition, shard


def known(partition: int, shard: int) -> dict[str, tuple[object, ...]]:
    """Values that exist in `lively`."""
    return {
        "partition": (partition,),
        "subscription": (1,),
        "topic_id": (partition >> 16,),
        "shard": (shard,),
        "group": ("g",),
        "name": ("orders", "g"),
        "topics": ("orders",),
        "offset": (-1, 0, 1, 2, 5),
        "index": (0, 10, 11, 12, 13),
        "ranges": (partition, 0, 1, 2),
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda partition: Show(Ref(partition, -1, -1)),
        lambda partition: Show(Ref(partition, -1, 1, -1)),
        lambda partition: Show(Ref(partition, -1, id_hash=-1)),
        lambda partition: Ack(1, [(partition, 3, 4), (partition, -1, 1)]),
        lambda partition: ListDead(partition, after=-1),
        lambda partition: ListAcks(partition, 0, -1, 0),
        lambda partition: AckDelivered(partition, "g", [(0, 1), (-1, 1)]),
        lambda partition: ListStates(partition, 0, -1),
        lambda partition: Growth([], True, 2**64 - 1),
    ],
)
def test_a_number_that_cannot_be_is_refused(make: Callable[[int], Message]) -> None:
    _, client, partition, shard = lively()
    refused = client.ask(make(partition), shard)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "bad_request"


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_no_message_of_a_client_ends_the_worker(seed: int) -> None:
    hands, client, partition, shard = lively()
    fuzz = Fuzz(seed, known(partition, shard))
    kinds = [kind for verb, kind in sorted(MESSAGES.items()) if kind not in OF_NODES and kind is not Bye]
    for _ in range(SAID):
        message: Message = fuzz.message(fuzz.random.choice(kinds))
        try:
            frames = [encode(message, shard, fuzz.random.choice((0, 9, 2**64 - 1)))]
        except (UnicodeEncodeError, OverflowError):
            continue  # no client can say that
        if fuzz.random.random() < 0.3:
            frames.append(
                bytes(
                    batches.seal(
                        [b"x"] * 3, producer=PRODUCER, sequence=fuzz.random.choice((0, 1, 3, 10, 2**64 - 1))
                    )
                )
            )
        client.dealer.send(*frames)
        try:
            hands.turn(fuzz.random.choice(WAITS_MS))
        except Exception as error:
            raise AssertionError(f"{message!r} ends the worker") from error
        for _ in range(len(client.dealer.inbox)):
            decode(client.dealer.receive()[0])


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_no_message_of_a_node_ends_the_worker(seed: int) -> None:
    hands, _, partition, shard = lively()
    fuzz = Fuzz(seed, known(partition, shard))
    kinds = [kind for verb, kind in sorted(MESSAGES.items()) if kind in OF_NODES and kind is not Bundle]
    peer = hands.network.client(PEERS)
    heard: list[Message] = []
    for _ in range(SAID):
        heard.append(fuzz.message(fuzz.random.choice(kinds)))
        inner = encode(heard[-1], fuzz.random.choice((0, 1)), 0, fuzz.random.choice((0, 1, 2, 5, 2**64 - 1)))
        me, sender = SETTINGS.member.copy, fuzz.random.choice((SETTINGS.member.copy, "bob.1"))
        hands.trust(peer._name, sender)
        peer.send(encode(Bundle(SETTINGS.cluster, sender, me, [inner])))
        try:
            hands.time = Now(hands.time.boot_ms + fuzz.random.choice(WAITS_MS), hands.time.wall_ms)
            hands.worker.turn(hands.mailbox.receive(0), hands.time)
        except Exception as error:
            raise AssertionError(f"{heard[-1]!r} ends the worker, after {heard[-5:-1]!r}") from error
        hands.frontdoor.receive(0)
