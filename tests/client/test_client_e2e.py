"""The sync client with a real node: publish, consume, fetch, errors, and failures."""

import asyncio
import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from conftest import RunningNode
from gossipq import limits
from gossipq.errors import (
    BadName,
    ForkedClient,
    LeaseLost,
    OffsetOutOfRange,
    TooLarge,
    TopicExists,
    UnknownTopic,
)
from gossipq_client import (
    Backpressure,
    BadRequest,
    Client,
    ClientClosed,
    NotConfirmed,
    Unreachable,
    aio,
    connect,
    embedded,
    testing,
)
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end


def in_child(act: Callable[[], object]) -> int:
    """Do something in a forked child; return its exit code."""
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestPublish:
    def test_a_record_keeps_everything_it_was_given(self, mq: Client, topic: str) -> None:
        receipt = mq.publish(
            topic, "café", key="ada", headers={"a": "b", "raw": b"\xff"}, route="eu.fr", timeout=PATIENCE_S
        )
        assert (receipt.topic, receipt.partition, receipt.offset, receipt.copies) == (topic, 0, 0, 1)
        assert not receipt.duplicate
        (msg,) = mq.fetch(topic, "g")
        assert (msg.value, msg.key, msg.headers, msg.route) == (
            "café".encode(),
            b"ada",
            {"a": "b", "raw": b"\xff"},
            "eu.fr",
        )
        assert (msg.topic, msg.partition, msg.offset, msg.attempt) == (topic, 0, 0, 1)
        assert abs(msg.publish_time.timestamp() - time.time()) < 60

    def test_many_single_publishes_arrive_in_order(self, mq: Client, topic: str) -> None:
        receipts = [mq.post(topic, b"%d" % number) for number in range(20_000)]
        mq.flush(PATIENCE_S)
        assert [receipt.result().offset for receipt in receipts] == list(range(20_000))
        assert receipts[-1].done()
        assert mq.fetch(topic, "g", n=20_000).values()[:3] == [b"0", b"1", b"2"]

    def test_a_list_has_one_receipt(self, mq: Client, topic: str) -> None:
        receipt = mq.publish_many(topic, [b"x" * 100] * 10_000, timeout=PATIENCE_S)
        assert (receipt.offset, receipt.count) == (0, 10_000)
        assert sum(each.count for each in receipt.receipts) == 10_000
        assert mq.publish_many(topic, []).count == 0

    def test_keys_choose_the_partition_and_none_is_not_empty(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=4)
        keys = [b"a", None, b"", b"b", b"a", None]
        mq.publish_many(topic, [b"0", b"1", b"2", b"3", b"4", b"5"], keys=keys, timeout=PATIENCE_S)
        found = {msg.value: msg for msg in mq.consume(topic, "g", stop_at_end=True)}
        assert [found[b"%d" % at].key for at in range(6)] == keys
        assert found[b"0"].partition == found[b"4"].partition
        assert found[b"0"].offset < found[b"4"].offset

    @pytest.mark.parametrize("size", [0, 1, limits.BATCH_BYTES_MAX + 1, limits.VALUE_BYTES_MAX])
    def test_sizes(self, mq: Client, topic: str, size: int) -> None:
        mq.publish(topic, bytes(size), timeout=PATIENCE_S)
        assert [len(value) for value in mq.fetch(topic, "g", wait=PATIENCE_S).values()] == [size]

    def test_one_more_byte_is_too_large(self, mq: Client, topic: str) -> None:
        with pytest.raises(TooLarge, match=str(limits.VALUE_BYTES_MAX)):
            mq.post(topic, bytes(limits.VALUE_BYTES_MAX + 1))
        with pytest.raises(TooLarge, match="key"):
            mq.post(topic, b"", key=bytes(limits.KEY_BYTES_MAX + 1))
        with pytest.raises(TooLarge, match="headers"):
            mq.post(topic, b"", headers={"h": bytes(limits.HEADERS_BYTES_MAX)})
        with pytest.raises(BadRequest):
            mq.post(topic, object())

    def test_who_says_how_long_to_wait_joins_the_open_batch_at_once(
        self, mq: Client, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mq.publish(topic, b"0", timeout=PATIENCE_S)
        with monkeypatch.context() as patched:
            patched.setattr(mq._driver.engine.transport, "receive", list)  # no confirm comes
            for value in (b"1", b"2"):  # the second opens a batch
                mq.post(topic, value)
            exchanges = mq._driver.exchanges
            mq.post(topic, b"3", wait=5, key=None)
            mq.post(topic, b"4", wait=0.5)
            assert mq._driver.exchanges == exchanges
            for wrong in (True, -1, "soon"):
                with pytest.raises(BadRequest):
                    mq.post(topic, b"no", wait=wrong)  # type: ignore[arg-type]
        mq.flush(PATIENCE_S)
        assert mq.fetch(topic, "g", wait=PATIENCE_S).values() == [b"0", b"1", b"2", b"3", b"4"]

    def test_level_none_promises_nothing_and_arrives(self, mq: Client, topic: str) -> None:
        receipt = mq.publish(topic, b"fast", level="none", timeout=0)
        assert (receipt.offset, receipt.copies) == (-1, 0)
        mq.flush(PATIENCE_S)
        assert mq.fetch(topic, "g", wait=PATIENCE_S).values() == [b"fast"]

    def test_block_false_says_when_the_window_is_full(self, mq: Client, topic: str) -> None:
        values = [bytes(limits.MIB)] * 24
        with pytest.raises(Backpressure):
            any(mq.post_many(topic, values, wait=0) is None for _ in range(5))
        mq.flush(PATIENCE_S)

    def test_bad_options(self, mq: Client, topic: str) -> None:
        with pytest.raises(BadName):
            mq.post("a/b", b"")
        with pytest.raises(BadName):
            mq.post("x" * 300, b"")
        with pytest.raises(BadName, match="is a pattern"):
            mq.post("a.*", b"")
        with pytest.raises(BadRequest):
            mq.post(topic, b"", partition=7)
        with pytest.raises(BadRequest):
            mq.post_many(topic, [b"a"], keys=[])
        with pytest.raises(BadRequest):
            mq.post(topic, b"", level="maybe")


class TestConsume:
    @pytest.mark.parametrize("before", [0, 3])
    def test_who_fetches_no_more_keeps_nothing_from_others(
        self, shared_node: RunningNode, topic: str, before: int
    ) -> None:
        with connect(shared_node.endpoint) as mq, connect(shared_node.endpoint) as other:
            mq.create_topic(topic)
            for _ in range(before):
                mq.publish(topic, b"early", timeout=PATIENCE_S)
                mq.ack_soon(mq.fetch(topic, "g", n=10))
            assert not mq.fetch(topic, "g", n=10, wait=0.1)
            assert not other.fetch(topic, "g", n=10, wait=0)
            other.publish_many(topic, [b"late"] * 5, timeout=PATIENCE_S)
            found: list[bytes] = []
            while len(found) < 5 and (batch := other.fetch(topic, "g", n=10, wait=PATIENCE_S)):
                found += batch.values()
            assert found == [b"late"] * 5

    def test_leaving_well_acks_and_an_exception_gives_back(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"good", b"bad"], timeout=PATIENCE_S)
        attempts = []

        def work(bad: bytes) -> None:
            for msg in mq.consume(topic, "g"):
                with msg:
                    attempts.append((msg.value, msg.attempt))
                    if msg.value == bad:
                        raise ZeroDivisionError
                    if msg.value == b"bad":
                        return

        with pytest.raises(ZeroDivisionError):
            work(b"bad")
        work(b"")
        mq.flush(PATIENCE_S)
        assert attempts == [(b"good", 1), (b"bad", 1), (b"bad", 2)]
        (row,) = mq.topic(topic).groups()
        assert (row.cursor, row.acked, row.in_flight) == (2, 2, 0)

    def test_stop_at_end_of_an_empty_topic(self, mq: Client, topic: str) -> None:
        assert list(mq.consume(topic, "g", stop_at_end=True)) == []

    def test_messages_can_be_acked_after_the_loop(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"1", b"2", b"3"], timeout=PATIENCE_S)
        loop = mq.consume(topic, "g")
        first, second = next(loop), next(loop)
        loop.close()  # type: ignore[attr-defined]
        second.ack_soon()
        first.ack_soon()
        mq.flush(PATIENCE_S)
        (row,) = mq.topic(topic).groups()
        assert (row.cursor, row.ready, row.consumers) == (2, 1, 0)

    def test_patterns_and_lists_and_many_shards_with_little_credit(self, mq: Client, topic: str) -> None:
        mq.create_topic(f"{topic}.a", partitions=16)
        mq.create_topic(f"{topic}.b")
        for number in range(200):
            mq.post(f"{topic}.a", b"a%d" % number, key=b"%d" % number)
            mq.post(f"{topic}.b", b"b%d" % number)
        mq.flush(PATIENCE_S)
        for topics in (f"{topic}.*", [f"{topic}.a", f"{topic}.b"]):
            seen = set()
            for msg in mq.consume(topics, f"g{len(topics)}", credit=3):
                with msg:
                    seen.add(msg.value)
                if len(seen) == 400:
                    break
            assert len(seen) == 400

    def test_a_pattern_meets_topics_made_later(self, shared_node: RunningNode, topic: str) -> None:
        with connect(shared_node.endpoint) as watching, connect(shared_node.endpoint) as mq:
            loop = watching.consume(f"{topic}.*", "g", start="first")
            mq.publish(f"{topic}.late", b"here", timeout=PATIENCE_S)
            with next(loop) as msg:
                assert msg.value == b"here"

    def test_readers_replay_from_anywhere(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"%d" % number for number in range(10)], timeout=PATIENCE_S)
        long_ago = datetime.fromtimestamp(time.time() - 3600, UTC)
        for start, first in (("first", b"0"), (7, b"7"), (long_ago, b"0"), ("-1h", b"0")):
            got = [msg.value for msg in mq.read(topic, start=start)]
            assert (got[0], got[-1]) == (first, b"9")
        assert list(mq.read(topic, start="new")) == []
        assert mq.topic(topic).groups() == []

    def test_a_reader_that_stops_at_the_end_begins_at_the_first_record(self, mq: Client, topic: str) -> None:
        """It began behind the last record, so that it read nothing."""
        mq.publish_many(topic, [b"1", b"2"], timeout=30)
        assert [msg.value for msg in mq.read(topic)] == [b"1", b"2"]
        assert [msg.value for msg in mq.read(topic, order="time")] == [b"1", b"2"]

        async def main() -> list[bytes]:
            async with aio.connect(*mq._driver.engine.session.links.addresses) as twin:
                return [msg.value async for msg in twin.read(topic)]

        assert asyncio.run(main()) == [b"1", b"2"]

    def test_a_reader_goes_on_where_it_says_in_each_partition(self, mq: Client, topic: str) -> None:
        names = [f"{topic}.a", f"{topic}.b"]
        for name in names:
            mq.create_topic(name, partitions=3)
            for number in range(3):
                mq.publish_many(name, [b"%d" % at for at in range(5)], partition=number, timeout=PATIENCE_S)
        loop = mq.read(f"{topic}.*", start={names[0]: {0: 3, 1: 5}})
        seen: dict[tuple[str, int], list[int]] = {}
        for msg in loop:
            assert msg.topic_id == next(info.id for info in mq.topics(msg.topic))
            seen.setdefault((msg.topic, msg.partition), []).append(msg.offset)
        every = [0, 1, 2, 3, 4]
        assert seen.pop((names[0], 0)) == [3, 4]
        assert seen == {(names[0], 2): every} | {(names[1], number): every for number in range(3)}
        with pytest.raises(OffsetOutOfRange):
            list(mq.read(names[0], start={names[0]: {0: 6}}))
        with pytest.raises(BadRequest, match="names partition 3"):
            list(mq.read(names[0], start={names[0]: {3: 0}}))
        assert [msg.offset for msg in mq.fetch(names[0], start={names[0]: {0: 4, 1: 5, 2: 5}})] == [4]

    def test_two_consumers_share_a_group(self, shared_node: RunningNode, topic: str) -> None:
        with connect(shared_node.endpoint) as mq:
            seen: list[bytes] = []

            def work() -> None:
                with connect(shared_node.endpoint) as own:
                    for msg in own.consume(topic, "g", credit=50, stop_at_end=True):
                        with msg:
                            seen.append(msg.value)

            mq.publish_many(topic, [b"%d" % number for number in range(5_000)], timeout=PATIENCE_S)
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(map(int, seen)) == list(range(5_000))

    def test_a_slow_handler_keeps_its_lease(self, mq: Client, shared_node: RunningNode, topic: str) -> None:
        mq.publish(topic, b"slow", timeout=PATIENCE_S)
        with connect(shared_node.endpoint) as other:
            for msg in mq.consume(topic, "g", lease="1s"):
                with msg:
                    assert list(other.fetch(topic, "g", wait=2.5)) == []
                break
        mq.flush(PATIENCE_S)
        assert mq.topic(topic).groups()[0].acked == 1

    @pytest.mark.parametrize(
        ("extended", "advanced", "kept"), [(False, "30m", 0), (True, "30m", 1), (True, "61m", 0)]
    )
    def test_extend_keeps_a_record_for_so_long_and_no_longer(
        self, extended: bool, advanced: str, kept: int
    ) -> None:
        with testing.Broker() as broker, broker.connect() as mq:
            mq.publish("orders", b"x", timeout=PATIENCE_S)
            (msg,) = mq.fetch("orders", "g")
            if extended:
                msg.extend("1h")
            mq.advance(advanced)
            (row,) = mq.topic("orders").groups()
            assert (row.in_flight, row.ready) == (kept, 1 - kept)
            if kept:
                msg.ack_soon()
                mq.flush(PATIENCE_S)
                assert mq.topic("orders").groups()[0].acked == 1


