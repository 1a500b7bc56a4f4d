"""Explaining and mending against a real node: why, trace, show, find, cancel, reschedule, requeue, edit, dead
letters."""

import asyncio
import time
from datetime import UTC, datetime

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
    (standing,) = mq.why(topic, 0, offset, group=group).standings
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
        named = [{"ref": receipt.ref}, {"topic": topic, "id": "i"}]
        assert {mq.why(**how).standings[0].state for how in named} == {"scheduled"}  # type: ignore[arg-type]
        mq.reschedule(ref=receipt.ref, delay=0)
        (msg,) = mq.fetch(topic, "g", wait=PATIENCE_S)
        assert state(mq, topic, 0) == "in_flight"
        msg.ack_soon()
        mq.flush(PATIENCE_S)
        found = mq.why(topic, 0, 0, group="g")
        assert (found.ref.offset, found.standings[0].state, found.standings[0].group) == (0, "acked", "g")
        assert found.standings[0].consumer
        assert found.standings[0].because
        for how in ({"topic": topic, "partition": 0, "offset": 0}, *named):
            assert [step.what for step in mq.admin.trace(**how)][-2:] == ["due", "acked"]  # type: ignore[arg-type]

    def test_the_commands_that_it_names_can_be_pasted(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        drain(mq, topic)
        (standing,) = mq.why(topic, 0, 0, group="g").standings
        assert standing.next == f"gossipq msg requeue {topic}/0/0 --group g"

    def test_why_a_group_stands_still(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=3)
        mq.publish_many(topic, [b"v"] * 9, keys=[b"%d" % at for at in range(9)], timeout=PATIENCE_S)
        drain(mq, topic, topic)
        mq.publish(topic, b"w", partition=1, timeout=PATIENCE_S)
        mq.admin.pause(topic, topic)
        rows = mq.admin.why_group(topic, topic)
        assert [row.partition for row in rows] == [0, 1, 2]
        assert rows[1].state == "paused"
        assert "resume" in rows[1].next

    def test_show(self, mq: Client, topic: str) -> None:
        before = time.time()
        receipt = mq.publish(
            topic, "café", key="k", headers={"h": "1"}, route="eu.fr", id="i", delay="1h", timeout=PATIENCE_S
        )
        for shown in (mq.admin.show(ref=receipt.ref), mq.admin.show(topic, id="i")):
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
            assert all(abs(at - before) < 60 for at in (shown.publish_time, shown.stored_time))

    def test_one_of_many(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"%d" % at for at in range(1_000)], timeout=PATIENCE_S)
        assert mq.admin.show(topic, 0, 617).value == b"617"

    def test_an_id_with_a_key_is_found_where_the_key_put_it(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=4)
        receipts = [
            mq.publish(topic, b"v", key=b"%d" % at, id=b"i%d" % at, timeout=PATIENCE_S) for at in range(6)
        ]
        assert [mq.admin.show(topic, id=b"i%d" % at).ref for at in range(6)] == [
            receipt.ref for receipt in receipts
        ]

    @pytest.mark.parametrize("ask", ["why", "trace", "show", "cancel"])
    def test_what_is_not_there(self, mq: Client, topic: str, ask: str) -> None:
        verb = getattr(mq if ask in ("why", "cancel") else mq.admin, ask)
        with pytest.raises(UnknownTopic, match=topic):
            verb(topic, 0, 0)
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        for how in ({"topic": topic, "id": "nothere"}, {"ref": f"{topic}/0/@99.0"}, {"ref": f"{topic}/0/5"}):
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
        assert mq.cancel(ref=scheduled.ref, reason="too late") == scheduled.ref
        assert mq.cancel(ref=ready.ref) == ready.ref
        mq.advance("2h")
        assert drain(mq, topic) == [b"kept"]
        assert mq.why(ref=scheduled.ref).standings[0].state == "voided"
        for ref in (scheduled.ref, ready.ref, kept.ref):
            with pytest.raises(WrongState):
                mq.cancel(ref=ref)

    def test_what_a_consumer_holds_is_not_cancelled(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        (msg,) = mq.fetch(topic, "g", wait=PATIENCE_S)
        with pytest.raises(WrongState, match="in flight to") as refused:
            mq.cancel(topic, 0, 0)
        assert refused.value.hint
        msg.ack_soon()

    def test_reschedule(self, mq: Client, topic: str) -> None:
        first = mq.publish(topic, b"first", delay="1h", timeout=PATIENCE_S)
        second = mq.publish(topic, b"second", delay="1h", timeout=PATIENCE_S)
        mq.reschedule(ref=second.ref, delay="50ms")
        mq.reschedule(ref=first.ref, at=datetime.now(UTC).timestamp() + 0.3)
        got = []
        for msg in mq.consume(topic, "g"):
            with msg:
                got.append(msg.value)
            if len(got) == 2:
                break
        assert got == [b"second", b"first"]
        with pytest.raises(WrongState):
            mq.reschedule(ref=first.ref, delay=1)
        for wrong in ({}, {"delay": -1}, {"delay": 1, "at": 5}):
            with pytest.raises(BadRequest):
                mq.reschedule(ref=first.ref, **wrong)  # type: ignore[arg-type]

    def test_requeue(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"0", b"1", b"2"], timeout=PATIENCE_S)
        drain(mq, topic)
        assert mq.admin.requeue(topic, 0, 1, group="g") == f"{topic}/0/1"
        assert drain(mq, topic) == [b"1"]
        with pytest.raises(BadRequest):
            mq.admin.requeue(topic, 0, 1, group="other")

    def test_edit(self, mq: Client, topic: str) -> None:
        old = mq.publish(topic, b"old", key="k", headers={"a": "b"}, route="eu", id="i", timeout=PATIENCE_S)
        new = mq.admin.edit(ref=old.ref, value=b"new")
        assert (new.offset, new.duplicate) == (1, False)
        shown = mq.admin.show(ref=new.ref)
        assert (shown.value, shown.key, shown.headers, shown.route) == (b"new", b"k", {"a": "b"}, "eu")
        assert drain(mq, topic) == [b"new"]
        assert state(mq, topic, 0) == "voided"
        assert any(old.ref in line for line in mq.why(ref=new.ref).lines)
        with pytest.raises(WrongState):
            mq.admin.edit(ref=old.ref, value=b"again")
        with pytest.raises(BadRequest, match="nothing to edit"):
            mq.admin.edit(ref=new.ref)

    def test_an_edited_record_stays_scheduled(self, mq: Client, topic: str) -> None:
        old = mq.publish(topic, b"old", delay="2s", attempts_max=3, timeout=PATIENCE_S)
        new = mq.admin.edit(ref=old.ref, headers={"x": "y"})
        assert new.offset == -1
        assert mq.admin.show(ref=new.ref).value == b"old"
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
        (letter,) = mq.admin.dead_letters(topic, "g")
        assert (letter.value, letter.key, letter.headers, letter.route, letter.id) == (
            b"v",
            b"k",
            {"h": "1"},
            "eu",
            "i",
        )
        assert (letter.group, letter.reason, letter.error, letter.failures) == ("g", "failures", "no luck", 1)
        assert (letter.ref, letter.count) == (f"{topic}/0/0", 1)
        assert abs(letter.time_ms / 1000 - time.time()) < 60
        assert state(mq, topic, 0) == "dead"
        assert mq.admin.show(topic, 0, 0).value == b"v"

    def test_more_than_a_page(self, mq: Client, topic: str) -> None:
        values = [b"%d" % at for at in range(250)]
        bury(mq, topic, *values)
        assert [letter.value for letter in mq.admin.dead_letters(topic)] == values
        assert [letter.offset for letter in mq.admin.dead_letters(topic, "g", start=240)] == list(
            range(240, 250)
        )
        assert sum(letter.count for letter in mq.admin.dead_letters(topic, values=False)) == 250
        assert list(mq.admin.dead_letters(topic, "other")) == []

    def test_replay_and_purge(self, mq: Client, topic: str) -> None:
        bury(mq, topic, b"0", b"1", b"2", b"3")
        assert mq.admin.replay_dead(topic, "g", dry_run=True) == 4
        assert mq.admin.purge_dead(topic, "g", [(0, 1, 3)], dry_run=True) == 2
        assert mq.admin.replay_dead(topic, "g", [(0, 0, 1), (0, 2, 3)]) == 2
        assert drain(mq, topic) == [b"0", b"2"]
        assert mq.admin.purge_dead(topic, "g") == 2
        assert list(mq.admin.dead_letters(topic)) == []
        assert mq.admin.replay_dead(topic, "g") == mq.admin.purge_dead(topic, "g") == 0
        (row,) = mq.admin.groups(topic)
        assert (row.acked, row.voided, row.dead) == (2, 2, 0)

    def test_replay_to_another_topic(self, mq: Client, topic: str) -> None:
        target = mq.create_topic(f"{topic}.again", partitions=2).name
        bury(mq, topic, *(b"%d" % at for at in range(150)))
        assert mq.admin.replay_dead(topic, "g", [(0, 10, 20)], to=target) == 10
        assert mq.admin.replay_dead(topic, "g", to=target, dry_run=True) == 140
        assert mq.admin.replay_dead(topic, "g", to=target) == 140
        assert sorted(map(int, drain(mq, target))) == list(range(150))
        assert list(mq.admin.dead_letters(topic)) == []

    def test_a_replay_into_a_deleted_topic_loses_nothing(self, mq: Client, topic: str) -> None:
        mq.create_topic(f"{topic}.gone")
        mq.publish(f"{topic}.gone", b"v", timeout=PATIENCE_S)
        mq.admin.delete_topic(f"{topic}.gone")
        bury(mq, topic, b"0")
        with pytest.raises(UnknownTopic, match="gone"):
            mq.admin.replay_dead(topic, "g", to=f"{topic}.gone")
        assert len(list(mq.admin.dead_letters(topic, "g"))) == 1

    def test_what_is_refused(self, mq: Client, topic: str) -> None:
        bury(mq, topic, b"0")
        for ranges in ([(0, 1, 1)], [(1, 0, 1)], [(0, -1, 5)]):
            with pytest.raises(BadRequest):
                mq.admin.purge_dead(topic, "g", ranges)
        for group in ("", "nothere"):
            with pytest.raises(BadRequest, match="group"):
                mq.admin.purge_dead(topic, group)
        with pytest.raises(UnknownTopic):
            list(mq.admin.dead_letters(f"{topic}.nothere"))


