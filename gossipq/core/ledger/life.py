"""The life of a record in one group: all states, and all changes between them.

`Cursor.move` counts changes by this table, and nothing else writes the counters of a group. A
change that is not listed raises `NoSuchChange`, which stops the shard and counts as a fault.
`table` prints it for ARCHITECTURE.md. Only the leader knows which open records are in flight
(`core/delivery`), and when a waiting record is due or its lane is free.
"""

from typing import NamedTuple

from gossipq.core.ledger.lanes import key_of
from gossipq.core.ledger.records import ExceptionRow
from gossipq.core.storage import log

OPEN, RETRYING, PARKED, UNMATCHED, DEAD = "open", "retrying", "parked", "unmatched", "dead"
ACKED, VOIDED, DROPPED, REMOVED = "acked", "voided", "dropped", "removed"
HAND_OUT, ACK, FAIL, PARK, BURY, DROP = "hand out", "ack", "fail", "park", "bury", "drop"
REPLAY, PURGE, REQUEUE, VOID, TRIM = "replay", "purge", "requeue", "void", "trim"


class NoSuchChange(Exception):
    """A combination of state and event that the table does not have: a fault of this program."""


class Stage(NamedTuple):
    """A state. `counters` are the fields of CursorState that count it; none: the rest."""

    counters: tuple[str, ...]
    kept: str  #: the rows that store it
    says: str  #: how `why` describes it


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
    REMOVED: Stage(("removed",), "below the first offset", "retention or a purge removed it"),
}

#: counters of all passed records
COUNTERS = ("acked", "removed", "retrying", "parked", "dead", "voided", "dropped")


class LifeChange(NamedTuple):
    to: str
    kinds: tuple[int, ...]  #: kinds of entries that cause the change


_ACK, _DEAD, _VOID = (log.ACK, log.STEP, log.RESULT), (log.DEAD,), (log.VOID, log.EDIT)
_FAIL = (log.FAIL, log.ACK, log.RESULT)  #: the latter two contain failures of the same consumer

CHANGES: dict[tuple[str, str], LifeChange] = {
    (OPEN, HAND_OUT): LifeChange(OPEN, (log.LEASE,)),
    (RETRYING, HAND_OUT): LifeChange(RETRYING, (log.LEASE,)),
    (PARKED, HAND_OUT): LifeChange(RETRYING, (log.LEASE,)),
    (UNMATCHED, HAND_OUT): LifeChange(RETRYING, (log.LEASE,)),
    (OPEN, ACK): LifeChange(ACKED, _ACK),
    (RETRYING, ACK): LifeChange(ACKED, _ACK),
    (PARKED, ACK): LifeChange(ACKED, _ACK),
    (UNMATCHED, ACK): LifeChange(ACKED, _ACK),
    (OPEN, FAIL): LifeChange(RETRYING, _FAIL),
    (RETRYING, FAIL): LifeChange(RETRYING, _FAIL),
    (PARKED, FAIL): LifeChange(RETRYING, _FAIL),
    (UNMATCHED, FAIL): LifeChange(RETRYING, _FAIL),
    (OPEN, PARK): LifeChange(PARKED, (log.PARK,)),
    (OPEN, PARK + " unmatched"): LifeChange(UNMATCHED, (log.PARK,)),
    (OPEN, BURY): LifeChange(DEAD, _DEAD),
    (RETRYING, BURY): LifeChange(DEAD, _DEAD),
    (PARKED, BURY): LifeChange(DEAD, _DEAD),
    (UNMATCHED, BURY): LifeChange(DEAD, _DEAD),
    (OPEN, DROP): LifeChange(DROPPED, _DEAD),
    (RETRYING, DROP): LifeChange(DROPPED, _DEAD),
    (PARKED, DROP): LifeChange(DROPPED, _DEAD),
    (UNMATCHED, DROP): LifeChange(DROPPED, _DEAD),
    (DEAD, REPLAY): LifeChange(RETRYING, (log.REPLAY,)),
    (DEAD, PURGE): LifeChange(VOIDED, (log.PURGE,)),
    (DEAD, REQUEUE): LifeChange(RETRYING, (log.REQUEUE,)),
    (RETRYING, REQUEUE): LifeChange(RETRYING, (log.REQUEUE,)),
    (PARKED, REQUEUE): LifeChange(RETRYING, (log.REQUEUE,)),
    (UNMATCHED, REQUEUE): LifeChange(RETRYING, (log.REQUEUE,)),
    (ACKED, REQUEUE): LifeChange(RETRYING, (log.REQUEUE,)),
    (OPEN, VOID): LifeChange(VOIDED, (*_VOID, log.GROUP, log.REGROUP)),
    (RETRYING, VOID): LifeChange(VOIDED, _VOID),
    (PARKED, VOID): LifeChange(VOIDED, _VOID),
    (UNMATCHED, VOID): LifeChange(VOIDED, _VOID),
    (DEAD, VOID): LifeChange(VOIDED, _VOID),
    (OPEN, TRIM): LifeChange(REMOVED, (log.TRIM,)),
    (RETRYING, TRIM): LifeChange(REMOVED, (log.TRIM,)),
    (PARKED, TRIM): LifeChange(REMOVED, (log.TRIM,)),
    (UNMATCHED, TRIM): LifeChange(REMOVED, (log.TRIM,)),
}


def change_of(state: str, event: str) -> LifeChange:
    """Return the change for an event. Raises NoSuchChange."""
    found = CHANGES.get((state, event))
    if found is None:
        raise NoSuchChange(f"a record that is {state} meets the event {event}, and nobody said what then")
    return found


def waiting(row: ExceptionRow) -> str:
    """Return the state of records with an exception row."""
    if not row.lane:
        return RETRYING
    return PARKED if key_of(row.lane) else UNMATCHED


def parking(lane: bytes) -> str:
    """Return the event that parks records in a lane."""
    return PARK if key_of(lane) else PARK + " unmatched"


def table() -> list[str]:
    """Return the changes as rows of the table in ARCHITECTURE.md."""
    kinds = {number: name for name, number in vars(log).items() if name.isupper() and type(number) is int}
    rows = ["| state | event | then | logged as | counted in |", "|---|---|---|---|---|"]
    for (state, event), (to, logged) in CHANGES.items():
        names, doors = ", ".join(kinds[kind] for kind in logged), ", ".join(STATES[to].counters)
        rows.append(f"| {state} | {event} | {to} | {names} | {doors} |")
    return rows
