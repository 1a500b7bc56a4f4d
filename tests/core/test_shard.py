"""A shard with its register, over memory tables: one example of each rule of the log path."""

import pytest
from msgspec import structs

from core.harness import WALL_MS, FakeWorker, client, single
from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.cursors import WINDOWS_PASSED_MAX
from gossipq.core.storage import TRIM, decode_row
from gossipq.messages import (
    Ack,
    Acked,
    AtEnd,
    CreateTopic,
    Credit,
    Done,
    DropTopic,
    Extend,
    Nack,
    ReadyMessage,
    Recall,
    Recalled,
    RefusedMessage,
    Requeue,
    Resolve,
    Started,
    Subscribed,
    Topics,
    Trace,
    Unsubscribe,
)
from gossipq.operator_messages import PurgeTopic, SeekGroup
from gossipq.peer_messages import InstallTopic
from gossipq.types import partition_key, topic_id_of
from gossipq.values import GroupOptions, Ref, Start, TopicOptions

ADA, BOB, EVE = client("ada"), client("bob"), client("eve")
PRODUCER = b"p" * 16


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic())


def stats(worker, partition):
    from core.harness import counters as shard_stats

    shard = worker.shards[1]
    partitions, groups = shard_stats(shard.ledger, shard.dispatch)
    return next(row for row in partitions if row.partition == partition), groups


# --- publish ------------------------------------------------------------------------------------------------


def test_a_publish_is_confirmed_with_its_offset_once_it_is_committed(worker, orders):
    assert worker.publish(orders, [b"a", b"b"]) == (7, 0, 1, False)
    assert worker.publish(orders, [b"c"]) == (7, 2, 1, False)


def test_nothing_is_sent_when_the_commit_fails_and_the_retry_is_stored_once(worker, orders):
    assert worker.publish(orders, [b"a"], PRODUCER, 1) == (7, 0, 1, False)
    assert worker.publish(orders, [b"b"], PRODUCER, 2, commit=False) is None
    assert worker.publish(orders, [b"b"], PRODUCER, 2) == (7, 1, 1, False)
    assert stats(worker, orders)[0].published == 2


def test_a_repeat_gets_its_old_offset_and_a_gap_is_refused_with_what_is_expected(worker, orders):
    for sequence in (1, 2, 3):
        worker.publish(orders, [b"x"], PRODUCER, sequence)
    assert worker.publish(orders, [b"x"], PRODUCER, 2) == (7, 1, 1, True)
    gap = worker.publish(orders, [b"x"], PRODUCER, 5)
    assert (gap.code, gap.detail) == ("out_of_sequence", 4)
    assert stats(worker, orders)[0].published == 3


def test_a_repeat_is_known_over_a_restart_but_not_beyond_the_window(worker, orders):
    for sequence in range(1, limits.PRODUCER_REPEATS + 3):
        worker.publish(orders, [b"x"], PRODUCER, sequence)
    worker.restart()
    last = limits.PRODUCER_REPEATS + 2
    assert worker.publish(orders, [b"x"], PRODUCER, last) == (7, last - 1, 1, True)
    assert worker.publish(orders, [b"x"], PRODUCER, 3) == (7, 2, 1, True)
    assert worker.publish(orders, [b"x"], PRODUCER, 2).code == "out_of_sequence"


def test_an_idle_producer_is_forgotten_after_a_day(worker, orders):
    worker.publish(orders, [b"x"], PRODUCER, 1)
    worker.publish(orders, [b"x"], PRODUCER, 2)
    worker.tick(26 * limits.HOUR_MS)
    worker.settle()
    assert worker.publish(orders, [b"x"], PRODUCER, 3).detail == 1


def test_level_none_gets_no_answer_and_is_readable_after_the_lazy_sync(worker, orders):
    assert worker.publish(orders, [b"x"], level="none") is None
    worker.subscribe(ADA, orders)
    assert [row[1:3] for row in worker.taken()] == [(0, 1)], "the group's entry synced the turn"
    worker.publish(orders, [b"y"], level="none")
    assert worker.taken() == []
    worker.tick(limits.LEASE_LOG_MS)
    assert [row[1:3] for row in worker.taken()] == [(1, 2)]


