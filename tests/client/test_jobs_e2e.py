"""Jobs against a real node: results, their waits, and their ends, by both clients."""

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from conftest import RunningNode
from gossipq.errors import WrongState
from gossipq_client import (
    BadRequest,
    Client,
    JobFailed,
    LeaseLost,
    Message,
    NoReply,
    NotFound,
    connect,
)
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 30


@dataclass
class Size:
    width: int
    height: int


def test_a_result_comes_back_to_any_process(mq: Client, shared_node: RunningNode) -> None:
    receipt = mq.publish("resize", {"id": 7}, keep_result="1h", headers={"a": "b"}, id="cat")
    assert mq.job(receipt).state == "waiting"

    @mq.consumer("resize", "workers")
    def resize(job: dict) -> Size:
        return Size(job["id"], 2)

    heard: list[object] = []
    with connect(shared_node.endpoint) as other:
        waiting = threading.Thread(
            target=lambda: heard.append(other.result(receipt.ref, timeout=PATIENCE_S, as_type=Size))
        )
        waiting.start()
        mq.run(stop_at_end=True)
        waiting.join(PATIENCE_S)
        assert heard == [Size(7, 2)]
        assert other.result(receipt.ref, timeout=0) == {"width": 7, "height": 2}
    job = mq.job(receipt)
    named = [mq.job("resize", receipt.partition, receipt.offset), mq.job("resize", id="cat")]
    assert [each.ref for each in named] == [receipt.ref, receipt.ref]
    assert (job.state, job.group, job.kind, job.attempt) == ("succeeded", "workers", "json", 1)
    assert 3_500 < job.kept <= 3_600
    assert job.time is not None
    assert abs((datetime.now(UTC) - job.time).total_seconds()) < PATIENCE_S


@pytest.mark.parametrize("result", [None, "text", b"bytes", [1, 2.5, "three"], True])
def test_a_result_keeps_its_kind(mq: Client, result: object) -> None:
    receipt = mq.publish("kinds", b"job", keep_result=60)
    (msg,) = mq.fetch("kinds", "workers", n=1, wait=PATIENCE_S)
    msg.ack(result=result)
    assert mq.result(receipt, timeout=0) == result


def test_a_failed_job_tells_its_error(mq: Client) -> None:
    mq.create_topic("breaks", attempts_max=1)
    receipt = mq.publish("breaks", b"job", keep_result=60)

    @mq.consumer("breaks", "workers")
    def fail(job: bytes) -> None:
        raise ValueError("no such order")

    mq.run(stop_at_end=True)
    with pytest.raises(JobFailed, match="has failed: ValueError: no such order") as caught:
        mq.result(receipt, timeout=PATIENCE_S)
    job = caught.value.job
    assert (job.state, job.error, job.failures) == ("failed", "ValueError: no such order", 1)
    assert "test_jobs_e2e.py" in job.traceback
    assert " in fail" in job.traceback


def test_a_wait_ends(mq: Client) -> None:
    receipt = mq.publish("idle", b"job", keep_result=60, delay=60)
    began = time.monotonic()
    with pytest.raises(NoReply, match=r"has not ended within 0\.3 s: it is scheduled"):
        mq.result(receipt, timeout=0.3)
    assert time.monotonic() - began >= 0.3
    mq.record(receipt.ref).cancel()
    with pytest.raises(JobFailed, match="has been cancelled"):
        mq.result(receipt, timeout=PATIENCE_S)
    with pytest.raises(NotFound):
        mq.job("idle/0/17")
    with pytest.raises(BadRequest):
        mq.job("idle")


def test_results_of_many_jobs(mq: Client) -> None:
    receipts = [mq.post("many", b"%d" % number, keep_result=60) for number in range(300)]
    mq.flush(None)

    @mq.consumer("many", "workers", workers=4)
    def double(job: bytes) -> int:
        return 2 * int(job)

    mq.run(stop_at_end=True)
    refs = [receipt.result().ref for receipt in receipts]
    assert [mq.result(ref, timeout=PATIENCE_S) for ref in refs] == [2 * number for number in range(300)]


def test_a_result_that_is_too_large_fails_the_job(mq: Client) -> None:
    mq.create_topic("large", attempts_max=1)
    receipt = mq.publish("large", b"job", keep_result=60)

    @mq.consumer("large", "workers")
    def grow(job: bytes) -> bytes:
        return bytes(100_000)

    mq.run(stop_at_end=True)
    with pytest.raises(JobFailed, match="a result of 100000 bytes"):
        mq.result(receipt, timeout=PATIENCE_S)


