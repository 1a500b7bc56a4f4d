"""Records of a batch that failed in the same way come again together. Each has its own
value and its own history.
"""

from collections import Counter

import pytest

from conftest import RunningNode
from gossipq_client import connect

RECORDS, FAILING = 300, 7
pytestmark = pytest.mark.e2e


def test_each_that_failed_comes_again_as_itself(node: RunningNode) -> None:
    came: dict[int, list[int]] = {}
    with connect(node.endpoint) as mq:
        mq.publish_many("again", [b"%d" % number for number in range(RECORDS)])
        done = 0
        for message in mq.consume("again", "g", backoff=[0.05]):
            assert message.value == b"%d" % message.offset
            came.setdefault(message.offset, []).append(message.attempt)
            fails = message.offset % FAILING == 0 and message.attempt < (3 if message.offset % 3 == 0 else 2)
            if fails:
                message.nack(reason=f"attempt {message.attempt}")
            else:
                message.ack_soon()
                done += 1
                if done == RECORDS:
                    break
        mq.flush(None)
        assert Counter(map(tuple, came.values())) == {
            (1,): RECORDS - len(range(0, RECORDS, FAILING)),
            (1, 2): len(range(0, RECORDS, FAILING)) - len(range(0, RECORDS, 3 * FAILING)),
            (1, 2, 3): len(range(0, RECORDS, 3 * FAILING)),
        }
        (group,) = mq.topic("again").groups()
        assert (group.acked, group.retrying, group.in_flight, group.unaccounted) == (RECORDS, 0, 0, 0)
        for offset in (0, 1, 6, 7, 14, 21, 295, 299):
            ended = [step.reason for step in mq.record("again", 0, offset).trace() if step.what == "failed"]
            assert ended == [f"attempt {n}" for n in range(1, len(came[offset]))]
            assert [each.state for each in mq.record("again", 0, offset).why().standings] == ["acked"]
