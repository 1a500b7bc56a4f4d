"""Messages that many connections publish at the same moment go as one list; each
connection gets its own result.
"""

import asyncio
import logging
import uuid

import pytest

from conftest import RunningNode
from gossipq import limits
from gossipq.clock import SystemClock
from gossipq.errors import GossipqError
from gossipq_client.aio import connect
from gossipq_dialects.postbox import Postbox, Stored
from gossipq_gateway.counters import Metrics
from gossipq_gateway.dialect import Desk

pytestmark = pytest.mark.e2e


def test_one_that_is_too_large_harms_no_neighbour(shared_node: RunningNode) -> None:
    topic, told = f"t-{uuid.uuid4().hex[:8]}", dict[int, tuple[list[Stored], GossipqError | None]]()

    async def main() -> None:
        async with connect(shared_node.endpoint) as mq:
            box = Postbox(Desk(mq, SystemClock(), Metrics().of("test"), logging.getLogger("test")))
            values = [b"a", bytes(limits.VALUE_BYTES_MAX + 1), b"b"]
            for at, value in enumerate(values):
                box.put(topic, value, lambda stored, error, at=at: told.update({at: (stored, error)}))
            box.put(topic, b"c", lambda stored, error: told.update({3: (stored, error)}), key="k" * 5_000)
            box.put(topic, b"d", lambda stored, error: told.update({4: (stored, error)}), delay_s=0.1)
            await box.settled()

    asyncio.run(main())
    assert [told[at][0] for at in (0, 2)] == [[Stored(topic, 0, 0)], [Stored(topic, 0, 1)]]
    assert [told[at][1] is not None for at in range(5)] == [False, True, False, True, False]
    assert told[4][0] == [Stored(topic, 0, -1)]
