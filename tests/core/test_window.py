"""The states of records in a leader's memory, by a model that knows each record by itself."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gossipq.core.delivery import window as windows
from gossipq.core.delivery.window import (
    ACKED,
    LEASED,
    LEFT,
    MOVED,
    MOVES,
    MOVING,
    NEW,
    READY,
    WAITING,
    Lease,
    NoSuchMove,
    ReadyRecords,
    RecordState,
    WaitingRecords,
    Window,
)
from gossipq.core.ledger import key_lane, route_lane

HOME = Path(__file__).resolve().parents[2]
STATES = (NEW, LEASED, READY, WAITING, MOVING, LEFT)
END = 40


def lease(session: bytes = b"a") -> Lease:
    view: Any = None
    return Lease(view, session, 1, "ada", 1, 0)


def state_of(name: str) -> RecordState | None:
    lane = route_lane(b"eu")
    return {LEASED: lease(), READY: ReadyRecords(0), WAITING: WaitingRecords(lane, 0), MOVING: MOVED}.get(
        name
    )


def in_state(name: str) -> Window:
    """A window whose record 0 is in that state."""
    window = Window(0)
    if name == LEFT:
        window.move(0, 1, None)
    elif name != NEW:
        window.move(0, 1, state_of(name))
    return window


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("to", STATES[1:])
def test_only_moves_of_the_table_happen(state: str, to: str) -> None:
    window = in_state(state)
    if (state, to) in MOVES or state == to == LEFT:
        window.move(0, 1, state_of(to))
        after = window.at(0)
        assert (LEFT if after is None else after.where) == to
    else:
        with pytest.raises(NoSuchMove, match=f"records that are {state} become {to}"):
            window.move(0, 1, state_of(to))


@pytest.mark.parametrize(("state", "to"), MOVES)
def test_a_move_without_its_row_is_an_error(monkeypatch: pytest.MonkeyPatch, state: str, to: str) -> None:
    window = in_state(state)
    monkeypatch.delitem(MOVES, (state, to))
    with pytest.raises(NoSuchMove):
        window.move(0, 1, state_of(to))


def test_the_table_stands_in_the_documents() -> None:
    text = (HOME / "ARCHITECTURE.md").read_text("utf-8")
    assert "\n".join(windows.table()) in text


class Model:
    """One state for each record."""

    def __init__(self) -> None:
        self.window = Window(0)
        self.states: list[Any] = [NEW] * END

    def allowed(self, ranges: list[tuple[int, int]], to: RecordState | None) -> bool:
        name = LEFT if to is None else to.where
        here = {self.name(at) for first, end in ranges for at in range(first, end)}
        return all((each, name) in MOVES or each == name == LEFT for each in here)

    def name(self, at: int) -> str:
        state = self.states[at]
        return state if isinstance(state, str) else state.where

    def move(self, ranges: list[tuple[int, int]], to: RecordState | None, at_once: bool) -> None:
        if not self.allowed(ranges, to):
            return
        if at_once and isinstance(to, (Lease, ReadyRecords)):
            self.window.move_all(ranges, to)
        else:
            for first, end in ranges:
                self.window.move(first, end, to)
        for first, end in ranges:
            self.states[first:end] = [LEFT if to is None else to] * (end - first)

    def take(self, ranges: list[tuple[int, int]], to: Any) -> None:
        taken = self.window.take_leased(ranges, b"a", True, to)
        if taken is not None:
            for held, parts, _ in taken:
                for first, end in parts:
                    assert self.states[first:end] == [held] * (end - first)
                    self.states[first:end] = [to or LEFT] * (end - first)

    def land(self, ranges: list[tuple[int, int]]) -> None:
        self.window.land(ranges)
        for first, end in ranges:
            for at in range(first, end):
                if self.name(at) == MOVING:
                    self.states[at] = LEFT

    def check(self) -> None:
        window = self.window
        new = {at for low, high in window.new(window.next, END) for at in range(low, high)}
        for at in range(END):
            state = window.at(at)
            seen = state if state is not None else NEW if at in new else LEFT
            assert seen is self.states[at] or seen == self.states[at], f"{at} is {seen}"
        assert {at for low, high, _ in window.ready for at in range(low, high)} == {
            at for at in range(END) if self.name(at) == READY
        }
        waiting = {
            at: (self.states[at].lane, self.states[at].tries) for at in range(END) if self.name(at) == WAITING
        }
        assert waiting == {
            at: (lane, tried)
            for lane, ranges in window.lanes.items()
            for low, high, tried in ranges
            for at in range(low, high)
        }
        assert set(window.lanes.routes) == {lane for lane in window.lanes if lane[:1] == b"r"}
        assert window.in_flight == sum(self.name(at) == LEASED for at in range(END))
        assert all(ranges.starts for ranges in window.lanes.values())


def some_ranges(random: Random) -> list[tuple[int, int]]:
    cuts = sorted(random.sample(range(END + 1), 2 * random.choice([1, 1, 2, 4])))
    return [(first, end) for first, end in list(pairwise(cuts))[::2]]


@pytest.mark.parametrize("seed", range(60))
def test_a_window_is_as_a_list_of_records(seed: int) -> None:
    random, model = Random(seed), Model()
    for _ in range(150):
        ranges = some_ranges(random)
        what = random.randrange(8)
        if what == 0:
            model.land(ranges)
        elif what == 1:
            model.take(ranges, random.choice([None, MOVED, ACKED]))
        elif what == 2 and model.window.lanes:
            lane = random.choice(list(model.window.lanes))
            tried = dict.fromkeys(at for at in range(END) if getattr(model.states[at], "lane", None) == lane)
            model.window.open_lane(lane)
            for at in tried:
                model.states[at] = ReadyRecords(model.states[at].tries)
        elif what == 3:
            state = lease(random.choice([b"a", b"b"]))
            first = model.window.next
            model.move([(first, first + 1)] if first < END else ranges, state, at_once=False)
            if first + 1 < END and model.window.lease_before(first + 1) is state:
                end = random.randint(first + 2, END) if first + 2 <= END else END
                if model.allowed([(first + 1, end)], state):
                    model.window.grow(state, first + 1, end)
                    model.states[first + 1 : end] = [state] * (end - first - 1)
        else:
            lanes = [route_lane(b"eu"), route_lane(b"us"), key_lane(7)]
            to = random.choice(
                [
                    None,
                    lease(),
                    ReadyRecords(random.randrange(3)),
                    WaitingRecords(random.choice(lanes), 1),
                    MOVED,
                    ACKED,
                ]
            )
            model.move(ranges, to, at_once=random.random() < 0.5)
        model.check()