class TestGroups:
    def test_pause_and_resume(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"before", timeout=PATIENCE_S)
        assert drain(mq, topic, topic) == [b"before"]
        mq.admin.pause(topic, topic)
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        assert not mq.fetch(topic, topic, wait=0.3)
        assert [row.paused for row in mq.admin.groups(topic)] == [True]
        mq.admin.resume(topic, topic)
        assert mq.fetch(topic, topic, wait=PATIENCE_S).values() == [b"v"]

    def test_set_group(self, mq: Client, topic: str) -> None:
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        drain(mq, topic, topic)
        mq.admin.set_group(topic, topic, attempts_max=1, backoff=["1s", "2s"], lease="9s")
        mq.publish(topic, b"v", timeout=PATIENCE_S)
        line = " ".join(mq.why(topic, 0, 1, group=topic).lines)
        assert "lease 9 s (group), dead after 1 failure (group), pauses 1 s, 2 s (group)" in line
        with pytest.raises(BadRequest, match="nothere"):
            mq.admin.set_group(topic, "nothere", attempts_max=1)
        with pytest.raises(BadRequest, match="attempts_max"):
            mq.admin.set_group(topic, topic, attempts_max=0)


class TestFind:
    def test_by_everything(self, mq: Client, topic: str) -> None:
        mq.create_topic(topic, partitions=2)
        values = [b"%d apples" % at for at in range(2_000)]
        mq.publish_many(topic, values, keys=[b"%d" % (at % 10) for at in range(2_000)], timeout=PATIENCE_S)
        mq.publish(topic, b"pears", headers={"kind": "fruit"}, timeout=PATIENCE_S)
        told: list[tuple[int, int]] = []
        assert [
            msg.value for msg in mq.admin.find(topic, contains="1999", progress=lambda *at: told.append(at))
        ] == [values[1_999]]
        assert (told[0], told[-1]) == ((0, 2_001), (2_001, 2_001))
        assert len(list(mq.admin.find(topic, key="7"))) == 200
        assert [msg.value for msg in mq.admin.find(topic, header={"kind": "fruit"})] == [b"pears"]
        assert len(list(mq.admin.find(topic, contains="apples", limit=5))) == 5
        assert list(mq.admin.find(topic, key="7", contains="pears")) == []

    def test_between_offsets_and_times(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"0", b"1", b"2"], timeout=PATIENCE_S)
        time.sleep(0.05)
        middle = datetime.now(UTC)
        time.sleep(0.05)
        mq.publish_many(topic, [b"3", b"4"], timeout=PATIENCE_S)
        assert [msg.value for msg in mq.admin.find(topic, start=1, end=4)] == [b"1", b"2", b"3"]
        assert [msg.value for msg in mq.admin.find(topic, end=middle)] == [b"0", b"1", b"2"]
        assert [msg.value for msg in mq.admin.find(topic, start=middle)] == [b"3", b"4"]
        assert [msg.offset for msg in mq.admin.find(topic, start="-1h", end=99)] == [0, 1, 2, 3, 4]

    def test_nothing_to_find(self, mq: Client, topic: str) -> None:
        with pytest.raises(UnknownTopic):
            next(mq.admin.find(topic))
        mq.create_topic(topic)
        assert list(mq.admin.find(topic)) == []
        for wrong in ({"start": "new"}, {"limit": 0}, {"start": 5, "end": 5}):
            with pytest.raises(BadRequest):
                next(mq.admin.find(topic, **wrong))  # type: ignore[arg-type]

    def test_it_holds_nobody_up_and_leaves_nothing_behind(self, mq: Client, topic: str) -> None:
        mq.publish_many(topic, [b"v"] * 10, timeout=PATIENCE_S)
        found = mq.admin.find(topic)
        assert next(found).offset == 0
        assert drain(mq, topic) == [b"v"] * 10
        assert len(list(found)) == 9