def test_level_none_may_be_lost_by_a_crash_and_nothing_else_is(worker, orders):
    worker.publish(orders, [b"kept"])
    worker.publish(orders, [b"risked"], level="none")
    worker.restart()
    assert stats(worker, orders)[0].published == 1


def test_a_full_store_refuses_what_is_new_and_answers_what_is_known(worker, orders):
    worker.publish(orders, [b"x"], PRODUCER, 1)
    worker.shards[1].desk.full = "the disk is full"
    assert worker.publish(orders, [b"y"], PRODUCER, 2).code == "store_full"
    assert worker.publish(orders, [b"x"], PRODUCER, 1) == (7, 0, 1, True)
    worker.shards[1].desk.full = ""
    assert worker.publish(orders, [b"y"], PRODUCER, 2) == (7, 1, 1, False)


def test_leader_time_follows_boot_time_not_the_wall_clock(worker, orders):
    worker.publish(orders, [b"x"])
    worker.advance(1_000, wall_ms=-3_600_000)
    worker.publish(orders, [b"y"])
    ledger = worker.shards[1].ledger
    assert ledger.slices.at(orders, 1).time_ms - ledger.slices.at(orders, 0).time_ms == 1_000


# --- topics -------------------------------------------------------------------------------------------------


def test_topics_appear_on_first_use_and_keep_their_shards(worker):
    answer = worker.ask(0, ADA, Resolve(["orders"], create=True))
    assert answer.topics[0].name == "orders"
    assert worker.ask(0, ADA, Resolve(["orders", "nope"])) == answer
    worker.restart()
    assert worker.ask(0, ADA, Resolve(["ord*"])) == answer


def test_creating_twice_is_refused_unless_that_is_fine(worker):
    worker.topic("orders")
    assert worker.ask(0, ADA, CreateTopic("orders")).code == "topic_exists"
    assert isinstance(worker.ask(0, ADA, CreateTopic("orders", if_not_exists=True)), Topics)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, "x" * 300, "..", "a b", "é", "or*ders"])
def test_bad_names_are_refused_by_name(worker, name):
    assert worker.ask(0, ADA, CreateTopic(name)).code == "bad_name"


@pytest.mark.parametrize(
    "config", [TopicOptions(partitions=0), TopicOptions(retain="never"), TopicOptions(bytes_max=-1)]
)
def test_bad_policies_are_refused(worker, config):
    assert worker.ask(0, ADA, CreateTopic("t", config)).code == "bad_request"


def test_a_topic_beside_another_lies_in_its_shards(worker):
    orders = worker.topic("orders")
    assert worker.topic("results", TopicOptions(beside="orders")).shards == orders.shards
    assert worker.ask(0, ADA, CreateTopic("t", TopicOptions(beside="nope"))).code == "unknown_topic"


def test_a_removed_topic_takes_its_rows_along_and_its_name_starts_over(worker, orders):
    worker.publish(orders, [b"x"] * 5)
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 2)]))
    assert worker.ask(0, ADA, DropTopic("orders")) == Topics([])
    assert worker.publish(orders, [b"y"]).code == "unknown_topic"
    again = single(worker.topic("orders"))
    assert again != orders
    assert worker.publish(again, [b"y"]) == (7, 0, 1, False)
    worker.settle()
    left = [
        key
        for key in worker.tables[1].state.keys
        if key[:1] in b"POCASD" and key[1:9] == records.U64.pack(orders)
    ]
    assert left == []


def test_removing_what_is_not_there_is_refused(worker):
    assert worker.ask(0, ADA, DropTopic("orders")).code == "unknown_topic"


def test_a_shard_that_missed_a_topic_asks_the_register(worker, orders):
    shard = worker.shards[1]
    info = shard.ledger.topics.pop(next(iter(shard.ledger.topics)))
    del shard.ledger.partitions[orders]
    refused = worker.publish(orders, [b"x"])
    assert (refused.code, refused.retry_after_ms > 0) == ("busy", True)
    assert worker.publish(orders, [b"x"]) == (7, 0, 1, False)
    assert shard.ledger.topics[info.id] == info


