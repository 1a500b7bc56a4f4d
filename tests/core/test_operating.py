"""Operators' changes of whole topics and groups: each rule once, and with
processes killed in between.
"""

import pytest

from core.harness import FakeWorker, client, single
from core.harness import counters as stats
from gossipq import limits
from gossipq.messages import (
    Ack,
    Done,
    Nack,
    RefusedMessage,
    Requeue,
    SetGroup,
    Subscribe,
    Topics,
    Unsubscribe,
    Why,
)
from gossipq.operator_messages import (
    DropGroup,
    GroupShown,
    PurgeTopic,
    SeekGroup,
    SetTopic,
    ShowGroup,
    Sought,
)
from gossipq.types import partition_key, topic_id_of
from gossipq.values import GroupConfig, GroupOptions, Ref, SoughtRow, Start, TopicOptions

ADA, BOB = client("ada"), client("bob")


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions(backoff_ms=[500], attempts_max=1)))


def group_of(worker, name="billing"):
    rows = stats(worker.shards[1].ledger, worker.shards[1].dispatch)[1]
    return next((row for row in rows if row.group == name), None)


def leave(worker, who):
    worker.turn(lambda: worker.end_session(who.session))


def seek(worker, partition, start, dry_run=False):
    return worker.ask(1, ADA, SeekGroup(topic_id_of(partition), "billing", [start], dry_run))


def ten_records_seven_done(worker, partition):
    for sequence in range(1, 6):
        worker.publish(partition, [b"x", b"y"], b"p" * 16, sequence)
    worker.subscribe(ADA, partition)
    worker.taken()
    worker.ask(1, ADA, Ack(1, [(partition, 0, 6), (partition, 8, 9)]))
    leave(worker, ADA)
    worker.settle()


# --- seek


def test_seek_hands_out_again_what_was_done(worker, orders):
    ten_records_seven_done(worker, orders)
    assert seek(worker, orders, Start(orders, "offset", 4), dry_run=True) == Sought(
        [SoughtRow(orders, 6, 4, 3, 0)]
    )
    assert group_of(worker).acked == 7, "a dry run changes nothing"
    assert seek(worker, orders, Start(orders, "offset", 4)) == Sought([SoughtRow(orders, 6, 4, 3, 0)])
    row = group_of(worker)
    assert (row.cursor, row.ready, row.acked, row.unaccounted) == (4, 6, 0, 0)
    worker.subscribe(BOB, orders)
    assert [(first, end, attempt) for _, first, end, attempt in worker.taken()] == [
        (4, 6, 1),
        (6, 8, 1),
        (8, 10, 1),
    ]


@pytest.mark.parametrize(
    ("start", "after", "again", "skipped"),
    [
        (("first", 0), 0, 7, 0),
        (("new", 0), 10, 0, 3),
        (("offset", 7), 7, 1, 1),
        (("time", 0), 0, 7, 0),
        (("time", 2**50), 10, 0, 3),
    ],
)
def test_seek_goes_anywhere_that_can_be_read(worker, orders, start, after, again, skipped):
    ten_records_seven_done(worker, orders)
    assert seek(worker, orders, Start(orders, *start)) == Sought(
        [SoughtRow(orders, 6, after, again, skipped)]
    )
    row = group_of(worker)
    assert (row.cursor, row.ready, row.unaccounted) == (after, 10 - after, 0)


def test_a_seek_is_stored_over_a_restart_and_a_failed_commit_changes_nothing(worker, orders):
    ten_records_seven_done(worker, orders)
    message = SeekGroup(topic_id_of(orders), "billing", [Start(orders, "first")])
    worker.turn(lambda: worker.step(1, (b"c", b"1"), 1, ADA, message), commit=False)
    assert group_of(worker).acked == 7
    worker.ask(1, ADA, message)
    worker.restart()
    assert (group_of(worker).cursor, group_of(worker).ready) == (0, 10)


def test_a_group_with_consumers_is_not_moved(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    refused = seek(worker, orders, Start(orders, "first"))
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.message) == ("wrong_state", "group billing has 1 consumer")
    assert refused.hint == "stop it before moving the group"


def test_records_that_a_lost_session_holds_keep_the_group_where_it_is(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.settle()
    worker.restart()
    refused = seek(worker, orders, Start(orders, "first"))
    assert isinstance(refused, RefusedMessage)
    assert refused.message == "a consumer holds 1 record of group billing"


def test_a_seek_that_would_lose_dead_letters_is_refused(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)]))
    leave(worker, ADA)
    refused = seek(worker, orders, Start(orders, "first"))
    assert isinstance(refused, RefusedMessage)
    assert refused.message == "group billing has 1 dead letter, which moving the group would lose"
    assert "gossipq dlq replay orders -g billing" in refused.hint


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (("offset", 11), "offset_out_of_range"),
        (("offset", -1), "offset_out_of_range"),
        (("noon", 0), "bad_request"),
    ],
)
def test_a_bad_place_is_refused(worker, orders, start, code):
    ten_records_seven_done(worker, orders)
    assert seek(worker, orders, Start(orders, *start)).code == code