def test_asyncio_waits_for_results(shared_node: RunningNode) -> None:
    async def main() -> None:
        async with aio_connect(shared_node.endpoint) as mq:

            @mq.consumer("awaited", "workers")
            async def answer(job: bytes) -> str:
                return job.decode().upper()

            await mq.create_topic("awaited")
            running = asyncio.create_task(mq.run(signals=False))
            receipts = await asyncio.gather(
                *(mq.publish("awaited", name, keep_result="5m") for name in ("ada", "bob"))
            )
            found = await asyncio.gather(*(mq.result(each, timeout=PATIENCE_S) for each in receipts))
            assert found == ["ADA", "BOB"]
            assert (await mq.job(receipts[0])).state == "succeeded"
            mq.stop()
            await running

    asyncio.run(main())


def test_progress_is_followed(mq: Client, shared_node: RunningNode) -> None:
    receipt = mq.publish("pages", b"job", keep_result=60)
    assert mq.job(receipt).progress is None
    seen: list[tuple[str, float | None, str]] = []

    def follow() -> None:
        with connect(shared_node.endpoint) as other:
            seen.extend((job.state, job.progress, job.text) for job in other.follow(receipt))

    following = threading.Thread(target=follow)
    following.start()
    (msg,) = mq.fetch("pages", "workers", n=1, wait=PATIENCE_S)
    for page in range(200):  # most of these are left out
        msg.progress(page / 200, f"page {page}")
    msg.progress(0.9, "page 9 of 10")
    deadline = time.monotonic() + PATIENCE_S
    while mq.job(receipt).text != "page 9 of 10" and time.monotonic() < deadline:
        time.sleep(0.05)
    job = mq.job(receipt)
    assert (job.state, job.progress, job.text) == ("running", 0.9, "page 9 of 10")
    with pytest.raises(BadRequest, match="0 to 1"):
        msg.progress(40)
    msg.ack(result=10)
    following.join(PATIENCE_S)
    assert seen[-2:] == [("running", 0.9, "page 9 of 10"), ("succeeded", 0.9, "page 9 of 10")]
    assert len(seen) < 20


def test_a_running_job_is_cancelled(mq: Client, shared_node: RunningNode) -> None:
    """A handler in a thread sees it, its result is not kept, and the next job runs in the same process."""
    begun, seen = threading.Event(), list[bool]()

    @mq.consumer("films", "renderers")
    def render(film: bytes, msg: Message) -> str:
        if film == b"long":
            begun.set()
            deadline = time.monotonic() + PATIENCE_S
            while not msg.cancelled and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(msg.cancelled)
            with pytest.raises(LeaseLost, match="was cancelled"):
                msg.progress(0.5)
        return film.decode()

    with connect(shared_node.endpoint) as other:
        long = other.publish("films", b"long", keep_result="1h")
        running = threading.Thread(target=mq.run)
        running.start()
        assert begun.wait(PATIENCE_S)
        assert other.cancel(long, reason="too long") == long.ref
        assert (other.job(long).state, other.job(long.ref).kept) == ("cancelled", 0)
        short = other.publish("films", b"short", keep_result="1h")
        assert other.result(short, timeout=PATIENCE_S) == "short"
        with pytest.raises(JobFailed, match="has been cancelled"):
            other.result(long, timeout=PATIENCE_S)
        with pytest.raises(WrongState):
            other.cancel(short)
        mq.stop()
        running.join(PATIENCE_S)
    assert seen == [True]


async def endless(begun: list[str], ended: list[str], name: str) -> None:
    begun.append(name)
    try:
        await asyncio.sleep(10 * PATIENCE_S)
    except asyncio.CancelledError:
        ended.append(name)
        raise


def test_a_coroutine_of_a_sync_client_is_cancelled(mq: Client, shared_node: RunningNode) -> None:
    begun, ended = list[str](), list[str]()

    @mq.consumer("waits", "sleepers")
    async def sleep(name: str) -> None:
        if name != "short":
            await endless(begun, ended, name)

    with connect(shared_node.endpoint) as other:
        long = other.publish("waits", "long")
        running = threading.Thread(target=mq.run)
        running.start()
        deadline = time.monotonic() + PATIENCE_S
        while not begun and time.monotonic() < deadline:
            time.sleep(0.01)
        other.cancel(long)
        other.result(other.publish("waits", "short"), timeout=PATIENCE_S)
        mq.stop()
        running.join(PATIENCE_S)
    assert (begun, ended) == (["long"], ["long"])