# --- consume ------------------------------------------------------------------------------------------------


def test_records_are_handed_out_against_credit_and_acked_once(worker, orders):
    worker.publish(orders, [b"x"] * 10)
    assert isinstance(worker.subscribe(ADA, orders, records=4), Subscribed)
    assert worker.taken() == [(ADA.session, 0, 4, 1)]
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 4)])) == Acked()
    worker.ask(1, ADA, Credit(1, 100, limits.MIB))
    assert worker.taken() == [(ADA.session, 4, 10, 1)]
    _, groups = stats(worker, orders)
    assert (groups[0].cursor, groups[0].in_flight, groups[0].ready, groups[0].acked) == (4, 6, 0, 4)


def test_acks_survive_a_restart_and_say_when_and_by_whom(worker, orders):
    worker.publish(orders, [b"x"] * 10)
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 2, 5)]))
    worker.restart()
    group_id = worker.shards[1].ledger.group_ids[topic_id_of(orders), "billing"]
    row = worker.tables[1].state.get(records.ack_key(orders, group_id, 2))
    assert b"ada" in row
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.taken()
    worker.subscribe(BOB, orders)
    assert [row[1:3] for row in worker.taken()] == [(0, 2), (5, 10)]


def test_records_come_again_when_their_lease_ends(worker, orders):
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders, records=3)
    worker.taken()
    worker.subscribe(BOB, orders)
    worker.tick(limits.LEASE_MS - 1)
    assert worker.taken() == []
    worker.tick(1)
    assert sorted(worker.taken()) == [(BOB.session, 0, 3, 1)]


def test_records_come_again_at_once_when_their_session_ends(worker, orders):
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders)
    worker.subscribe(BOB, orders)
    worker.taken()
    worker.seen += worker.turn(lambda: worker.end_session(ADA.session)).values()
    assert worker.taken() == [(BOB.session, 0, 3, 1)]


def test_a_lease_is_honoured_over_a_restart_once_it_was_logged(worker, orders):
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders)
    worker.settle()
    worker.restart()
    assert worker.held == {ADA.session}
    worker.taken()
    worker.subscribe(BOB, orders)
    assert worker.taken() == []
    worker.tick(limits.LEASE_MS)
    assert worker.taken() == [(BOB.session, 0, 3, 1)]


def test_the_last_holder_may_ack_after_a_restart_that_forgot_the_lease(worker, orders):
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders)
    worker.restart()
    worker.taken()
    worker.subscribe(ADA, orders, records=0)
    assert worker.ask(1, ADA, Ack(1, [(orders, 1, 3)])) == Acked()
    worker.subscribe(BOB, orders)
    assert worker.taken() == [(BOB.session, 0, 1, 1)]


def test_a_late_ack_is_lost_when_somebody_else_holds_the_record(worker, orders):
    worker.publish(orders, [b"x"] * 4)
    worker.subscribe(ADA, orders)
    worker.tick(limits.LEASE_MS)
    worker.taken()
    worker.subscribe(BOB, orders, records=0)
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 1)])) == Acked(), "it came back to ada"
    worker.tick(limits.LEASE_MS)
    worker.turn(lambda: worker.shards[1].dispatch.unsubscribe((ADA.session, 1)))
    worker.ask(1, BOB, Credit(1, 2, limits.MIB))
    worker.subscribe(ADA, orders, records=0)
    assert worker.ask(1, ADA, Ack(1, [(orders, 1, 4)])) == Acked([(orders, 1, 3)])
    assert stats(worker, orders)[1][0].acked == 2


def test_after_a_lost_connection_only_what_the_client_has_stays_its_own(worker, orders):
    worker.publish(orders, [b"x"] * 6)
    worker.subscribe(ADA, orders, records=4)
    worker.taken()
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 1, 2)])
    worker.subscribe(BOB, orders)
    assert worker.taken() == [(BOB.session, 0, 1, 1), (BOB.session, 2, 4, 1), (BOB.session, 4, 6, 1)]
    assert worker.ask(1, ADA, Ack(1, [(orders, 1, 2)])) == Acked()