def test_a_seek_names_every_partition_once(worker, orders):
    ten_records_seven_done(worker, orders)
    for starts in ([], [Start(orders), Start(orders)], [Start(orders + 1)]):
        refused = worker.ask(1, ADA, SeekGroup(topic_id_of(orders), "billing", starts))
        assert refused.code == "bad_request"
    assert worker.ask(1, ADA, SeekGroup(topic_id_of(orders), "nobody", [Start(orders)])).code == "bad_request"


def test_retrying_records_and_their_rows_go_with_a_seek(worker, orders):
    worker.topic("mails", TopicOptions(backoff_ms=[3_600_000], beside="orders"))
    mails = next(
        p for p, s in worker.shards[1].ledger.partitions.items() if s.topic_id != topic_id_of(orders)
    )
    worker.publish(mails, [b"x", b"y", b"z"])
    worker.subscribe(ADA, mails)
    worker.ask(1, ADA, Nack(1, [(mails, 1, 2)]))
    leave(worker, ADA)
    assert group_of(worker).retrying == 1
    sought = worker.ask(1, ADA, SeekGroup(topic_id_of(mails), "billing", [Start(mails, "first")]))
    assert sought == Sought([SoughtRow(mails, 0, 0, 0, 0)])
    row = group_of(worker)
    assert (row.ready, row.retrying, row.unaccounted) == (3, 0, 0)
    worker.settle()
    worker.settle()
    left = [key for key in worker.disk[1].state.keys if key[:1] in (b"V", b"Y", b"d")]
    assert left == [], "the sweeper has taken them"


def test_a_seek_makes_the_group_where_nobody_has_consumed_yet(worker, orders):
    worker.publish(orders, [b"x"] * 4)
    message = SeekGroup(
        topic_id_of(orders),
        "billing",
        [Start(orders, "new")],
        config=GroupOptions(mode="key_ordered").over(GroupConfig()),
    )
    assert worker.ask(1, ADA, message) == Sought([SoughtRow(orders, 4, 4, 0, 0)])
    row = group_of(worker)
    assert (row.cursor, row.ready) == (4, 0)
    assert worker.shards[1].ledger.group(topic_id_of(orders), "billing").config.mode == "key_ordered"


# --- drop


def test_a_group_is_removed_with_its_rows(worker, orders):
    ten_records_seven_done(worker, orders)
    assert worker.ask(1, ADA, DropGroup(topic_id_of(orders), "billing", dry_run=True)) == Done(1)
    assert group_of(worker) is not None
    assert worker.ask(1, ADA, DropGroup(topic_id_of(orders), "billing")) == Done(1)
    assert group_of(worker) is None
    assert worker.ask(1, ADA, DropGroup(topic_id_of(orders), "billing")) == Done(0), (
        "told twice is told twice"
    )
    for _ in range(3):
        worker.settle()
    assert [key for key in worker.disk[1].state.keys if key[:1] in (b"A", b"C", b"G", b"d")] == []
    worker.restart()
    assert group_of(worker) is None
    worker.subscribe(BOB, orders)
    assert sum(end - first for _, first, end, _ in worker.taken()) == 10, "the name starts over"


def test_dead_letters_go_only_when_that_is_said_and_take_their_bodies_along(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)]))
    leave(worker, ADA)
    bodies = len(worker.disk[1].body.keys)
    assert worker.ask(1, ADA, DropGroup(topic_id_of(orders), "billing")).code == "wrong_state"
    assert worker.ask(1, ADA, DropGroup(topic_id_of(orders), "billing", dead=True)) == Done(1)
    for _ in range(3):
        worker.settle()
    assert len(worker.disk[1].body.keys) == bodies - 1
    assert [key for key in worker.disk[1].state.keys if key[:1] in (b"L", b"B", b"d")] == []


