"""Publishing with due times, ids and policies: batches in order of due time, receipts by runs, ages, atomic
steps, lists."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.hand import LEADER, SHARD, Hand, Sent
from gossipq import limits
from gossipq.errors import LeaseLost, TopicFull, UnknownTopic
from gossipq.messages import Confirm, Publish, Topics
from gossipq.types import ATTEMPTS, DELAY, ID_HASH, IDS, KEY_HASH, KEYS, TTL, Now
from gossipq.values import Run, TopicConfig, TopicInfo
from gossipq.wire.batch import Batch
from gossipq_client.session.lists import plan
from gossipq_client.session.packer import Flight, Topic
from gossipq_client.session.receipts import Copied, Listed, One, Receipt, receipt_of
from gossipq_client.values import refs
from gossipq_client.values.terms import Options, Terms, list_options, publish_options


@pytest.fixture
def hand() -> Hand:
    made = Hand()
    made.pass_ms(1_000)
    return made


def append(
    hand: Hand, topic: Topic, value: bytes, terms: Terms | None = None, key: bytes | None = None
) -> tuple[Flight, int]:
    return hand.session.publishing.append(topic.writer(None, None), value, key, b"", b"", "", terms)


def opened(sent: Sent) -> Batch:
    return Batch(sent.raw)


def column(sent: Sent, bit: int) -> list[int] | None:
    found = opened(sent).fixed(bit)
    return None if found is None else list(found)


def confirm(
    hand: Hand, sent: Sent, offset: int = -1, runs: list[Run] | None = None, duplicate: bool = False
) -> None:
    rows = [] if runs is None else [(sent.header.request_id, runs)]
    hand.tell(Confirm([(sent.header.request_id, offset, 1, duplicate)], runs=rows))


def listed(hand: Hand, topic: Topic, values: list[bytes], **options: Any) -> Listed:
    now = Now(hand.session.links.now_ms, hand.session.links.wall_ms)
    made = plan(hand.session.publishing, topic, values, list_options(len(values), lambda: now, **options))
    for flight in made.flights:
        hand.session.publishing.take(flight)
    return made


class TestSchedules:
    def test_a_batch_goes_in_order_of_due_time_and_receipts_know_their_records(self, hand: Hand) -> None:
        topic = hand.topic()
        append(hand, topic, b"first", Terms(due_ms=1_100))
        (first,) = hand.published()
        placed = {
            value: append(hand, topic, value, Terms(due_ms=due_ms), b"k" + value)
            for value, due_ms in (
                (b"b", 9_000),
                (b"a", 3_000),
                (b"d", 9_001),
                (b"c", 9_000),
                (b"late", 1_000),
            )
        }
        hand.pass_ms(500)
        confirm(hand, first, runs=[Run(1, -1, 40, 0)])
        (sent,) = hand.published()
        assert opened(sent).values() == [b"late", b"a", b"b", b"c", b"d"]
        assert opened(sent).column(KEYS) == [b"klate", b"ka", b"kb", b"kc", b"kd"]
        assert column(sent, DELAY) == [0, 1_500, 7_500, 7_500, 7_501]
        confirm(hand, sent, runs=[Run(5, -1, 41, 0)])
        refs = {value: receipt_of(*at).ref for value, at in placed.items()}
        assert refs == {
            b"late": "t/0/@41.0",
            b"a": "t/0/@41.1",
            b"b": "t/0/@41.2",
            b"c": "t/0/@41.3",
            b"d": "t/0/@41.4",
        }
        assert receipt_of(*placed[b"b"]).offset == -1

    def test_plain_and_scheduled_records_never_share_a_batch(self, hand: Hand) -> None:
        topic = hand.topic()
        for due_ms in (0, 0, 2_000, 2_000, 0):
            append(hand, topic, b"v", Terms(due_ms=due_ms, ttl_ms=5))
        hand.session.publishing.seal_all()
        assert [(len(opened(sent)), column(sent, DELAY)) for sent in hand.published()] == [
            (1, None),
            (1, None),
            (2, [1_000, 1_000]),
            (1, None),
        ]

    def test_each_sending_says_how_old_the_batch_is(self, hand: Hand) -> None:
        topic = hand.topic()
        append(hand, topic, b"v", Terms(due_ms=60_000))
        ages = [sent.body.age_ms for sent in hand.published() if isinstance(sent.body, Publish)]
        hand.session.disconnected(LEADER)
        hand.pass_ms(700)
        hand.up(LEADER)
        again = hand.held_back
        ages += [sent.body.age_ms for sent in again if isinstance(sent.body, Publish)]
        hand.refuse(again[0], "busy", retry_after_ms=300)
        hand.pass_ms(300)
        (last,) = hand.published()
        assert isinstance(last.body, Publish)
        assert [*ages, last.body.age_ms] == [0, 700, 1_000]
        assert column(last, DELAY) == [59_000]

    def test_a_plain_batch_says_no_age(self, hand: Hand) -> None:
        hand.publish(hand.topic())
        hand.pass_ms(500)
        (sent,) = hand.published()
        assert sent.body == Publish(7 << 16, "stored")

    def test_a_list_is_sorted_before_it_is_cut_so_that_batches_are_narrow(self, hand: Hand) -> None:
        topic = hand.topic()
        count = 2 * limits.BATCH_RECORDS_MAX
        delays = [1 + (at * 7_919) % count for at in range(count)]
        values = [b"%d" % delay for delay in delays]
        made = listed(hand, topic, values, delays=delays)
        first, second = hand.published()
        assert opened(first).values() == [b"%d" % delay for delay in range(1, limits.BATCH_RECORDS_MAX + 1)]
        confirm(hand, first, runs=[Run(limits.BATCH_RECORDS_MAX, -1, 5, 0)])
        confirm(hand, second, runs=[Run(limits.BATCH_RECORDS_MAX, -1, 6, 0)])
        receipt = made.receipt()
        assert (receipt.count, receipt.ref, len(receipt.receipts)) == (count, "t/0/@5.0", count)
        for at in (0, 1, 17, count - 1, -1):
            entry, record = divmod(delays[at] - 1, limits.BATCH_RECORDS_MAX)
            assert receipt.receipts[at].ref == f"t/0/@{5 + entry}.{record}"

    def test_a_list_of_both_kinds(self, hand: Hand) -> None:
        topic = hand.topic()
        made = listed(hand, topic, [b"0", b"9", b"1", b"5"], delays=[0, 9, None, 5], ttl=60)
        plain, scheduled = hand.published()
        assert (opened(plain).values(), opened(scheduled).values()) == ([b"0", b"1"], [b"5", b"9"])
        assert column(plain, TTL) == column(scheduled, TTL) == [60_000, 60_000]
        confirm(hand, plain, 30)
        confirm(hand, scheduled, runs=[Run(2, -1, 8, 0)])
        assert [each.ref for each in made.receipt().receipts] == ["t/0/30", "t/0/@8.1", "t/0/31", "t/0/@8.0"]

    def test_without_confirm_nothing_is_promised(self, hand: Hand) -> None:
        topic = hand.topic(level="none")
        flight, index = append(hand, topic, b"v", Terms(due_ms=5_000, id=b"i"))
        hand.pass_ms(2)
        (sent,) = hand.published()
        assert column(sent, DELAY) == [3_998]
        receipt = receipt_of(flight, index)
        assert (receipt.offset, receipt.ref, receipt.copies) == (-1, "", 0)


class TestIds:
    def test_duplicates_are_told_apart_from_what_is_new(self, hand: Hand) -> None:
        topic = hand.topic()
        made = listed(hand, topic, [b"a", b"b", b"c", b"d", b"e"], ids=["1", "2", None, "4", "5"])
        (sent,) = hand.published()
        assert opened(sent).column(IDS) == [b"1", b"2", b"", b"4", b"5"]
        hashes = column(sent, ID_HASH)
        assert hashes is not None
        assert [each != 0 for each in hashes] == [True, True, False, True, True]
        runs = [
            Run(1, 100),
            Run(1, 7, duplicate=True),
            Run(1, 101),
            Run(1, -1, 33, 2, True),
            Run(1, -1, 0, 0, True),
        ]
        confirm(hand, sent, 100, runs)
        receipts = made.receipt().receipts
        assert [(each.offset, each.ref, each.duplicate) for each in receipts] == [
            (100, "t/0/100", False),
            (7, "t/0/7", True),
            (101, "t/0/101", False),
            (-1, "t/0/@33.2", True),
            (-1, "", True),
        ]
        assert not made.receipt().duplicate
        assert receipts[1:3] == [receipts[1], receipts[2]]
        assert len(list(receipts)) == 5
        with pytest.raises(IndexError):
            receipts[5]

    def test_one_record_twice(self, hand: Hand) -> None:
        topic = hand.topic()
        flight, index = append(hand, topic, b"v", Terms(id=b"order-17"))
        confirm(hand, hand.published()[0], 4, [Run(1, 2, duplicate=True)])
        receipt = receipt_of(flight, index)
        assert (receipt.offset, receipt.ref, receipt.duplicate) == (2, "t/0/2", True)

    def test_a_confirm_without_runs_is_taken_as_it_is(self, hand: Hand) -> None:
        topic = hand.topic()
        flight, index = append(hand, topic, b"v", Terms(id=b"order-17"))
        confirm(hand, hand.published()[0], 4, duplicate=True)
        assert receipt_of(flight, index).ref == "t/0/4"

    def test_runs_that_do_not_reach_a_record_leave_it_unnamed(self, hand: Hand) -> None:
        topic = hand.topic()
        made = listed(hand, topic, [b"a", b"b"], ids=["1", "2"])
        confirm(hand, hand.published()[0], 4, [Run(1, 4)])
        assert [each.ref for each in made] == ["t/0/4", ""]

    def test_an_id_chooses_the_partition_unless_a_key_does(self, hand: Hand) -> None:
        topic = hand.topic(partitions=4)
        made = listed(
            hand, topic, [b"a", b"b", b"c", b"d"], ids=["x", "y", "x", None], keys=[None, None, "k", "k"]
        )
        wanted = {b"a": crc32(b"x") % 4, b"b": crc32(b"y") % 4, b"c": crc32(b"k") % 4, b"d": crc32(b"k") % 4}
        found = {}
        for sent in hand.published():
            assert isinstance(sent.body, Publish)
            found |= dict.fromkeys(opened(sent).values(), sent.body.partition & 0xFFFF)
            confirm(hand, sent, 0, [Run(len(opened(sent)), 0)])
        assert found == wanted
        assert [each.partition for each in made] == list(wanted.values())


class TestColumns:
    def test_plain_records_join_those_with_terms_and_none_has_a_column_too_many(self, hand: Hand) -> None:
        topic = hand.topic()
        hand.publish(topic)
        hand.published()
        assert hand.publish(topic) is hand.session.publishing.plain["t"]
        append(hand, topic, b"special", Terms(attempts_max=3))
        assert "t" not in hand.session.publishing.plain, (
            "a plain record must not join without its place in the columns"
        )
        hand.publish(topic)
        hand.session.publishing.seal_all()
        (sent,) = hand.published()
        assert (column(sent, ATTEMPTS), column(sent, TTL), column(sent, KEY_HASH)) == ([0, 3, 0], None, None)

    def test_keyed_batches_carry_the_hashes_of_their_keys(self, hand: Hand) -> None:
        append(hand, hand.topic(), b"v", None, b"ada")
        (sent,) = hand.published()
        assert column(sent, KEY_HASH) == [crc32(b"ada")]

    def test_a_list_of_plain_records_has_no_columns(self, hand: Hand) -> None:
        made = listed(hand, hand.topic(), [b"a", b"b"])
        (sent,) = hand.published()
        assert sent.batch is not None
        assert sent.batch.columns == 0
        confirm(hand, sent, 5)
        assert (made.receipt().ref, made.receipt().count, made.receipt().receipts) == ("t/0/5", 2, ())

    def test_lists_by_key_keep_the_order_of_each_key(self, hand: Hand) -> None:
        topic = hand.topic(partitions=3)
        keys = [(b"ada", b"bob", None, b"")[at % 4] for at in range(40)]
        made = listed(hand, topic, [b"%d" % at for at in range(40)], keys=keys)
        assert made.order is not None
        assert sorted(made.order) == list(range(40))
        for sent in hand.published():
            numbers = [int(value) for value in opened(sent).values()]
            assert numbers == sorted(numbers)
            found = opened(sent).column(KEYS)
            assert [keys[number] for number in numbers] == (
                found if found is not None else [None] * len(numbers)
            )


def options(key: bytes | None = None, terms: Terms | None = None) -> Options:
    return Options(key, b"", b"", "", terms)


class TestSteps:
    ACKS = ((9 << 16, 5, 6),)

    def step(self, hand: Hand, topic: Topic, **how: Any) -> tuple[Flight, list[Flight]]:
        told: list[Flight] = []
        writer = topic.writer(None, None)
        return hand.session.publishing.step(
            writer, options(**how), b"result", 3, list(self.ACKS), told.append
        ), told

    def test_a_step_goes_at_once_behind_what_is_open_with_its_acks(self, hand: Hand) -> None:
        topic = hand.topic()
        hand.publish(topic)
        hand.publish(topic)
        flight, told = self.step(hand, topic)
        one, two, step = hand.published()
        assert [each.sequence for each in (one, two, step)] == [1, 2, 3]
        assert isinstance(step.body, Publish)
        assert (step.body.subscription, step.body.acks, step.body.level) == (3, list(self.ACKS), "stored")
        assert (opened(step).values(), opened(step).info.columns) == ([b"result"], 0)
        assert not told
        confirm(hand, one, 0)
        confirm(hand, two, 1)
        confirm(hand, step, 2)
        assert told == [flight]
        assert receipt_of(flight, 0).ref == "t/0/2"

    def test_a_lost_lease_fails_the_step_and_nothing_behind_it(self, hand: Hand) -> None:
        topic = hand.topic()
        flight, told = self.step(hand, topic)
        behind = hand.batch(topic)
        step, _ = hand.published()
        hand.refuse(step, "lease_lost")
        assert told == [flight]
        with pytest.raises(LeaseLost):
            receipt_of(flight, 0)
        (again,) = hand.published()
        assert again.sequence == 1
        confirm(hand, again, 7)
        assert receipt_of(behind, 0).offset == 7

    def test_a_step_is_sent_again_with_its_acks(self, hand: Hand) -> None:
        topic = hand.topic()
        flight, told = self.step(hand, topic, terms=Terms(due_ms=9_000, id=b"i"))
        hand.published()
        hand.session.disconnected(LEADER)
        hand.pass_ms(100)
        hand.up(LEADER)
        (again,) = hand.held_back
        assert again.body == Publish(7 << 16, "stored", 100, 3, list(self.ACKS))
        confirm(hand, again, runs=[Run(1, -1, 12, 0)])
        assert (told, receipt_of(flight, 0).ref) == ([flight], "t/0/@12.0")

    def test_a_step_asks_for_a_confirm_also_where_the_topic_does_not(self, hand: Hand) -> None:
        flight, told = self.step(hand, hand.topic(level="none"))
        assert not flight.done
        (sent,) = hand.published()
        assert sent.sequence == 1
        hand.refuse(sent, "topic_full")
        assert isinstance(flight.error, TopicFull)
        assert told == [flight]

    def test_a_step_does_not_move_to_a_topic_made_anew(self, hand: Hand) -> None:
        topic = hand.topic()
        flight, told = self.step(hand, topic)
        other = hand.batch(topic)
        hand.published()
        new = hand.session.publishing.learn(TopicInfo(8, "t", 1, TopicConfig(), [SHARD]))
        assert isinstance(flight.error, UnknownTopic)
        assert told == [flight]
        assert other.writer is new.writers[0]

    def test_the_partition_beside_a_record(self, hand: Hand) -> None:
        topic = hand.session.publishing.learn(TopicInfo(7, "t", 1, TopicConfig(4), [3, 5, 3, 6]))
        assert [topic.writer_in(*where) for where in ((3, 2), (3, 0), (3, 1), (5, 0), (9, 0))] == [
            topic.writers[2],
            topic.writers[0],
            topic.writers[0],
            topic.writers[1],
            None,
        ]


class TestCopies:
    def test_one_receipt_for_all_copies(self, hand: Hand) -> None:
        topics = [hand.topic(name=name, topic_id=topic_id) for name, topic_id in (("a", 7), ("b", 8))]
        ones = [One(*append(hand, topic, b"v", Terms(id=b"made"))) for topic in topics]
        first, second = hand.published()
        confirm(hand, first, 3, [Run(1, 3)])
        copied = Copied(ones, [b"made"])
        assert [flight.done for flight in copied.flights] == [True, False]
        confirm(hand, second, 9, [Run(1, 5, duplicate=True)])
        receipt = copied.receipt()
        assert (receipt.ref, receipt.count, receipt.duplicate) == ("a/0/3", 1, False)
        assert [each.ref for each in receipt.receipts] == ["a/0/3", "b/0/5"]

    def test_the_first_error_is_raised(self, hand: Hand) -> None:
        topics = [hand.topic(name=name, topic_id=topic_id) for name, topic_id in (("a", 7), ("b", 8))]
        copied = Copied([One(*append(hand, topic, b"v", Terms(id=b"made"))) for topic in topics], [b"made"])
        first, second = hand.published()
        confirm(hand, first, 3)
        hand.refuse(second, "topic_full")
        with pytest.raises(TopicFull) as failed:
            copied.receipt()
        assert failed.value.ids == ("made",)
        assert failed.value.hint == "publish again with id='made': topics that have it know that"

    def test_a_topic_that_became_virtual_fails_what_was_meant_for_it(self, hand: Hand) -> None:
        topic = hand.topic()
        flight = hand.batch(topic)
        hand.refuse(hand.published()[0], "unknown_topic")
        (asked,) = hand.sent()
        hand.answer(asked, Topics([TopicInfo(8, "t", 1, TopicConfig(virtual=["a", "b"]), [])]))
        assert isinstance(flight.error, UnknownTopic)
        assert hand.session.publishing.topics["t"].virtual == ["a", "b"]
        assert hand.session.settled

    def test_a_virtual_topic_that_became_real(self, hand: Hand) -> None:
        hand.session.publishing.learn(TopicInfo(8, "t", 1, TopicConfig(virtual=["a"]), []))
        topic = hand.topic()
        assert (topic.virtual, len(topic.writers)) == ([], 1)


DELAYS = st.one_of(st.none(), st.just(0), st.integers(1, 5), st.floats(0.001, 5))
IDS_OR_NONE = st.one_of(st.none(), st.binary(min_size=1, max_size=3))
KEYS_OR_NONE = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b"]))


@settings(max_examples=60)
@given(st.lists(st.tuples(DELAYS, IDS_OR_NONE, KEYS_OR_NONE), max_size=40), st.integers(1, 3), st.booleans())
def test_every_receipt_names_its_own_record(
    asked: list[tuple[float | None, bytes | None, bytes | None]], partitions: int, as_list: bool
) -> None:
    """In any mixture, as a list or one by one: the node finds under each ref the value
    that was published for it.
    """
    hand = Hand()
    hand.pass_ms(1_000)
    topic = hand.topic(partitions)
    values = [b"%d" % at for at in range(len(asked))]
    delays, ids, keys = ([each[at] for each in asked] for at in range(3))
    now = Now(hand.session.links.now_ms, hand.session.links.wall_ms)
    pending: Callable[[int], Receipt]
    if as_list:
        pending = listed(hand, topic, values, delays=delays, ids=ids, keys=keys).__getitem__
    else:
        flown = []
        for value, delay, name, key in zip(values, delays, ids, keys, strict=True):
            options = publish_options(lambda: now, delay=delay, id=name, key=key)
            writer = topic.writer(options.chooser, None)
            flown.append(hand.session.publishing.append(writer, value, *options.record))
        hand.session.publishing.seal_all()

        def pending(at: int) -> Receipt:
            return receipt_of(*flown[at])

    stored: dict[str, bytes] = {}
    entry = 100  # also the first offset of a batch that has some
    while sent := hand.published():
        for each in sent:
            assert isinstance(each.body, Publish)
            delayed, found, number = column(each, DELAY), opened(each).values(), each.body.partition & 0xFFFF
            assert delayed is None or delayed == sorted(delayed)
            first = -1 if delayed else entry
            for at, value in enumerate(found):
                stored[refs.text(topic.name, number, -1 if delayed else first + at, entry, at)] = value
            confirm(hand, each, first, [Run(len(found), first, entry, 0)])
            entry += len(found)
    assert [stored[pending(at).ref] for at in range(len(values))] == values
    assert hand.session.settled


def test_the_delay_of_what_is_sealed_late_counts_from_sealing(hand: Hand) -> None:
    """A record that waits for company, on a connection that is down meanwhile, is due when it was to be."""
    topic = hand.topic()
    hand.publish(topic)
    hand.published()
    append(hand, topic, b"v", Terms(due_ms=hand.now_ms + 10_000))
    hand.pass_ms(4_000)
    hand.session.publishing.seal_all()
    (sent,) = hand.published()
    assert column(sent, DELAY) == [6_000]
