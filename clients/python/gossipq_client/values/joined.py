"""The jobs that a joined record waited for, as a header of it tells them."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gossipq.errors import BadRequest
from gossipq.types import PARTS_HEADER
from gossipq_client.values import inputs, payloads


@dataclass(frozen=True, slots=True)
class JoinedJob:
    """A job that a joined record waited for.

    `state` is "succeeded", "failed", "cancelled" or "expired"; "unknown" if the broker knows nothing of it;
    "open" if it had not ended when the record was published.
    """

    ref: str
    state: str
    because: str = ""  #: of a failed job its error, as "ValueError: no such order"


_decode = msgspec.json.Decoder(list[JoinedJob]).decode


def joined_jobs(header_bytes: bytes) -> list[JoinedJob]:
    """Return the jobs that a record waited for, in the order of `join`; [] if it waited for none."""
    text = payloads.headers_shown(header_bytes).get(PARTS_HEADER) if header_bytes else None
    try:
        return _decode(text) if isinstance(text, str) else []
    except msgspec.DecodeError:  # a program made the header
        return []


def count_of(when: str | int, jobs: Sequence[object]) -> int:
    """Return how many of the jobs must have ended; 0: all. Raises BadRequest."""
    if not jobs:
        raise BadRequest("join() of no jobs", hint="pass receipts or refs")
    if when in ("all", "any"):
        return int(when == "any")
    if isinstance(when, str):
        raise BadRequest(f"when={when!r}", hint='"all", "any" or a number of jobs are allowed')
    return inputs.whole(when, "when", 1, len(jobs))