def test_who_was_about_to_join_a_group_that_ends_is_told_to_subscribe_again(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    leave(worker, ADA)
    from gossipq.messages import Subscribe

    again = Subscribe(1, "billing", [Start(orders)], 10, limits.MIB)
    worker.turn(
        lambda: worker.step(1, (b"c", b"1"), 1, ADA, DropGroup(topic_id_of(orders), "billing")),
        lambda: worker.step(1, (b"c", BOB.session), 2, BOB, again),
    )
    refused = worker.ask(1, BOB, Ack(1, [(orders, 0, 1)]), origin=(b"c", BOB.session))
    assert isinstance(refused, RefusedMessage)
    assert refused.hint == "subscribe again"


# --- show


def test_the_mode_of_a_group_is_not_changed_by_who_consumes(worker, orders):
    worker.subscribe(ADA, orders, config=GroupOptions(mode="key_ordered"))
    refused = worker.subscribe(BOB, orders, config=GroupOptions(mode="exclusive"))
    assert (refused.code, "key_ordered, not exclusive" in refused.message) == ("bad_request", True)
    leave(worker, ADA)
    refused = worker.subscribe(BOB, orders, config=GroupOptions(mode="exclusive"))
    assert (refused.code, "--mode exclusive" in refused.hint) == ("bad_request", True), "nobody consumes it"
    assert worker.subscribe(BOB, orders, config=GroupOptions()).mode == "key_ordered"


def test_an_operator_changes_the_mode_of_a_group_without_consumers(worker, orders):
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"x"])
    exclusive = SetGroup(topic_id_of(orders), "billing", GroupOptions(mode="exclusive"))
    assert worker.ask(1, BOB, exclusive).code == "wrong_state", "Ada consumes"
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    leave(worker, ADA)
    assert worker.ask(1, BOB, exclusive) == Done(1)
    assert worker.subscribe(BOB, orders, config=GroupOptions()).mode == "exclusive"


def test_a_group_that_reads_several_shards_does_not_become_exclusive():
    worker = FakeWorker(3)
    topic = worker.topic("orders", TopicOptions(partitions=2))
    for shard, start in zip(topic.shards, (0, 1), strict=True):
        partition = partition_key(topic.id, start)
        subscribe = Subscribe(1, "billing", [Start(partition)], 1, limits.MIB, GroupOptions())
        assert worker.ask(shard, ADA, subscribe).mode == "shared"
        worker.ask(shard, ADA, Unsubscribe(1))
    asked = SetGroup(topic.id, "billing", GroupOptions(mode="exclusive"))
    assert [worker.ask(shard, BOB, asked).code for shard in topic.shards] == ["bad_request"] * 2


def test_a_group_shows_its_policy_and_who_said_so(worker, orders):
    worker.subscribe(ADA, orders, config=GroupOptions(lease_ms=7_000, alarm_lag=5))
    shown = worker.ask(1, ADA, ShowGroup(topic_id_of(orders), "billing"))
    assert isinstance(shown, GroupShown)
    assert shown.consumers == ["ada"]
    rules = {name: (value, origin) for name, value, origin in shown.policy}
    assert rules["mode"] == ("shared", "group")
    assert rules["lease_ms"] == ("7000", "group")
    assert rules["attempts_max"] == ("1", "topic")
    assert rules["backoff_ms"] == ("500", "topic")
    assert rules["alarm_lag"] == ("5", "group")


# --- purge


def test_purge_takes_whole_batches_below_a_place_and_counts_what_was_not_done(worker, orders):
    ten_records_seven_done(worker, orders)
    assert worker.ask(1, ADA, PurgeTopic(orders, 9, dry_run=True)) == Done(9)
    assert worker.ask(1, ADA, PurgeTopic(orders, 9)) == Done(8), "the last batch is not wholly below"
    assert worker.ask(1, ADA, PurgeTopic(orders, 9)) == Done(0)
    state, row = worker.shards[1].ledger.partitions[orders], group_of(worker)
    assert (state.first, state.next, state.removed) == (8, 10, 8)
    assert (row.acked, row.removed, row.ready, row.unaccounted) == (7, 2, 1, 0)
    worker.restart()
    assert worker.shards[1].ledger.partitions[orders].first == 8


def test_a_purge_goes_in_bounded_steps_and_can_be_taken_up_again(worker, orders, monkeypatch):
    monkeypatch.setattr("gossipq.core.ledger.retention.SLICES_MAX", 2)
    ten_records_seven_done(worker, orders)
    assert worker.ask(1, ADA, PurgeTopic(orders, 10)) == Done(4)
    worker.restart()
    assert [worker.ask(1, ADA, PurgeTopic(orders, 10)) for _ in range(3)] == [Done(4), Done(2), Done(0)]
    assert worker.shards[1].ledger.partitions[orders].bytes == 0


def test_a_purge_takes_leases_along(worker, orders):
    worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.ask(1, BOB, PurgeTopic(orders, 1))
    assert group_of(worker).in_flight == 0
    assert worker.ask(1, ADA, Why(Ref(orders, 0))).standings[0].state == "removed"


@pytest.mark.parametrize("before", [-1, 2])
def test_a_purge_beyond_the_end_is_refused(worker, orders, before):
    worker.publish(orders, [b"x"])
    assert worker.ask(1, ADA, PurgeTopic(orders, before)).code == "bad_request"


# --- set


def set_topic(worker, **policy):
    return worker.ask(0, ADA, SetTopic("orders", TopicOptions(**policy)))