def test_what_a_client_holds_is_its_own_also_when_the_leader_forgot_it(worker, orders):
    worker.publish(orders, [b"x"] * 6)
    worker.subscribe(ADA, orders, records=4)
    worker.restart()
    worker.taken()
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 0, 1), (orders, 2, 4)])
    worker.subscribe(BOB, orders)
    assert worker.taken() == [(BOB.session, 1, 2, 1), (BOB.session, 4, 6, 1)]
    worker.tick(limits.LEASE_MS)
    assert [row[1:] for row in sorted(worker.taken())][:2] == [(0, 1, 1), (1, 2, 1)]


def test_acking_twice_counts_once(worker, orders):
    worker.publish(orders, [b"x"] * 4)
    worker.subscribe(ADA, orders)
    for _ in range(2):
        assert worker.ask(1, ADA, Ack(1, [(orders, 0, 3)])) == Acked()
    assert stats(worker, orders)[1][0].acked == 3


def test_given_back_records_come_again_after_the_pause(worker, orders):
    worker.publish(orders, [b"x"] * 4)
    worker.subscribe(ADA, orders)
    worker.taken()
    worker.ask(1, ADA, Nack(1, [(orders, 1, 2)], delay_ms=1_000))
    worker.ask(1, ADA, Nack(1, [(orders, 3, 4)], failed=False))
    assert worker.taken() == [(ADA.session, 3, 4, 1)]
    worker.tick(1_000)
    assert worker.taken() == [(ADA.session, 1, 2, 2)]


def test_what_is_held_longer_is_not_handed_out_again(worker, orders):
    """Neither the group's counter nor the records' traces count an extended
    lease as another delivery.
    """
    partition = single(worker.topic("traced", TopicOptions(trace="all")))
    worker.publish(partition, [b"x"] * 4)
    for who in (BOB, ADA):
        worker.subscribe(who, partition)
        worker.turn(lambda who=who: worker.step(1, (b"c", b"1"), 3, who, Started(1, [(partition, 0, 4)])))
        worker.settle()
        worker.turn(lambda: worker.end_session(BOB.session))
    for _ in range(5):
        worker.advance(limits.LEASE_MS // 2)
        assert worker.ask(1, ADA, Extend(1, [(partition, 0, 4)], limits.LEASE_MS)) == Acked()
        worker.settle()
        (group,) = stats(worker, partition)[1]
        assert group.redelivered == 4, "bob had them before"
    steps = worker.ask(1, ADA, Trace(Ref(partition, 2))).steps
    told = [(step.consumer, step.attempt) for step in steps if step.what == "handed_out"]
    assert told == [("bob", 1), ("ada", 2)]


@pytest.mark.parametrize("lasting", [False, True], ids=["short", "logged"])
def test_what_comes_again_is_counted_whether_its_lease_was_logged_or_not(worker, orders, lasting):
    """Three records: one is acked at once, one at the third attempt, and
    one is dead after the third.
    """

    def hold() -> None:
        if lasting:
            worker.advance(2 * limits.LEASE_LOG_MS)
            worker.settle()

    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders)
    hold()
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    for _ in range(2):
        worker.ask(1, ADA, Nack(1, [(orders, 1, 3)], delay_ms=100))
        worker.tick(100)
        hold()
    worker.ask(1, ADA, Ack(1, [(orders, 1, 2)]))
    worker.ask(1, ADA, Nack(1, [(orders, 2, 3)], dead="rejected"))
    worker.settle()
    (group,) = stats(worker, orders)[1]
    assert (group.redelivered, group.dead) == (4, 1)


