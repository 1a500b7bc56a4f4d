"""Measures the cost of a record: records a second, and processor time of clients and nodes per record. Also
runs two ways to do the same, in turns."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from report import Row
from stage import cpu_s

Found = TypeVar("Found")


class Measured(NamedTuple):
    """One run, and the processor time that each record of it took."""

    per_s: float
    clients_us: float
    nodes_us: float

    @property
    def us(self) -> float:
        return self.clients_us + self.nodes_us

    @property
    def per_core_s(self) -> float:
        return 1e6 / self.us


class Spent(NamedTuple):
    wall_s: float
    clients_s: float
    nodes_s: float

    def of_each(self, records: int) -> Measured:
        each_us = 1e6 / records
        return Measured(records / self.wall_s, self.clients_s * each_us, self.nodes_s * each_us)


class Watch:
    """Processor time since this object was made. The time of the nodes is that of process `nodes` and of all
    processes below it. The time of clients is that of this program, and of its children that have ended."""

    def __init__(self, nodes: int | None = None) -> None:
        self._nodes = nodes
        self._begin = self._now()

    def spent(self) -> Spent:
        return Spent(*(now - then for now, then in zip(self._now(), self._begin, strict=True)))

    def _now(self) -> Spent:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        clients_s = time.process_time() + ended.ru_utime + ended.ru_stime
        return Spent(time.perf_counter(), clients_s, cpu_s(self._nodes) if self._nodes else 0.0)


def in_turns(
    sides: Sequence[Callable[[], Found]], pairs: int, told: Callable[[int, list[Found]], None]
) -> list[list[Found]]:
    """Run both sides in pairs and return the results of each. The one that goes first changes from pair to
    pair. A round before the first pair warms up, and does not count."""
    found: list[list[Found]] = [[], []]
    for number in range(pairs + 1):
        order = (0, 1) if number % 2 else (1, 0)
        got = {at: sides[at]() for at in order}
        told(number, [got[0], got[1]])
        if number:
            for at in order:
                found[at].append(got[at])
    return found


def heard(name: str, pairs: int) -> Callable[[int, list[Measured]], None]:
    """Tells a pair on stderr."""

    def told(number: int, got: list[Measured]) -> None:
        said = (f"{each.per_s:,.0f}/s at {each.clients_us:.2f} + {each.nodes_us:.2f} us" for each in got)
        print(f"{name} {number}/{pairs}: " + " against ".join(said), file=sys.stderr)

    return told


def parts(found: list[list[Measured]]) -> str:
    """Medians of both sides, of clients and nodes for themselves."""
    return " against ".join(
        f"clients {statistics.median(each.clients_us for each in side):.2f} us"
        f" and nodes {statistics.median(each.nodes_us for each in side):.2f} us"
        for side in found
    )


class Ratios(NamedTuple):
    """Of one side's figure to the other's, pair by pair."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratios(sides: Sequence[Sequence[float]]) -> Ratios:
    found = [mine / its for mine, its in zip(*sides, strict=True)]
    return Ratios(statistics.median(found), min(found), max(found))


def row(name: str, sides: list[list[float]], shown: str, asked: str, said: str) -> Row:
    """Medians of both, and the median of the ratios of all pairs. `asked` "": how far these ratios go."""
    mine, its = (shown.format(statistics.median(side)) for side in sides)
    found = ratios(sides)
    return Row(name, mine, its, f"{found.median:.2f}", asked or f"{found.low:.2f} to {found.high:.2f}", said)