def test_a_topic_is_changed_where_it_lies(worker, orders):
    answer = set_topic(worker, retention_ms=0, alarm_lag=100)
    assert isinstance(answer, Topics)
    assert (answer.topics[0].version, answer.topics[0].config.alarm_lag) == (2, 100)
    assert worker.shards[1].ledger.config(orders).retention_ms == 0
    assert worker.shards[1].ledger.config(orders).attempts_max == 1, "what is not said stays"
    assert set_topic(worker, alarm_lag=100).topics[0].version == 2, "the same again is no change"
    worker.restart()
    assert worker.shards[1].ledger.config(orders).alarm_lag == 100


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_change_that_one_shard_missed_is_told_again(worker, orders):
    """The process is killed between the register's entry and the shard's."""
    message = SetTopic("orders", TopicOptions(alarm_lag=7))
    keep = worker.commit

    def commit() -> None:
        keep()
        worker.commit = keep
        raise Killed  # the register's entry is stored, but the shard was not told

    worker.commit = commit
    with pytest.raises(Killed):
        worker.turn(lambda: worker.step(0, (b"c", b"1"), 1, ADA, message))
    worker.restart()
    assert worker.shards[1].ledger.config(orders).alarm_lag == 7


@pytest.mark.parametrize(
    "policy", [{"partitions": 2}, {"beside": "x"}, {"virtual": ["x"]}, {"alarm_lag": -1}, {"retain": "no"}]
)
def test_what_cannot_be_changed_is_refused(worker, orders, policy):
    assert set_topic(worker, **policy).code == "bad_request"


def test_unknown_and_virtual_topics_have_nothing_to_set(worker, orders):
    from gossipq.messages import BindTopic

    assert worker.ask(0, ADA, SetTopic("nothing", TopicOptions())).code == "unknown_topic"
    worker.ask(0, ADA, BindTopic("all", ["orders"]))
    refused = worker.ask(0, ADA, SetTopic("all", TopicOptions(alarm_lag=1)))
    assert refused.message == "all is virtual: it has no records"


def test_two_changes_at_once_are_both_made(worker, orders):
    first, second = (
        SetTopic("orders", TopicOptions(**change)) for change in ({"alarm_lag": 1}, {"ttl_ms": 5})
    )
    effects = worker.turn(
        lambda: worker.step(0, (b"c", b"1"), 1, ADA, first),
        lambda: worker.step(0, (b"c", b"1"), 2, ADA, second),
    )
    answers = {request_id: message for _, request_id, message in effects[0].replies}
    assert isinstance(answers[1], Topics)
    assert answers[2].code == "busy", "the client asks again"
    assert isinstance(worker.ask(0, ADA, second), Topics)
    config = worker.shards[1].ledger.config(orders)
    assert (config.alarm_lag, config.ttl_ms) == (1, 5)


# --- names


@pytest.mark.parametrize("name", [" billing", "billing ", "   ", "a\tb", "a\x1b[2J", "\u202eevil"])
def test_a_group_whose_name_cannot_be_told_by_looking_is_not_made(worker, orders, name):
    refused = worker.subscribe(ADA, orders, group=name)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "bad_name"
    assert refused.message == f"group name {name!r}"


def test_a_name_in_any_language_is_fine(worker, orders):
    assert not isinstance(worker.subscribe(ADA, orders, group="Rechnung \u5b57 1"), RefusedMessage)


def test_one_wording_for_a_group_that_is_not_there(worker, orders):
    for message in (
        ShowGroup(topic_id_of(orders), "x"),
        SeekGroup(topic_id_of(orders), "x", []),
    ):
        assert worker.ask(1, ADA, message).message == "no group x on orders"


def test_a_group_that_is_not_in_a_partition_may_be_in_others(worker, orders):
    """The group may exist in other shards, yet `why` once answered that no such group exists."""
    worker.publish(orders, [b"x"])
    for message in (Why(Ref(orders, 0), "x"), Requeue(Ref(orders, 0), "x")):
        assert worker.ask(1, ADA, message).message == "no group x has begun in partition 0 of orders"


def test_a_group_that_two_remove_at_once_is_removed_once_and_others_stay(worker, orders):
    ten_records_seven_done(worker, orders)
    other = single(worker.topic("others"))
    worker.publish(other, [b"x"])
    worker.subscribe(ADA, other, "mail")
    shard, message = worker.shards[1], DropGroup(topic_id_of(orders), "billing")
    effects = worker.turn(
        *[lambda number=number: worker.step(1, (b"c", b"1"), number, ADA, message) for number in (1, 2)]
    )[1]
    answers = {request_id: answer for _, request_id, answer in effects.replies}
    assert answers[1] == Done(1)
    assert (type(answers[2]).__name__, answers[2].code) == ("RefusedMessage", "wrong_state")
    assert shard.ledger.group(topic_id_of(other), "mail") is not None