def test_an_extended_lease_holds_longer_but_not_for_ever(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.subscribe(BOB, orders)
    worker.taken()
    worker.advance(20_000)
    assert worker.ask(1, ADA, Extend(1, [(orders, 0, 1)], 30_000)) == Acked()
    worker.tick(29_999)
    assert worker.taken() == []
    worker.tick(1)
    assert worker.taken()[0][1:] == (0, 1, 1)
    assert worker.ask(1, ADA, Extend(1, [(orders, 5, 6)], 30_000)) == Acked([(orders, 5, 6)])


def test_the_longest_hold_ends_whatever_is_extended(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.taken()
    worker.ask(1, ADA, Extend(1, [(orders, 0, 1)], 2 * limits.LEASE_TOTAL_MS_MAX))
    worker.tick(limits.LEASE_TOTAL_MS_MAX)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]


def test_members_share_a_small_rest(worker, orders):
    worker.subscribe(ADA, orders)
    worker.subscribe(BOB, orders)
    worker.publish(orders, [b"x"] * 10)
    rows = worker.taken()
    assert {
        session: sum(end - first for s, first, end, _ in rows if s == session)
        for session in (ADA.session, BOB.session)
    } == {
        ADA.session: 6,
        BOB.session: 4,
    }


def test_the_window_bounds_what_is_open_above_the_cursor(worker, orders):
    worker.publish(orders, [b"x"] * 30)
    worker.subscribe(ADA, orders, config=GroupOptions(in_flight_max=10))
    assert worker.taken() == [(ADA.session, 0, 10, 1)]
    worker.ask(1, ADA, Ack(1, [(orders, 5, 10)]))
    assert worker.taken() == [(ADA.session, 10, 15, 1)]
    worker.ask(1, ADA, Ack(1, [(orders, 0, 5)]))
    assert worker.taken() == [(ADA.session, 15, 20, 1)]


def test_nobody_waits_for_who_holds_the_first_record(worker, orders):
    """A killed consumer holds the record. Until that is noticed, the other records continue."""
    for _ in range(20):
        worker.publish(orders, [b"x"] * 30)
    worker.subscribe(EVE, orders, records=3, config=GroupOptions(in_flight_max=10))
    assert worker.taken() == [(EVE.session, 0, 3, 1)]
    worker.subscribe(ADA, orders, config=GroupOptions(in_flight_max=10))
    done = 3
    while rows := worker.taken():
        assert sum(end - first for _, first, end, _ in rows) <= 7, "with what the dead one holds, a window"
        done = rows[-1][2]
        worker.ask(1, ADA, Ack(1, [(orders, first, end) for _, first, end, _ in rows]))
    assert done == 600


def test_so_many_windows_are_between_the_first_open_record_and_the_last(worker, orders):
    for _ in range(30):
        worker.publish(orders, [b"x"] * 30)
    worker.subscribe(EVE, orders, records=3, config=GroupOptions(in_flight_max=10))
    worker.subscribe(ADA, orders, config=GroupOptions(in_flight_max=10))
    worker.taken()
    end = 10
    worker.ask(1, ADA, Ack(1, [(orders, 3, 10)]))
    while rows := worker.taken():
        end = rows[-1][2]
        worker.ask(1, ADA, Ack(1, [(orders, first, stop) for _, first, stop, _ in rows]))
    assert end == 10 + WINDOWS_PASSED_MAX * 10
    worker.ask(1, EVE, Ack(1, [(orders, 0, 3)]))
    assert worker.taken()[0][1] == end


def test_byte_credit_lets_one_record_through_however_large(worker, orders):
    worker.publish(orders, [b"x" * 1_000] * 3)
    worker.subscribe(ADA, orders, records=0)
    worker.ask(1, ADA, Recall(1))
    worker.ask(1, ADA, Credit(1, 10, 1))
    assert worker.taken() == [(ADA.session, 0, 1, 1)]


def test_credit_can_be_recalled_and_want_of_it_is_said(worker, orders):
    worker.subscribe(ADA, orders, records=5)
    answer = worker.ask(1, ADA, Recall(1))
    assert answer == Recalled(1, 5, limits.CREDIT_BYTES)
    worker.publish(orders, [b"x"])
    notices = [message for effects in worker.seen for _, message in effects.notices]
    assert ReadyMessage(1) in notices
    assert worker.taken() == []


def test_unsubscribing_gives_everything_back(worker, orders):
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders)
    worker.subscribe(BOB, orders)
    worker.taken()
    assert worker.ask(1, ADA, Unsubscribe(1)) == Acked()
    assert worker.taken() == [(BOB.session, 0, 3, 1)]


