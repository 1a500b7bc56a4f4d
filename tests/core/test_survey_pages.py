"""Pages of answers to an export fit a frame, in whatever language errors and names are written."""

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.export_messages import AckRuns, ListAcks, ListStates, States
from gossipq.messages import Ack, Nack, Subscribe
from gossipq.values import Start, TopicOptions
from gossipq.wire.frames import decode, encode


def test_states_with_long_errors_of_wide_letters() -> None:
    worker, ada, count = FakeWorker(), client("ada"), 1_000
    orders = single(worker.topic("orders", TopicOptions(backoff_ms=[60_000], attempts_max=10)))
    worker.publish(orders, [b"x"] * count)
    worker.subscribe(ada, orders, "a", records=count)
    worker.turn()
    for first in range(count):
        worker.ask(1, ada, Nack(1, [(orders, first, first + 1)], reason=f"{first} " + "错" * 700))
    worker.turn()
    found, group_id, offset = 0, 0, 0
    while group_id >= 0:
        page = worker.ask(1, ada, ListStates(orders, group_id, offset))
        assert isinstance(page, States)
        decode(encode(page))
        found += sum(run.end - run.first for run in page.runs)
        group_id, offset = page.more_group_id, page.more_offset
    assert found == count


def test_acks_of_names_of_wide_letters() -> None:
    worker, count = FakeWorker(), 4_000
    ada = client("ada")
    wide = type(ada)(ada.session, "🐘" * 64)
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"x"] * (2 * count))
    group = "🦒" * (limits.NAME_BYTES_MAX // 4)
    worker.subscribe(wide, orders, group, records=2 * count)
    worker.turn()
    ranges = [(orders, first, first + 1) for first in range(0, 2 * count, 2)]
    worker.ask(1, wide, Ack(1, ranges))
    worker.turn()
    page = worker.ask(1, wide, ListAcks(orders))
    assert isinstance(page, AckRuns)
    decode(encode(page))


def test_what_was_given_back_and_waits_for_its_route_is_not_in_flight() -> None:
    """The record stayed "in flight" for good, and the next leader waited for the end
    of a lease that was over.
    """
    worker, ada, bob = FakeWorker(), client("ada"), client("bob")
    orders = single(worker.topic("orders"))
    worker.publish(orders, [b"x"] * 2)
    worker.subscribe(ada, orders)
    worker.settle()
    only_eu = Subscribe(1, "billing", [Start(orders)], 10, limits.MIB, routes=["eu"])
    worker.ask(1, bob, only_eu, 2, (b"c", bob.session))
    worker.turn(lambda: worker.end_session(ada.session))
    worker.settle()
    page = worker.ask(1, bob, ListStates(orders))
    assert isinstance(page, States)
    assert [(run.state, run.first, run.end) for run in page.runs] == [("ready", 0, 2)]
    worker.restart()
    worker.taken()
    worker.subscribe(ada, orders)
    assert worker.taken() == [(ada.session, 0, 2, 1)], "no attempt has begun"
