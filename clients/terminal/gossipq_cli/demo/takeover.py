"""What the fall of a node meant for who publishes: how long each partition that it led confirmed nothing new.
Pure."""

from collections.abc import Iterable


class Takeover:
    def __init__(
        self, shards: Iterable[int], partitions: Iterable[int], published: int, now_s: float
    ) -> None:
        """Of a node that led these shards, and among them these partitions of the topic, until `now_s`. The
        first `published` things may have been confirmed by it; only others can confirm what came after
        them."""
        self.shards = frozenset(shards)
        self.ms_max = 0
        self._waiting = set(partitions)
        self._published, self._since_s = published, now_s

    @property
    def over(self) -> bool:
        """Every partition confirms again."""
        return not self._waiting

    def end(self) -> None:
        """All is confirmed: where nothing came after the fall, nobody had to wait."""
        self._waiting.clear()

    def confirmed(self, number: int, partition: int, now_s: float) -> None:
        """Of the thing that was published as the `number`th, counted from 0."""
        if number >= self._published and partition in self._waiting:
            self._waiting.discard(partition)
            self.ms_max = max(self.ms_max, round(1000 * (now_s - self._since_s)))