def test_two_groups_each_see_everything(worker, orders):
    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(ADA, orders, group="billing")
    worker.subscribe(BOB, orders, group="mail")
    assert worker.taken() == [(ADA.session, 0, 3, 1), (BOB.session, 0, 3, 1)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Start(0, "first"), [(0, 4)]),
        (Start(0, "new"), []),
        (Start(0, "offset", 3), [(3, 4)]),
        (Start(0, "time", WALL_MS + 5_000), [(2, 4)]),
        (Start(0, "time", WALL_MS + 60_000), []),
        (Start(0, "time", 0), [(0, 4)]),
    ],
)
@pytest.mark.parametrize("group", ["", "billing"])
def test_where_readers_and_new_groups_start(worker, orders, start, expected, group):
    worker.publish(orders, [b"x"] * 2)
    worker.advance(5_000)
    worker.publish(orders, [b"y"] * 2)
    worker.taken()
    worker.subscribe(ADA, orders, group=group, start=Start(orders, start.kind, start.value))
    rows = [(first, end) for _, first, end, _ in worker.taken()]
    assert [o for a, b in rows for o in range(a, b)] == [o for a, b in expected for o in range(a, b)]
    worker.publish(orders, [b"z"])
    assert [row[1:3] for row in worker.taken()] == [(4, 5)]


def test_an_offset_that_cannot_be_read_is_refused_with_what_can(worker, orders):
    worker.publish(orders, [b"x"] * 2)
    refused = worker.subscribe(ADA, orders, group="", start=Start(orders, "offset", 3))
    assert (refused.code, refused.hint) == ("offset_out_of_range", "0 to 2 can")


def test_the_end_is_said_each_time_it_is_reached(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders, group="", notify_end=True, start=Start(orders, "first"))
    worker.publish(orders, [b"y"])
    notices = [
        message for effects in worker.seen for _, message in effects.notices if isinstance(message, AtEnd)
    ]
    assert notices == [AtEnd(1, [(orders, 1, 1)]), AtEnd(1, [(orders, 2, 2)])]


def test_what_a_readers_connection_did_not_take_is_read_again(worker, orders):
    worker.publish(orders, [b"x"] * 4)
    worker.subscribe(ADA, orders, group="", start=Start(orders, "first"))
    (delivery,) = worker.seen[-1].deliveries
    worker.shards[1].dispatch.undelivered(delivery)
    worker.taken()
    worker.ask(1, ADA, Credit(1, 1, limits.MIB), origin=(b"c", ADA.session))
    assert worker.taken() == [(ADA.session, 0, 4, 1)]


def test_a_delivery_that_was_not_taken_is_found_without_a_look_at_all_readers(worker, orders):
    """When thousands of readers disconnect, each costs one step."""
    worker.publish(orders, [b"x"])
    for number in range(1, 4):
        worker.subscribe(ADA, orders, number=number, group="", start=Start(orders, "first"))
    deliveries = [delivery for effects in worker.seen for delivery in effects.deliveries]
    dispatch = worker.shards[1].dispatch

    class Looked(dict):
        def values(self):
            raise AssertionError("all subscriptions were looked at")

    dispatch.subscriptions = Looked(dispatch.subscriptions)
    for delivery in deliveries:
        dispatch.undelivered(delivery)
    assert {reader.number for reader in dispatch._dirty_readers} == {1, 2, 3}


def test_a_delivery_that_was_not_taken_costs_no_credit(worker, orders):
    worker.publish(orders, [b"x"] * 4)
    worker.subscribe(ADA, orders, group="", records=4, start=Start(orders, "first"))
    (delivery,) = worker.seen[-1].deliveries
    worker.shards[1].dispatch.undelivered(delivery)
    worker.taken()
    worker.tick(1)
    assert worker.taken() == [(ADA.session, 0, 4, 1)], "all its credit was in what was lost"


