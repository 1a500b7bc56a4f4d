"""Replies to others, attacked: in a closed cluster each client may read only
its own route of `_replies`.
"""

import pytest
from msgspec import structs

from gossipq.export_messages import ListAcks, ListStates
from gossipq.messages import (
    Confirm,
    CreateTopic,
    Deliver,
    Hello,
    Publish,
    RefusedMessage,
    Resolve,
    Show,
    Subscribe,
    Subscribed,
    Topics,
    Trace,
    Why,
    WhyGroup,
)
from gossipq.operator_messages import ShowGroup
from gossipq.permissions import MEND, PUBLISH, REPLIES
from gossipq.types import topic_id_of
from gossipq.values import Message, Ref, Start
from gossipq.wire import batch as batches
from gossipq.wire import ownership
from node.test_guard import ALL, NODE, NOTHING, greeted, hands, hello_of, table
from node.test_worker import Client, Hands


@pytest.fixture
def rig() -> Hands:
    return hands(table("*"))


def reading(partition: int, *routes: str, group: str = "") -> Subscribe:
    return Subscribe(1, group, [Start(partition, "first", 0)], 10, 1 << 20, routes=list(routes))


def comes(rig: Hands, role: str) -> tuple[Client, Hello]:
    key = role.encode().ljust(32, b"k")
    hello = structs.replace(hello_of(role), session=ownership.session_of(key), key=key)
    return greeted(rig, hello), hello


def forbidden(answer: Message | None) -> bool:
    return isinstance(answer, RefusedMessage) and answer.code == "forbidden"


def test_who_asked_reads_its_own_route_and_nothing_else(rig: Hands) -> None:
    partition, shard = greeted(rig, NODE).topic(REPLIES)
    asker, hello = comes(rig, PUBLISH)
    own = hello.session.hex()
    assert isinstance(asker.ask(Resolve([REPLIES])), Topics)
    assert isinstance(asker.ask(CreateTopic(REPLIES, if_not_exists=True)), Topics)
    assert isinstance(asker.ask(reading(partition, own), shard), Subscribed)
    node, batch = greeted(rig, NODE), bytes(batches.seal([b"mine"], route=own.encode()))
    assert isinstance(node.ask(Publish(partition), shard, batch), Confirm)
    other = bytes(batches.seal([b"another's"], route=b"ff" * 16))
    assert isinstance(node.ask(Publish(partition), shard, other), Confirm)
    rig.turn()
    got = [said for said in asker.inbox() if isinstance(said, Deliver)]
    assert sum(part.count for said in got for part in said.slices) == 1


@pytest.mark.parametrize("role", [MEND, ALL])
def test_nobody_reads_replies_to_others(rig: Hands, role: str) -> None:
    partition, shard = greeted(rig, NODE).topic(REPLIES)
    victim = hello_of(PUBLISH).session.hex()
    thief, hello = comes(rig, role)
    own = hello.session.hex()
    for routes in ((), (victim,), (own, victim), ("#",), ("*",), (own[:-1] + "*",), (own.upper() + " ",)):
        assert forbidden(thief.ask(reading(partition, *routes), shard)), routes
    assert forbidden(thief.ask(reading(partition, own, group="g"), shard))
    ref, topic_id = Ref(partition, 0), topic_id_of(partition)
    for question in (
        *(Show(ref), Why(ref), Trace(ref), ListAcks(partition), ListStates(partition)),
        *(WhyGroup("g", [partition]), ShowGroup(topic_id, "g")),
    ):
        assert forbidden(thief.ask(question, shard)), question


def test_who_may_nothing_asks_nothing(rig: Hands) -> None:
    partition, shard = greeted(rig, NODE).topic(REPLIES)
    stranger, hello = comes(rig, NOTHING)
    assert forbidden(stranger.ask(reading(partition, hello.session.hex()), shard))
    assert forbidden(stranger.ask(Resolve([REPLIES])))


def test_a_session_that_others_could_greet_as_has_no_route_of_its_own(rig: Hands) -> None:
    """A handler that answers the session knows its name."""
    partition, shard = greeted(rig, NODE).topic(REPLIES)
    hello = hello_of(ALL)
    assert forbidden(greeted(rig, hello).ask(reading(partition, hello.session.hex()), shard))
