"""Options of a publish with a real node: due times, time to live, ids, policies, virtual topics."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from conftest import RunningNode
from gossipq.errors import TopicExists, UnknownTopic
from gossipq_client import Backpressure, BadRequest, Client, connect, testing
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end


def take(mq: Client, topic: str, count: int, group: str = "g") -> list[tuple[bytes, float]]:
    """Takes and acks `count` values; returns each with the time at which it came."""
    found: list[tuple[bytes, float]] = []
    for msg in mq.consume(topic, group):
        with msg:
            found.append((msg.value, time.monotonic()))
        if len(found) == count:
            return found
    return found


class TestDueTimes:
    def test_never_early_and_not_late(self, movable: testing.Client, topic: str) -> None:
        movable.create_topic(topic)
        receipt = movable.publish(topic, b"d", delay="1h", timeout=PATIENCE_S)
        movable.post(topic, b"a", at=datetime.now(UTC) + timedelta(hours=2))
        movable.publish(topic, b"n", timeout=PATIENCE_S)
        assert (receipt.offset, receipt.ref.count("@")) == (-1, 1)
        for values in ([b"n"], [b"n"], [b"n", b"d"], [b"n", b"d"], [b"n", b"d", b"a"]):
            assert [msg.value for msg in movable.read(topic)] == values
            movable.advance("30m")

    def test_offsets_are_given_in_the_order_of_due_times(self, movable: testing.Client, topic: str) -> None:
        mq, delays = movable, ["4h", "1h", 0, "3h", None, "2h", "1h"]
        receipt = mq.publish_many(topic, [b"%d" % at for at in range(7)], delays=delays, timeout=PATIENCE_S)
        assert [each.offset for each in receipt.receipts] == [-1, -1, 0, -1, 1, -1, -1]
        mq.advance("4h")
        assert [value for value, _ in take(mq, topic, 7)] == [b"2", b"4", b"1", b"6", b"5", b"3", b"0"]
        refs = [each.ref for each in receipt.receipts]
        assert [mq.record(ref).why().offset for ref in refs] == [6, 2, 0, 5, 1, 4, 3]
        assert [mq.record(ref).show().value for ref in refs] == [b"%d" % at for at in range(7)]

    def test_a_thousand_with_random_due_times_in_several_batches(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=3)
        delays = [0.05 + (at * 7_919 % 1_000) / 2_500 for at in range(1_000)]
        values = [b"%d" % at for at in range(1_000)]
        due = time.monotonic()
        mq.publish_many(topic, values, delays=delays, keys=values, timeout=PATIENCE_S)
        found = take(mq, topic, 1_000)
        assert sorted(int(value) for value, _ in found) == list(range(1_000))
        assert all(came - due >= delays[int(value)] for value, came in found)

    def test_single_publishes_pile_up_into_sorted_batches(self, mq: Client, topic: str) -> None:
        receipts = [mq.post(topic, b"%d" % at, delay=f"{400 - at}ms") for at in range(300)]
        mq.flush(PATIENCE_S)
        refs = [receipt.result().ref for receipt in receipts]
        assert len(set(refs)) == 300
        assert all(mq.record(refs[at]).show().value == b"%d" % at for at in range(0, 300, 23))
        assert len(take(mq, topic, 300)) == 300

    def test_what_is_scheduled_survives_kill_9_and_comes_in_time(
        self, make_node: Callable[..., RunningNode]
    ) -> None:
        node = make_node().start()
        with connect(node.endpoint) as mq:
            kept = mq.publish("t", b"far", delay="1h", id="order-17", timeout=PATIENCE_S)
            due = time.monotonic() + 4
            mq.publish("t", b"later", delay=4, timeout=PATIENCE_S)
            missed = mq.publish("t", b"soon", delay="50ms", timeout=PATIENCE_S)
        node.kill()
        node.start()
        with connect(node.endpoint) as mq:
            again = mq.publish("t", b"far", delay=60, id="order-17", timeout=PATIENCE_S)
            assert (again.duplicate, again.ref) == (True, kept.ref)
            (first, _), (second, came) = take(mq, "t", 2)
            assert (first, second) == (b"soon", b"later")
            assert came >= due
            assert mq.record(missed.ref).why().offset == 0


class TestTtl:
    def test_untried_records_die_and_say_so(self, movable: testing.Client, topic: str) -> None:
        mq = movable
        mq.create_topic(topic, ttl="10m")
        for msg in mq.consume(topic, "g", stop_at_end=True):
            msg.ack_soon()
        mq.post(topic, b"short", ttl="5m")
        mq.publish(topic, b"long", timeout=PATIENCE_S)
        mq.advance("5m")
        assert [value for value, _ in take(mq, topic, 1)] == [b"long"]
        (letter,) = mq.dead(topic, "g").letters()
        assert (letter.reason, letter.value, letter.offset) == ("expired", b"short", 0)

    def test_dropped_when_the_topic_says_so(self, movable: testing.Client, topic: str) -> None:
        mq = movable
        mq.create_topic(topic, ttl="5m", expire="drop")
        assert not list(mq.consume(topic, "g", stop_at_end=True))
        mq.publish(topic, b"short", timeout=PATIENCE_S)
        mq.publish(topic, b"long", ttl="10m", timeout=PATIENCE_S)
        mq.advance("5m")
        assert [value for value, _ in take(mq, topic, 1)] == [b"long"]
        mq.flush(PATIENCE_S)
        (row,) = mq.topic(topic).groups()
        assert (row.dropped, row.dead, row.acked) == (1, 0, 1)


class TestIds:
    def test_the_same_id_is_stored_once(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=4)
        first = mq.publish(topic, b"one", id="order-17", timeout=PATIENCE_S)
        again = mq.publish(topic, b"two", id=b"order-17", timeout=PATIENCE_S)
        other = mq.publish(topic, b"three", id="order-18", timeout=PATIENCE_S)
        assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
        assert (again.ref, again.partition) == (first.ref, first.partition)
        assert mq.record(topic, id="order-17").show().value == b"one"

    def test_lists_tell_which_were_known(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"a", b"b"], ids=["1", "2"], timeout=PATIENCE_S)
        receipt = mq.publish_many(
            topic, [b"x", b"b", b"c", b"c"], ids=[None, "2", "3", "3"], timeout=PATIENCE_S
        )
        assert [(each.offset, each.duplicate) for each in receipt.receipts] == [
            (2, False),
            (1, True),
            (3, False),
            (3, True),
        ]
        assert [value for value, _ in take(mq, topic, 4)] == [b"a", b"b", b"x", b"c"]

    def test_a_scheduled_record_has_an_id_too(self, mq: Client, topic: str) -> None:
        first = mq.publish(topic, b"v", id="i", delay="1h", timeout=PATIENCE_S)
        again = mq.publish(topic, b"v", id="i", timeout=PATIENCE_S)
        assert (again.ref, again.offset, again.duplicate) == (first.ref, -1, True)
        assert mq.record(topic, id="i").cancel() == first.ref

    def test_an_id_is_forgotten_when_its_window_is_over(self, movable: testing.Client, topic: str) -> None:
        mq = movable
        mq.create_topic(topic, dedup="10m")
        mq.publish(topic, b"v", id="i", timeout=PATIENCE_S)
        mq.advance("5m")
        assert mq.publish(topic, b"v", id="i", timeout=PATIENCE_S).duplicate
        mq.advance("5m")
        assert not mq.publish(topic, b"v", id="i", timeout=PATIENCE_S).duplicate


class TestPolicies:
    def test_what_the_record_says_rules(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, lease="1m", attempts_max=7, backoff=["2s", "3s"])
        mq.post(topic, b"own", attempts_max=1, backoff="10ms", lease="9s")
        mq.publish(topic, b"topic", timeout=PATIENCE_S)
        mq.fetch(topic, topic, wait=PATIENCE_S)
        lines = [" ".join(mq.record(topic, 0, offset).why(group=topic).lines) for offset in (0, 1)]
        assert "lease 9 s (record)" in lines[0]
        assert "dead after 1 failure (record)" in lines[0]
        assert "lease 1 min (topic), dead after 7 failures (topic), pauses 2 s, 3 s (topic)" in lines[1]

    def test_one_failure_is_enough(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"own", attempts_max=1, timeout=PATIENCE_S)
        for msg in mq.consume(topic, "g", stop_at_end=True):
            msg.nack(reason="no luck")
        mq.flush(PATIENCE_S)
        (letter,) = mq.dead(topic, "g").letters()
        assert (letter.reason, letter.error, letter.failures) == ("failures", "no luck", 1)

    def test_topics_keep_their_policy(self, mq: Client, topic: str) -> None:
        info = mq.create_topic(
            topic,
            ttl="1h",
            expire="try_once",
            dedup="1m",
            dedup_count=5,
            trace="all",
            lease=5,
            attempts_max=2,
            backoff=[1, "5s"],
        )
        config = info.config
        assert (config.ttl, config.expire, config.dedup, config.dedup_count) == (
            timedelta(hours=1),
            "try_once",
            timedelta(minutes=1),
            5,
        )
        assert (config.trace, config.lease, config.attempts_max, config.backoff) == (
            "all",
            timedelta(seconds=5),
            2,
            (timedelta(seconds=1), timedelta(seconds=5)),
        )
        assert mq.topics(topic) == [info]

    @pytest.mark.parametrize(
        "policy", [{"expire": "never"}, {"trace": "some"}, {"dedup": "30d"}, {"attempts_max": 0}]
    )
    def test_bad_policies(self, mq: Client, topic: str, policy: dict[str, str]) -> None:
        with pytest.raises(BadRequest, match=next(iter(policy))) as refused:
            mq.create_topic(topic, **policy)  # type: ignore[arg-type]
        assert refused.value.hint
        assert mq.topics(topic) == []


class TestVirtualTopics:
    def test_a_publish_is_copied_under_one_id(self, mq: Client, topic: str) -> None:
        names = [f"{topic}.a", f"{topic}.b"]
        info = mq.topic(topic).bind(names)
        assert (info.name, info.config.virtual, info.shards) == (topic, tuple(names), ())
        receipt = mq.publish(topic, b"v", key="k", headers={"h": "1"}, route="eu", timeout=PATIENCE_S)
        assert [each.ref for each in receipt.receipts] == [f"{name}/0/0" for name in names]
        copies = [mq.record(each.ref).show() for each in receipt.receipts]
        assert {(copy.value, copy.key, copy.headers["h"], copy.route) for copy in copies} == {
            (b"v", b"k", "1", "eu")
        }
        assert copies[0].id == copies[1].id
        assert copies[0].id

    def test_its_ids_are_unique_in_all_topics(self, mq: Client, topic: str) -> None:
        names = [f"{topic}.a", f"{topic}.b"]
        mq.topic(topic).bind(names)
        mq.publish(names[1], b"early", id="i", timeout=PATIENCE_S)
        receipt = mq.publish(topic, b"v", id="i", timeout=PATIENCE_S)
        assert (receipt.duplicate, [each.duplicate for each in receipt.receipts]) == (False, [False, True])
        assert mq.publish(topic, b"v", id="i", timeout=PATIENCE_S).duplicate

    def test_lists_and_due_times(self, movable: testing.Client, topic: str) -> None:
        mq = movable
        names = [f"{topic}.a", f"{topic}.b"]
        mq.topic(topic).bind(names)
        receipt = mq.publish_many(topic, [b"0", b"1", b"2"], delays=["2h", "1h", None], timeout=PATIENCE_S)
        assert (receipt.count, [each.count for each in receipt.receipts]) == (3, [3, 3])
        mq.advance("2h")
        for name in names:
            assert [value for value, _ in take(mq, name, 3)] == [b"2", b"1", b"0"]

    def test_binding_anew_is_seen_by_who_publishes(
        self, mq: Client, topic: str, shared_node: RunningNode
    ) -> None:
        with connect(shared_node.endpoint) as other:
            mq.topic(topic).bind([f"{topic}.a"])
            other.publish(topic, b"v", timeout=PATIENCE_S)
            mq.topic(topic).bind([f"{topic}.b"])
            end = time.monotonic() + PATIENCE_S
            while other.publish(topic, b"v", timeout=PATIENCE_S).topic != f"{topic}.b":
                assert time.monotonic() < end
                time.sleep(0.2)

    def test_what_is_refused(self, mq: Client, topic: str) -> None:
        names = [f"{topic}.a", f"{topic}.b"]
        mq.topic(topic).bind(names)
        for targets in ([topic], [], [names[0], names[0]]):
            with pytest.raises(BadRequest):
                mq.topic(topic).bind(targets)
        with pytest.raises(BadRequest, match="virtual") as refused:
            mq.topic(f"{topic}.c").bind([topic])
        assert names[0] in refused.value.hint
        with pytest.raises(BadRequest, match="virtual"):
            mq.topic(names[0]).bind([f"{topic}.d"])
        mq.create_topic(f"{topic}.real")
        with pytest.raises(TopicExists):
            mq.topic(f"{topic}.real").bind(names)
        for ask in (
            lambda: mq.fetch(topic, "g"),
            lambda: list(mq.consume([topic], "g")),
            lambda: mq.record(topic, 0, 0).why(),
        ):
            with pytest.raises(BadRequest, match="virtual") as refused:
                ask()
            assert names[0] in refused.value.hint
        with pytest.raises(BadRequest, match="partitions 0 to 0, not 3"):
            mq.post(topic, b"v", partition=3)
        assert [row.published for row in mq.admin.stats(names).partitions] == [0, 0]

    def test_a_pattern_reads_the_real_topics(self, mq: Client, topic: str) -> None:
        mq.topic(topic).bind([f"{topic}.a", f"{topic}.b"])
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        found = [(msg.topic, msg.value) for msg in mq.consume(f"{topic}*", "g", stop_at_end=True)]
        assert sorted(found) == [(f"{topic}.a", b"v"), (f"{topic}.b", b"v")]

    def test_it_goes_with_its_name(self, mq: Client, topic: str) -> None:
        mq.topic(topic).bind([f"{topic}.a"])
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        mq.topic(topic).delete()
        assert mq.publish(topic, b"real", timeout=PATIENCE_S).topic == topic
        with pytest.raises(UnknownTopic):
            mq.topic(f"{topic}.b").delete()


def test_block_false_says_when_the_window_is_full_before_any_copy_goes(mq: Client, topic: str) -> None:
    mq.topic(topic).bind([f"{topic}.a", f"{topic}.b"])
    values = [bytes(1 << 20)] * 12
    with pytest.raises(Backpressure):
        any(mq.post_many(topic, values, wait=0) is None for _ in range(5))
    mq.flush(PATIENCE_S)
    first, second = (row.published for row in mq.admin.stats([f"{topic}.a", f"{topic}.b"]).partitions)
    assert first == second


def test_asyncio_publishes_all_of_it(shared_node: RunningNode, topic: str) -> None:
    async def work() -> None:
        async with aio_connect(shared_node.endpoint) as mq:
            start = time.monotonic()
            scheduled = await mq.publish(topic, b"never", delay="1h", id="i")
            again = await mq.publish(topic, b"never", id="i")
            assert (again.duplicate, again.ref, again.offset) == (True, scheduled.ref, -1)
            await mq.publish(topic, b"late", delay="2s")
            many = await mq.publish_many(topic, [b"b", b"a"], delays=["100ms", None], ttl=60)
            assert [each.offset for each in many.receipts] == [-1, 0]
            found = []
            async for msg in mq.consume(topic, "g"):
                async with msg:
                    found.append(msg.value)
                if len(found) == 3:
                    break
            assert found == [b"a", b"b", b"late"]
            assert time.monotonic() - start >= 0.2
            await mq.topic(f"{topic}.v").bind([f"{topic}.a", f"{topic}.b"])
            copied = await mq.publish(f"{topic}.v", b"v")
            assert [each.topic for each in copied.receipts] == [f"{topic}.a", f"{topic}.b"]
            lists = await mq.publish_many(f"{topic}.v", [b"v", b"w"])
            assert [each.count for each in lists.receipts] == [2, 2]
            with pytest.raises(BadRequest):
                await mq.publish(topic, b"", delay=-1)

    asyncio.run(work())


class TestAbsentTopics:
    """A consumer of a missing topic gets an error, unless it creates the topic or waits for it."""

    def test_the_nearest_name_is_told(self, mq: Client, topic: str) -> None:
        mq.create_topic(f"{topic}-orders")
        with pytest.raises(UnknownTopic, match=f"no topic {topic}-ordres; did you mean {topic}-orders?"):
            next(iter(mq.consume(f"{topic}-ordres", "g", create=False)))
        with pytest.raises(UnknownTopic, match="ordres"):
            mq.fetch([f"{topic}-orders", f"{topic}-ordres"], "g", wait=0.1, create=False)
        assert [info.name for info in mq.topics(f"{topic}*")] == [f"{topic}-orders"], "none was made"

    def test_a_handler_of_none_ends_the_run(self, mq: Client, topic: str) -> None:
        mq.consumer(topic, group="g", create=False)(lambda msg: None)
        with pytest.raises(UnknownTopic, match=topic):
            mq.run(signals=False)

    def test_one_can_be_made(self, mq: Client, topic: str) -> None:
        assert list(mq.consume(topic, "g", stop_at_end=True)) == []
        assert [info.name for info in mq.topics(topic)] == [topic]

    def test_one_is_waited_for(self, mq: Client, shared_node: RunningNode, topic: str) -> None:
        loop = mq.consume([topic, f"{topic}-b"], "g", wait="30s", create=False, stop_at_end=True)
        with connect(shared_node.endpoint) as other:
            for name in (topic, f"{topic}-b"):
                other.publish(name, name, timeout=PATIENCE_S)
        assert {message.topic for message in loop} == {topic, f"{topic}-b"}

    def test_waiting_ends(self, mq: Client, topic: str) -> None:
        with pytest.raises(UnknownTopic, match=topic):
            list(mq.consume(topic, "g", wait="100ms", create=False))


def test_durations_are_numbers_or_text_everywhere(shared_node: RunningNode, topic: str) -> None:
    with connect(shared_node.endpoint, timeout="10s") as mq:
        receipt = mq.publish(topic, b"v", timeout="10s")
        mq.publish_many(topic, [b"w"], timeout=timedelta(seconds=10))
        mq.flush("10s")
        (message,) = mq.fetch(topic, "g", n=1, wait="10s")
        assert message.ref == receipt.ref
        assert mq.record(message.ref).why().standings

    async def main() -> None:
        async with aio_connect(shared_node.endpoint, timeout="10s") as twin:
            await twin.publish(topic, b"v", timeout="10s")
            await twin.flush("10s")

    asyncio.run(main())


class TestFlows:
    def test_the_order_of_the_group_says_what_is_next(self, mq: Client, topic: str) -> None:
        assert list(mq.consume(topic, "mails", stop_at_end=True)) == []
        mq.group(topic, "mails").configure(order="fair", weights={"ada": 2})
        flows = ["flood"] * 6 + ["ada"] * 3 + ["bob"]
        mq.publish_many(topic, [f"{flow} {at}" for at, flow in enumerate(flows)], flows=flows)
        urgent = mq.publish(topic, "urgent", flow="flood", priority=9)
        found = []
        for msg in mq.consume(topic, "mails", credit=1, stop_at_end=True):
            with msg:
                found.append((msg.value.decode(), msg.own_options))
        assert found[0] == ("urgent", {"flow": "flood", "priority": 9})
        turns = "flood 0, ada 6, ada 7, bob 9, flood 1, ada 8, flood 2, flood 3, flood 4, flood 5"
        assert ", ".join(value for value, _ in found[1:]) == turns
        assert mq.record(urgent.ref).why().lines[:2] == ("flow flood", "priority 9")
        policy = [tuple(row) for row in mq.group(topic, "mails").describe().policy]
        assert {("order", "fair", "group"), ("weights", "ada=2", "group")} <= set(policy)