def test_readers_cannot_ack_and_strangers_cannot_do_anything(worker, orders):
    worker.subscribe(ADA, orders, group="")
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 1)])).code == "bad_request"
    assert worker.ask(1, BOB, Ack(1, [(orders, 0, 1)])).code == "no_subscription"
    assert isinstance(worker.ask(1, ADA, Credit(1, -1, 0)), RefusedMessage)
    assert worker.subscribe(ADA, orders, config=GroupOptions(mode="magic")).code == "bad_request"
    assert worker.subscribe(ADA, partition_key(999, 0)).code == "busy"


# --- retention ----------------------------------------------------------------------------------------------


def retained(worker, partition):
    worker.tick(1_000)
    worker.settle()
    return stats(worker, partition)[0]


def test_age_removes_what_every_group_has_acked(worker):
    orders = single(worker.topic("orders", TopicOptions(retention_ms=10_000)))
    worker.publish(orders, [b"x"] * 4)
    worker.publish(orders, [b"y"] * 4)
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 6)]))
    assert retained(worker, orders).first == 0
    worker.tick(10_000)
    row = retained(worker, orders)
    assert (row.first, row.removed, row.published) == (4, 4, 8)
    worker.settle()
    assert len(worker.tables[1].body.keys) == 1


def test_nothing_leaves_at_once_while_no_group_could_have_acked_it(worker):
    orders = single(worker.topic("orders", TopicOptions(retention_ms=0)))
    worker.publish(orders, [b"x"])
    assert retained(worker, orders).removed == 0
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    assert retained(worker, orders).removed == 1
    worker.publish(single(worker.topic("old", TopicOptions(retention_ms=10_000))), [b"x"], shard=1)
    worker.tick(10_000)
    assert retained(worker, partition_key(worker.shards[0].ledger.cluster.names["old"].id, 0)).removed == 1


def test_a_group_that_is_about_to_begin_keeps_what_is_old(worker):
    orders = single(worker.topic("orders", TopicOptions(retention_ms=10_000)))
    worker.publish(orders, [b"x"] * 4)
    worker.advance(20_000)
    worker.subscribe(ADA, orders)  # its entry is in the log but not applied when retention looks
    worker.tick(2_000)
    assert retained(worker, orders).removed == 0
    assert sum(end - first for _, first, end, _ in worker.taken()) == 4
    worker.ask(1, ADA, Ack(1, [(orders, 0, 4)]))
    assert retained(worker, orders).removed == 4


def old_and_acked(worker):
    """Two batches that are older than the topic keeps them, and a group that has acked all of
    them and has no consumers.
    """
    orders = single(worker.topic("orders", TopicOptions(retention_ms=10_000)))
    for value in (b"x", b"y"):
        worker.publish(orders, [value] * 4)
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 8)]))
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.taken()
    worker.advance(20_000)
    return orders


@pytest.mark.parametrize("kind", ["requeue", "seek", "longer"])
def test_what_is_about_to_be_needed_again_stays(worker, kind):
    """The entry is in the log but not applied when retention looks."""
    orders = old_and_acked(worker)
    topic = worker.shards[1].ledger.topics[topic_id_of(orders)]
    longer = structs.replace(
        topic, version=topic.version + 1, config=structs.replace(topic.config, retention_ms=limits.DAY_MS)
    )
    worker.turn(
        lambda: worker.step(
            1,
            (b"c", b"1"),
            1,
            BOB,
            {
                "requeue": Requeue(Ref(orders, 1), "billing"),
                "seek": SeekGroup(topic.id, "billing", [Start(orders, "first")]),
                "longer": InstallTopic(longer),
            }[kind],
        )
    )
    assert retained(worker, orders).first == 0
    worker.subscribe(ADA, orders)
    came = [offset for _, first, end, _ in worker.taken() for offset in range(first, end)]
    assert came == {"requeue": [1], "seek": list(range(8)), "longer": []}[kind]


