"""Linearizable register: one number that clients write and read, as a policy of a topic is.

The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the memory of Lowe
("Testing for linearizability", 2017), as in Knossos and Porcupine: take each operation that may come next,
and never try the same set of taken operations with the same state twice. An operation that ended as `info`
may take effect at any time after its invocation, or never.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from history.record import Operation, pairs

NEVER = 1 << 62  #: the index of a completion that did not come
FIRST = 0  #: the number in each register when its history begins


class Step(NamedTuple):
    """An operation on the register; it takes effect between two indices of the history."""

    invoked: int
    completed: int
    is_write: bool
    number: int | None
    text: str


def steps_of(history: list[Operation], topic: str) -> list[Step]:
    """Operations that may have had an effect: not those that failed, and no reads without an answer."""
    found = []
    for pair in pairs(history, "read", "write"):
        invoked, completed = pair
        is_write = invoked.f == "write"
        if invoked.topic != topic or pair.has_failed or not (is_write or pair.is_ok):
            continue
        known = completed if pair.is_ok else None
        number = invoked.value if is_write or known is None else known.value
        ended = NEVER if known is None else known.index
        text = f"{invoked.f} {number} by process {invoked.process} ({invoked.index}..{ended})"
        found.append(Step(invoked.index, ended, is_write, number, text))
    return found


def is_linearizable(steps: list[Step]) -> bool:
    """True if one order of the steps explains every read."""
    steps = sorted(steps)
    needed = sum(1 << at for at, step in enumerate(steps) if step.completed != NEVER)
    seen: set[tuple[int, int | None]] = set()
    stack: list[tuple[int, int | None]] = [(0, FIRST)]
    while stack:
        taken, number = stack.pop()
        if taken & needed == needed:
            return True
        if (taken, number) in seen:
            continue
        seen.add((taken, number))
        earliest = NEVER  # an operation that began after another one completed comes after it
        lowest = (~taken & (taken + 1)).bit_length() - 1  # all before it are taken
        for at in range(lowest, len(steps)):
            step = steps[at]
            if taken >> at & 1:
                continue
            if step.invoked > earliest:
                break
            earliest = min(earliest, step.completed)
            if step.is_write:
                stack.append((taken | 1 << at, step.number))
            elif step.number == number:
                stack.append((taken | 1 << at, number))
    return False


def register_failures(history: list[Operation]) -> Iterator[str]:
    """Each topic is a register of its own. Names the shortest beginning of the history that fails."""
    by_topic: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        if operation.f in ("read", "write"):
            by_topic[operation.topic].append(operation)
    for topic, operations in by_topic.items():
        steps = sorted(steps_of(operations, topic), key=lambda step: step.completed)
        if is_linearizable(steps):
            continue
        low, high = 0, len(steps)  # the first `high` completions fail, the first `low` do not
        while high - low > 1:
            middle = (low + high) // 2
            end = steps[middle - 1].completed
            known = [step if step.completed <= end else step._replace(completed=NEVER) for step in steps]
            if is_linearizable([step for step in known if step.invoked < end and _counts(step)]):
                low = middle
            else:
                high = middle
        yield f"register: {topic} is not linearizable from {steps[high - 1].text} on"


def _counts(step: Step) -> bool:
    """A read that has not completed tells nothing."""
    return step.is_write or step.completed != NEVER
