"""The way of a batch: packing, order, windows, refusals, lost connections."""

from zlib import crc32

import pytest

from client.hand import HOME, LEADER, OTHER, SHARD, Hand, Sent
from gossipq import limits
from gossipq.errors import BadRequest, Forbidden, NotConfirmed, StoreFull, TooLarge, UnknownTopic
from gossipq.messages import Confirm, Publish, RefusedMessage, Resolve, Topics
from gossipq.types import Now
from gossipq.values import Route, TopicConfig, TopicInfo
from gossipq.wire import batch as wire
from gossipq_client.session import Merged, writer_to_merge
from gossipq_client.session.packer import WINDOW_BATCHES, Flight, Topic, runs
from gossipq_client.session.renewal import rebuild
from gossipq_client.session.sender import RETRY_MS
from gossipq_client.values import list_options
from gossipq_client.values.terms import Terms


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_the_first_record_goes_at_once_and_the_next_wait_for_its_confirm(hand: Hand) -> None:
    topic = hand.topic()
    first = hand.publish(topic)
    (sent,) = hand.published()
    assert (sent.endpoint, sent.header.shard, sent.sequence) == (LEADER, SHARD, 1)
    followers = [hand.publish(topic) for _ in range(10)]
    assert hand.published() == []
    assert len({id(flight) for flight in followers}) == 1
    hand.confirm(sent, offset=40)
    (more,) = hand.published()
    assert more.batch is not None
    assert (more.batch.count, more.sequence) == (10, 2)
    assert (first.done, first.offset, followers[0].done) == (True, 40, False)
    hand.confirm(more, offset=41)
    assert followers[0].offset == 41
    assert hand.session.settled


