"""Explaining and mending against a real node: why, trace, show, find, cancel, reschedule, requeue, edit, dead
letters."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from conftest import RunningNode
from gossipq.errors import UnknownRecord, UnknownTopic, WrongState
from gossipq_client import BadRequest, Client, testing
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end


def drain(mq: Client, topic: str, group: str = "g") -> list[bytes]:
    """Everything there is now, acked."""
    found = []
    for msg in mq.consume(topic, group, stop_at_end=True):
        with msg:
            found.append(msg.value)
    mq.flush(PATIENCE_S)
    return found


def state(mq: Client, topic: str, offset: int, group: str = "g") -> str:
    (standing,) = mq.record(topic, 0, offset).why(group=group).standings
    return standing.state


def bury(mq: Client, topic: str, *values: bytes, group: str = "g") -> None:
    """Publishes values and makes dead letters of them."""
    mq.publish_many(topic, list(values), attempts_max=1, timeout=PATIENCE_S)
    for msg in mq.consume(topic, group, stop_at_end=True):
        msg.nack(reason="no luck")
    mq.flush(PATIENCE_S)


class TestExplain:
    def test_the_life_of_a_record(self, mq: Client, topic: str) -> None:
        receipt = mq.publish(topic, b"v", delay="1h", id="i", timeout=PATIENCE_S)
        named = [{"name": receipt.ref}, {"name": topic, "id": "i"}]
        assert {mq.record(**how).why().standings[0].state for how in named} == {"scheduled"}  # type: ignore[arg-type]
        mq.record(receipt.ref).reschedule(delay=0)
        (msg,) = mq.fetch(topic, "g", wait=PATIENCE_S)
        assert state(mq, topic, 0) == "in_flight"
        msg.ack_soon()
        mq.flush(PATIENCE_S)
        found = mq.record(topic, 0, 0).why(group="g")
        assert (found.offset, found.standings[0].state, found.standings[0].group) == (0, "acked", "g")
        assert found.standings[0].consumer
        assert found.standings[0].because
        for how in ({"name": topic, "partition": 0, "offset": 0}, *named):
            assert [step.what for step in mq.record(**how).trace()][-2:] == ["due", "acked"]  # type: ignore[arg-type]

    def test_the_commands_that_it_names_can_be_pasted(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        drain(mq, topic)
        (standing,) = mq.record(topic, 0, 0).why(group="g").standings
        assert standing.next == f"gossipq msg requeue {topic}/0/0 --group g"

    def test_why_a_group_stands_still(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=3)
        mq.publish_many(topic, [b"v"] * 9, keys=[b"%d" % at for at in range(9)], timeout=PATIENCE_S)
        drain(mq, topic, topic)
        mq.publish(topic, b"w", partition=1, timeout=PATIENCE_S)
        mq.group(topic, topic).pause()
        rows = mq.group(topic, topic).why()
        assert [row.partition for row in rows] == [0, 1, 2]
        assert rows[1].state == "paused"
        assert "resume" in rows[1].next

    def test_show(self, mq: Client, topic: str) -> None:
        before = time.time()
        receipt = mq.publish(
            topic, "café", key="k", headers={"h": "1"}, route="eu.fr", id="i", delay="1h", timeout=PATIENCE_S
        )
        for shown in (mq.record(receipt.ref).show(), mq.record(topic, id="i").show()):
            assert (shown.value, shown.key, shown.headers, shown.route) == (
                "café".encode(),
                b"k",
                {"h": "1"},
                "eu.fr",
            )
            assert (shown.id, shown.topic, shown.partition, shown.offset, shown.ref) == (
                "i",
                topic,
                0,
                -1,
                receipt.ref,
            )
            times = (shown.publish_time.timestamp(), shown.stored_time.timestamp())
            assert all(abs(at - before) < 60 for at in times)

    def test_one_of_many(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"%d" % at for at in range(1_000)], timeout=PATIENCE_S)
        assert mq.record(topic, 0, 617).show().value == b"617"

    def test_an_id_with_a_key_is_found_where_the_key_put_it(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=4)
        receipts = [
            mq.publish(topic, b"v", key=b"%d" % at, id=b"i%d" % at, timeout=PATIENCE_S) for at in range(6)
        ]
        assert [mq.record(topic, id=b"i%d" % at).show().ref for at in range(6)] == [
            receipt.ref for receipt in receipts
        ]

    @pytest.mark.parametrize("ask", ["why", "trace", "show", "cancel"])
    def test_what_is_not_there(self, mq: Client, topic: str, ask: str) -> None:
        def verb(*where: Any, **how: Any) -> None:
            getattr(mq.record(*where, **how), ask)()

        with pytest.raises(UnknownTopic, match=topic):
            verb(topic, 0, 0)
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        for how in ({"name": topic, "id": "nothere"}, {"name": f"{topic}/0/@99.0"}, {"name": f"{topic}/0/5"}):
            with pytest.raises(UnknownRecord):
                verb(**how)
        with pytest.raises(BadRequest, match="partitions 0 to 0, not 1"):
            verb(topic, 1, 0)
        with pytest.raises(BadRequest, match="one record"):
            verb(topic)


class TestMendOne:
    def test_cancel(self, movable: testing.Client, topic: str) -> None:
        mq = movable
        scheduled = mq.publish(topic, b"never", delay="1h", timeout=PATIENCE_S)
        kept = mq.publish(topic, b"kept", timeout=PATIENCE_S)
        ready = mq.publish(topic, b"neither", timeout=PATIENCE_S)
        assert mq.record(scheduled.ref).cancel(reason="too late") == scheduled.ref
        assert mq.record(ready.ref).cancel() == ready.ref
        mq.advance("2h")
        assert drain(mq, topic) == [b"kept"]
        assert mq.record(scheduled.ref).why().standings[0].state == "voided"
        for ref in (scheduled.ref, ready.ref, kept.ref):
            with pytest.raises(WrongState):
                mq.record(ref).cancel()

    def test_what_a_consumer_holds_is_not_cancelled(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        (msg,) = mq.fetch(topic, "g", wait=PATIENCE_S)
        with pytest.raises(WrongState, match="in flight to") as refused:
            mq.record(topic, 0, 0).cancel()
        assert refused.value.hint
        msg.ack_soon()

    def test_reschedule(self, mq: Client, topic: str) -> None:
        first = mq.publish(topic, b"first", delay="1h", timeout=PATIENCE_S)
        second = mq.publish(topic, b"second", delay="1h", timeout=PATIENCE_S)
        mq.record(second.ref).reschedule(delay="50ms")
        mq.record(first.ref).reschedule(at=datetime.now(UTC).timestamp() + 0.3)
        got = []
        for msg in mq.consume(topic, "g"):
            with msg:
                got.append(msg.value)
            if len(got) == 2:
                break
        assert got == [b"second", b"first"]
        with pytest.raises(WrongState):
            mq.record(first.ref).reschedule(delay=1)
        for wrong in ({}, {"delay": -1}, {"delay": 1, "at": 5}):
            with pytest.raises(BadRequest):
                mq.record(first.ref).reschedule(**wrong)  # type: ignore[arg-type]

    def test_requeue(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"0", b"1", b"2"], timeout=PATIENCE_S)
        drain(mq, topic)
        assert mq.record(topic, 0, 1).requeue(group="g") == f"{topic}/0/1"
        assert drain(mq, topic) == [b"1"]
        with pytest.raises(BadRequest):
            mq.record(topic, 0, 1).requeue(group="other")

    def test_edit(self, mq: Client, topic: str) -> None:
        old = mq.publish(topic, b"old", key="k", headers={"a": "b"}, route="eu", id="i", timeout=PATIENCE_S)
        new = mq.record(old.ref).edit(value=b"new")
        assert (new.offset, new.duplicate) == (1, False)
        shown = mq.record(new.ref).show()
        assert (shown.value, shown.key, shown.headers, shown.route) == (b"new", b"k", {"a": "b"}, "eu")
        assert drain(mq, topic) == [b"new"]
        assert state(mq, topic, 0) == "voided"
        assert any(old.ref in line for line in mq.record(new.ref).why().lines)
        with pytest.raises(WrongState):
            mq.record(old.ref).edit(value=b"again")
        with pytest.raises(BadRequest, match="nothing to edit"):
            mq.record(new.ref).edit()

    def test_an_edited_record_stays_scheduled(self, mq: Client, topic: str) -> None:
        old = mq.publish(topic, b"old", delay="2s", attempts_max=3, timeout=PATIENCE_S)
        new = mq.record(old.ref).edit(headers={"x": "y"})
        assert new.offset == -1
        assert mq.record(new.ref).show().value == b"old"
        (msg,) = mq.fetch(topic, "g", wait=PATIENCE_S)
        assert (msg.value, msg.headers) == (b"old", {"x": "y"})
        msg.ack_soon()


class TestDeadLetters:
    def test_they_come_with_everything(self, mq: Client, topic: str) -> None:
        mq.publish(
            topic, b"v", key="k", headers={"h": "1"}, route="eu", id="i", attempts_max=1, timeout=PATIENCE_S
        )
        for msg in mq.consume(topic, "g", stop_at_end=True):
            msg.nack(reason="no luck")
        mq.flush(PATIENCE_S)
        (letter,) = mq.dead(topic, "g").letters()
        assert (letter.value, letter.key, letter.headers, letter.route, letter.id) == (
            b"v",
            b"k",
            {"h": "1"},
            "eu",
            "i",
        )
        assert (letter.group, letter.reason, letter.error, letter.failures) == ("g", "failures", "no luck", 1)
        assert (letter.ref, letter.count) == (f"{topic}/0/0", 1)
        assert abs(letter.time.timestamp() - time.time()) < 60
        assert state(mq, topic, 0) == "dead"
        assert mq.record(topic, 0, 0).show().value == b"v"

    def test_more_than_a_page(self, mq: Client, topic: str) -> None:
        values = [b"%d" % at for at in range(250)]
        bury(mq, topic, *values)
        assert [letter.value for letter in mq.dead(topic).letters()] == values
        assert [letter.offset for letter in mq.dead(topic, "g").letters(start=240)] == list(range(240, 250))
        assert sum(letter.count for letter in mq.dead(topic).letters(values=False)) == 250
        assert list(mq.dead(topic, "other").letters()) == []

    def test_replay_and_purge(self, mq: Client, topic: str) -> None:
        bury(mq, topic, b"0", b"1", b"2", b"3")
        assert mq.dead(topic, "g").replay(dry_run=True) == 4
        assert mq.dead(topic, "g").purge([(0, 1, 3)], dry_run=True) == 2
        assert mq.dead(topic, "g").replay([(0, 0, 1), (0, 2, 3)]) == 2
        assert drain(mq, topic) == [b"0", b"2"]
        assert mq.dead(topic, "g").purge() == 2
        assert list(mq.dead(topic).letters()) == []
        assert mq.dead(topic, "g").replay() == mq.dead(topic, "g").purge() == 0
        (row,) = mq.topic(topic).groups()
        assert (row.acked, row.voided, row.dead) == (2, 2, 0)

    def test_replay_to_another_topic(self, mq: Client, topic: str) -> None:
        target = mq.create_topic(f"{topic}.again", partitions=2).name
        bury(mq, topic, *(b"%d" % at for at in range(150)))
        assert mq.dead(topic, "g").replay([(0, 10, 20)], to=target) == 10
        assert mq.dead(topic, "g").replay(to=target, dry_run=True) == 140
        assert mq.dead(topic, "g").replay(to=target) == 140
        assert sorted(map(int, drain(mq, target))) == list(range(150))
        assert list(mq.dead(topic).letters()) == []

    def test_a_replay_into_a_deleted_topic_loses_nothing(self, mq: Client, topic: str) -> None:
        mq.create_topic(f"{topic}.gone")
        mq.publish(f"{topic}.gone", b"v", timeout=PATIENCE_S)
        mq.topic(f"{topic}.gone").delete()
        bury(mq, topic, b"0")
        with pytest.raises(UnknownTopic, match="gone"):
            mq.dead(topic, "g").replay(to=f"{topic}.gone")
        assert len(list(mq.dead(topic, "g").letters())) == 1

    def test_what_is_refused(self, mq: Client, topic: str) -> None:
        bury(mq, topic, b"0")
        for ranges in ([(0, 1, 1)], [(1, 0, 1)], [(0, -1, 5)]):
            with pytest.raises(BadRequest):
                mq.dead(topic, "g").purge(ranges)
        for group in ("", "nothere"):
            with pytest.raises(BadRequest, match="group"):
                mq.dead(topic, group).purge()
        with pytest.raises(UnknownTopic):
            list(mq.dead(f"{topic}.nothere").letters())


class TestGroups:
    def test_pause_and_resume(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"before", timeout=PATIENCE_S)
        assert drain(mq, topic, topic) == [b"before"]
        mq.group(topic, topic).pause()
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        assert not mq.fetch(topic, topic, wait=0.3)
        assert [row.paused for row in mq.topic(topic).groups()] == [True]
        mq.group(topic, topic).resume()
        assert mq.fetch(topic, topic, wait=PATIENCE_S).values() == [b"v"]

    def test_set_group(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        drain(mq, topic, topic)
        mq.group(topic, topic).configure(attempts_max=1, backoff=["1s", "2s"], lease="9s")
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        line = " ".join(mq.record(topic, 0, 1).why(group=topic).lines)
        assert "lease 9 s (group), dead after 1 failure (group), pauses 1 s, 2 s (group)" in line
        with pytest.raises(BadRequest, match="nothere"):
            mq.group(topic, "nothere").configure(attempts_max=1)
        with pytest.raises(BadRequest, match="attempts_max"):
            mq.group(topic, topic).configure(attempts_max=0)


class TestFind:
    def test_by_everything(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=2)
        values = [b"%d apples" % at for at in range(2_000)]
        mq.publish_many(topic, values, keys=[b"%d" % (at % 10) for at in range(2_000)], timeout=PATIENCE_S)
        mq.publish(topic, b"pears", headers={"kind": "fruit"}, timeout=PATIENCE_S)
        told: list[tuple[int, int]] = []
        assert [
            msg.value for msg in mq.read(topic).where(contains="1999", progress=lambda *at: told.append(at))
        ] == [values[1_999]]
        assert (told[0], told[-1]) == ((0, 2_001), (2_001, 2_001))
        assert len(list(mq.read(topic).where(key="7"))) == 200
        assert [msg.value for msg in mq.read(topic).where(headers={"kind": "fruit"})] == [b"pears"]
        assert len(list(mq.read(topic).where(contains="apples", limit=5))) == 5
        assert list(mq.read(topic).where(key="7", contains="pears")) == []

    def test_between_offsets_and_times(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"0", b"1", b"2"], timeout=PATIENCE_S)
        time.sleep(0.05)
        middle = datetime.now(UTC)
        time.sleep(0.05)
        mq.publish_many(topic, [b"3", b"4"], timeout=PATIENCE_S)
        assert [msg.value for msg in mq.read(topic, start=1, end=4).where()] == [b"1", b"2", b"3"]
        assert [msg.value for msg in mq.read(topic, end=middle).where()] == [b"0", b"1", b"2"]
        assert [msg.value for msg in mq.read(topic, start=middle).where()] == [b"3", b"4"]
        assert [msg.offset for msg in mq.read(topic, start="-1h", end=99).where()] == [0, 1, 2, 3, 4]

    def test_nothing_to_find(self, mq: Client, topic: str) -> None:
        with pytest.raises(UnknownTopic):
            next(mq.read(topic).where())
        mq.create_topic(topic)
        assert list(mq.read(topic).where()) == []
        for start, end, limit in (("new", None, 1), (0, None, 0), (5, 5, 1), ({topic: {0: 1}}, None, 1)):
            with pytest.raises(BadRequest):
                next(mq.read(topic, start=start, end=end).where(limit=limit))

    def test_it_holds_nobody_up_and_leaves_nothing_behind(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"v"] * 10, timeout=PATIENCE_S)
        found = mq.read(topic).where()
        assert next(found).offset == 0
        assert drain(mq, topic) == [b"v"] * 10
        assert len(list(found)) == 9


def test_asyncio_says_the_same(shared_node: RunningNode, topic: str) -> None:
    async def work() -> None:
        async with aio_connect(shared_node.endpoint) as mq:
            receipt = await mq.publish(topic, b"v", delay="1h", id="i")
            assert (await mq.record(receipt.ref).why()).standings[0].state == "scheduled"
            assert await mq.record(topic, id="i").reschedule(delay=0) == receipt.ref
            with pytest.raises(BadRequest):
                await mq.record(topic, id="i").reschedule()
            async for msg in mq.consume(topic, topic):
                await msg.nack(delay="1h", reason="no luck")
                break
            await mq.flush(PATIENCE_S)
            assert (await mq.record(topic, 0, 0).trace())[-1].what == "failed"
            assert (await mq.group(topic, topic).why())[0].state
            await mq.group(topic, topic).configure(attempts_max=1)
            assert await mq.record(topic, 0, 0).requeue(group=topic) == f"{topic}/0/0"
            async for msg in mq.consume(topic, topic):
                await msg.nack(reason="no luck")
                break
            await mq.flush(PATIENCE_S)
            assert [letter.value async for letter in mq.dead(topic, topic).letters()] == [b"v"]
            target = (await mq.create_topic(f"{topic}.again")).name
            assert await mq.dead(topic, topic).replay(dry_run=True) == 1
            assert await mq.dead(topic, topic).replay(to=target) == 1
            assert await mq.dead(topic, topic).purge() == 0
            assert (await mq.record(target, 0, 0).show()).value == b"v"
            edited = await mq.record(target, 0, 0).edit(value="w")
            assert [msg.value async for msg in mq.read(target).where(contains="w", limit=1)] == [b"w"]
            await mq.record(edited.ref).cancel()
            await mq.group(topic, topic).pause()
            await mq.group(topic, topic).resume()
            with pytest.raises(UnknownTopic):
                await mq.record(f"{topic}.nothere", 0, 0).why()

    asyncio.run(work())