class TestFetch:
    def test_several_messages_are_acked_in_one_call(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"a", b"b", b"c"], timeout=10)
        batch = mq.fetch(topic, "g", n=3, wait=10)
        mq.ack_soon([batch[0], batch[2]])
        mq.ack_soon(message for message in [batch[1]])
        mq.ack_soon([])
        mq.flush(10)
        assert sum(row.acked for row in mq.topic(topic).groups()) == 3

    def test_nothing_there_is_an_empty_batch(self, mq: Client, topic: str) -> None:
        began = time.monotonic()
        batch = mq.fetch(topic, "g", wait=0.2)
        assert (len(batch), batch.values(), list(batch)) == (0, [], [])
        assert time.monotonic() - began < PATIENCE_S
        mq.ack_soon(batch)

    def test_n_is_a_maximum_and_views_agree(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"%d" % number for number in range(100)], timeout=PATIENCE_S)
        batch = mq.fetch(topic, "g", n=30)
        assert len(batch) == 30
        assert [msg.value for msg in batch] == batch.values() == [batch[at].value for at in range(30)]
        assert batch[-1].value == b"29"
        assert [msg.offset for msg in batch[5:8]] == [5, 6, 7]
        mq.ack_soon(batch)
        rest = 0
        while len(batch := mq.fetch(topic, "g", n=30, wait=0.3)):
            rest += len(batch)
            mq.ack_soon(batch)
        assert rest == 70
        mq.flush(PATIENCE_S)
        assert mq.topic(topic).groups()[0].cursor == 100

    def test_what_was_fetched_ahead_goes_back_at_close(self, shared_node: RunningNode, topic: str) -> None:
        with connect(shared_node.endpoint) as mq:
            mq.publish_many(topic, [b"x"] * 1_000, timeout=PATIENCE_S)
            for _ in range(2):
                mq.ack_soon(mq.fetch(topic, "g", n=10))
        with connect(shared_node.endpoint) as mq:
            assert mq.fetch(topic, "g", n=1_000, wait=PATIENCE_S)[0].offset == 20
            (row,) = mq.topic(topic).groups()
            assert row.acked == 20