def test_asyncio_says_the_same(shared_node: RunningNode, topic: str) -> None:
    async def work() -> None:
        async with aio_connect(shared_node.endpoint) as mq:
            receipt = await mq.publish(topic, b"v", delay="1h", id="i")
            assert (await mq.why(ref=receipt.ref)).standings[0].state == "scheduled"
            assert await mq.reschedule(topic, id="i", delay=0) == receipt.ref
            with pytest.raises(BadRequest):
                await mq.reschedule(topic, id="i")
            async for msg in mq.consume(topic, topic):
                await msg.nack(delay="1h", reason="no luck")
                break
            await mq.flush(PATIENCE_S)
            assert (await mq.admin.trace(topic, 0, 0))[-1].what == "failed"
            assert (await mq.admin.why_group(topic, topic))[0].state
            await mq.admin.set_group(topic, topic, attempts_max=1)
            assert await mq.admin.requeue(topic, 0, 0, group=topic) == f"{topic}/0/0"
            async for msg in mq.consume(topic, topic):
                await msg.nack(reason="no luck")
                break
            await mq.flush(PATIENCE_S)
            assert [letter.value async for letter in mq.admin.dead_letters(topic, topic)] == [b"v"]
            target = (await mq.create_topic(f"{topic}.again")).name
            assert await mq.admin.replay_dead(topic, topic, dry_run=True) == 1
            assert await mq.admin.replay_dead(topic, topic, to=target) == 1
            assert await mq.admin.purge_dead(topic, topic) == 0
            assert (await mq.admin.show(target, 0, 0)).value == b"v"
            edited = await mq.admin.edit(target, 0, 0, value="w")
            assert [msg.value async for msg in mq.admin.find(target, contains="w", limit=1)] == [b"w"]
            await mq.cancel(ref=edited.ref)
            await mq.admin.pause(topic, topic)
            await mq.admin.resume(topic, topic)
            with pytest.raises(UnknownTopic):
                await mq.why(f"{topic}.nothere", 0, 0)

    asyncio.run(work())
