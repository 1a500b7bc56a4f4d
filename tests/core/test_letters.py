"""Pages of dead letters: each letter comes once, a page fits a frame, and the next page begins
after it. Answers about single records fit a frame, too.
"""

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.messages import DeadLetters, ListDead, Nack, Trace, Traced
from gossipq.types import PartitionKey
from gossipq.values import DeadLetter, Ref, TopicOptions
from gossipq.wire.frames import decode, encode

ADA = client("ada")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    return single(worker.topic("orders", TopicOptions(backoff_ms=[0], attempts_max=10)))


def bury(worker: FakeWorker, orders: PartitionKey, group: str, number: int, offsets: range) -> None:
    """Makes each of these records a dead letter of the group, one by one."""
    worker.subscribe(ADA, orders, group, number=number)
    worker.turn()
    for first in offsets:
        dead = Nack(number, [(orders, first, first + 1)], dead="rejected", reason=f"{group} {first}")
        worker.ask(1, ADA, dead)
    worker.turn()


def page(worker: FakeWorker, request: ListDead) -> tuple[DeadLetters, list[bytes]]:
    effects = worker.turn(lambda: worker.step(1, (b"c", b"1"), 5, ADA, request))
    (_, _, answer, bodies) = effects[1].enclosed[0]
    assert isinstance(answer, DeadLetters)
    decode(encode(answer))  # the client can read the answer
    return answer, bodies


def listed(
    worker: FakeWorker, orders: PartitionKey, bodies: bool = False, limit: int = 100
) -> list[DeadLetter]:
    """Lists dead letters page by page, as a client does."""
    letters, after = list[DeadLetter](), 0
    while after >= 0:
        answer, _ = page(worker, ListDead(orders, "", after, limit, bodies))
        letters += answer.letters
        assert answer.more < 0 or answer.more > after, "the next page begins behind this one"
        after = answer.more
    return letters


def names(letters: list[DeadLetter]) -> list[tuple[str, int]]:
    return [(each.group, each.offset) for each in letters]


def test_letters_of_a_group_do_not_hide_those_of_another(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.publish(orders, [b"x"] * 40)
    bury(worker, orders, "a", 1, range(40))
    bury(worker, orders, "b", 2, range(40))
    assert names(listed(worker, orders, limit=10)) == [(g, at) for at in range(40) for g in ("a", "b")]


def test_a_large_record_that_is_dead_in_two_groups_is_listed_once_for_each(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    large = b"x" * (limits.DELIVER_BYTES_MAX + 1)
    worker.publish(orders, [large])
    worker.publish(orders, [large])
    for number, group in enumerate("ab", 1):
        bury(worker, orders, group, number, range(2))
    letters = listed(worker, orders, bodies=True)
    assert names(letters) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [each.size > 0 for each in letters] == [True, False] * 2, "a frame has it once"
    answer, bodies = page(worker, ListDead(orders, "b", bodies=True))
    assert [each.size for each in answer.letters] == [len(body) for body in bodies]
    assert answer.letters[0].size > limits.DELIVER_BYTES_MAX, "who asks for one group gets its bodies"


def test_a_record_that_is_dead_in_more_groups_than_a_page_has_letters(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.publish(orders, [b"x", b"y"])
    for number, group in enumerate("abc", 1):
        bury(worker, orders, group, number, range(2))
    assert names(listed(worker, orders, limit=2)) == [(g, at) for at in range(2) for g in "abc"]


def test_long_errors_make_small_pages(worker: FakeWorker, orders: PartitionKey) -> None:
    """A letter of ten attempts takes twenty kilobytes; a hundred letters
    exceed the largest frame.
    """
    count = 60
    worker.publish(orders, [b"x"] * count)
    worker.subscribe(ADA, orders, "a")
    for _ in range(10):
        worker.tick(1)
        for first in range(count):
            reason = f"{first} ".ljust(limits.ERROR_BYTES_MAX, "e")
            worker.ask(1, ADA, Nack(1, [(orders, first, first + 1)], reason=reason))
        worker.turn()
    assert names(listed(worker, orders)) == [("a", at) for at in range(count)]


def test_steps_of_a_record_are_told_whatever_happened_to_its_neighbours(worker: FakeWorker) -> None:
    bills = single(worker.topic("bills", TopicOptions(trace="all", backoff_ms=[0], attempts_max=20)))
    last = 1_200
    worker.publish(bills, [b"x"] * (last + 1))
    worker.subscribe(ADA, bills, "a", records=10_000)
    worker.turn()
    for first in range(0, last, 2):
        worker.ask(1, ADA, Nack(1, [(bills, first, first + 1)], failed=False))
        worker.turn()
        worker.tick(60)
    worker.ask(1, ADA, Nack(1, [(bills, last, last + 1)], reason="mine"))
    worker.turn()
    worker.tick(60)
    answer = worker.ask(1, ADA, Trace(Ref(bills, last)))
    assert isinstance(answer, Traced)
    whats = [step.what for step in answer.steps]
    assert whats[:1] == ["published"]
    assert "failed" in whats
    assert whats.count("handed_out") == 2


def test_a_history_without_end_is_told_as_far_as_an_answer_goes(worker: FakeWorker) -> None:
    bills = single(worker.topic("bills", TopicOptions(trace="all", backoff_ms=[0], attempts_max=100_000)))
    worker.publish(bills, [b"x"])
    for number in range(1, 41):
        worker.subscribe(ADA, bills, f"g{number}", number=number)
    for at in range(16):
        worker.turn()
        worker.tick(60)
        for number in range(1, 41):
            reason = f"{at} ".ljust(limits.ERROR_BYTES_MAX, "e")
            worker.ask(1, ADA, Nack(number, [(bills, 0, 1)], reason=reason))
    answer = worker.ask(1, ADA, Trace(Ref(bills, 0)))
    assert isinstance(answer, Traced)
    decode(encode(answer))
    assert max(step.time_ms for step in answer.steps) >= worker.now.wall_ms - 1_000, "the newest are there"
