"""The rates that one address may use, by a clock that the test passes in."""

from contextlib import suppress

import pytest

from gossipq.config import fitting
from gossipq.core.delivery.numbers import Numbers
from gossipq.errors import Busy
from gossipq.limits import SECOND_MS
from gossipq.rates import ADDRESSES_MAX, Payer, Rates, host_of, payers
from gossipq.values import Quota

QUOTA = Quota(address_requests_per_s=10, address_bytes_per_s=1_000)


def taken(rates: Rates, address: str, size: int, now_ms: int, settles: bool = False) -> int:
    """How many requests are accepted before one is refused."""
    refused, count = rates.refused, 0
    while rates.refused == refused:
        with suppress(Busy):
            rates.check(address, size, now_ms, settles)
        count += 1
    return count - 1


def test_an_address_has_so_many_requests_a_second() -> None:
    rates = Rates(QUOTA)
    assert taken(rates, "a", 1, 0) == 10
    assert taken(rates, "b", 1, 0) == 10, "another one has its own"
    assert taken(rates, "a", 1, 500) == 5
    assert taken(rates, "a", 1, 10_000) == 10, "nobody saves up"
    assert rates.refused == 4


def test_an_address_has_so_many_bytes_a_second() -> None:
    rates = Rates(QUOTA)
    assert taken(rates, "a", 300, 0) == 3
    with pytest.raises(Busy, match=r"cluster\.quota\.address_bytes_per_s, 1000"):
        rates.check("a", 101, 0)
    rates.check("a", 100, 0)
    assert taken(rates, "a", 300, 600) == 2


def test_what_settles_is_heard_up_to_twice_the_rate() -> None:
    rates = Rates(QUOTA)
    assert taken(rates, "a", 1, 0) == 10
    assert taken(rates, "a", 1, 0, settles=True) == 10
    assert taken(rates, "a", 1, SECOND_MS) == 0, "it was counted"
    assert taken(rates, "a", 1, 2 * SECOND_MS) == 10


def test_few_turns_in_a_second_or_many_give_the_same() -> None:
    rates = Rates(QUOTA)
    taken(rates, "a", 1, 0)
    assert sum(taken(rates, "a", 1, at_ms) for at_ms in range(100, SECOND_MS + 1, 100)) == 10


def test_addresses_are_forgotten() -> None:
    rates = Rates(QUOTA)
    for number in range(10 * ADDRESSES_MAX):
        rates.check(str(number), 1, 10 * number)
    assert len(rates._accounts) <= ADDRESSES_MAX


def test_by_default_one_address_or_user_leaves_room_for_others() -> None:
    """A user with rights on a few topics once took 98,945 of 100,000 partitions in two seconds."""
    quota = Quota()
    for what, whole in (
        ("topics", quota.topics),
        ("partitions", quota.partitions),
        ("groups", quota.groups),
        ("sessions", quota.sessions),
    ):
        assert 4 * getattr(quota, f"user_{what}") <= whole
        assert 2 * getattr(quota, f"address_{what}") <= whole or what == "sessions"
    small = fitting(Quota(), 128 << 20)
    assert small.partitions < quota.partitions
    assert 4 * small.user_partitions <= small.partitions


def test_a_user_sends_so_much_in_a_second() -> None:
    rates = Rates(Quota(user_requests_per_s=10, user_bytes_per_s=1_000), "user")
    assert taken(rates, "ada", 1, 0) == 10
    with pytest.raises(Busy, match=r"this user .* cluster\.quota\.user_requests_per_s, 10"):
        rates.check("ada", 1, 0)
    assert taken(rates, "bob", 300, 0) == 3


def test_subscriptions_are_counted_by_session_address_and_user() -> None:
    numbers = Numbers()
    for session, address in ((b"one", "a"), (b"two", "a"), (b"three", "b")):
        for number in (1, 2, 2):
            numbers.add(session, number, payers(address, "ada"))
    assert (numbers.counts(b"one", 2), numbers.counts(b"one", 3)) == (2, 3)
    host, ada = payers("a", "ada")
    assert (numbers.of_payer(b"one", 2, host), numbers.of_payer(b"new", 1, host)) == (4, 5)
    assert numbers.of_payer(b"new", 1, ada) == 7
    numbers.remove(b"one", 1)
    numbers.remove(b"one", 1)
    numbers.remove(b"one", 2)
    assert b"one" not in numbers
    assert list(numbers.end(b"two")) == [1, 2]
    assert numbers.of_payer(b"new", 1, host) == 1
    assert numbers._counts == {Payer("address", "b"): 2, ada: 2}


@pytest.mark.parametrize("every_ms", [1, 3, 5, 9, 11])
def test_who_asks_a_little_faster_than_a_small_quota_is_served_at_that_rate(every_ms: int) -> None:
    """Between two requests the quota refills by less than one request, and
    the fractions must add up.
    """
    rates, passed = Rates(Quota(address_requests_per_s=100)), 0
    for at_ms in range(0, 10_000, every_ms):
        with suppress(Busy):
            rates.check("h", 10, at_ms)
            passed += 1
    assert passed == pytest.approx(min(1_100, 10_000 // every_ms), abs=10)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_host_of_ipv6_is_all_of_its_network(address: str, host: str) -> None:
    assert host_of(address) == host
    assert [payer.name for payer in payers(address, "")] == ([host] if host else [])


def test_neighbours_in_ipv6_share_a_rate() -> None:
    rates = Rates(QUOTA)
    assert taken(rates, "2001:db8::1", 1, 0) == 10
    assert taken(rates, "2001:db8::2", 1, 0) == 0
    assert taken(rates, "2001:db8:0:1::2", 1, 0) == 10, "another network"
