"""Subscriptions that wait until their group is stored: what happens meanwhile."""

import pytest

from core.harness import client
from core.test_copies import PARTITION, Copies
from gossipq import limits
from gossipq.core.effects import Effects
from gossipq.messages import Credit, RefusedMessage, Subscribe, Subscribed, Unsubscribe
from gossipq.operator_messages import DropGroup
from gossipq.types import Origin, topic_id_of
from gossipq.values import GroupOptions, Message, Start

ADA = client("ada")
OLD, NEW = (b"old", b"1"), (b"new", b"1")  #: connections


@pytest.fixture
def copies() -> Copies:
    copies = Copies()
    copies.publish(b"x")
    copies.confirms()
    return copies


def ask(copies: Copies, message: Message, request_id: int, origin: Origin) -> None:
    copies.step(origin, request_id, ADA, message)


def joining(lease_ms: int = 5_000, credit: int = 10) -> Subscribe:
    config = GroupOptions(mode="key_ordered", lease_ms=lease_ms)
    return Subscribe(1, "g", [Start(PARTITION)], credit, limits.MIB, config, holding=[])


def ten_records(copies: Copies) -> None:
    for _ in range(9):
        copies.publish(b"x")
    copies.confirms()


def handed(seen: list[Effects]) -> list[tuple[Origin, int, int]]:
    """The deliveries as (connection, offset, attempt)."""
    deliveries = [delivery for effects in seen for delivery in effects.deliveries]
    return [
        (delivery.origin, part.offset, part.attempt) for delivery in deliveries for part in delivery.parts
    ]


def answers(seen: list[Effects]) -> dict[int, Message]:
    return {request_id: message for effects in seen for _, request_id, message in effects.replies}


def test_who_asks_twice_before_its_group_is_stored_joins_once_and_keeps_what_it_gets(copies: Copies) -> None:
    ask(copies, joining(), 1, OLD)
    copies.turns(1)
    ask(copies, joining(), 2, NEW)
    seen = copies.turns(4)
    assert handed(seen) == [(NEW, 0, 1)], "not given to the first, and taken back by the second"
    assert isinstance(answers(seen)[1], RefusedMessage)
    assert isinstance(answers(seen)[2], Subscribed)


def test_a_subscription_gets_nothing_while_the_next_of_its_number_waits(copies: Copies) -> None:
    ask(copies, joining(), 1, OLD)
    assert handed(copies.turns(3)) == [(OLD, 0, 1)]
    copies.publish(b"y")
    copies.turns(1)  # the record is stored; it is delivered with the next turn
    ask(copies, joining(lease_ms=6_000), 2, NEW)
    ask(copies, Credit(1, 5, 5_000), 3, NEW)
    assert handed(copies.turns(4)) == [(NEW, 0, 1), (NEW, 1, 1)], (
        "the client has neither: 0 comes again, 1 waited"
    )


def test_credit_behind_a_subscribe_counts_for_it_while_it_waits_for_its_group(copies: Copies) -> None:
    ten_records(copies)
    ask(copies, joining(credit=2), 1, OLD)
    ask(copies, Credit(1, 3, 0), 0, OLD)
    copies.turns(1)
    ask(copies, Credit(1, 1, 0), 0, OLD)
    assert [offset for _, offset, _ in handed(copies.turns(4))] == [0, 1, 2, 3, 4, 5]


def test_credit_of_a_subscribe_that_is_replaced_while_it_waits_goes_with_it(copies: Copies) -> None:
    ten_records(copies)
    ask(copies, joining(credit=2), 1, OLD)
    ask(copies, Credit(1, 5, 0), 0, OLD)
    copies.turns(1)
    ask(copies, joining(credit=1), 2, NEW)
    ask(copies, Credit(1, 2, 0), 0, NEW)
    assert [offset for _, offset, _ in handed(copies.turns(4))] == [0, 1, 2]


@pytest.mark.parametrize("farewell", ["unsubscribe", "end of the session"])
def test_who_goes_before_its_group_is_stored_does_not_join(copies: Copies, farewell: str) -> None:
    held: list[bool] = []
    look = lambda: held.append(copies.leader.dispatch.holds(ADA.session))  # noqa: E731
    ask(copies, joining(), 1, OLD)
    copies.led.inbox.append(look)
    if farewell == "unsubscribe":
        ask(copies, Unsubscribe(1), 2, OLD)
    else:
        copies.led.inbox.append(lambda: copies.led.turn.end_session(ADA.session))
    copies.led.inbox.append(look)
    seen = copies.turns(4)
    assert held == [True, False]
    assert handed(seen) == []
    assert isinstance(answers(seen)[1], RefusedMessage)
    assert not copies.leader.dispatch.subscriptions


def test_who_joins_a_group_that_is_removed_in_that_moment_is_told_and_does_not_become_a_reader(
    copies: Copies,
) -> None:
    ask(copies, joining(), 1, OLD)
    copies.turns(3)
    ask(copies, Unsubscribe(1), 2, OLD)
    copies.turns(3)
    ask(copies, joining(lease_ms=6_000), 3, NEW)
    ask(copies, DropGroup(topic_id_of(PARTITION), "g"), 4, NEW)
    seen = copies.turns(4)
    refused = answers(seen)[3]
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "busy"
    assert not copies.leader.dispatch.subscriptions
    assert not copies.leader.dispatch.holds(ADA.session)
