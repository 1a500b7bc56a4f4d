"""The result backend and the scheduler of beat, against a node."""

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import TimeoutError as NoResult
from celery.schedules import crontab

import gossipq_celery  # noqa: F401 - makes gossipq:// known
from conftest import RunningNode
from gossipq_celery.beat import GossipqScheduler, TickEntry
from gossipq_client import Client, connect
from gossipq_keyed import KeyedTopic

pytestmark = [pytest.mark.e2e]
hosts = (f"host{number}" for number in itertools.count())


@pytest.fixture
def app(shared_node: RunningNode) -> Iterator[Celery]:
    url = f"gossipq://127.0.0.1:{shared_node.port}/{next(hosts)}"
    with Celery("shop", broker=url, backend=url, set_as_current=False) as made:
        yield made


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


@pytest.fixture
def keyed(mq: Client) -> KeyedTopic:
    return KeyedTopic(lambda: mq, f"keyed-{next(hosts)}", 3_600)


def test_the_newest_value_of_a_key_is_found(mq: Client, keyed: KeyedTopic) -> None:
    other = KeyedTopic(lambda: mq, keyed.topic, 3_600)
    assert keyed.get("a") is None
    for number in range(20):
        (keyed if number % 3 else other).set("a", str(number).encode())
        assert (other.get("a"), keyed.get("a")) == (str(number).encode(),) * 2
    other.delete("a")
    assert keyed.get("a") is None
    keyed.set("a", b"again")
    assert other.get("a") == b"again"


def test_a_counter_counts_each_call_once(mq: Client, keyed: KeyedTopic) -> None:
    with ThreadPoolExecutor(4) as pool:
        counted = list(pool.map(lambda _: KeyedTopic(lambda: mq, keyed.topic, 3_600).count("c"), range(40)))
    assert sorted(counted) == list(range(1, 41))
    keyed.delete("c")
    assert [keyed.count("c"), keyed.count("c")] == [1, 2]


class Counted:
    """A client whose uses are counted."""

    def __init__(self, mq: Client) -> None:
        self._mq, self.uses = mq, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.uses[name] += 1
        return getattr(self._mq, name)


def test_the_first_value_of_a_key_costs_one_round_trip(mq: Client, keyed: KeyedTopic) -> None:
    counted: Any = Counted(mq)
    fresh = KeyedTopic(lambda: counted, keyed.topic, 3_600)
    fresh.make()
    fresh.set("a", b"1")
    assert counted.uses == {"create_topic": 1, "publish": 1}


def test_an_old_value_refuses_no_change(mq: Client, keyed: KeyedTopic) -> None:
    other = KeyedTopic(lambda: mq, keyed.topic, 3_600)
    keyed.set("lock", b"held")
    other.delete("lock")
    assert keyed.change("lock", lambda raw: b"mine" if raw is None else None)
    assert not other.change("lock", lambda raw: b"its" if raw is None else None)


def test_a_result_is_kept_and_a_success_is_final(app: Celery) -> None:
    backend = app.backend
    waiting = app.AsyncResult("17")
    assert waiting.state == states.PENDING
    backend.store_result("17", {"page": 4}, "PROGRESS")
    assert (waiting.state, waiting.info) == ("PROGRESS", {"page": 4})
    backend.store_result("17", 42, states.SUCCESS)
    backend.store_result("17", ValueError("late"), states.FAILURE)
    assert app.AsyncResult("17").get(timeout=10) == 42
    backend.forget("17")
    assert app.AsyncResult("17").state == states.PENDING


def test_a_result_comes_to_the_thread_that_waits(app: Celery) -> None:
    class Request:
        reply_to = app.thread_oid

    def store() -> None:
        app.backend.store_result("sent here", 1, states.SUCCESS, request=Request())
        app.backend.store_result("sent elsewhere", 2, states.SUCCESS)

    with pytest.raises(NoResult):
        app.AsyncResult("sent here").get(timeout=0.2)
    with ThreadPoolExecutor(1) as pool:
        stored = pool.submit(store)
        assert app.AsyncResult("sent here").get(timeout=30) == 1
        assert app.AsyncResult("sent elsewhere").get(timeout=30) == 2
        stored.result()
    app.backend.store_result("failed", ValueError("bad"), states.FAILURE)
    with pytest.raises(ValueError, match="bad"):
        app.AsyncResult("failed").get(timeout=30)


