"""When a run of handlers ends by itself."""

from typing import Literal, NamedTuple

from gossipq.errors import BadRequest
from gossipq_client.io import resident_bytes
from gossipq_client.values import inputs

RunEnd = Literal["stopped", "at_end", "max_records", "max_memory"]
RECORDS_MAX = 1 << 53
MEMORY_BYTES_MIN, MEMORY_BYTES_MAX = 1 << 20, 1 << 60
LOOK_MS = 1_000  #: how often a run looks at the memory of its process


class Limits(NamedTuple):
    """Limits that end a run: the end of the records, a number of records, or the memory of the process."""

    stop_at_end: bool = False
    max_records: int = RECORDS_MAX
    max_memory_bytes: int | None = None

    @classmethod
    def of(cls, stop_at_end: bool, max_records: int | None, max_memory: int | None) -> "Limits":
        """Raises BadRequest for numbers out of range, and for `max_memory` where it cannot be measured."""
        if max_records is not None:
            inputs.whole(max_records, "max_records", 1, RECORDS_MAX)
        if max_memory is not None:
            inputs.whole(max_memory, "max_memory", MEMORY_BYTES_MIN, MEMORY_BYTES_MAX)
            if resident_bytes() is None:
                raise BadRequest(
                    "max_memory= needs Linux or macOS: this system does not say what a process uses",
                    hint="leave it out, and use max_records=",
                )
        return cls(stop_at_end, RECORDS_MAX if max_records is None else max_records, max_memory)
