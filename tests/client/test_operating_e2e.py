"""Operators' questions and changes, with both kinds of clients, with real nodes."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from conftest import RunningNode
from gossipq.errors import UnknownTopic, WrongState
from gossipq.messages import Done
from gossipq.operator_messages import PurgeTopic
from gossipq.types import partition_key
from gossipq.values import Alarm
from gossipq_client import BadRequest, Client, GossipqError, connect, testing
from gossipq_client.aio import connect as aio_connect
from gossipq_client.values import growth
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end


def work(mq: Client, topic: str, count: int, group: str = "g") -> None:
    """Acks `count` records."""
    for _, msg in zip(range(count), mq.consume(topic, group, credit=1), strict=False):
        msg.ack_soon()
    mq.flush(PATIENCE_S)


def test_a_topic_is_changed(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=4, attempts_max=3)
    info = mq.topic(topic).configure(alarm_lag=50, retention="1d")
    assert (info.config.alarm_lag, info.config.retention, info.config.attempts_max) == (
        50,
        timedelta(days=1),
        3,
    )
    assert mq.topics(topic) == [info]
    assert mq.topic(topic).describe() == info
    for verb in (lambda it: it.configure(alarm_lag=1), lambda it: it.describe()):
        with pytest.raises(UnknownTopic):
            verb(mq.topic(f"{topic}-no"))
    with pytest.raises(BadRequest, match="beside is chosen when a topic is made"):
        mq.topic(topic).configure(beside="other")


def test_a_group_has_a_lag(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=2)
    for number in range(10):
        mq.publish(topic, b"x", key=b"%d" % number, timeout=PATIENCE_S)
    assert mq.group(topic, "g").lag() == 0, "a group that does not exist"
    work(mq, topic, 4)
    assert mq.group(topic, "g").lag() == 6
    assert {row.group for row in mq.group(topic, "g").counters()} == {"g"}


def test_a_topic_is_purged_over_all_its_partitions(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=3)
    for number in range(30):
        mq.post(topic, b"x", key=b"%d" % number)
    mq.publish(topic, b"later", delay="1h", timeout=PATIENCE_S)
    mq.flush(PATIENCE_S)
    assert mq.topic(topic).purge(dry_run=True) == 30
    first = mq.topic(topic).purge(partition=0)
    assert 0 < first < 30
    assert mq.topic(topic).purge() == 30 - first
    assert sum(row.next - row.first for row in mq.admin.stats([topic]).partitions) == 0
    assert sum(row.scheduled for row in mq.admin.stats([topic]).partitions) == 1
    with pytest.raises(BadRequest):
        mq.topic(topic).purge(partition=3)


def test_a_group_goes_back_and_forth_over_all_shards(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=4)
    for number in range(40):
        mq.post(topic, b"x", key=b"%d" % number)
    mq.flush(PATIENCE_S)
    assert len(list(mq.consume(topic, "g", ack=False, stop_at_end=True))) == 40
    back = mq.group(topic, "g").seek("first", dry_run=True)
    assert [row.partition for row in back] == [0, 1, 2, 3]
    assert sum(row.again for row in back) == 40
    assert mq.group(topic, "g").seek("first") == back
    assert sum(row.ready for row in mq.topic(topic).groups()) == 40
    ahead = mq.group(topic, "g").seek("new")
    assert sum(row.skipped for row in ahead) == 40
    assert list(mq.consume(topic, "g", stop_at_end=True)) == []
    assert sum(row.ready for row in mq.topic(topic).groups()) == 0
    mq.group(topic, "g").seek("-1h")
    assert len(list(mq.consume(topic, "g", ack=False, stop_at_end=True))) == 40


def test_a_group_that_has_not_been_everywhere_is_moved_everywhere(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=8)
    for number in range(40):
        mq.post(topic, b"x", partition=number % 8)
    mq.flush(PATIENCE_S)
    work(mq, topic, 1)
    until(
        lambda: not any(row.consumers for row in mq.topic(topic).groups())
    )  # each shard hears of the end by itself
    known = {row.partition for row in mq.topic(topic).groups()}
    assert len(mq.group(topic, "g").seek("new")) == 8
    assert {row.partition for row in mq.topic(topic).groups()} == set(range(8)) >= known
    assert list(mq.consume(topic, "g", stop_at_end=True)) == []


def test_a_group_in_use_stays_where_it_is(mq: Client, topic: str) -> None:
    mq.publish_many(topic, [b"x"] * 5, timeout=PATIENCE_S)
    loop = mq.consume(topic, "g")
    next(loop).ack_soon()
    for verb in (lambda: mq.group(topic, "g").seek("first"), lambda: mq.group(topic, "g").delete()):
        with pytest.raises(WrongState, match="group g has 1 consumer"):
            verb()


def test_a_group_is_removed(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=4)
    mq.publish(topic, b"x", timeout=PATIENCE_S)
    assert len(list(mq.consume(topic, "g", ack=False, stop_at_end=True))) == 1
    assert mq.group(topic, "g").delete() > 0
    assert mq.topic(topic).groups() == []
    with pytest.raises(BadRequest, match=f"no group g on {topic}"):
        mq.group(topic, "g").delete()
    with pytest.raises(BadRequest, match=f"no group g on {topic}"):
        mq.group(topic, "g").describe()


def test_a_group_shows_what_rules_it(mq: Client, topic: str) -> None:
    mq.publish(topic, b"x", timeout=PATIENCE_S)
    loop = mq.consume(topic, "g", lease="9s")
    next(loop).ack_soon()
    shown = mq.group(topic, "g").describe()
    assert ("lease_ms", "9000", "group") in [tuple(row) for row in shown.policy]
    assert len(shown.consumers) == 1
    mq.group(topic, "g").configure(alarm_lag=7)
    assert mq.group(topic, "g").describe().config.alarm_lag == 7
    assert mq.topic(topic).groups()[0].alarm_lag == 7


def test_who_is_connected_and_who_is_thrown_out(mq: Client, shared_node: RunningNode, topic: str) -> None:
    with connect(shared_node.endpoint, name="ada", timeout=3) as ada:
        ada.publish_many(topic, [b"x"] * 10, timeout=PATIENCE_S)
        loop = ada.consume(topic, "g", credit=5)
        held = next(loop)
        mine = [row for row in mq.admin.clients() if row.client == "ada"]
        assert {row.session for row in mine} == {mine[0].session}
        assert sum(row.published for row in mine) == 10
        assert sum(row.batches for row in mine) == 1
        (consuming,) = [each for row in mine for each in row.subscriptions]
        assert (consuming.topic, consuming.group, consuming.partitions, consuming.in_flight) == (
            topic,
            "g",
            1,
            5,
        )
        assert mq.admin.kick(mine[0].session, duration="1m") == len(mine)
        assert not [row for row in mq.admin.clients() if row.client == "ada"]
        (row,) = mq.topic(topic).groups()
        assert (row.consumers, row.ready) == (0, 10), "what it held went back"
        assert held.offset == 0
        with pytest.raises(GossipqError) as turned_away:
            ada.topics()
        asked_s = time.monotonic()
        known = mq.admin.kick(mine[0].session, duration=0)
        took_s = time.monotonic() - asked_s
        assert known == 0, f"{turned_away.value!r}; {took_s:.1f} s; {mine}"
        assert [info.name for info in ada.topics(topic)] == [topic]


def test_a_wrong_session_is_refused(mq: Client) -> None:
    with pytest.raises(BadRequest, match="a session is shown by 8 bytes, not 3"):
        mq.admin.kick(b"abc")
    with pytest.raises(BadRequest, match="duration=-1"):
        mq.admin.kick(b"a" * 16, duration=-1)


def test_the_node_tells_its_options_and_no_alarms(mq: Client, shared_node: RunningNode) -> None:
    rows = {row.key: (row.value, row.origin) for row in mq.admin.running_config()}
    assert rows["node.bind"] == (f'"{shared_node.endpoint}"', "flag --bind")
    assert rows["cluster.shards"] == ("32", "default")
    assert not [alarm for alarm in mq.admin.alarms() if alarm.severity == "critical"]


def test_the_asyncio_twin_does_the_same(shared_node: RunningNode, topic: str) -> None:
    async def life() -> None:
        async with aio_connect(shared_node.endpoint) as mq:
            await mq.publish(topic, b"x")
            assert (await mq.topic(topic).configure(alarm_lag=3)).config.alarm_lag == 3
            async for msg in mq.consume(topic, "g", stop_at_end=True):
                msg.ack_soon()
            await mq.flush(None)
            assert (await mq.group(topic, "g").describe()).config.mode == "shared"
            assert [row.again for row in await mq.group(topic, "g").seek("first")] == [1]
            assert await mq.group(topic, "g").delete() == 1
            assert await mq.topic(topic).purge() == 1
            assert await mq.admin.alarms() == []
            assert {row.key for row in await mq.admin.running_config()} >= {"node.data"}
            assert any(row.session for row in await mq.admin.clients())
            assert isinstance(await mq.admin.growth(), list)
            assert await mq.admin.kick(b"n" * 16) == 0

    asyncio.run(life())


# --- over time


def test_growth_is_one_curve_over_all_shards_and_topics() -> None:
    with testing.Broker() as broker, broker.connect() as mq:
        mq.create_topic("orders", partitions=3)
        mq.create_topic("mails")
        for minute in range(4):
            for number in range(6):
                mq.post("orders", b"x", key=b"%d" % number)
            mq.publish_many("mails", [b"y"] * minute, timeout=PATIENCE_S) if minute else None
            mq.flush(PATIENCE_S)
            for _ in range(60):
                broker.advance("1s")
        for _ in range(60):
            broker.advance("1s")
        points = growth.series(mq.admin.raw.growth())
        assert sum(point.published for point in points) + mq.admin.growth()[0].published >= 24
        assert points[-1].records == 24 + 1 + 2 + 3
        assert (points[-1].voters, points[-1].takeovers) == (1, 0)
        mails = growth.series(mq.admin.raw.growth(["mails"]))
        assert [point.published for point in mails if point.published] == [1, 2, 3]
        assert growth.series(mq.admin.raw.growth(["orders"], hours=True), 3_600_000)[-1:] != [None]
        newest = max(row.time for row in mq.admin.growth())
        assert mq.admin.growth(since=newest) == []
        assert mq.admin.growth(["nothing"]) == []


def test_an_alarm_is_raised_and_cleared_by_a_node() -> None:
    with testing.Broker() as broker, broker.connect() as mq:
        mq.create_topic("orders", alarm_lag=10)
        mq.publish_many("orders", [b"x"] * 30, timeout=PATIENCE_S)
        work(mq, "orders", 1)
        end = time.monotonic() + PATIENCE_S

        def lags() -> list[Alarm]:
            """A busy machine raises others."""
            return [alarm for alarm in mq.admin.alarms() if alarm.name == "lag"]

        while not lags():
            broker.advance("1s")
            assert time.monotonic() < end
        (alarm,) = lags()
        assert (alarm.severity, alarm.subject) == ("warning", "orders/g")
        assert alarm.text == "group g on orders is 29 records behind in partition 0; alarm_lag is 10"
        assert alarm.command == "gossipq why orders --group g"
        since = alarm.since
        broker.advance("30s")
        assert lags()[0].since == since
        work(mq, "orders", 25)
        while lags():
            broker.advance("1s")
            assert time.monotonic() < end


# --- kills


def test_a_purge_that_a_kill_cut_short_is_taken_up_again(make_node: Callable[..., RunningNode]) -> None:
    node = make_node().start()
    with connect(node.endpoint) as mq:
        info = mq.create_topic("orders")
        for number in range(1_500):
            mq.post("orders", b"x", route=f"r{number % 2}")  # a batch has one route
        mq.flush(PATIENCE_S)
        work(mq, "orders", 3)
        key = partition_key(info.id, 0)
        step = mq._operator.ask(PurgeTopic(key, 1_500), info.shards[0], Done)
        assert 0 < step.count < 1_500
    node.kill()
    node.start()
    with connect(node.endpoint) as mq:
        assert mq.topic("orders").purge(dry_run=True) == 1_500 - step.count
        assert mq.topic("orders").purge() == 1_500 - step.count
        (row,) = mq.topic("orders").groups()
        assert (row.acked, row.removed, row.ready, row.unaccounted) == (3, 1_497, 0, 0)
        mq.publish("orders", b"new", timeout=PATIENCE_S)
        assert [msg.value for msg in mq.consume("orders", "g", stop_at_end=True)] == [b"new"]


def test_what_was_changed_is_there_after_a_kill(make_node: Callable[..., RunningNode]) -> None:
    node = make_node().start()
    with connect(node.endpoint) as mq:
        mq.create_topic("orders", partitions=4)
        mq.publish_many(
            "orders", [b"x"] * 40, keys=[b"%d" % number for number in range(40)], timeout=PATIENCE_S
        )
        for group in ("moved", "gone"):
            assert len(list(mq.consume("orders", group, ack=False, stop_at_end=True))) == 40
        mq.topic("orders").configure(alarm_lag=77)
        mq.group("orders", "moved").seek("first")
        mq.group("orders", "gone").delete()
    node.kill()
    node.start()
    with connect(node.endpoint) as mq:
        assert mq.topics("orders")[0].config.alarm_lag == 77
        rows = mq.topic("orders").groups()
        assert {row.group for row in rows} == {"moved"}
        assert [sum(row.ready for row in rows), sum(row.unaccounted for row in rows)] == [40, 0]
        assert {row.alarm_lag for row in rows} == {77}
        assert len(list(mq.consume("orders", "moved", ack=False, stop_at_end=True))) == 40
