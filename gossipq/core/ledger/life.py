"""The life of a record in one group: each state, and each step that there is from one to another.

`Cursor.move` books steps by this table, and nothing else writes the counters of a group. What is not listed
does not happen: it raises `NoSuchStep`, which stops the shard and is counted as a fault. ARCHITECTURE.md has
the table as `table` writes it. The leader alone knows which open records are in flight (`core/delivery`), and
when the time or the lane of a waiting one has come.
"""

from typing import NamedTuple

from gossipq.core.ledger.lanes import key_of
from gossipq.core.ledger.records import ExceptionRow
from gossipq.core.storage import log

OPEN, RETRYING, PARKED, UNMATCHED, DEAD = "open", "retrying", "parked", "unmatched", "dead"
ACKED, VOIDED, DROPPED, REMOVED = "acked", "voided", "dropped", "removed"
HAND_OUT, ACK, FAIL, PARK, BURY, DROP = "hand out", "ack", "fail", "park", "bury", "drop"
REPLAY, PURGE, REQUEUE, VOID, TRIM = "replay", "purge", "requeue", "void", "trim"


class NoSuchStep(Exception):
    """A state and an event that the table does not have together: an error of this program."""


class Stage(NamedTuple):
    """`counters` are those of CursorState that count its records; none: they are what no other counts."""

    counters: tuple[str, ...]
    kept: str  #: where
    says: str  #: what `why` says of it


STATES = {
    OPEN: Stage((), "above the cursor, not passed", "it is next"),
    RETRYING: Stage(
        ("retrying",), "row V, due by Y", "it failed {times}, the next attempt is in {left}{last}"
    ),
    PARKED: Stage(("parked",), "row V, lane by U", "another record of its key is not done"),
    UNMATCHED: Stage(("parked", "unmatched"), "row V, lane by U", "no consumer takes the route {route}"),
    DEAD: Stage(("dead",), "row L, with the batch", "it is a dead letter ({reason}){error}"),
    ACKED: Stage(("acked",), "row A", "{consumer} was done with it"),
    VOIDED: Stage(("voided",), "row Z", "{by} took it away{reason}"),
    DROPPED: Stage(("dropped",), "passed", "it was dropped, or purged as a dead letter"),
    REMOVED: Stage(("removed",), "below the first offset", "retention removed it"),
}

COUNTERS = ("acked", "removed", "retrying", "parked", "dead", "voided", "dropped")  #: of all that is passed


class Step(NamedTuple):
    to: str
    kinds: tuple[int, ...]  #: of the entries that bring it


_ACK, _DEAD, _VOID = (log.ACK, log.STEP), (log.DEAD,), (log.VOID, log.EDIT)

STEPS: dict[tuple[str, str], Step] = {
    (OPEN, HAND_OUT): Step(OPEN, (log.LEASE,)),
    (RETRYING, HAND_OUT): Step(RETRYING, (log.LEASE,)),
    (PARKED, HAND_OUT): Step(RETRYING, (log.LEASE,)),
    (UNMATCHED, HAND_OUT): Step(RETRYING, (log.LEASE,)),
    (OPEN, ACK): Step(ACKED, _ACK),
    (RETRYING, ACK): Step(ACKED, _ACK),
    (PARKED, ACK): Step(ACKED, _ACK),
    (UNMATCHED, ACK): Step(ACKED, _ACK),
    (OPEN, FAIL): Step(RETRYING, (log.FAIL,)),
    (RETRYING, FAIL): Step(RETRYING, (log.FAIL,)),
    (PARKED, FAIL): Step(RETRYING, (log.FAIL,)),
    (UNMATCHED, FAIL): Step(RETRYING, (log.FAIL,)),
    (OPEN, PARK): Step(PARKED, (log.PARK,)),
    (OPEN, PARK + " unmatched"): Step(UNMATCHED, (log.PARK,)),
    (OPEN, BURY): Step(DEAD, _DEAD),
    (RETRYING, BURY): Step(DEAD, _DEAD),
    (PARKED, BURY): Step(DEAD, _DEAD),
    (UNMATCHED, BURY): Step(DEAD, _DEAD),
    (OPEN, DROP): Step(DROPPED, _DEAD),
    (RETRYING, DROP): Step(DROPPED, _DEAD),
    (PARKED, DROP): Step(DROPPED, _DEAD),
    (UNMATCHED, DROP): Step(DROPPED, _DEAD),
    (DEAD, REPLAY): Step(RETRYING, (log.REPLAY,)),
    (DEAD, PURGE): Step(VOIDED, (log.PURGE,)),
    (DEAD, REQUEUE): Step(RETRYING, (log.REQUEUE,)),
    (RETRYING, REQUEUE): Step(RETRYING, (log.REQUEUE,)),
    (PARKED, REQUEUE): Step(RETRYING, (log.REQUEUE,)),
    (UNMATCHED, REQUEUE): Step(RETRYING, (log.REQUEUE,)),
    (ACKED, REQUEUE): Step(RETRYING, (log.REQUEUE,)),
    (OPEN, VOID): Step(VOIDED, (*_VOID, log.GROUP, log.REGROUP)),
    (RETRYING, VOID): Step(VOIDED, _VOID),
    (PARKED, VOID): Step(VOIDED, _VOID),
    (UNMATCHED, VOID): Step(VOIDED, _VOID),
    (DEAD, VOID): Step(VOIDED, _VOID),
    (OPEN, TRIM): Step(REMOVED, (log.TRIM,)),
    (RETRYING, TRIM): Step(REMOVED, (log.TRIM,)),
    (PARKED, TRIM): Step(REMOVED, (log.TRIM,)),
    (UNMATCHED, TRIM): Step(REMOVED, (log.TRIM,)),
}


def step(state: str, event: str) -> Step:
    """Raises NoSuchStep."""
    found = STEPS.get((state, event))
    if found is None:
        raise NoSuchStep(f"a record that is {state} meets the event {event}, and nobody said what then")
    return found


def waiting(row: ExceptionRow) -> str:
    """The state of records with an exception row."""
    if not row.lane:
        return RETRYING
    return PARKED if key_of(row.lane) else UNMATCHED


def parking(lane: bytes) -> str:
    """The event that parks records in a lane."""
    return PARK if key_of(lane) else PARK + " unmatched"


def table() -> list[str]:
    """The steps as rows of ARCHITECTURE.md."""
    kinds = {number: name for name, number in vars(log).items() if name.isupper() and type(number) is int}
    rows = ["| state | event | then | logged as | counted in |", "|---|---|---|---|---|"]
    for (state, event), (to, logged) in STEPS.items():
        names, doors = ", ".join(kinds[kind] for kind in logged), ", ".join(STATES[to].counters)
        rows.append(f"| {state} | {event} | {to} | {names} | {doors} |")
    return rows
