"""Probes of a gateway by balancers and Kubernetes, without a token and by any host name."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from conftest import RunningNode
from gateway.conftest import RunningGateway
from gossipq.errors import GossipqError, Unreachable
from gossipq.types import Now
from gossipq_gateway import probes
from gossipq_gateway.probes import Probes
from waiting import until


class FakeClock:
    def __init__(self) -> None:
        self.ms = 10_000

    def now(self) -> Now:
        return Now(self.ms, self.ms)


class FakeCluster:
    """A client whose cluster answers with an error, or not at all."""

    def __init__(self) -> None:
        self.asked, self.error = 0, cast("GossipqError | None", None)
        self.answers = asyncio.Event()
        self.answers.set()

    async def topics(self, pattern: str) -> list[Any]:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return []


async def _statuses(made: Probes, count: int) -> list[int]:
    answers = [made._readyz(cast(Any, None)) for _ in range(count)]
    return [answer.status_code for answer in await asyncio.gather(*answers)]


def test_many_probes_ask_the_cluster_once_a_second() -> None:
    async def run() -> None:
        clock, cluster = FakeClock(), FakeCluster()
        made = Probes(cast(Any, cluster), cast(Any, clock))
        assert await _statuses(made, 100) == [200] * 100
        cluster.error = Unreachable("no node answers")
        assert await _statuses(made, 1) == [200]
        assert cluster.asked == 1
        clock.ms += probes.KNOWN_MS
        assert await _statuses(made, 100) == [503] * 100
        assert cluster.asked == 2

    asyncio.run(run())


def test_a_silent_cluster_holds_no_probe_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "READY_S", 0.05)

    async def run() -> None:
        clock, cluster = FakeClock(), FakeCluster()
        made = Probes(cast(Any, cluster), cast(Any, clock))
        cluster.answers.clear()
        for _ in range(3):
            assert await _statuses(made, 10) == [503] * 10
            clock.ms += probes.KNOWN_MS
        assert cluster.asked == 1
        cluster.answers.set()
        await asyncio.sleep(0)
        assert await _statuses(made, 10) == [200] * 10
        await made.close()

    asyncio.run(run())


@pytest.mark.e2e
def test_a_gateway_is_ready_while_its_cluster_answers(node: RunningNode, tmp_path: Path) -> None:
    with RunningGateway(node.endpoint, home=tmp_path) as gateway:

        def probe(path: str) -> tuple[int, object]:
            answer = httpx.get(gateway.url + path, headers={"host": "10.1.2.3"}, timeout=20)
            return answer.status_code, answer.json()

        assert probe("/livez") == (200, {"live": True, "reasons": []})
        assert probe("/readyz") == (200, {"ready": True, "reasons": []})
        assert httpx.get(gateway.url + "/metrics", headers={"host": "10.1.2.3"}).status_code == 421
        assert node.process is not None
        os.killpg(node.process.pid, signal.SIGSTOP)
        try:
            until(lambda: probe("/readyz")[0] == 503)
            assert probe("/livez")[0] == 200
        finally:
            os.killpg(node.process.pid, signal.SIGCONT)
        until(lambda: probe("/readyz")[0] == 200)
