"""Jobs against a real node: results, their waits, and their ends, by both clients."""

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from conftest import RunningNode
from gossipq_client import BadRequest, Client, JobFailed, NoReply, NotFound, connect
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 30


@dataclass
class Size:
    width: int
    height: int


def test_a_result_comes_back_to_any_process(mq: Client, shared_node: RunningNode) -> None:
    receipt = mq.publish("resize", {"id": 7}, keep_result="1h", headers={"a": "b"})
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
    mq.flush()

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
