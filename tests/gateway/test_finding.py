"""A search over HTTP that takes too long, with a fake client."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipq_gateway.problems import Refusal, problem
from gossipq_gateway.v1 import records, shapes


class Endless:
    """Stands for `mq.read(topic)`: the search finds nothing and does not end."""

    async def where(self, **options: object) -> AsyncIterator[Any]:
        await asyncio.sleep(60)
        yield None


def test_a_search_that_is_not_over_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """This does not count as a fault of the gateway."""
    monkeypatch.setattr(records, "FIND_S_MAX", 0.01)
    mq = SimpleNamespace(read=lambda topic, **options: Endless())
    call = SimpleNamespace(path={"topic": "orders"}, query=shapes.Find(), caller=SimpleNamespace(mq=mq))
    with pytest.raises(Refusal) as refused:
        asyncio.run(records.find(cast(Any, call)))
    said = problem(refused.value)
    assert (said.status, said.code) == (504, "too_slow")
    assert "start=" in said.hint
