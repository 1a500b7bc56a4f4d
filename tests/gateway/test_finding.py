"""A search over HTTP that takes too long, with a fake client."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipq_gateway.problems import Refusal, problem
from gossipq_gateway.v1 import records, shapes


async def endless(topic: str, **options: object) -> AsyncIterator[Any]:
    await asyncio.sleep(60)
    yield None


def test_a_search_that_is_not_over_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """This does not count as a fault of the gateway."""
    monkeypatch.setattr(records, "FIND_S_MAX", 0.01)
    mq = SimpleNamespace(admin=SimpleNamespace(find=endless))
    call = SimpleNamespace(path={"topic": "orders"}, query=shapes.Find(), caller=SimpleNamespace(mq=mq))
    with pytest.raises(Refusal) as refused:
        asyncio.run(records.find(cast(Any, call)))
    said = problem(refused.value)
    assert (said.status, said.code) == (504, "too_slow")
    assert "start=" in said.hint
