"""Dedup: within its window an id is stored once, however often and by whomever it is published.

The rule is that of docs/concepts/guarantees.md, and of Kafka's idempotent producer (KIP-98) for repeats by
its client.
The histories must be shorter than the window, and must have fewer ids than it.
"""

from collections import Counter
from collections.abc import Iterator

from history.record import Operation, pairs


def id_failures(history: list[Operation]) -> Iterator[str]:
    """All confirms of an id name one offset, and a reader gets one record of it."""
    places: dict[str, int] = {}
    for pair in pairs(history, "publish"):
        if pair.is_ok and pair.completed is not None:
            _, id_, offset = pair.completed.value
            if places.setdefault(id_, offset) != offset:
                yield f"dedup: id {id_} was confirmed at {places[id_]} and at {offset}"
    stored = Counter[str]()
    was_read = False
    for operation in history:
        if operation.f == "stored-ids" and operation.type == "ok":
            was_read = True
            stored.update(operation.value)
    for id_, count in stored.items():
        if count > 1:
            yield f"dedup: id {id_} is stored {count} times"
    for id_ in places.keys() - stored.keys() if was_read else ():
        yield f"dedup: id {id_} was confirmed and is not stored"
