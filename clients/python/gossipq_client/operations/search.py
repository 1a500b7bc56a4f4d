"""Search through the records of a topic: the conditions, and the offsets between which it looks."""

from collections.abc import Callable

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.types import Offset
from gossipq_client.session import Record
from gossipq_client.values import inputs

Progress = Callable[[int, int], None]  #: records looked at, records to look at
Place = tuple[str, int]  #: topic and partition number

PROGRESS_RECORDS = 1_000


class Search:
    """The conditions for records of a reader, and how far the search has come."""

    def __init__(
        self,
        start: inputs.Start,
        end: inputs.Start | None,
        key: inputs.Value | None,
        contains: inputs.Value | None,
        header: inputs.Headers | None,
        limit: int | None,
        progress: Progress | None,
        wall_ms: int,
    ) -> None:
        """Raises BadRequest."""
        self.start = inputs.start_of(start, wall_ms)
        self.end = None if end is None else inputs.start_of(end, wall_ms, "end")
        if self.start[0] == "new" or (self.end is not None and self.end[0] in ("first", "new")):
            raise BadRequest(
                f"start={start!r}, end={end!r}", hint='use an offset, an aware datetime, or "-10m"'
            )
        if self.end is not None and self.end[0] == self.start[0] and self.end[1] <= self.start[1]:
            raise BadRequest(
                f"end={end!r} is not after start={start!r}", hint="the end itself is not included"
            )
        self._key = None if key is None else inputs.key_bytes(key)
        self._contains = None if contains is None else inputs.as_bytes(contains, "contains")
        self._headers = {name: inputs.as_bytes(value, "header") for name, value in (header or {}).items()}
        self._left = (
            limits.CREDIT_MAX if limit is None else inputs.whole(limit, "limit", 1, limits.CREDIT_MAX)
        )
        self._progress = progress
        self._looked = self._total = 0
        self._ends: dict[Place, Offset] = {}  #: end in each partition where the search continues

    @property
    def over(self) -> bool:
        """True when no further records are wanted."""
        return not self._ends or not self._left

    def cover(self, place: Place, first: Offset, end: Offset) -> None:
        """Adds a partition to search between these offsets."""
        if first < end:
            self._ends[place] = end
            self._total += end - first

    def wants(self, record: Record) -> bool:
        """True if the search wants this record, the next one of some partition."""
        place, offset = (record.topic, record.partition), record.offset
        end = self._ends.get(place, 0)
        if offset >= end - 1:
            self._ends.pop(place, None)
        if offset >= end:
            return False
        self._looked += 1
        wanted = self._fits(record)
        self._left -= wanted
        if self._looked % PROGRESS_RECORDS == 0 or self.over:
            self.report()
        return wanted

    def _fits(self, record: Record) -> bool:
        if self._contains is not None and self._contains not in record.value:
            return False
        if self._key is not None and record.key != self._key:
            return False
        if not self._headers:
            return True
        headers = record.headers_shown
        return all(
            name in headers and inputs.as_bytes(headers[name], name) == value
            for name, value in self._headers.items()
        )

    def report(self) -> None:
        """Reports the progress."""
        if self._progress is not None:
            self._progress(self._looked, self._total)
