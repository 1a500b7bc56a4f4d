"""How long a group waits for a consumer that is gone, by a clock that the test passes in.

The successor is the next consumer of an exclusive group, or one that may get the keys. It gets the
records within 1.5 s of a broken connection, or 5 s after the last word of a silent consumer, as
soon as its worker looks.
"""

from array import array

import pytest

from core.harness import FakeWorker, client, single
from gossipq.limits import PING_MS, SECOND_MS, SESSION_SILENCE_MS
from gossipq.messages import Credit, Hello, Publish
from gossipq.types import KEY_HASH
from gossipq.values import GroupOptions, TopicOptions
from gossipq.wire import batch as batches
from gossipq_node.actors.sessions import Sessions

ADA, BOB = client("ada"), client("bob")
#: the bound, and the time between two looks of a worker for silent consumers
BROKEN_MS, LOOK_MS = 1_500, SECOND_MS


@pytest.fixture(params=["shared", "exclusive", "key_ordered"])
def house(request):
    """ada holds a record of a key; bob could get it."""
    worker, sessions = FakeWorker(), Sessions()
    partition = single(worker.topic("orders", TopicOptions()))
    for each in (ADA, BOB):
        sessions.greet((each.session,), Hello(each.session, "shop", "1"), worker.now.boot_ms)
        worker.subscribe(each, partition, records=0, config=GroupOptions(mode=request.param))
    worker.ask(1, ADA, Credit(1, 1, 10_000))
    worker.taken()
    keys = array("I", [7, 7])
    batch = bytes(batches.seal([b"a", b"b"], fixed={KEY_HASH: keys}))
    worker.turn(
        lambda: worker.take(1, (b"c", b"p"), 7, None, Publish(partition), batches.verify(batch), batch)
    )
    worker.seen += worker.effects.values()
    worker.tick(0)
    assert [row[:3] for row in worker.taken()] == [(ADA.session, 0, 1)]
    worker.ask(1, BOB, Credit(1, 10, 10_000))
    if request.param != "shared":
        assert worker.taken() == []
    worker.taken()
    return worker, sessions


def until_bob_has_it(worker, sessions, ended, step_ms):
    """Milliseconds until bob gets ada's records. bob keeps talking."""
    began_ms = worker.now.boot_ms
    for _ in range(100):
        worker.advance(step_ms)
        now_ms = worker.now.boot_ms
        sessions.get((BOB.session,), now_ms)
        for session in ended(now_ms):
            worker.seen += worker.turn(lambda s=session: worker.end_session(s, silent=True)).values()
        worker.seen += worker.turn().values()
        if any(row[:2] == (BOB.session, 0) for row in worker.taken()):
            return now_ms - began_ms
    raise AssertionError("nobody got it")


def test_after_a_broken_connection(house):
    worker, sessions = house
    sessions.silent(worker.now.boot_ms)
    sessions.lost((ADA.session,), worker.now.boot_ms)
    due_ms = sessions.next_deadline_ms()
    assert due_ms is not None
    assert due_ms - worker.now.boot_ms <= BROKEN_MS, "the worker wakes then, whatever comes"
    assert until_bob_has_it(worker, sessions, sessions.over, 100) <= BROKEN_MS


def test_after_silence(house):
    worker, sessions = house
    sessions.silent(worker.now.boot_ms)
    last_word_ms = worker.now.boot_ms
    sessions.get((ADA.session,), last_word_ms)
    waited_ms = until_bob_has_it(worker, sessions, sessions.silent, LOOK_MS)
    assert SESSION_SILENCE_MS <= waited_ms <= SESSION_SILENCE_MS + LOOK_MS
    assert PING_MS * 3 < SESSION_SILENCE_MS, "nobody is silent for want of one ping"
