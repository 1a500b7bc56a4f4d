"""A record that takes its line longer than a connection may be silent."""

import os

import pytest

from bindings.fake import PUBLISH, FakeNode
from gossipq_client import connect
from gossipq_client.session.connections import SILENCE_MS
from slow_line import SlowLine

BYTES, BYTES_S = 2_000_000, 450_000


@pytest.mark.e2e
def test_a_large_record_arrives_over_the_first_connection_though_pings_wait_behind_it() -> None:
    assert BYTES / BYTES_S > 1.3 * SILENCE_MS / 1_000
    with FakeNode() as node, SlowLine(int(node.endpoint.rpartition(":")[2]), BYTES_S) as line:
        with connect(line.endpoint) as mq:
            mq.publish("t", os.urandom(BYTES))
        assert line.connections == 1
        assert node.verbs().count(PUBLISH) == 1
