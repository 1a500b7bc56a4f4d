"""Keyed deadlines: a min-heap that drops cancelled keys lazily."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """`set` moves a key, `cancel` drops it, `expire` removes and returns due keys, earliest
    first.
    """

    __slots__ = ("_at", "_count", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0  # keeps equal deadlines in order of arrival; keys are never compared

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def set(self, key: K, at_ms: int) -> None:
        if self._at.get(key) == at_ms:
            return
        self._at[key] = at_ms
        self._count += 1
        heappush(self._heap, (at_ms, self._count, key))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [item for item in self._heap if self._at.get(item[2]) == item[0]]
            heapify(self._heap)

    def cancel(self, key: K) -> None:
        self._at.pop(key, None)

    def next(self) -> int | None:
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def expire(self, now_ms: int) -> list[K]:
        due: list[K] = []
        while (at_ms := self.next()) is not None and at_ms <= now_ms:
            key = heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due