class TestTopics:
    def test_create_list_delete(self, mq: Client, topic: str) -> None:
        info = mq.create_topic(topic, partitions=3, retention="1h")
        assert (info.name, len(info.shards), info.config.retention) == (topic, 3, timedelta(hours=1))
        with pytest.raises(TopicExists):
            mq.create_topic(topic)
        assert mq.create_topic(topic, partitions=3, if_not_exists=True).id == info.id
        assert mq.create_topic(topic, if_not_exists=True).id == info.id
        with pytest.raises(TopicExists, match="is there with 3 partitions, not 4"):
            mq.create_topic(topic, partitions=4, if_not_exists=True)
        assert [each.name for each in mq.topics(f"{topic[:-1]}*")] == [topic]
        mq.publish(topic, b"x", timeout=PATIENCE_S)
        mq.topic(topic).delete()
        assert mq.topics(topic) == []
        with pytest.raises(UnknownTopic):
            mq.topic(topic).delete()

    def test_a_topic_made_anew_takes_what_is_published(self, shared_node: RunningNode, topic: str) -> None:
        with connect(shared_node.endpoint) as mq, connect(shared_node.endpoint) as admin:
            mq.publish(topic, b"old", timeout=PATIENCE_S)
            admin.topic(topic).delete()
            admin.create_topic(topic)
            assert mq.publish(topic, b"new", timeout=PATIENCE_S).offset == 0
            assert mq.fetch(topic, "g").values() == [b"new"]

    def test_a_topic_that_is_gone_is_said(self, shared_node: RunningNode, topic: str) -> None:
        with connect(shared_node.endpoint) as mq, connect(shared_node.endpoint) as admin:
            mq.publish(topic, b"old", timeout=PATIENCE_S)
            admin.topic(topic).delete()
            with pytest.raises(UnknownTopic):
                mq.publish(topic, b"new", timeout=PATIENCE_S)

    def test_status(self, mq: Client) -> None:
        status = mq.admin.status()
        assert (status.shards, status.led, len(status.workers)) == (limits.SHARDS, limits.SHARDS, 2)


