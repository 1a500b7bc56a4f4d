"""Quotas on what an address and a user own. Something counts until it is
deleted, also after a restart.
"""

from functools import partial

import pytest
from msgspec import structs

from core.harness import FakeWorker, client
from gossipq.core.requests.consume import Client
from gossipq.messages import CreateTopic, DropTopic, RefusedMessage, Subscribe
from gossipq.operator_messages import DropGroup
from gossipq.permissions import Rights, Rule
from gossipq.types import META_SHARD, partition_key
from gossipq.values import Quota, Start, TopicOptions

QUOTA = Quota(address_topics=6, address_groups=5, user_topics=4, user_partitions=5, user_groups=3)


def who(user: str, address: str) -> Client:
    rights = Rights(user, [Rule([], ["*"])])
    return structs.replace(client(f"{user}@{address}"), address=address, rights=rights)


ADA, ADA_TOO, BOB = who("ada", "h1"), who("ada", "h2"), who("bob", "h1")


@pytest.fixture
def worker() -> FakeWorker:
    worker = FakeWorker()
    worker.settings = structs.replace(worker.settings, quota=QUOTA)
    worker.restart()
    return worker


def created(worker: FakeWorker, caller: Client, name: str, partitions: int = 1) -> str:
    """Creates a topic; returns the message of the quota that refused it, or ""."""
    answer = worker.ask(META_SHARD, caller, CreateTopic(name, TopicOptions(partitions)))
    if not isinstance(answer, RefusedMessage):
        return ""
    assert "delete what is not needed" in answer.hint
    return answer.message


def test_a_user_owns_so_many_topics_wherever_it_is(worker: FakeWorker) -> None:
    for number in range(2):
        assert created(worker, ADA, f"a{number}") == ""
        assert created(worker, ADA_TOO, f"b{number}") == ""
    assert (
        created(worker, ADA, "a9")
        == "user ada would own 5 topics, and the quota cluster.quota.user_topics is 4"
    )
    assert created(worker, BOB, "c0") == ""
    worker.advance(365 * 86_400_000)
    assert "user_topics is 4" in created(worker, ADA, "a9"), "time gives nothing back"
    worker.restart()
    assert "user_topics is 4" in created(worker, ADA, "a9"), "a restart forgets nothing"
    worker.ask(META_SHARD, BOB, DropTopic("b0"))
    worker.turn()
    assert created(worker, ADA, "a9") == "", "whoever deletes it, its owner has it back"
    assert "user_topics is 4" in created(worker, ADA, "b0")


def test_partitions_and_addresses_are_counted_as_well(worker: FakeWorker) -> None:
    assert created(worker, ADA, "wide", 4) == ""
    assert "ada would own 6 partitions" in created(worker, ADA, "wider", 2)
    for number in range(4):
        assert created(worker, BOB, f"t{number}") == ""
    assert created(worker, who("cleo", "h1"), "u1") == ""
    assert "this address would own 7 topics" in created(worker, who("cleo", "h1"), "u2")
    assert created(worker, who("cleo", "h3"), "u2") == ""


def test_topics_that_are_on_their_way_count(worker: FakeWorker) -> None:
    creates = [CreateTopic(f"t{number}", TopicOptions(1)) for number in range(9)]
    worker.turn(*[partial(worker.step, META_SHARD, (b"c", b"1"), 7, ADA, create) for create in creates])
    worker.turn()
    assert len(worker.shards[META_SHARD].ledger.cluster.names) == QUOTA.user_topics


def test_groups_count_for_each_partition_and_are_given_back(worker: FakeWorker) -> None:
    info = worker.topic("orders", TopicOptions(2, beside=None))
    shard = info.shards[0]
    starts = [Start(partition_key(info.id, at)) for at in range(2) if info.shards[at] == shard]

    def joins(caller: Client, group: str) -> str:
        answer = worker.ask(shard, caller, Subscribe(1, group, starts, 0, 0))
        return answer.message if isinstance(answer, RefusedMessage) else ""

    room = QUOTA.user_groups // len(starts)
    for number in range(room):
        assert joins(ADA, f"g{number}") == ""
    assert "cluster.quota.user_groups is 3" in joins(ADA, "more")
    assert joins(ADA, "g0") == "", "a group that exists costs nothing"
    assert joins(BOB, "g0") == ""
    worker.restart()
    assert "cluster.quota.user_groups is 3" in joins(ADA, "more")
    worker.turn(lambda: worker.end_session(ADA.session), lambda: worker.end_session(BOB.session))
    worker.ask(shard, BOB, DropGroup(info.id, "g0"))
    assert joins(ADA, "more") == ""
    worker.ask(META_SHARD, BOB, DropTopic("orders"))
    worker.turn()
    assert worker.shards[shard].ledger.owned._counts == {}
