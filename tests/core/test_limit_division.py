"""Parts of a group's limits, divided among leaders: never too many together, and used where records wait."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gossipq.core.delivery import limit_division
from gossipq.core.delivery.limit_division import (
    FLOOR,
    PACE,
    LimitDivision,
    LimitPart,
    LimitUse,
    Pair,
    PartTold,
    floor_of,
    pool_of,
)

SHARDS = [1, 2, 3]
WHOLE = (60, PACE)
LOST, LATE_MS, EACH_MS = 0.1, 300, 100


class Peer:
    """The leader of one shard in a term, with records in flight."""

    def __init__(self, shard: int, term: int, in_flight: int) -> None:
        self.shard, self.term, self.in_flight = shard, term, in_flight
        self.part, self.waiting = LimitPart(), 0

    @property
    def floor(self) -> Pair:
        return floor_of(WHOLE, len(SHARDS))

    @property
    def in_use(self) -> Pair:
        return max(0, self.in_flight - self.floor[0]), 0

    @property
    def most(self) -> Pair:
        part = self.part.part or (0, 0)
        return part[0] + self.floor[0], part[1] + self.floor[1]

    @property
    def use(self) -> LimitUse:
        demand = self.in_flight + self.waiting
        return LimitUse(
            self.shard, self.term, self.part.follows, WHOLE, self.part.at_most(self.in_use), demand
        )


class World:
    """Leaders, a divider, and a network that loses, delays and repeats messages. Time is in milliseconds."""

    def __init__(self, seed: int, lost: float = LOST, late_ms: int = LATE_MS) -> None:
        self.dice, self.lost, self.late_ms, self.now_ms = random.Random(seed), lost, late_ms, 0
        self.peers = {shard: Peer(shard, 1, 0) for shard in SHARDS}
        self.divider = LimitDivision(1, SHARDS)
        self.mail: list[tuple[int, Callable[[], None]]] = []

    def send(self, action: Callable[[], None]) -> None:
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            if self.dice.random() >= self.lost:
                self.mail.append((self.now_ms + 1 + self.dice.randrange(self.late_ms), action))

    def report(self, peer: Peer) -> None:
        use = peer.use
        self.send(lambda: self.heard(use))

    def heard(self, use: LimitUse) -> None:
        """The divider hears it that serves now: an earlier one has ended before."""
        for told in self.divider.hear(use):
            self.send(lambda told=told: self.told(told))  # type: ignore[misc]

    def told(self, told: PartTold) -> None:
        peer = self.peers[told.shard]
        if peer.part.hear(told, peer.term):
            self.report(peer)

    def work(self, peer: Peer) -> None:
        """Some records end, and some are delivered."""
        peer.in_flight -= self.dice.randint(0, peer.in_flight)
        begin = max(0, min(peer.waiting, peer.most[0] - peer.in_flight))
        peer.in_flight, peer.waiting = peer.in_flight + begin, peer.waiting - begin

    def run(self, ms: int, each: Callable[[], None] = lambda: None) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += 10
            due = [action for at, action in self.mail if at <= self.now_ms]
            self.mail = [mail for mail in self.mail if mail[0] > self.now_ms]
            self.dice.shuffle(due)
            for action in due:
                action()
            for peer in self.peers.values():
                self.work(peer)
                if self.now_ms % EACH_MS == 0:
                    self.report(peer)
            each()
            self.check()

    def check(self) -> None:
        slots = sum(peer.most[0] for peer in self.peers.values())
        assert slots <= WHOLE[0], f"{slots} records in flight at {self.now_ms}"
        paces = sum(peer.most[1] for peer in self.peers.values())
        assert paces <= WHOLE[1], f"{paces} parts of the rate at {self.now_ms}"


def faults(world: World) -> None:
    """Backlogs shift; leaders of shards and dividers change."""
    if world.dice.random() < 0.02:
        world.peers[world.dice.choice(SHARDS)].waiting = world.dice.choice((0, 5, 1_000, 100_000))
    if world.dice.random() < 0.01:
        old = world.peers[world.dice.choice(SHARDS)]
        unstored = world.dice.choice((0, 0, 5))  # acks that its leader lost, so these records count again
        world.peers[old.shard] = Peer(old.shard, old.term + 1, old.in_flight + unstored)
        world.peers[old.shard].waiting = old.waiting
    if world.dice.random() < 0.01:
        world.divider = LimitDivision(world.divider.term + 1, SHARDS)


@pytest.mark.parametrize("seed", range(20))
def test_no_limit_is_exceeded_whatever_is_lost_late_or_repeated(seed: int) -> None:
    world = World(seed)
    world.run(10_000, lambda: faults(world))


@pytest.mark.parametrize("seed", range(5))
def test_a_shift_of_the_backlog_is_followed_within_a_second(seed: int) -> None:
    world = World(seed, lost=0, late_ms=20)
    for shard in (1, 3, 2):
        for peer in world.peers.values():
            peer.waiting = 100_000 if peer.shard == shard else 0
        world.run(1_000)
        busy = world.peers[shard].most
        assert busy[0] >= 0.95 * WHOLE[0]
        assert busy[1] >= 0.95 * WHOLE[1]


def test_equal_backlogs_get_equal_parts() -> None:
    world = World(1, lost=0, late_ms=20)
    for peer in world.peers.values():
        peer.waiting = 1_000_000
    world.run(1_000)
    parts = [peer.most for peer in world.peers.values()]
    assert max(part[0] for part in parts) - min(part[0] for part in parts) <= 3
    assert max(part[1] for part in parts) - min(part[1] for part in parts) <= 30


def test_a_leader_with_one_record_is_not_starved() -> None:
    world = World(1, lost=0, late_ms=20)
    for peer in world.peers.values():
        peer.waiting = 1 if peer.shard == 2 else 1_000_000
    world.run(1_000)
    assert world.peers[2].waiting == 0


def test_a_new_divider_waits_for_all_leaders() -> None:
    division = LimitDivision(2, SHARDS)
    told = division.hear(LimitUse(1, 1, (0, 0), WHOLE, (0, 0), 10))
    assert {each.shard for each in told} == set(SHARDS)
    assert all(each.part is None for each in told)


def test_floors_and_pool_are_the_limit() -> None:
    floor, pool = floor_of((1_000, PACE), 3), pool_of((1_000, PACE), 3)
    assert [3 * one + other for one, other in zip(floor, pool, strict=True)] == [1_000, PACE]
    assert floor[0] == 1_000 // (3 * FLOOR)
    assert floor_of((10, PACE), 3)[0] == 0


def raises_at_once(patch: pytest.MonkeyPatch) -> None:
    """The divider raises one part before another one is confirmed to be lower."""
    hear = LimitDivision.hear

    def forgets(division: LimitDivision, use: LimitUse) -> Any:
        found = hear(division, use)
        for of in division._of.values():
            of.part = of.sent or of.part
        return found

    patch.setattr(LimitDivision, "hear", forgets)


def follows_anyone(patch: pytest.MonkeyPatch) -> None:
    """A leader follows a divider of an earlier term."""
    hear = LimitPart.hear

    def any_term(part: LimitPart, told: PartTold, term: int) -> bool:
        part.follows = (0, 0)
        return hear(part, told, term)

    patch.setattr(LimitPart, "hear", any_term)


def knows_too_early(patch: pytest.MonkeyPatch) -> None:
    """A new divider takes leaders that it has not heard for leaders without a part."""
    init = limit_division._Of.__init__

    def known(of: Any, number: int) -> None:
        init(of, number)
        of.known = True

    patch.setattr(limit_division._Of, "__init__", known)


def takes_anothers_part(patch: pytest.MonkeyPatch) -> None:
    """A new leader takes what an earlier leader of its shard was told."""
    hear = LimitPart.hear
    patch.setattr(LimitPart, "hear", lambda part, told, term: hear(part, told, told.leads))


@pytest.mark.parametrize("plant", [raises_at_once, follows_anyone, knows_too_early, takes_anothers_part])
def test_a_planted_bug_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"records in flight at|parts of the rate at"):
        many_faults()


def many_faults() -> None:
    for seed in range(200):
        world = World(seed)
        world.run(10_000, partial(faults, world))
