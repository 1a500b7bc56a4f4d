"""Timers: a record with a delay is never delivered early, and is delivered in the end.

The rule follows Jepsen's test of the scheduler Chronos (jepsen-io/jepsen, chronos/src/jepsen/chronos): each
target is matched by a run that does not begin before it. One clock, that of the clients, measures both ends.
"""

from collections.abc import Iterator

from history.record import Operation, pairs

ROUNDING_NS = 1_000_000  #: a delay is counted in whole milliseconds


def timer_failures(history: list[Operation]) -> Iterator[str]:
    due_ns: dict[str, int] = {}
    confirmed: set[str] = set()
    for pair in pairs(history, "schedule"):
        name, delay_ms = pair.invoked.value
        due_ns[name] = pair.invoked.time + delay_ms * 1_000_000
        if pair.is_ok:
            confirmed.add(name)
    arrived: set[str] = set()
    for operation in history:
        if operation.f != "arrive" or operation.type != "ok":
            continue
        for name in operation.value:
            arrived.add(name)
            if name not in due_ns:
                yield f"timer: {name} arrived and was never scheduled"
            elif operation.time < due_ns[name] - ROUNDING_NS:
                yield f"timer: {name} arrived {(due_ns[name] - operation.time) / 1e6:.1f} ms early"
    for name in sorted(confirmed - arrived):
        yield f"timer: {name} was confirmed and never arrived"
