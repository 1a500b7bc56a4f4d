"""Reading a range of a topic batch by batch, as its records lie in the store: what tables and exports are
made of."""

from collections.abc import Iterator
from typing import NamedTuple

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError
from gossipq.types import Offset, PartitionKey, partition_of
from gossipq.values import GroupOptions, TopicInfo
from gossipq.wire.batch import Batch
from gossipq_client.session.credit import Subscription
from gossipq_client.session.deliveries import Consuming
from gossipq_client.values import inputs

CREDIT = 1 << 20, 32 * limits.MIB  #: records and bytes of credit while a range is read


class Stretch(NamedTuple):
    """Records [first, end) of one partition, in a batch whose record 0 has offset `base`. Offsets
    between two stretches have no readable record.
    """

    topic: str
    topic_id: int
    partition: int
    first: Offset
    end: Offset
    base: Offset
    batch: Batch

    def __len__(self) -> int:
        return self.end - self.first

    def within(self, first: Offset, end: Offset) -> "Stretch":
        """The part of its records in [first, end)."""
        between = max(self.first, first), min(self.end, end)
        return Stretch(self.topic, self.topic_id, self.partition, *between, self.base, self.batch)

    def values(self) -> list[bytes]:
        """Of the records, in order."""
        return self.batch.values()[self.first - self.base : self.end - self.base]


class Reading:
    """Ranges of a topic's partitions, read by a subscription of its own. Made by `Asking.reading`."""

    def __init__(
        self, consuming: Consuming, info: TopicInfo, ranges: dict[PartitionKey, tuple[Offset, Offset]]
    ) -> None:
        self.info, self.ranges = (
            info,
            {key: between for key, between in ranges.items() if between[0] < between[1]},
        )
        self._consuming = consuming
        self._left = {key: end for key, (_, end) in self.ranges.items()}
        self.subscription = Subscription("", ("first", 0), CREDIT, GroupOptions(), notify_end=True)
        self.subscription.whole = True
        if self._left:
            consuming.cover(
                self.subscription, [info], {key: first for key, (first, _) in self.ranges.items()}
            )

    @property
    def over(self) -> bool:
        """Everything was taken."""
        return not self._left or self.subscription.finished

    @property
    def ready(self) -> bool:
        """True if `take` can return or raise."""
        return self.over or bool(self.subscription.ready) or self.subscription.error is not None

    def take(self) -> list[Stretch]:
        """The records that have come, in order within each partition. Raises the leader's refusal,
        such as NotFound, or BadBatch if a batch cannot be opened.
        """
        if self.subscription.error is not None:
            raise self.subscription.error
        return list(self._stretches())

    def _stretches(self) -> Iterator[Stretch]:
        for piece in self._consuming.take(self.subscription, CREDIT[0]):
            held, end = piece.held, self._left.get(piece.held.partition, 0)
            if piece.end >= end:
                self._left.pop(held.partition, None)
            if piece.first < end:
                number, last = partition_of(held.partition), min(piece.end, end)
                yield Stretch(self.info.name, self.info.id, number, piece.first, last, held.base, held.batch)

    def close(self) -> None:
        self._consuming.close(self.subscription)


def between(
    start: inputs.Start, end: inputs.Start | None, wall_ms: int
) -> tuple[tuple[str, int], tuple[str, int] | None]:
    """The beginning and end of a range, as START names places. Raises BadRequest."""
    first = inputs.start_of(start, wall_ms)
    last = None if end is None else inputs.start_of(end, wall_ms, "end")
    if first[0] == "new" or (last is not None and last[0] in ("first", "new")):
        raise BadRequest(f"start={start!r}, end={end!r}", hint='use an offset, an aware datetime, or "-10m"')
    return first, last


def no_pyarrow(what: str) -> GossipqError:
    return GossipqError(f"{what} needs pyarrow, which is not installed", hint='pip install "gossipq[lake]"')
