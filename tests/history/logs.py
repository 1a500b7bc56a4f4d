"""Log: each partition is one order of records that all clients agree on.

The anomalies are those of jepsen.tests.kafka (jepsen-io/jepsen, jepsen/src/jepsen/tests/kafka.clj), as
published for Redpanda 21.10.1 and Kafka: inconsistent offsets, duplicates, lost writes, aborted reads (G1a),
skipped and nonmonotonic polls, nonmonotonic sends. There are no transactions in these histories, so the
cycles that Elle finds do not arise: a `send` writes to one partition, and a `poll` only reads.
"""

from collections import defaultdict
from collections.abc import Iterator

from history.record import Operation, pairs

Slots = dict[int, dict[int, set[str]]]  #: partition -> offset -> names that were seen there


def _slots(history: list[Operation]) -> Slots:
    """What confirms, readers and consumers said about each offset."""
    found: Slots = defaultdict(lambda: defaultdict(set))
    for operation in history:
        if operation.type != "ok":
            continue
        if operation.f == "send":
            for _, partition, (offset, name) in operation.value:
                found[partition][offset].add(name)
        elif operation.f == "poll":
            for _, rows in operation.value:
                for partition, row in rows.items():
                    for offset, name in row:
                        found[partition][offset].add(name)
        elif operation.f == "fetch":
            for partition, offset, name, _ in operation.value:
                found[partition][offset].add(name)
    return found


def offset_failures(history: list[Operation]) -> Iterator[str]:
    """`inconsistent-offsets` and `duplicate`: one record for each offset, one offset for each record."""
    for partition, slots in _slots(history).items():
        places: dict[str, list[int]] = defaultdict(list)
        for offset, names in sorted(slots.items()):
            if len(names) > 1:
                yield f"log: inconsistent offset {offset} of {partition}: {sorted(names)}"
            for name in names:
                places[name].append(offset)
        for name, offsets in places.items():
            if len(offsets) > 1:
                yield f"log: duplicate {name} of {partition} at {offsets}"


def lost_failures(history: list[Operation]) -> Iterator[str]:
    """`lost-write` and `G1a`: what lies below the highest offset that was read was read, if it was confirmed;
    a record whose send failed is never read."""
    read: dict[int, dict[int, str]] = defaultdict(dict)
    for operation in history:
        if operation.f == "poll" and operation.type == "ok":
            for _, rows in operation.value:
                for partition, row in rows.items():
                    read[partition].update(row)
    seen = {partition: set(rows.values()) for partition, rows in read.items()}
    highest = {partition: max(rows, default=-1) for partition, rows in read.items()}
    for pair in pairs(history, "send"):
        if pair.is_ok and pair.completed is not None:
            for _, partition, (offset, name) in pair.completed.value:
                end = highest.get(partition, -1)
                if offset <= end and name not in seen[partition]:
                    yield f"log: lost write {name} of {partition} at {offset}, and readers reached {end}"
        elif pair.has_failed:
            for _, partition, name in pair.invoked.value:
                if name in seen.get(partition, ()):
                    yield f"log: aborted read of {name} of {partition}, whose send failed"


def poll_failures(history: list[Operation]) -> Iterator[str]:
    """`nonmonotonic-poll`, `poll-skip` and their internal forms: a reader gets each record in the order of
    offsets. Offsets here have no gaps, so the next record has the next offset."""
    last: dict[tuple[str, int], int] = {}
    for operation in history:
        if operation.f != "poll" or operation.type != "ok":
            continue
        for _, rows in operation.value:
            for partition, row in rows.items():
                for offset, _ in row:
                    reader = operation.client, partition
                    before = last.get(reader, offset - 1)
                    if offset <= before:
                        yield f"log: nonmonotonic poll of {reader}: {offset} after {before}"
                    elif offset > before + 1:
                        yield f"log: poll of {reader} skipped {before + 1}..{offset}"
                    last[reader] = offset


def send_failures(history: list[Operation]) -> Iterator[str]:
    """`nonmonotonic-send` and `int-nonmonotonic-send`: the records of one client lie in the order of their
    sends, even if the client did not wait for a confirm between two of them."""
    last: dict[tuple[str, int], tuple[int, str]] = {}
    for pair in pairs(history, "send"):
        if not pair.is_ok or pair.completed is None:
            continue
        for _, partition, (offset, name) in pair.completed.value:
            sender = pair.invoked.client, partition
            before, earlier = last.get(sender, (-1, ""))
            if offset <= before:
                yield f"log: nonmonotonic send of {sender}: {name} at {offset}, {earlier} at {before}"
            last[sender] = offset, name