def test_a_coroutine_is_cancelled_and_its_worker_goes_on(shared_node: RunningNode) -> None:
    async def main() -> None:
        begun, ended = list[str](), list[str]()
        async with aio_connect(shared_node.endpoint) as mq:

            @mq.consumer("sleeps", "sleepers", workers=2)
            async def sleep(name: str) -> str:
                if name.startswith("long"):
                    await endless(begun, ended, name)
                return name

            await mq.create_topic("sleeps")
            running = asyncio.create_task(mq.run(signals=False))
            long = [await mq.publish("sleeps", name, keep_result=60) for name in ("long-1", "long-2")]
            async with asyncio.timeout(PATIENCE_S):
                while len(begun) < 2:
                    await asyncio.sleep(0.01)
            for job in long:
                await mq.cancel(job)
            for name in ("a", "b", "c"):
                short = await mq.publish("sleeps", name, keep_result=60)
                assert await mq.result(short, timeout=PATIENCE_S) == name
            assert [(await mq.job(job)).state for job in long] == ["cancelled", "cancelled"]
            mq.stop()
            await running
        assert sorted(ended) == ["long-1", "long-2"]

    asyncio.run(main())


def test_a_loop_passes_over_cancelled_records(mq: Client, shared_node: RunningNode) -> None:
    """Also those that were delivered, and that the loop has not reached."""
    receipts = [mq.publish("loops", b"%d" % number) for number in range(4)]
    seen = list[bytes]()
    with connect(shared_node.endpoint) as other:
        for msg in mq.consume("loops", "loopers", stop_at_end=True):
            with msg:
                if msg.value == b"1":
                    for number in (2, 1):  # the notice of 2 comes before the one that is waited for
                        other.cancel(receipts[number])
                    deadline = time.monotonic() + PATIENCE_S
                    while not msg.cancelled and time.monotonic() < deadline:
                        time.sleep(0.01)
                    assert msg.cancelled
                    assert msg.lost
                seen.append(msg.value)
        mq.flush(None)
        states = [other.job(each).state for each in receipts]
        assert states == ["succeeded", "cancelled", "cancelled", "succeeded"]
    assert seen == [b"0", b"1", b"3"]


def test_a_record_follows_jobs_of_two_topics(mq: Client, topic: str) -> None:
    mq.create_topic(f"{topic}-pages", attempts_max=1, partitions=4)
    mq.create_topic(f"{topic}-covers")
    pages = mq.publish_many(f"{topic}-pages", [b"1", b"2", b""], keep_result="1h")
    book = mq.join(
        [pages, mq.publish(f"{topic}-covers", b"red").ref], then=(f"{topic}-books", b"bind"), keep_result="1h"
    )
    assert mq.job(book).state == "scheduled"
    assert "waits for jobs: 0 of 4 have ended" in mq.record(book).why().standings[0].because

    @mq.consumer([f"{topic}-pages", f"{topic}-covers"], "printers")
    def print_page(value: bytes) -> bytes:
        if not value:
            raise ValueError("an empty page")
        return value

    @mq.consumer(f"{topic}-books", "binders")
    def bind(msg: Message) -> list[str]:
        return [f"{job.state} {job.because}".strip() for job in msg.joined]

    running = threading.Thread(target=mq.run)
    running.start()
    try:
        found = mq.result(book, timeout=PATIENCE_S)
    finally:
        mq.stop()
        running.join(PATIENCE_S)
    assert found == ["succeeded", "succeeded", "failed ValueError: an empty page", "succeeded"]
    job = mq.job(book)
    assert (job.ref, job.state) == (f"{topic}-books/0/0", "succeeded")


