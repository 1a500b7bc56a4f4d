"""What is asked beyond snapshots, and what becomes of it; with a client that only notes, and with a node."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gossipq.errors import UnknownRecord, Unreachable, WrongState
from gossipq.messages import StatsReply
from gossipq.times import time_of
from gossipq.values import PartitionStats
from gossipq_cli.means import means
from gossipq_client import Client, connect
from gossipq_ops.answers import PAGE_BYTES, Answerer
from gossipq_ops.questions import (
    Act,
    Done,
    Failed,
    Find,
    Open,
    Opened,
    Page,
    Records,
    Runs,
    Stand,
    Standing,
    Subject,
    Ticked,
    Try,
    Work,
    Working,
    of_record,
)
from waiting import until


def nobody(address: str) -> Client:
    raise Unreachable(f"no other node is asked, nor is {address}")


def stored(topic: str, partition: int, offset: int, value: bytes = b"v") -> SimpleNamespace:
    return SimpleNamespace(key=None, value=value, stored_time=time_of(1_000_000 + 1_000 * offset))


def stats(*nexts: int, first: int = 0) -> StatsReply:
    rows = [
        PartitionStats(1 << 16 | at, "orders", at, 0, first, end, end, first, 0)
        for at, end in enumerate(nexts)
    ]
    return StatsReply(rows, [])


def test_a_page_shows_each_record_once_and_asks_for_no_more_than_that(client) -> None:
    client.answers = {"stats": stats(1_000_000), "record.show": stored}
    found = Answerer(client, means(nobody)).answer(Page("orders", -1, 0, 20))
    assert isinstance(found, Records)
    assert [record.offset for record in found.records] == list(range(999_980, 1_000_000))
    assert len(client.called("record.show")) == 20
    assert found.more
    back = Answerer(client, means(nobody)).answer(Page("orders", -1, 100, 20))
    assert isinstance(back, Records)
    assert back.records[-1].offset == 999_899


def test_a_page_of_several_partitions_has_the_newest_of_each(client) -> None:
    client.answers = {"stats": stats(100, 3), "record.show": stored}
    found = Answerer(client, means(nobody)).answer(Page("orders", -1, 0, 10))
    assert isinstance(found, Records)
    assert [(record.partition, record.offset) for record in found.records] == [
        (1, 0),
        (1, 1),
        (1, 2),
        *((0, offset) for offset in range(95, 100)),
    ]


def test_what_was_voided_stays_as_a_gap(client) -> None:
    def show(topic: str, partition: int, offset: int) -> SimpleNamespace:
        if offset == 1:
            raise UnknownRecord("gone")
        if offset == 2:
            raise WrongState("void")
        return stored(topic, partition, offset)

    client.answers = {"stats": stats(4), "record.show": show}
    found = Answerer(client, means(nobody)).answer(Page("orders", 0, 0, 10))
    assert isinstance(found, Records)
    assert {record.offset: record.gone for record in found.records} == {0: False, 1: True, 2: True, 3: False}


def test_large_values_end_a_page(client) -> None:
    client.answers = {"stats": stats(100), "record.show": lambda *at: stored(*at, value=bytes(PAGE_BYTES))}
    found = Answerer(client, means(nobody)).answer(Page("orders", 0, 0, 10))
    assert isinstance(found, Records)
    assert len(client.called("record.show")) == 2
    assert {len(record.value) for record in found.records} == {1_024}
    assert {record.size for record in found.records} == {PAGE_BYTES}


@pytest.mark.parametrize(
    ("ask", "says"), [(Page("nothing"), "no topic nothing"), (Page("orders", 7), "no partition orders/7")]
)
def test_no_such_place(client, ask: Page, says: str) -> None:
    client.answers = {"stats": stats(4)}
    found = Answerer(client, means(nobody)).answer(ask)
    assert isinstance(found, Failed)
    assert found.text == says
    assert "gossipq topic ls" in found.hint


def test_a_search_that_nobody_waits_for_ends(client) -> None:
    answerer = Answerer(client, means(nobody))

    def find(topic: str, **options: object) -> Iterator[object]:
        progress = options["progress"]
        for looked in range(100):
            answerer.stop()
            progress(looked, 100)
            yield None

    client.answers = {"read.where": find}
    assert answerer.answer(Find("orders", "x")) == Failed("the search was left")


@pytest.mark.parametrize(
    ("act", "called", "name", "options"),
    [
        (
            Act("requeue", of_record("orders/0/1"), "billing"),
            "record.requeue",
            "orders/0/1",
            {"group": "billing"},
        ),
        (
            Act("reschedule", of_record("orders/0/@1.0"), "5m"),
            "record.reschedule",
            "orders/0/@1.0",
            {"delay": 300.0},
        ),
        (Act("cancel", of_record("orders/0/1")), "record.cancel", "orders/0/1", {"reason": ""}),
        (Act("rm", of_record("orders/0/1")), "record.cancel", "orders/0/1", {"reason": "removed"}),
        (Act("edit", of_record("orders/0/1"), "new"), "record.edit", "orders/0/1", {"value": "new"}),
    ],
)
def test_verbs_are_those_of_the_client(
    client, act: Act, called: str, name: str, options: dict[str, object]
) -> None:
    client.answers = {
        called: SimpleNamespace(ref="orders/0/9", partition=0, offset=9)
        if called == "record.edit"
        else "orders/0/1"
    }
    assert isinstance(Answerer(client, means(nobody)).answer(act), Done)
    assert client.called(called) == [((), {"name": name, **options})]


def test_a_wrong_delay_is_told(client) -> None:
    found = Answerer(client, means(nobody)).answer(Act("reschedule", of_record("orders/0/@1.0"), "soon"))
    assert isinstance(found, Failed)
    assert "soon" in found.text


# --- with a node


@pytest.fixture
def mq(shared_node) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


def test_a_record_from_its_birth_to_its_end(mq: Client, topic: str) -> None:
    answerer = Answerer(mq, means(nobody))
    mq.publish(topic, b"17 apples", key=b"ada", headers={"k": b"v"}, timeout=30)
    mq.fetch(topic, "billing", n=1, wait=2.0)[0].reject("rotten")
    mq.flush(None)
    opened = answerer.answer(Open(f"{topic}/0/0"))
    assert isinstance(opened, Opened)
    assert ("key", "ada") in opened.fields
    assert (opened.value, opened.size) == (b"17 apples", 9)
    assert [(stand.group, stand.state) for stand in opened.stands] == [("billing", "dead")]
    assert "dead" in {step.what for step in opened.steps}
    stands = answerer.answer(Stand(topic, "billing"))
    assert isinstance(stands, Standing)
    assert [(dead.ref, dead.error, dead.letters) for dead in stands.dead] == [(f"{topic}/0/0", "rotten", 1)]
    assert answerer.answer(Act("requeue", of_record(f"{topic}/0/0"), "billing")) == Done(
        f"{topic}/0/0 is ready for billing"
    )
    assert isinstance(answerer.answer(Act("edit", of_record(f"{topic}/0/0"), "18 apples")), Done)
    found = answerer.answer(Page(topic, -1, 0, 5))
    assert isinstance(found, Records)
    assert found.records[-1].value == b"18 apples"
    assert isinstance(answerer.answer(Act("rm", of_record(f"{topic}/0/1"))), Done)
    again = answerer.answer(Act("rm", of_record(f"{topic}/0/1")))
    assert isinstance(again, Failed)
    assert again.text
    found = answerer.answer(Find(topic, "key=ada"))
    assert isinstance(found, Records)
    assert [record.key for record in found.records] in ([], [b"ada"])


def test_a_search(mq: Client, topic: str) -> None:
    mq.publish_many(topic, [b"m %d" % number for number in range(50)], timeout=30)
    found = Answerer(mq, means(nobody)).answer(Find(topic, "m 4"))
    assert isinstance(found, Records)
    assert [record.value for record in found.records] == [
        b"m 4",
        *(b"m 4%d" % number for number in range(10)),
    ]
    found = Answerer(mq, means(nobody)).answer(Find(topic, "", first="10", end="12"))
    assert isinstance(found, Records)
    assert [record.value for record in found.records] == [b"m 10", b"m 11"]


def test_a_record_that_is_not_due_is_opened_and_moved(mq: Client, topic: str) -> None:
    ref = mq.publish(topic, b"later", delay="1h", timeout=30).ref
    answerer = Answerer(mq, means(nobody))
    opened = answerer.answer(Open(ref))
    assert isinstance(opened, Opened)
    assert opened.stands[0].state == "scheduled"
    assert isinstance(answerer.answer(Act("reschedule", of_record(ref), "2h")), Done)
    assert isinstance(answerer.answer(Act("cancel", of_record(ref))), Done)


def test_topics_are_rows_of_the_client(mq: Client, shared_node, topic: str) -> None:
    from gossipq_ops.collect import topic_row
    from gossipq_ops.gather import once

    mq.create_topic(topic, partitions=3, retention="1h", ttl="1m")
    (info,) = mq.admin.raw.topics(topic)
    row = topic_row(info)
    assert (row.name, row.partitions, row.config["retention"], row.config["ttl"]) == (topic, 3, "1h", "1m")
    found = once(lambda address: connect(shared_node.endpoint), "here")
    assert topic in {each.name for each in found.topics}


def told(answerer: Answerer, verb: str, subject: Subject, text: str = "") -> tuple[str, str]:
    """What a verb would do, and what it did."""
    found = []
    for ask in (Try(Act(verb, subject, text)), Act(verb, subject, text)):
        answer = answerer.answer(ask)
        assert isinstance(answer, Done), answer
        found.append(answer.text)
    return found[0], found[1]


def test_verbs_of_a_group_are_tried_and_then_done(mq: Client, shared_node, topic: str) -> None:
    group = Subject("group", (topic, "billing"))
    mq.publish_many(topic, [b"m %d" % number for number in range(6)], timeout=30)
    with connect(shared_node.endpoint) as consumer:
        taken = 0
        while taken < 4:
            for message in consumer.fetch(topic, "billing", n=4 - taken, wait=5.0):
                message.reject("rotten" if taken < 3 else "lost")
                taken += 1
        consumer.flush(None)
    answerer = Answerer(mq, means(nobody))
    stands = answerer.answer(Stand(topic, "billing"))
    assert isinstance(stands, Standing)
    assert {(dead.error, dead.letters) for dead in stands.dead} == {("rotten", 3), ("lost", 1)}
    lost = next(dead for dead in stands.dead if dead.error == "lost")
    assert told(answerer, "purge", Subject("dead", (topic, "billing", lost.reason, "lost"))) == (
        "1 dead letter of billing would be removed for good",
        "1 dead letter of billing removed for good",
    )
    assert told(answerer, "replay", group) == (
        "3 dead letters would be ready for billing again",
        "3 dead letters ready for billing again",
    )
    assert told(answerer, "pause", group)[1] == f"billing on {topic} is paused"
    assert told(answerer, "resume", group)[0].startswith("5 records would go to ")
    failed = answerer.answer(Try(Act("seek", group, "yesterday")))
    assert isinstance(failed, Failed)
    assert "first, new, or an offset" in failed.text
    until(lambda: isinstance(answerer.answer(Try(Act("seek", group, "first"))), Done))
    assert told(answerer, "seek", group, "first")[1].startswith(f"billing on {topic} moved to first: ")
    assert told(answerer, "purge", Subject("topic", (topic,))) == (
        f"6 records of {topic} would be removed for good",
        f"6 records of {topic} removed for good",
    )
    gone = answerer.answer(Try(Act("pause", Subject("group", (topic, "nobody")))))
    assert gone == Failed(f"there is no group nobody on {topic} any more", f"gossipq group ls {topic}")


def tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def test_jobs_of_a_group_are_listed_and_mended(mq: Client, shared_node, topic: str) -> None:
    """One runs and reports, one is retried, two have failed with the same error, one waits for its tick."""
    mq.create_topic(topic, partitions=1, lease="10m")
    mq.schedule(topic, "report", name="nightly", every="24h", start=tomorrow())
    mq.publish_many(topic, [b"m %d" % number for number in range(5)], timeout=30)
    with connect(shared_node.endpoint) as consumer:
        taken: list[Any] = []
        while len(taken) < 4:
            taken += consumer.fetch(topic, "works", n=4 - len(taken), wait=5.0)
        running, retried, *failing = taken
        running.progress(0.25, "page 1 of 4")
        retried.nack(3_600, "not yet")
        for number, message in enumerate(failing):
            message.reject(f"no page {number}")
        consumer.flush(None)
        answerer, ask = Answerer(mq, means(nobody)), Work(topic, "works")

        def found() -> Working:
            answer = answerer.answer(ask)
            assert isinstance(answer, Working), answer
            return answer

        until(lambda: [job.progress for job in found().jobs] == [0.25, -1.0])
        work = found()
        assert [(job.ref, job.state) for job in work.jobs] == [
            (f"{topic}/0/0", "running"),
            (f"{topic}/0/1", "retrying"),
        ]
        assert (work.jobs[0].text, work.jobs[0].attempt, work.total) == ("page 1 of 4", 1, 2)
        assert work.jobs[0].time_ms > 0
        assert [(row.jobs, row.ref) for row in work.errors] == [(2, f"{topic}/0/3")]
        assert [(row.name, row.when, row.paused) for row in work.schedules] == [
            ("nightly", "every 86400 s", False)
        ]
        error = Subject("error", (topic, "works", work.errors[0].name))
        assert told(answerer, "replay", error) == (
            "2 dead letters would be ready for works again",
            "2 dead letters ready for works again",
        )
        gone = answerer.answer(Try(Act("replay", error)))
        assert isinstance(gone, Failed)
        assert gone.hint == f"gossipq job errors {topic}/works"
        retry = answerer.answer(Act("retry", Subject("job", (f"{topic}/0/1", "works"))))
        assert retry == Done(f"{topic}/0/1 is ready for works")
        cancelled = answerer.answer(Act("cancel", Subject("job", (f"{topic}/0/0", "works"))))
        assert cancelled == Done(f"cancelled {topic}/0/0")
        until(lambda: running.cancelled)
        until(lambda: f"{topic}/0/0" not in [job.ref for job in found().jobs])
    assert isinstance(answerer.answer(Work(f"{topic}-none", "works")), Failed)


def test_the_runs_of_a_schedule_are_listed_and_its_verbs_done(mq: Client, topic: str) -> None:
    mq.create_topic(topic, partitions=1, lease="10m")
    mq.schedule(topic, "report", name="nightly", every="24h", start=tomorrow(), overlap="skip")
    answerer, schedule = Answerer(mq, means(nobody)), Subject("schedule", (topic, "nightly"))
    paused = answerer.answer(Act("pause", schedule))
    assert paused == Done(f"schedule nightly of {topic} is paused", Act("resume", schedule))
    assert answerer.answer(Act("pause", schedule)) == Done(f"schedule nightly of {topic} is paused")
    shown = answerer.answer(Runs(topic, "works", "nightly"))
    assert isinstance(shown, Ticked)
    assert (shown.schedule.paused, shown.next_ms, shown.runs) == (True, [], [])
    assert answerer.answer(Act("resume", schedule)).undo == Act("pause", schedule)
    assert answerer.answer(Act("run-now", schedule)) == Done(f"stored as {topic}/0/0")
    (message,) = mq.fetch(topic, "works", n=1, min=1, wait=30.0)
    message.ack()
    mq.schedule(topic, "report", name="often", every="1s", count=1)

    def ran() -> Ticked:
        answer = answerer.answer(Runs(topic, "works", "often"))
        assert isinstance(answer, Ticked), answer
        return answer

    until(lambda: len(ran().runs) == 1)
    assert ran().runs[0].state in ("waiting", "running")
    (message,) = mq.fetch(topic, "works", n=1, min=1, wait=30.0)
    (run,) = ran().runs
    assert run.state == "running"
    assert run.tick_ms <= run.begin_ms
    message.ack()
    (run,) = ran().runs
    assert (run.ref, run.state) == (f"{topic}/0/1", "succeeded")
    assert run.tick_ms <= run.end_ms
    assert answerer.answer(Act("remove", schedule)) == Done(f"schedule nightly of {topic} is removed")
    assert isinstance(answerer.answer(Runs(topic, "works", "nightly")), Failed)


def test_verbs_of_clients_and_nodes_are_tried_and_then_done(mq: Client, shared_node, topic: str) -> None:
    mq.create_topic(topic, partitions=1)
    answerer = Answerer(mq, means(nobody))
    with connect(shared_node.endpoint, name=f"reader-{topic}") as reader:
        subscription = reader.subscribe(topic, group="billing")
        mine = f"reader-{topic}"
        until(lambda: any(row.client == mine and row.subscriptions for row in mq.admin.clients()))
        session = next(row.session.hex() for row in mq.admin.clients() if row.client == mine)
        would, did = told(answerer, "kick", Subject("client", (session[:8],)), "1s")
        assert would == f"{mine} ({session[:8]}) holds 0 records; it may not reconnect for 1s"
        assert did == f"{mine} ({session[:8]}) may not reconnect for 1s; 0 records redelivered"
        subscription.stop()
    gone = answerer.answer(Try(Act("kick", Subject("client", ("ffffffff",)), "1s")))
    assert gone == Failed("session ffffffff is gone already", "gossipq client ls")
    name = mq.admin.status().node
    plan = answerer.answer(Try(Act("rebalance", Subject("node", (name,)))))
    assert plan == Done("every shard is where it should be")
    would = answerer.answer(Try(Act("drain", Subject("node", (name,)))))
    assert isinstance(would, Done | Failed)
    assert "nobody" in str(answerer.answer(Try(Act("drain", Subject("node", ("nobody",))))))