def test_a_full_batch_does_not_wait(hand: Hand) -> None:
    topic = hand.topic()
    hand.publish(topic)
    for _ in range(limits.BATCH_RECORDS_MAX):
        hand.publish(topic)
    for _ in range(5):
        hand.publish(topic, bytes(limits.BATCH_BYTES_MAX // 4))
    assert [sent.batch.count for sent in hand.published() if sent.batch] == [1, limits.BATCH_RECORDS_MAX, 4]


def column(opened: wire.Batch, bit: int) -> list[bytes]:
    found = opened.variable(bit)
    assert found is not None
    return list(found.items())


def values(sent: Sent) -> list[bytes]:
    return column(wire.Batch(sent.raw), wire.VALUES[0])


def merge(hand: Hand, topic: Topic, *values: bytes, route: bytes = b"") -> tuple[Flight, int]:
    """A short list of plain values."""
    writer = topic.writer(None, None)
    return hand.session.publishing.merge(writer, list(values), sum(map(len, values)), route, "")


def test_a_client_that_gathers_sends_one_batch_for_each_departure(hand: Hand) -> None:
    publishing = hand.session.publishing
    publishing.gathers = True
    topic = hand.topic()
    hand.publish(topic, b"1")
    for value in (b"2", b"3"):
        publishing.append(topic.writer(b"k", None), value, b"k", b"", b"", "")
    (keyless,) = hand.published()  # a batch has keys or none, and the order stays
    assert values(keyless) == [b"1"]
    publishing.depart()
    assert hand.published() == []  # one is under way
    hand.confirm(keyless, offset=0)
    (keyed,) = hand.published()
    assert values(keyed) == [b"2", b"3"]
    hand.confirm(keyed, offset=1)
    hand.publish(topic, b"4")
    assert hand.published() == []
    publishing.depart()
    (sent,) = hand.published()
    assert values(sent) == [b"4"]


def test_lists_share_a_batch_while_one_is_unconfirmed(hand: Hand) -> None:
    topic = hand.topic()
    first, _ = merge(hand, topic, b"1", b"2")
    (sent,) = hand.published()
    assert values(sent) == [b"1", b"2"]
    flight, second = merge(hand, topic, b"3", b"4")
    hand.publish(topic, b"5")
    same, third = merge(hand, topic, b"6", b"7", b"8")
    assert hand.published() == []
    assert (same is flight, second, third) == (True, 0, 3)
    hand.confirm(sent, offset=40)
    (more,) = hand.published()
    assert values(more) == [b"3", b"4", b"5", b"6", b"7", b"8"]
    hand.confirm(more, offset=42)
    receipts = [Merged(first, 0, 2), Merged(flight, second, 2), Merged(flight, third, 3)]
    assert [(each.receipt().offset, each.receipt().count) for each in receipts] == [(40, 2), (42, 2), (45, 3)]
    assert hand.session.settled


def test_a_list_that_does_not_fit_into_the_open_batch_opens_another(hand: Hand) -> None:
    topic = hand.topic()
    hand.publish(topic)
    merge(hand, topic, *[b"v"] * (limits.BATCH_RECORDS_MAX - 1))
    merge(hand, topic, b"v", b"v")  # two, where there is room for one
    merge(hand, topic, bytes(limits.BATCH_BYTES_MAX - 1))
    merge(hand, topic, b"routed", route=b"eu")
    hand.session.publishing.seal_all()
    assert [sent.batch.count for sent in hand.published() if sent.batch] == [
        *(1, limits.BATCH_RECORDS_MAX - 1),
        *(2, 1, 1),
    ]


def test_a_list_joins_a_batch_whose_records_have_headers_and_terms(hand: Hand) -> None:
    topic = hand.topic()
    hand.publish(topic)
    append, writer = hand.session.publishing.append, topic.writers[0]
    append(writer, b"1", None, b"h", b"", "", Terms(ttl_ms=9_000))
    merge(hand, topic, b"2", b"3")
    append(writer, b"4", None, b"i", b"", "")
    hand.session.publishing.seal_all()
    _, sent = hand.published()
    assert values(sent) == [b"1", b"2", b"3", b"4"]
    opened = wire.Batch(sent.raw)
    assert column(opened, wire.HEADERS) == [b"h", b"", b"", b"i"]
    assert list(opened.fixed(wire.TTL) or ()) == [9_000, 0, 0, 0]


@pytest.mark.parametrize("code", ["store_full", "topic_full", "forbidden"])
def test_what_is_open_goes_when_the_last_batch_before_it_is_refused(hand: Hand, code: str) -> None:
    topic = hand.topic()
    merge(hand, topic, b"1", b"2")
    (sent,) = hand.published()
    merge(hand, topic, b"3", b"4")
    hand.publish(topic, b"5")
    hand.refuse(sent, code)
    (more,) = hand.published()
    assert (values(more), more.sequence) == ([b"3", b"4", b"5"], 1)


def test_what_is_open_goes_when_the_leader_has_forgotten_the_last_batch_before_it(hand: Hand) -> None:
    topic = hand.topic()
    merge(hand, topic, b"1")
    (sent,) = hand.published()
    merge(hand, topic, b"2")
    hand.refuse(sent, "out_of_sequence", detail=limits.PRODUCER_REPEATS + 9)  # stored, its offset forgotten
    hand.pass_ms(RETRY_MS)
    (more,) = hand.published()
    assert (values(more), more.sequence) == ([b"2"], 2)


def test_what_was_torn_open_goes_and_nothing_joins_it(hand: Hand) -> None:
    """As behind a signal handler that raised between opening and sealing a list with ids."""
    topic = hand.topic()
    publishing, writer = hand.session.publishing, topic.writers[0]
    (torn,) = publishing.batches(writer, [b"1", b"2"], None, b"", b"", "", None, [b"a", b"b"])
    writer.open = torn
    rebuild(hand.session, Now(hand.now_ms, 1_000_000))
    merge(hand, topic, b"3")
    hand.publish(topic, b"4")
    hand.up(HOME)
    hand.up(LEADER)
    sent = [each for each in hand.held_back if isinstance(each.body, Publish)]
    assert [values(each) for each in sent] == [[b"1", b"2"]]
    hand.confirm(*sent)
    assert [values(each) for each in hand.published()] == [[b"3", b"4"]]


def test_an_error_is_told_for_each_list_of_a_batch(hand: Hand) -> None:
    topic = hand.topic()
    merge(hand, topic, b"1")
    (first,) = hand.published()
    flight, one = merge(hand, topic, b"2", b"3")
    _, other = merge(hand, topic, b"4")
    hand.confirm(first)
    hand.refuse(hand.published()[0], "store_full")
    with pytest.raises(StoreFull):
        Merged(flight, one, 2).receipt()
    assert isinstance(hand.session.publishing.failure(), StoreFull), "nobody has asked for the other"
    assert hand.session.publishing.failure() is None
    with pytest.raises(StoreFull):
        Merged(flight, other, 1).receipt()


def clock() -> Now:
    return Now(0, 0)


def test_what_has_terms_of_its_own_is_not_merged(hand: Hand) -> None:
    topic, unconfirmed = hand.topic(), hand.topic(name="none", topic_id=8, level="none")
    plain = list_options(2, clock)
    assert writer_to_merge(topic, [b"1", b"2"], 2, plain) is topic.writers[0]
    assert writer_to_merge(topic, [], 0, plain) is None
    assert writer_to_merge(topic, [b"1"] * limits.BATCH_RECORDS_MAX, limits.BATCH_RECORDS_MAX, plain) is None
    assert writer_to_merge(topic, [b"1", b"2"], limits.BATCH_BYTES_MAX, plain) is None
    assert writer_to_merge(unconfirmed, [b"1", b"2"], 2, plain) is None
    with pytest.raises(BadRequest):
        writer_to_merge(topic, [b"1", b"2"], 2, plain._replace(partition=1))
    for overflow, merged in (("refuse", False), ("drop_oldest", True)):
        bounded = Topic(TopicInfo(9, "b", 1, TopicConfig(bytes_max=9, overflow=overflow), [SHARD]), b"p" * 16)
        assert (writer_to_merge(bounded, [b"1", b"2"], 2, plain) is not None) == merged
    for options in (
        {"keys": ["a", "b"]},
        {"ids": ["a", "b"]},
        {"headers": {"a": "b"}},
        {"ttl": 5},
        {"delay": 5},
    ):
        many = list_options(2, clock, **options)  # type: ignore[arg-type]
        assert writer_to_merge(topic, [b"1", b"2"], 2, many) is None


def test_a_record_above_the_batch_size_travels_alone(hand: Hand) -> None:
    topic = hand.topic()
    for value in (b"1", b"2", bytes(limits.BATCH_BYTES_MAX + 1), b"3"):
        hand.publish(topic, value)
    hand.session.publishing.seal_all()
    assert [sent.batch.count for sent in hand.published() if sent.batch] == [1, 1, 1, 1]


def test_what_cannot_share_a_batch_keeps_its_order(hand: Hand) -> None:
    topic = hand.topic()
    append, writer = hand.session.publishing.append, topic.writers[0]
    append(writer, b"0", None, b"", b"", "")
    for key, headers, route in (
        (None, b"", b""),
        (b"", b"", b""),
        (b"k", b"h", b""),
        (b"k", b"", b"r"),
        (None, b"", b""),
    ):
        append(writer, b"v", key, headers, route, "")
    hand.session.publishing.seal_all()
    sent = hand.published()
    assert [each.batch.count for each in sent if each.batch] == [1, 1, 2, 1, 1]
    assert [each.sequence for each in sent] == [1, 2, 3, 4, 5]


def test_records_without_key_go_round_by_batches_and_keys_stay(hand: Hand) -> None:
    topic = hand.topic(partitions=3)
    for _ in range(3):
        hand.batch(topic)
    assert [sent.body.partition & 0xFFFF for sent in hand.published() if isinstance(sent.body, Publish)] == [
        0,
        1,
        2,
    ]
    assert topic.writer(b"ada", None).number == crc32(b"ada") % 3
    assert topic.writer(b"", None).number == 0
    assert topic.writer(None, 2).number == 2
    with pytest.raises(BadRequest):
        topic.writer(None, 3)


def test_after_a_lost_connection_everything_unconfirmed_goes_again_in_order(hand: Hand) -> None:
    topic = hand.topic()
    flights = [hand.batch(topic) for _ in range(5)]
    before = hand.published()
    hand.confirm(before[0])
    hand.session.disconnected(LEADER)
    late = hand.batch(topic)
    assert hand.published() == []
    hand.up(LEADER)
    again = hand.held_back
    assert [each.sequence for each in again] == [2, 3, 4, 5, 6]
    assert {each.header.request_id for each in again}.isdisjoint(each.header.request_id for each in before)
    assert [each.batch.crc for each in again if each.batch][:4] == [
        each.batch.crc for each in before if each.batch
    ][1:]
    hand.confirm(*again, offset=1, duplicate=True)
    assert [flight.offset for flight in [*flights, late]] == [0, 1, 2, 3, 4, 5]
    assert hand.session.publishing.unconfirmed_bytes == 0


def test_answers_to_requests_of_before_do_not_count_twice(hand: Hand) -> None:
    topic = hand.topic()
    flight = hand.batch(topic)
    (old,) = hand.published()
    hand.session.disconnected(LEADER)
    hand.up(LEADER)
    hand.confirm(old, offset=99)
    assert not flight.done
    hand.confirm(*hand.held_back, offset=1)
    assert flight.offset == 1


def test_busy_pauses_and_the_gap_answers_behind_it_are_no_news(hand: Hand) -> None:
    topic = hand.topic()
    for _ in range(3):
        hand.batch(topic)
    first, second, third = hand.published()
    hand.refuse(first, "busy", retry_after_ms=100)
    hand.refuse(second, "out_of_sequence", detail=1)
    hand.refuse(third, "out_of_sequence", detail=1)
    hand.pass_ms(99)
    assert hand.published() == []
    hand.pass_ms(1)
    assert [each.sequence for each in hand.published()] == [1, 2, 3]


def test_refused_in_the_middle_moves_the_rest_up(hand: Hand) -> None:
    topic = hand.topic()
    flights = [hand.batch(topic, b"%d" % number) for number in range(4)]
    first, second, third, fourth = hand.published()
    hand.refuse(second, "too_large")
    assert isinstance(flights[1].error, TooLarge)
    again = hand.published()
    assert [each.sequence for each in again] == [2, 3]
    hand.refuse(third, "out_of_sequence", detail=2)
    hand.refuse(fourth, "out_of_sequence", detail=2)
    assert hand.published() == []
    hand.confirm(first, *again)
    assert [flight.done for flight in flights] == [True] * 4
    assert [flight.error is None for flight in flights] == [True, False, True, True]
    hand.batch(topic)
    assert [each.sequence for each in hand.published()] == [4]
    assert type(hand.session.publishing.failure()) is TooLarge
    assert hand.session.publishing.failure() is None


def test_a_full_store_is_told_not_retried(hand: Hand) -> None:
    flight = hand.batch(hand.topic())
    hand.refuse(hand.published()[0], "store_full", retry_after_ms=1_000)
    assert isinstance(flight.error, StoreFull)
    hand.pass_ms(5_000)
    assert hand.published() == []


def test_out_of_sequence_resends_from_the_lowest_unconfirmed(hand: Hand) -> None:
    topic = hand.topic()
    for _ in range(3):
        hand.batch(topic)
    first, second, _ = hand.published()
    hand.confirm(first)
    hand.refuse(second, "out_of_sequence", detail=2)
    hand.pass_ms(limits.SECOND_MS)
    assert [each.sequence for each in hand.published()] == [2, 3]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("code", ["forbidden", "refused", "internal"])
def test_what_was_sent_before_it_was_refused_unseen_may_be_stored(
    hand: Hand, code: str, stored: bool
) -> None:
    """Its user has lost the permission, its shard has stopped, or the node meets a fault of its own. Its
    sequence is not given to another record: that would be taken for a repeat of it, and be lost."""
    topic = hand.topic()
    hand.confirm(*[hand.published()[0] for _ in range(2) if hand.batch(topic)])
    before = hand.batch(topic)
    hand.published()
    hand.session.disconnected(LEADER)
    hand.up(LEADER)
    hand.refuse(hand.held_back[0], code)
    assert isinstance(before.error, NotConfirmed)
    after = hand.batch(topic)
    (sent,) = hand.published()
    assert sent.sequence == 4
    if not stored:
        hand.refuse(sent, "out_of_sequence", detail=3)
        hand.pass_ms(limits.SECOND_MS)
        (sent,) = hand.published()
        assert (sent.sequence, hand.producers) == (1, 2)
    hand.confirm(sent)
    assert (after.done, after.error) == (True, None)


def test_a_node_that_knows_no_such_session_has_stored_nothing(hand: Hand) -> None:
    """As after a cluster was closed: the refusal that follows is the whole truth."""
    topic = hand.topic()
    batch = hand.batch(topic)
    hand.refuse(hand.published()[0], "no_session", hint="say HELLO first")
    hand.welcome()
    (again,) = [sent for sent in hand.held_back if isinstance(sent.body, Publish)]
    hand.refuse(again, "forbidden")
    assert isinstance(batch.error, Forbidden)


def test_what_is_refused_at_its_first_sending_leaves_its_sequence_to_the_next(hand: Hand) -> None:
    topic = hand.topic()
    refused = hand.batch(topic)
    hand.refuse(hand.published()[0], "forbidden")
    assert isinstance(refused.error, Forbidden)
    hand.batch(topic)
    assert [sent.sequence for sent in hand.published()] == [1]


def test_a_forgotten_producer_starts_over_with_what_was_never_sent_before(hand: Hand) -> None:
    topic = hand.topic()
    hand.confirm(*[hand.published()[0] for _ in range(5) if hand.batch(topic)])
    uncertain = hand.batch(topic, b"uncertain")
    hand.published()
    hand.session.disconnected(LEADER)
    fresh = hand.batch(topic, b"fresh")
    hand.up(LEADER)
    hand.refuse(hand.held_back[0], "out_of_sequence", detail=1)
    assert isinstance(uncertain.error, NotConfirmed)
    hand.pass_ms(limits.SECOND_MS)
    (again,) = hand.published()
    assert again.batch is not None
    assert (again.sequence, again.batch.producer) == (1, hand.producers.to_bytes(16))
    assert hand.producers == 2
    hand.confirm(again)
    assert (fresh.done, fresh.error) == (True, None)


def test_not_leader_brings_the_better_address(hand: Hand) -> None:
    topic = hand.topic()
    hand.batch(topic)
    (sent,) = hand.published()
    hand.answer(sent, RefusedMessage("not_leader", "not here", endpoint=OTHER, retry_after_ms=10), term=2)
    hand.pass_ms(10)
    assert ("open", OTHER) in hand.session.links.actions
    hand.up(OTHER)
    assert [(each.endpoint, each.sequence) for each in hand.held_back] == [(OTHER, 1)]


def test_an_old_leader_confirms_nothing(hand: Hand) -> None:
    topic = hand.topic()
    flight = hand.batch(topic)
    (sent,) = hand.published()
    hand.session.links.learn(Route(SHARD, 5, OTHER))
    hand.tell(Confirm([(sent.header.request_id, 0, 1, False)]), term=4)
    assert not flight.done
    hand.leader = OTHER
    hand.up(OTHER, term=5)
    (again,) = hand.held_back
    assert again.sequence == sent.sequence
    hand.tell(Confirm([(again.header.request_id, 0, 1, False)]), term=5)
    assert flight.done


def test_a_leader_answers_for_its_earlier_terms(hand: Hand) -> None:
    """The present leader confirmed it; ignoring the confirm would leave the batch open for ever."""
    flight = hand.batch(hand.topic())
    (sent,) = hand.published()
    hand.session.links.learn(Route(SHARD, 5, LEADER))
    hand.confirm(sent)
    assert flight.done
    assert hand.published() == []


def test_windows(hand: Hand) -> None:
    topic = hand.topic()
    writer, publishing = topic.writers[0], hand.session.publishing
    for _ in range(WINDOW_BATCHES):
        assert not publishing.full(writer)
        hand.batch(topic)
    assert publishing.full(writer)
    sent = hand.published()
    hand.confirm(*sent)
    assert not publishing.full(writer)
    hand.batch(topic, bytes(hand.window_bytes))
    assert publishing.full(writer)
    hand.confirm(*hand.published())
    big = publishing.batches(writer, [bytes(limits.BATCH_BYTES_MAX)] * 9, None, b"", b"", "")
    assert publishing.has_room(big)
    hand.batch(topic)
    assert not publishing.has_room(big)


def test_no_more_is_under_way_than_the_leader_remembers(hand: Hand) -> None:
    """However it came together, as when a topic made anew has fewer partitions."""
    topic = hand.topic()
    flights = [hand.batch(topic) for _ in range(300)]
    sent = hand.published()
    assert [each.sequence for each in sent] == list(range(1, limits.PRODUCER_REPEATS))
    hand.confirm(*sent[:10])
    assert [each.sequence for each in hand.published()] == list(range(128, 138))
    hand.session.disconnected(LEADER)
    hand.up(LEADER)
    again = [each for each in hand.held_back if isinstance(each.body, Publish)]
    assert [each.sequence for each in again] == list(range(11, 138))
    while again:
        hand.confirm(*again)
        again = hand.published()
    assert all(flight.done for flight in flights)
    assert hand.session.settled


def test_what_the_leader_does_not_remember_any_more_is_given_up(hand: Hand) -> None:
    topic = hand.topic()
    flights = [hand.batch(topic) for _ in range(6)]
    sent = hand.published()
    hand.refuse(sent[2], "out_of_sequence", detail=6)
    assert [str(flight.error) for flight in flights[:3]] == [
        "stored, but its offset is not remembered any more"
    ] * 3
    assert [type(flight.error) for flight in flights] == [NotConfirmed] * 3 + [type(None)] * 3
    hand.pass_ms(100)
    again = hand.published()
    assert [each.sequence for each in again] == [4, 5, 6]
    hand.refuse(again[0], "out_of_sequence", detail=5 + limits.PRODUCER_REPEATS + 1)
    assert [flight.done for flight in flights] == [True] * 5 + [False]
    hand.pass_ms(100)
    (last,) = hand.published()
    hand.confirm(last)
    assert hand.session.settled


def test_without_confirm_records_wait_a_moment_for_company(hand: Hand) -> None:
    topic = hand.topic(level="none")
    flight = hand.publish(topic)
    hand.publish(topic)
    assert flight.done
    assert hand.published() == []
    hand.pass_ms(2)
    (sent,) = hand.published()
    assert sent.batch is not None
    assert (sent.batch.count, sent.sequence) == (2, 0)
    assert hand.session.settled


def test_without_confirm_no_more_than_a_window_waits_for_a_way(hand: Hand) -> None:
    topic = hand.topic(level="none")
    (writer,) = topic.writers
    value, publishing = bytes(limits.BATCH_BYTES_MAX - 1_000), hand.session.publishing
    hand.session.disconnected(LEADER)
    count = 0
    while count < 400 and not publishing.full(writer):
        publishing.append(writer, value, None, b"", b"", "")
        publishing.seal(writer)
        count += 1
    assert limits.PUBLISH_WINDOW_BYTES <= count * limits.BATCH_BYTES_MAX <= 2 * limits.PUBLISH_WINDOW_BYTES
    hand.pass_ms(1_000)
    hand.up(LEADER)
    hand.pass_ms(10)
    assert not publishing.full(writer)


def test_every_partition_of_a_topic_made_anew_moves(hand: Hand) -> None:
    topic = hand.topic(partitions=2)
    flights = [hand.batch(topic) for _ in range(2)]
    for sent in hand.published():
        hand.refuse(sent, "unknown_topic")
    for asked in hand.sent(Resolve):
        hand.answer(asked, Topics([TopicInfo(8, "t", 1, TopicConfig(2), [SHARD, SHARD])]))
    hand.confirm(*hand.published())
    assert [(flight.done, flight.error) for flight in flights] == [(True, None)] * 2


def test_a_topic_made_anew_gets_what_was_meant_for_the_old(hand: Hand) -> None:
    topic = hand.topic()
    flight = hand.batch(topic)
    hand.refuse(hand.published()[0], "unknown_topic")
    (asked,) = hand.welcome() or hand.held_back
    assert asked.body == Resolve(["t"])
    hand.answer(asked, Topics([TopicInfo(8, "t", 1, TopicConfig(), [SHARD])]))
    (again,) = hand.published()
    assert isinstance(again.body, Publish)
    assert again.body.partition == 8 << 16
    hand.confirm(again)
    assert (flight.error, flight.offset) == (None, 0)


def test_what_waits_for_a_confirm_says_so_though_the_topic_made_anew_asks_for_none(hand: Hand) -> None:
    topic = hand.topic()
    hand.batch(topic)
    hand.refuse(hand.published()[0], "unknown_topic")
    (asked,) = hand.sent(Resolve)
    hand.answer(asked, Topics([TopicInfo(8, "t", 1, TopicConfig(level="none"), [SHARD])]))
    (again,) = hand.published()
    assert isinstance(again.body, Publish)
    assert (again.body.partition, again.body.level) == (8 << 16, "stored")


def test_a_topic_whose_level_changed_takes_the_next_records_at_the_new_one(hand: Hand) -> None:
    topic = hand.topic()
    first = hand.publish(topic)
    still_open = hand.publish(topic)
    hand.session.publishing.learn(TopicInfo(7, "t", 2, TopicConfig(level="none"), [SHARD]))
    assert "t" not in hand.session.publishing.plain, "what joins without a look would get the old one"
    after = hand.publish(topic)
    assert [flight.level for flight in (first, still_open, after)] == ["stored", "stored", "none"]
    assert [sent.body.level for sent in hand.published()] == ["stored", "stored"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("found", [[], [TopicInfo(7, "t", 1, TopicConfig(), [SHARD])]])
def test_a_topic_that_is_gone_fails_its_batches(hand: Hand, found: list[TopicInfo]) -> None:
    topic = hand.topic()
    flight = hand.batch(topic)
    hand.refuse(hand.published()[0], "unknown_topic")
    (asked,) = hand.sent(Resolve)
    hand.answer(asked, Topics(found))
    for again in hand.published():
        hand.refuse(again, "unknown_topic")
    assert isinstance(flight.error, UnknownTopic)
    assert hand.session.settled


def test_through_the_frontdoor_when_the_leader_cannot_be_reached(hand: Hand) -> None:
    topic = hand.session.publishing.learn(TopicInfo(7, "t", 1, TopicConfig(), [SHARD]))
    hand.batch(topic)
    hand.pass_ms(limits.SECOND_MS)
    hand.pass_ms(limits.SECOND_MS)
    sent = hand.welcome()
    assert [(each.endpoint, each.header.shard) for each in sent if isinstance(each.body, Publish)] == [
        (HOME, SHARD)
    ]
    hand.up(LEADER)
    assert [each.endpoint for each in hand.held_back if isinstance(each.body, Publish)] == [LEADER]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1], [(0, 1)]),
        ([limits.BATCH_BYTES_MAX, 1], [(0, 1), (1, 2)]),
        ([1, limits.BATCH_BYTES_MAX * 2, 1], [(0, 1), (1, 2), (2, 3)]),
        ([0] * 5_000, [(0, limits.BATCH_RECORDS_MAX), (limits.BATCH_RECORDS_MAX, 5_000)]),
    ],
)
def test_runs(sizes: list[int], expected: list[tuple[int, int]]) -> None:
    assert runs(sizes) == expected