class TestEnds:
    def test_no_node(self) -> None:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            connect("tcp://127.0.0.1:9", wait=0.2)
        with pytest.raises(Unreachable, match="not an address"):
            connect("nonsense://x", wait=0.2)

    def test_closed(self, shared_node: RunningNode) -> None:
        mq = connect(shared_node.endpoint)
        mq.close()
        mq.close()
        with pytest.raises(ClientClosed):
            mq.post("t", b"")

    def test_a_forked_child_connects_anew_and_has_no_part_in_what_its_parent_holds(
        self, mq: Client, topic: str
    ) -> None:
        mq.publish_many(topic, [b"parent"] * 2, timeout=PATIENCE_S)
        loop = iter(mq.subscribe(topic, group="loop"))
        in_loop = next(loop)
        (fetched,) = mq.fetch(topic, "fetch", n=1, wait=PATIENCE_S)

        def use() -> None:
            mq.publish(topic, b"child", timeout=PATIENCE_S)
            assert len(mq.fetch(topic, "of the child", n=3, min=3, wait=PATIENCE_S)) == 3
            for msg in (in_loop, fetched):
                with pytest.raises(LeaseLost):
                    msg.ack(timeout=PATIENCE_S)
            with pytest.raises(ForkedClient):
                next(loop)
            mq.close()

        assert in_child(use) == 0
        in_loop.ack(timeout=PATIENCE_S)
        fetched.ack(timeout=PATIENCE_S)
        with next(loop) as msg:
            assert (msg.offset, msg.attempt) == (1, 1)
        mq.publish(topic, b"parent", timeout=PATIENCE_S)
        values = [msg.value for msg in mq.read(topic)]
        assert values == [b"parent", b"parent", b"child", b"parent"]

    def test_an_asyncio_client_connects_anew_in_a_forked_child(
        self, shared_node: RunningNode, topic: str
    ) -> None:
        mq = aio_connect(shared_node.endpoint)

        async def publish(value: bytes) -> None:
            await mq.publish(topic, value, timeout=PATIENCE_S)

        async def end() -> list[bytes]:
            async with mq:
                return [msg.value async for msg in mq.read(topic)]

        loop = asyncio.new_event_loop()
        loop.run_until_complete(publish(b"parent"))
        assert in_child(lambda: asyncio.run(publish(b"child"))) == 0
        assert loop.run_until_complete(end()) == [b"parent", b"child"]
        loop.close()

    def test_other_threads_publish_while_one_waits(self, mq: Client, topic: str) -> None:
        got: list[bytes] = []
        mq.create_topic(topic)
        thread = threading.Thread(target=lambda: got.extend(mq.fetch(topic, "g", wait=PATIENCE_S).values()))
        thread.start()
        mq.publish(topic, b"from another thread", timeout=PATIENCE_S)
        thread.join()
        assert got == [b"from another thread"]