def test_a_join_waits_for_some_jobs_or_for_its_time(mq: Client, topic: str) -> None:
    mq.create_topic(f"{topic}-films", attempts_max=1)
    mq.create_topic(f"{topic}-shows")
    jobs = [mq.publish(f"{topic}-films", b"1", keep_result="1h") for _ in range(2)]
    one = mq.join(jobs, then=(f"{topic}-shows", b"one"), when="any", id="one")
    late = mq.join(jobs, then=(f"{topic}-shows", b"late"), timeout="1s")
    cancelled = mq.join(jobs, then=(f"{topic}-shows", b"never"), when=2)
    assert mq.cancel(cancelled, reason="no") == cancelled
    assert mq.job(cancelled).state == "cancelled"
    (msg,) = mq.fetch(f"{topic}-films", "workers", n=1, wait=PATIENCE_S)
    msg.ack(result=1)
    shown = {}
    for msg in mq.consume(f"{topic}-shows", "viewers"):
        with msg:
            shown[msg.value] = [job.state for job in msg.joined]
        if len(shown) == 2:
            break
    assert shown == {b"one": ["succeeded", "open"], b"late": ["succeeded", "open"]}
    assert (mq.job(one).state, mq.job(late).state) == ("succeeded", "succeeded")
    assert [job.ref for job in msg.joined] == [job.ref for job in jobs]
    assert mq.job(f"{topic}-shows", id="one").ref == mq.job(one).ref


def test_bad_joins_are_refused(mq: Client, topic: str) -> None:
    mq.create_topic(f"{topic}-films")
    ref = mq.publish(f"{topic}-films", b"1").ref
    for jobs, options in (
        ([], {}),
        ([ref], {"when": 2}),
        ([ref], {"when": "some"}),
        ([ref], {"delay": "5s"}),
        ([ref], {"timeout": 0}),
        ([mq.publish(f"{topic}-films", b"1", level="none")], {}),
        ([topic], {}),
    ):
        with pytest.raises(BadRequest):
            mq.join(jobs, then=(f"{topic}-films", b"2"), **options)
    with pytest.raises(BadRequest, match="topic and a value"):
        mq.join([ref], then=f"{topic}-films")
    with pytest.raises(BadRequest, match="no option delay"):
        mq.schedule(f"{topic}-films", b"2", name="nightly", every="10s", delay="5s")
    with pytest.raises(NotFound):
        mq.join(["missing/0/0"], then=(f"{topic}-films", b"2"))


def test_the_asyncio_client_joins(shared_node: RunningNode, topic: str) -> None:
    async def main() -> list[str]:
        async with aio_connect(shared_node.endpoint) as mq:
            await mq.create_topic(f"{topic}-scenes")
            await mq.create_topic(f"{topic}-acts")
            scene = await mq.publish(f"{topic}-scenes", b"1")
            act = await mq.join([scene], then=(f"{topic}-acts", b"2"))
            for msg in await mq.fetch(f"{topic}-scenes", "actors", n=1, wait=PATIENCE_S):
                await msg.ack()
            found = await mq.fetch(f"{topic}-acts", "actors", n=1, wait=PATIENCE_S)
            assert (await mq.job(act)).ref == found[0].ref
            return [job.state for job in found[0].joined]

    assert asyncio.run(main()) == ["succeeded"]


def test_results_of_many_records_come_back(mq: Client, topic: str) -> None:
    """Those of neighbours are sent together; a change of the kind, of the time, or a gap parts them."""
    options = [{"keep_result": "1h"}] * 4 + [{"keep_result": "2h"}] * 2 + [{}] + [{"keep_result": "1h"}] * 3
    receipts = [mq.publish(topic, b"%d" % number, **each) for number, each in enumerate(options)]
    given = [0, 1, "two", 3, 4, 5, 6, 7, None, 9]
    for msg in mq.consume(topic, "workers"):
        msg.ack_soon(given[int(msg.value)])
        if msg.offset == len(given) - 1:
            break
    mq.flush()
    found = [mq.result(each, timeout=PATIENCE_S) for each in receipts]
    assert found == [0, 1, "two", 3, 4, 5, None, 7, None, 9]
    assert [mq.job(each).kept > 3_600 for each in receipts] == [4 <= number < 6 for number in range(10)]


def test_threads_ack_with_results_at_the_same_time(mq: Client, topic: str) -> None:
    count = 400
    receipts = mq.publish_many(topic, [b"%d" % number for number in range(count)], keep_result="1h")

    @mq.consumer(topic, "workers", workers=8)
    def double(value: bytes) -> int:
        return 2 * int(value)

    assert mq.run(stop_at_end=True) == "at_end"
    found = [mq.result(f"{topic}/0/{offset}", timeout=PATIENCE_S) for offset in range(count)]
    assert found == [2 * number for number in range(count)]
    assert receipts.count == count
