"""Connections of one port: the slowest is closed if there are too many."""

import pytest

from gossipq_gateway import seats
from gossipq_gateway.seats import BODY, HEAD, IDLE, Seats


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "CONNECTIONS_MAX", 6)
    monkeypatch.setattr(seats, "OF_ADDRESS_MAX", 3)


def full(*kinds: int | None) -> Seats[str]:
    """Six connections c0 to c5, each from an address of its own."""
    made = Seats[str]()
    for number, kind in enumerate(kinds):
        assert made.enter(f"c{number}", f"a{number}") is None
        made.put(f"c{number}", kind)
    return made


@pytest.mark.parametrize(
    ("kinds", "slowest"),
    [
        ((None, HEAD, IDLE, BODY, HEAD, None), "c1"),
        ((None, BODY, IDLE, BODY, IDLE, None), "c2"),
        ((None, None, None, BODY, BODY, None), "c3"),
        ((None, None, None, None, None, None), None),
    ],
)
def test_the_slowest_makes_way(kinds: tuple[int | None, ...], slowest: str | None) -> None:
    made = full(*kinds)
    assert made.enter("new", "b") == slowest
    assert made.is_overfull
    made.leave(slowest or "new")
    assert not made.is_overfull


def test_who_begins_again_is_the_last_in_line() -> None:
    made = full(*[HEAD] * 6)
    made.put("c0", HEAD)
    assert made.enter("n1", "b") == "c0"
    made.leave("c0")
    made.put("c1", None)
    made.put("c1", HEAD)
    assert made.enter("n2", "b") == "c2"


def test_an_address_has_a_share_of_all() -> None:
    """Its own slowest connection makes way, or else the new one."""
    made = Seats[str]()
    assert made.enter("other", "b") is None
    assert [made.enter(f"c{number}", "a") for number in range(3)] == [None] * 3
    assert made.enter("c3", "a") == "c0"
    made.leave("c0")
    for name in ("c1", "c2", "c3"):
        made.put(name, None)
    assert made.enter("c4", "a") == "c4"
    made.leave("c4")
    made.leave("c1")
    assert made.enter("c5", "a") is None


def test_an_address_of_many_callers_has_no_share() -> None:
    made = Seats[str](lambda address: address == "proxy")
    assert [made.enter(f"c{number}", "proxy") for number in range(6)] == [None] * 6
    assert made.enter("c6", "proxy") == "c0"


def test_who_has_left_is_forgotten() -> None:
    made = full(*[HEAD] * 6)
    for number in range(6):
        made.leave(f"c{number}")
        made.put(f"c{number}", HEAD)
        made.leave(f"c{number}")
    assert made.enter("new", "a0") is None
    assert (len(made._addresses), list(made._of)) == (1, ["a0"])