def entry(app: Celery, schedule: Any, last: datetime) -> TickEntry:
    return TickEntry(name="nightly", task="shop.report", schedule=schedule, last_run_at=last, app=app)


def test_two_beats_send_a_tick_once(app: Celery, mq: Client) -> None:
    last = datetime(2026, 1, 30, 12, 0, 17, tzinfo=UTC)
    beats = [GossipqScheduler(app, lazy=True) for _ in range(2)]
    for schedule in (crontab(minute="*/5"), timedelta(seconds=30)):
        for number, each in enumerate(beats):
            each.apply_async(entry(app, schedule, last + timedelta(seconds=number)), advance=False)
    topic = f"{app.connection().virtual_host}.celery"
    found = [record.id for record in mq.read(topic)]
    assert found == [
        "beat/nightly/2026-01-30T12:05:00+00:00",
        "beat/nightly/2026-01-30T12:00:30+00:00",
    ]
    for each in beats:
        each.close()


def test_a_beat_that_was_suspended_for_an_hour_sends_nothing_again(app: Celery, mq: Client) -> None:
    last = datetime(2026, 1, 30, 12, 0, tzinfo=UTC)
    first, late = (GossipqScheduler(app, lazy=True) for _ in range(2))
    assert first.apply_async(entry(app, crontab(minute=30), last), advance=False) is not None
    topic = f"{app.connection().virtual_host}.celery"
    mq.topic(topic).configure(dedup=0)  # as if the queue had forgotten the id
    assert late.apply_async(entry(app, crontab(minute=30), last), advance=False) is None
    for each in (first, late):
        each.close()


def test_a_group_whose_results_are_stored_is_joined_at_once(app: Celery) -> None:
    ids = [f"task {number}" for number in range(20)]
    for number, task_id in enumerate(ids):
        app.backend.store_result(task_id, number, states.SUCCESS)
    group = app.GroupResult("group", [app.AsyncResult(task_id) for task_id in ids])
    assert group.join_native(timeout=30) == list(range(20))
    group.save()
    assert app.GroupResult.restore("group").get(timeout=30) == list(range(20))


def test_a_group_without_results_is_not_awaited_longer_than_asked(app: Celery) -> None:
    group = app.GroupResult("group", [app.AsyncResult("never")])
    started = time.monotonic()
    with pytest.raises(NoResult):
        group.join_native(timeout=0, interval=600)
    assert time.monotonic() - started < 300


def test_a_chord_waits_for_each_task_of_a_nested_group(app: Celery, mq: Client) -> None:
    backend = app.backend
    nested = app.GroupResult("inner", [app.AsyncResult("second"), app.AsyncResult("third")])
    for applied in range(2):  # with the same ids
        app.GroupResult("nested", [app.AsyncResult("first"), nested]).save()
        for number, task_id in enumerate(["first", "second", "third"]):
            if number == 2:  # Celery stores the size before it sends the last task
                backend.set_chord_size("nested", 3)
            assert len(sent_bodies(app, mq)) == applied
            body = {"task": "shop.body", "args": [], "kwargs": {}, "options": {}}
            request = Context(id=task_id, group="nested", chord=body)
            backend.mark_as_done(task_id, number, request=request)
        assert json.loads(sent_bodies(app, mq)[applied])[0] == [[0, [1, 2]]]


def sent_bodies(app: Celery, mq: Client) -> list[bytes]:
    """Return the values of the records of the queue of an app."""
    topic = f"{app.connection().virtual_host}.celery"
    return [record.value for record in mq.read(topic)] if mq.topics(topic) else []
