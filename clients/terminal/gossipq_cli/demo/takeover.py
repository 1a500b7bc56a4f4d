"""Effect of a killed node on producers: how long its partitions confirmed nothing new. Pure."""

from collections.abc import Iterable


class Takeover:
    def __init__(
        self, shards: Iterable[int], partitions: Iterable[int], published: int, now_s: float
    ) -> None:
        """A node led these shards, with these partitions of the topic, until `now_s`.

        It may have confirmed the first `published` things; later ones are confirmed by other nodes.
        """
        self.shards = frozenset(shards)
        self.ms_max = 0
        self._waiting = set(partitions)
        self._published, self._since_s = published, now_s

    @property
    def over(self) -> bool:
        """True if every partition confirms again."""
        return not self._waiting

    def end(self) -> None:
        """All is confirmed. Partitions without later publishes had no pause."""
        self._waiting.clear()

    def confirmed(self, number: int, partition: int, now_s: float) -> None:
        """Note the confirm of the `number`th published thing, counted from 0."""
        if number >= self._published and partition in self._waiting:
            self._waiting.discard(partition)
            self.ms_max = max(self.ms_max, round(1000 * (now_s - self._since_s)))