class TestFaults:
    def test_publishes_survive_a_killed_node_once_each_in_order(
        self, make_node: Callable[..., RunningNode], topic: str
    ) -> None:
        node = make_node().start()
        with connect(node.endpoint) as mq:
            receipts = [mq.post(topic, b"%d" % number) for number in range(5_000)]
            receipts[0].result(PATIENCE_S)
            node.kill()
            receipts += [mq.post(topic, b"%d" % number) for number in range(5_000, 10_000)]
            node.start()
            mq.flush(3 * PATIENCE_S)
            assert all(receipt.result().offset == at for at, receipt in enumerate(receipts))
            got: list[bytes] = []
            while len(got) < 10_000 and (batch := mq.fetch(topic, "g", n=10_000, wait=PATIENCE_S)):
                got += batch.values()
                mq.ack_soon(batch)
            assert got == [b"%d" % number for number in range(10_000)]

    def test_a_consumer_goes_on_after_a_restart(
        self, make_node: Callable[..., RunningNode], topic: str
    ) -> None:
        node = make_node().start()
        with connect(node.endpoint) as mq:
            mq.publish_many(topic, [b"%d" % number for number in range(1_000)], timeout=PATIENCE_S)
            seen: list[int] = []
            for msg in mq.consume(topic, "g", credit=100):
                with msg:
                    seen.append(int(msg.value))
                if len(seen) == 500:
                    mq.flush(PATIENCE_S)
                    node.kill()
                    node.start()
                if len(set(seen)) == 1_000:
                    break
            assert seen[:500] == list(range(500))
            mq.flush(PATIENCE_S)
            assert mq.topic(topic).groups()[0].cursor == 1_000

    def test_a_reader_goes_on_where_it_was(self, make_node: Callable[..., RunningNode], topic: str) -> None:
        node = make_node().start()
        with connect(node.endpoint) as mq:
            mq.publish_many(topic, [b"%d" % number for number in range(100)], timeout=PATIENCE_S)
            loop = mq.read(topic, start="first", follow=True)
            assert [int(next(loop).value) for _ in range(100)] == list(range(100))
            node.kill()
            node.start()
            mq.publish_many(topic, [b"100", b"101"], timeout=3 * PATIENCE_S)
            assert [int(next(loop).value) for _ in range(2)] == [100, 101]

    def test_a_node_that_stays_away(self, make_node: Callable[..., RunningNode], topic: str) -> None:
        node = make_node().start()
        mq = connect(node.endpoint)
        mq.publish(topic, b"kept", timeout=PATIENCE_S)
        node.stop()
        receipt = mq.post(topic, b"lost?")
        with pytest.raises(NotConfirmed):
            receipt.result(0.2)
        with pytest.raises(NotConfirmed):
            mq.flush(0.2)
        mq.close(flush=False)


class TestEmbedded:
    def test_two_clients_of_one_directory(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        directory = tmp_path_factory.mktemp("embedded")
        with embedded.open(directory) as mq:
            mq.publish("orders", b"one", timeout=PATIENCE_S)
            with embedded.open(directory) as second:
                batch = second.fetch("orders", "g")
                assert batch.values() == [b"one"]
                second.ack_soon(batch)
        assert not list(directory.glob("node.sock*")), "sockets leave with their node"
        with embedded.open(directory) as mq:
            assert len(mq.fetch("orders", "g", wait=0.2)) == 0
