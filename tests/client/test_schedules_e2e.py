"""Schedules against a real node: set, shown, paused, run and removed by both clients."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from conftest import RunningNode
from gossipq_client import BadRequest, Client, NotFound, connect
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 30


def test_ticks_are_records_of_the_topic(mq: Client) -> None:
    before = datetime.now(UTC)
    assert mq.schedule("ticks", {"kind": "daily"}, name="nightly", every="1s", key="ada", headers={"a": "b"})
    for count, msg in enumerate(mq.consume("ticks", "workers"), 1):
        with msg:
            name, _, at = (msg.id or "").partition("/")
            assert (name, msg.key, msg.headers) == ("nightly", b"ada", {"a": "b"})
            assert msg.value == b'{"kind":"daily"}'
            tick = datetime.fromisoformat(at)
            assert before <= tick <= datetime.now(UTC)
            assert tick.microsecond == 0
        if count == 3:
            break
    state = mq.schedules.show("ticks", "nightly")
    assert state.ticks >= 3
    assert state.every == 1.0
    assert [tick.offset for tick in state.last][:3] == [0, 1, 2]
    assert state.next[1] - state.next[0] == timedelta(seconds=1)
    assert mq.schedules.remove("ticks", "nightly")
    assert mq.schedules.all("ticks") == []


def test_a_schedule_is_known_by_its_name(mq: Client) -> None:
    mq.create_topic("plans", partitions=4)
    assert mq.schedule("plans", b"x", name="nightly", cron="0 7 * * mon-fri", tz="Europe/Berlin")
    assert not mq.schedule("plans", b"x", name="nightly", cron="0 7 * * mon-fri", tz="Europe/Berlin")
    assert mq.schedule("plans", b"x", name="nightly", cron="0 8 * * *", key="a key of another partition")
    assert mq.schedule("plans", b"x", name="hourly", every="1h", count=3, overlap="skip")
    nightly, hourly = mq.schedules.all("plans")[::-1]
    assert (nightly.cron, nightly.tz, nightly.paused) == ("0 8 * * *", "UTC", False)
    assert (hourly.count, hourly.overlap, len(hourly.next)) == (3, "skip", 3)
    assert all(at.hour == 8 and at.minute == 0 for at in nightly.next)


def test_paused_run_and_resumed(mq: Client) -> None:
    mq.schedule("rests", b"x", name="minutes", every="1m", paused=True)
    assert mq.schedules.show("rests", "minutes").next == []
    assert not mq.schedules.pause("rests", "minutes")
    assert mq.schedules.run("rests", "minutes") == "rests/0/0"
    assert mq.schedules.resume("rests", "minutes")
    state = mq.schedules.show("rests", "minutes")
    assert (state.ticks, len(state.last)) == (0, 1)
    assert len(state.next) == 5
    (msg,) = mq.fetch("rests", "workers", n=1, wait=PATIENCE_S)
    assert msg.value == b"x"
    msg.ack()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cron": "0 7 * *"},
        {"cron": "0 7 * * *", "tz": "Mars/Base"},
        {"every": "10ms"},
        {"every": "1m", "missed": "some"},
        {"every": "1m", "start": datetime(2026, 1, 1)},
        {"every": "1m", "name": "with/slash"},
    ],
)
def test_what_has_no_ticks_is_refused(mq: Client, options: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        mq.schedule("refused", b"x", **{"name": "nightly", **options})  # type: ignore[arg-type]


def test_a_schedule_that_is_not_there(mq: Client) -> None:
    with pytest.raises(NotFound):
        mq.schedules.all("nowhere")
    mq.create_topic("empty")
    with pytest.raises(NotFound, match="no schedule nightly"):
        mq.schedules.show("empty", "nightly")
    assert not mq.schedules.remove("empty", "nightly")


def test_the_asyncio_twin(shared_node: RunningNode) -> None:
    async def main() -> None:
        async with aio_connect(shared_node.endpoint) as mq:
            assert await mq.schedule("twins", b"x", name="seconds", every="1s")
            end_s = time.monotonic() + PATIENCE_S
            while not (await mq.schedules.show("twins", "seconds")).ticks:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.1)
            assert await mq.schedules.remove("twins", "seconds")

    asyncio.run(main())


def test_a_handler_declares_its_schedule(mq: Client, shared_node: RunningNode) -> None:
    seen = list[str]()

    @mq.consumer("declared", "workers", every="1s", value={"kind": "pulse"})
    def pulse(job: dict[str, str]) -> None:
        seen.append(job["kind"])

    mq.run(max_records=2)
    assert seen == ["pulse", "pulse"]
    state = mq.schedules.show("declared", "pulse")
    assert (state.every, state.cron, state.paused) == (1.0, "", False)
    assert mq.schedules.pause("declared", "pulse")
    with connect(shared_node.endpoint) as other:
        other.consumer("declared", "workers", cron="0 7 * * *", tz="Europe/Berlin")(pulse)
        other.run(stop_at_end=True)
    state = mq.schedules.show("declared", "pulse")
    assert (state.every, state.cron, state.tz, state.paused) == (0.0, "0 7 * * *", "Europe/Berlin", True)
    (only,) = mq.schedules.all("declared")
    assert only.name == "pulse"


def test_a_handler_of_asyncio_declares_its_schedule(shared_node: RunningNode) -> None:
    async def main() -> None:
        async with aio_connect(shared_node.endpoint) as mq:

            @mq.consumer("pulses", "workers", every="1s")
            async def beat(value: bytes) -> None:
                assert value == b""

            assert await mq.run(max_records=1, signals=False) == "max_records"
            assert (await mq.schedules.show("pulses", "beat")).every == 1.0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("topics", "options"),
    [
        (["a", "b"], {"every": "1s"}),
        ("plans.*", {"cron": "0 7 * * *"}),
        ("plans", {"tz": "Europe/Berlin"}),
        ("plans", {"value": b"x"}),
    ],
)
def test_a_schedule_of_a_handler_that_cannot_be(
    mq: Client, topics: object, options: dict[str, object]
) -> None:
    with pytest.raises(BadRequest):
        mq.consumer(topics, "workers", **options)(print)
