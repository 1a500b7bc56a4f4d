"""Leases of callers, tested alone."""

from typing import NamedTuple

import pytest

from gossipq.errors import BadRequest, LeaseLost
from gossipq_gateway.leases import DONE_MAX, Leases, named


class Record(NamedTuple):
    ref: str = "orders/0/17"
    attempt: int = 1
    lost: bool = False
    topic_id: int = 3


def test_a_token_says_what_it_is_of() -> None:
    leases = Leases[Record]("ab12")
    lease = leases.add("billing", Record(), 100, None)
    assert named(lease.token) == ("billing", "orders", (3, 0, 17, 1), "ab12")
    assert leases.find(lease.token) is lease


def test_no_two_tokens_are_alike() -> None:
    leases = Leases[Record]("ab12")
    assert len({leases.add("g", Record(), 100, None).token for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "token",
    ["", "x", "g@orders/0/17", "g@~a-1", "@~-", "g@r~a", "é@☃~", "g@orders/0/17~a-1", "g@orders/0/17~3.1.a-"],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(BadRequest):
        Leases[Record]("ab12").find(token)


def test_a_lease_ends_in_its_time() -> None:
    leases = Leases[Record]("ab12")
    first, second = (leases.add("g", Record(), at, None) for at in (100, 200))
    assert leases.due(99) == []
    leases.extend(first, 300)
    assert leases.due(200) == [second]
    with pytest.raises(LeaseLost, match="or the lease expired"):
        leases.find(second.token)
    assert leases.due(299) == []
    assert leases.due(300) == [first]
    assert len(leases) == 0


def test_an_extension_may_be_shorter() -> None:
    leases = Leases[Record]("ab12")
    lease = leases.add("g", Record(), 1_000, None)
    leases.extend(lease, 10)
    assert leases.due(10) == [lease]
    assert leases.due(2_000) == []


def test_a_token_of_another_gateway_is_told_apart() -> None:
    token = Leases[Record]("other").add("g", Record(), 100, None).token
    with pytest.raises(LeaseLost, match="another gateway"):
        Leases[Record]("ab12").find(token)


def test_what_others_have_is_no_lease_any_more() -> None:
    leases = Leases[Record]("ab12")
    lease = leases.add("g", Record(lost=True), 100, None)
    with pytest.raises(LeaseLost):
        leases.find(lease.token)


def test_what_was_acked_is_remembered_for_a_while() -> None:
    leases = Leases[Record]("ab12")
    first = leases.add("g", Record(), 100, None)
    leases.drop(first, acked=True)
    assert leases.was_acked(first.token)
    for _ in range(DONE_MAX):
        leases.drop(leases.add("g", Record(), 100, None), acked=True)
    assert not leases.was_acked(first.token)


def test_leases_that_were_settled_or_put_off_take_no_place_until_their_time() -> None:
    """Their time may be half a day: a gateway that delivers thousands of
    records a second would fill up.
    """
    leases = Leases[Record]("ab12")
    kept = leases.add("g", Record(), 500, None)
    for _ in range(10_000):
        leases.drop(leases.add("g", Record(), 43_200_000, None), acked=True)
    for at in range(10_000):
        leases.extend(kept, 1_000 + at)
    assert len(leases._ends) < 2_000
    assert leases.due(10_998) == []
    assert leases.due(10_999) == [kept]
