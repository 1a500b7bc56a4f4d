"""Sessions and producers belong to their creators: a client that only reads their names
can do nothing with them.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attacks.test_publishing import offset, publish, topic_of
from e2e.cluster import cluster
from e2e.harness import Node, Raw
from gossipq import limits
from gossipq.messages import (
    Ack,
    Acked,
    Confirm,
    Deliver,
    Hello,
    RefusedMessage,
    Subscribe,
    Subscribed,
    Welcome,
)
from gossipq.operator_messages import Clients, ListClients
from gossipq.types import partition_key
from gossipq.values import Message, Start, TopicInfo
from gossipq.wire import batch as batches
from gossipq.wire import ownership
from gossipq_client import connect
from waiting import until

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]
ADA, EVE = ((letter * 32).encode() for letter in "ae")


def owner(served: Node, raw: Connect, info: TopicInfo, key: bytes) -> Raw:
    client = raw(served.worker(info.shards[0] % 2))
    hello = Hello(ownership.session_of(key), "owner", "1", key=key)
    assert isinstance(client.ask(hello, info.shards[0]), Welcome)
    return client


def batch(value: bytes, key: bytes, sequence: int) -> bytes:
    return bytes(batches.seal([value], producer=ownership.producer_of(key, 1), sequence=sequence))


def refused(answer: Message, text: str, code: str = "bad_request") -> None:
    assert isinstance(answer, RefusedMessage), answer
    assert (answer.code, text in answer.message, answer.hint != "") == (code, True, True), answer


def test_nobody_publishes_as_the_producer_of_another(served: Node, raw: Connect) -> None:
    """A batch of hers would be taken for a repeat of it, confirmed, and not kept."""
    info = topic_of(served, raw, "producers")
    shard, partition = info.shards[0], partition_key(info.id, 0)
    ada = owner(served, raw, info, ADA)
    assert offset(publish(ada, shard, partition, batch(b"one", ADA, 1))) == (0, False)
    nobody = raw(served.worker(shard % 2)).hello(shard, b"nobody.." * 2)
    for stranger in (owner(served, raw, info, EVE), nobody):
        forged = publish(stranger, shard, partition, batch(b"forged", ADA, 2))
        refused(forged, "does not belong to this session")
    assert offset(publish(ada, shard, partition, batch(b"two", ADA, 2))) == (1, False)


@pytest.mark.parametrize("restarted", [False, True])
def test_nobody_greets_as_the_session_of_another(
    make: Callable[..., Node], raw: Connect, restarted: bool
) -> None:
    """`restarted`: before the owner is back, when nothing in memory says whose it was."""
    served = make()
    served.start()
    info = topic_of(served, raw, "sessions")
    shard, partition = info.shards[0], partition_key(info.id, 0)
    ada = owner(served, raw, info, ADA)
    publish(ada, shard, partition, batch(b"hers", ADA, 1))
    take = Subscribe(1, "g", [Start(partition, "first")], 10, limits.MIB)
    ada.say(take, shard, 1)
    until(lambda: isinstance((answer := ada.receive(1)) and answer.message, Deliver))
    clients = ada.ask(ListClients(), shard)
    assert isinstance(clients, Clients)
    (shown,) = {row.session for row in clients.rows if row.client.startswith("owner")}
    session = ownership.session_of(ADA)
    assert shown == session[: limits.SESSION_SHOWN_BYTES], "and not all of it"
    if restarted:
        served.stop()
        served.start()
    eve = raw(served.worker(shard % 2))
    assert isinstance(eve.ask(Hello(shown, "eve", "1"), shard), RefusedMessage)
    refused(eve.ask(Hello(session, "eve", "1"), shard), "belongs to the client that has its key")
    refused(eve.ask(Hello(session, "eve", "1", key=EVE), shard), "not the session of that key")
    refused(eve.ask(Hello(session, "eve", "1", key=b"short"), shard), "32 bytes")
    refused(eve.ask(Ack(1, [(partition, 0, 1)]), shard), "no session", "no_session")
    again = owner(served, raw, info, ADA)
    held = Subscribe(1, "g", [Start(partition, "first")], 10, limits.MIB, holding=[(partition, 0, 1)])
    until(lambda: isinstance(again.ask(held, shard), Subscribed))
    assert again.ask(Ack(1, [(partition, 0, 1)]), shard) == Acked([])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_owners_stay_owners_over_a_takeover(tmp_path: Path, raw: Connect) -> None:
    """The new leader has never heard of them: names alone say whose they are."""
    with cluster(tmp_path, 3) as nodes:
        nodes.wait_healthy(3, patience_s=120)
        with connect(nodes.servers) as mq:
            mq.create_topic("moved")
            (info,) = mq.topics("moved")
        shard, partition = info.shards[0], partition_key(info.id, 0)

        def speaker(hello: Hello) -> tuple[Raw, Message]:
            client = raw(nodes.leader("moved").worker(0))
            return client, client.ask(hello, shard)

        mine = Hello(ownership.session_of(ADA), "owner", "1", key=ADA)
        theirs = Hello(ownership.session_of(EVE), "eve", "1", key=EVE)
        ada, welcome = speaker(mine)
        assert isinstance(welcome, Welcome)
        assert offset(publish(ada, shard, partition, batch(b"one", ADA, 1))) == (0, False)
        take = Subscribe(1, "g", [Start(partition, "first")], 10, limits.MIB)
        ada.say(take, shard, 1)
        until(lambda: isinstance((answer := ada.receive(1)) and answer.message, Deliver), 60)
        old = nodes.leader("moved")
        old.kill()
        until(lambda: nodes.leader("moved", besides=old), 120)
        eve, answer = speaker(Hello(mine.session, "eve", "1"))
        refused(answer, "belongs to the client that has its key")
        assert isinstance(eve.ask(theirs, shard), Welcome)
        refused(publish(eve, shard, partition, batch(b"forged", ADA, 2)), "does not belong to this session")
        ada, welcome = speaker(mine)
        assert isinstance(welcome, Welcome)

        def again() -> bool:
            answer = publish(ada, shard, partition, batch(b"two", ADA, 2))
            return isinstance(answer, Confirm) and answer.rows[0][1] == 1

        until(again, 120, "the leader may not serve yet")


def test_a_client_has_a_key_of_its_own(served: Node, raw: Connect) -> None:
    with connect(served.endpoint) as ada, connect(served.endpoint) as bob:
        assert ada.publish("own", b"x", timeout=10).ref != bob.publish("own", b"y", timeout=10).ref
        sessions = {row.session for row in ada.admin.clients()}
    assert all(session[0] & ownership.OWNED for session in sessions)
    assert len(sessions) >= 2


def test_names_do_not_give_the_key_away() -> None:
    key = os.urandom(ownership.KEY_BYTES)
    session, producer = ownership.session_of(key), ownership.producer_of(key, 7)
    assert (len(session), len(producer)) == (16, 16)
    assert producer != ownership.producer_of(key, 8)
    assert not {key[at : at + 4] for at in range(29)} & {session[:4], producer[4:8], producer[8:12]}
    assert not ownership.unowned(session)[0] & ownership.OWNED