def test_one_trim_of_a_partition_is_under_way(worker):
    """A second trim would be the same; other partitions do not wait for it."""
    orders = old_and_acked(worker)
    other = single(worker.topic("other", TopicOptions(retention_ms=10_000)))
    worker.publish(other, [b"x"])
    worker.advance(20_000)
    worker.ask(1, BOB, PurgeTopic(orders, 8))
    assert retained(worker, orders).first == 8
    assert retained(worker, other).first == 1
    rows = worker.tables[1].log.scan(bytes(8), b"\xff" * 8)
    assert [decode_row(0, row).kind for _, row in rows].count(TRIM) == 2


def test_who_requeues_all_the_time_does_not_hold_up_retention(worker):
    """Each look finds an entry that is not applied. Retention keeps what that
    entry needs, and no more.
    """
    orders = old_and_acked(worker)
    for _ in range(40):
        assert isinstance(worker.ask(1, BOB, Requeue(Ref(orders, 6), "billing")), Done)
        worker.subscribe(ADA, orders)
        worker.ask(1, ADA, Ack(1, [(orders, 6, 7)]))
        worker.turn(lambda: worker.end_session(ADA.session))
        worker.advance(100)
    assert stats(worker, orders)[0].first == 4


def test_forever_means_forever(worker):
    orders = single(worker.topic("orders", TopicOptions(retention_ms=0, retain="forever")))
    worker.publish(orders, [b"x"])
    worker.tick(limits.DAY_MS)
    assert retained(worker, orders).removed == 0


def test_a_full_topic_refuses_until_something_is_acked(worker):
    orders = single(worker.topic("orders", TopicOptions(bytes_max=10_000)))
    worker.subscribe(ADA, orders, records=100)
    while not isinstance(answer := worker.publish(orders, [b"x" * 1_000]), RefusedMessage):
        pass
    assert answer.code == "topic_full"
    worker.ask(1, ADA, Ack(1, [(orders, 0, 3)]))
    retained(worker, orders)
    assert worker.publish(orders, [b"x" * 1_000])[3] is False


@pytest.mark.parametrize("size", [1_000, 4_000])
def test_nobody_hears_that_a_topic_is_full_whose_records_are_all_done(worker, size):
    """Not even for a batch that is larger than the space that a trim keeps free."""
    orders = single(worker.topic("orders", TopicOptions(bytes_max=10_000, retention_ms=limits.DAY_MS)))
    worker.subscribe(ADA, orders, records=1_000)
    stored = 0
    for _ in range(60):
        answer = worker.publish(orders, [b"x" * size])
        if isinstance(answer, RefusedMessage):
            assert answer.code == "busy"
            worker.tick(answer.retry_after_ms)
        else:
            worker.ask(1, ADA, Ack(1, [(orders, stored, stored + 1)]))
            stored += 1
    assert stored >= 30
    assert worker.publish(orders, [b"x" * 20_000]).code == "topic_full"


def test_a_full_topic_may_drop_its_oldest_and_counts_it_per_group(worker):
    orders = single(worker.topic("orders", TopicOptions(bytes_max=10_000, overflow="drop_oldest")))
    worker.subscribe(ADA, orders, records=2)
    for _ in range(30):
        assert not isinstance(worker.publish(orders, [b"x" * 1_000]), RefusedMessage)
        worker.tick(limits.LEASE_LOG_MS)
    row = retained(worker, orders)
    _, groups = stats(worker, orders)
    assert row.removed > 15
    assert groups[0].removed == row.removed
    assert row.published == row.removed + groups[0].ready + groups[0].in_flight + groups[0].acked


def test_swept_log_rows_do_not_stop_a_restart(worker, orders):
    for _ in range(1_500):
        worker.publish(orders, [b"x"])
    worker.settle()
    assert len(worker.tables[1].log.keys) < 1_300
    worker.restart()
    assert stats(worker, orders)[0].published == 1_500
    assert worker.publish(orders, [b"x"]) == (7, 1_500, 1, False)
