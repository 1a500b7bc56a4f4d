"""Count what each address and each user created in a shard, as long as it exists."""

from collections.abc import Iterable

from gossipq.rates import Payer


class Owned:
    """Number of things of one kind ("topics", "partitions" or "groups") by owner."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Payer], int] = {}

    def add(self, what: str, owners: Iterable[Payer], count: int) -> None:
        """Count `count` more for each owner. A negative `count` gives back."""
        for owner in owners:
            left = self._counts.get((what, owner), 0) + count
            if left:
                self._counts[what, owner] = left
            else:
                self._counts.pop((what, owner), None)

    def count(self, what: str, owner: Payer) -> int:
        return self._counts.get((what, owner), 0)
