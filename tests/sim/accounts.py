"""P14: the rows of one copy agree with each other when no work is left. Removed topics and groups
have no rows, exactly the needed batches are there, and counters match the rows they count.
"""

from collections import Counter
from collections.abc import Iterator

from core.places import acks_are_apart, rows_add_up
from gossipq.core.ledger import records
from gossipq.core.ledger.exceptions import decode_dead, decode_exception
from gossipq.core.ledger.id_index import NAME
from gossipq.core.ledger.schedule import decode_scheduled
from gossipq.core.shard import Shard
from gossipq.core.storage import log
from gossipq.types import PLACED, Index, share
from sim.disk import Disk

OF_PARTITIONS = b"OSWRijJIZvFAQVYULCphsluz"  #: prefixes whose keys continue with a partition
OF_GROUPS = b"AQVYULCph"  #: prefixes whose keys continue with a partition and a group


def accounts(shard: Shard, disk: Disk) -> Iterator[str]:
    """Yields the faults in the rows of a copy that has finished its sweeps."""
    yield from left_over(shard, disk)
    yield from batches_add_up(shard, disk)
    yield from partitions_add_up(shard, disk)
    for partition, cursors in shard.ledger.cursors.items():
        for cursor in cursors.values():
            try:
                rows_add_up(disk.state, cursor)
                acks_are_apart(cursor, shard.ledger.partitions[partition].next)
            except AssertionError as error:
                yield f"group {cursor.state.group_id} of {partition}: {error}"


def left_over(shard: Shard, disk: Disk) -> Iterator[str]:
    """Yields rows that belong to a removed partition, group or topic."""
    ledger, numbers = shard.ledger, records.U64.unpack_from
    for key, row in disk.state.scan(b"", b"\xff" * 8):
        prefix = key[:1]
        if key in records.OWN_ROWS or len(key) < 9:
            continue
        if prefix in (b"D", b"d"):
            yield f"{key!r} is still being swept"
        elif prefix in OF_PARTITIONS:
            (partition,) = numbers(key, 1)
            state = ledger.partitions.get(partition)
            if state is None:
                yield f"row {key!r} of a partition that is gone"
            elif prefix in OF_GROUPS and numbers(key, 9)[0] not in ledger.cursors.get(partition, ()):
                yield f"row {key!r} of a group that is gone"
            elif prefix in b"OZ" and numbers(key, 9)[0] < state.first:
                yield f"row {key!r} below {state.first}, which left"
            elif prefix == b"R":
                offset, count = records.PLACE.unpack(row)
                if offset < state.first or not offset + count <= state.next:
                    yield f"row {key!r} of offset {offset}, which left"
            elif prefix == b"W" and disk.state.get(_due_key(key, row)) is None:
                yield f"row {key!r} without its due row"
        elif prefix == b"E":
            (partition,), (_, index, first) = numbers(row), records.U64X3.unpack_from(key, 1)
            if disk.state.get(records.key(b"W", partition, index, first)) is None:
                yield f"due row {key!r} of nothing"
        elif prefix == b"G" and numbers(key, 1)[0] not in ledger.groups:
            yield f"row {key!r} of a group that is gone"


def _due_key(key: bytes, row: bytes) -> bytes:
    _, index, first = records.U64X3.unpack_from(key, 1)
    return records.key(b"E", decode_scheduled(row).due_ms, index, first)


def batches_add_up(shard: Shard, disk: Disk) -> Iterator[str]:
    """Checks that each needed batch is stored, with as many records as its row says,
    and that no other batch is.
    """
    ledger, needed, counted = shard.ledger, Counter[Index](), set[Index]()
    for partition, state in ledger.partitions.items():
        offset = state.first
        while offset < state.next:
            part = ledger.slices.at(partition, offset)
            if part is None:
                yield f"offset {offset} of {partition} has no slice"
                break
            needed[part.index] += part.count
            if part.columns & PLACED:
                counted.add(part.index)
            offset = part.end
    for key, row in disk.state.scan(b"W", b"X"):
        _, index, first = records.U64X3.unpack_from(key, 1)
        needed[index] += decode_scheduled(row).end - first
        counted.add(index)
    for key, row in disk.state.scan(b"L", b"M"):
        dead = decode_dead(row)
        needed[dead.index] += dead.end - records.U64X3.unpack_from(key, 1)[2]
        counted.add(dead.index)
    for key, row in disk.state.scan(b"V", b"W"):
        exception = decode_exception(row)
        if exception.own_body:
            first = records.U64X3.unpack_from(key, 1)[2]
            ranges = exception.ranges or [(first, exception.end)]
            needed[exception.index] += sum(end - low for low, end in ranges)
            counted.add(exception.index)
    bodies = {log.INDEX_KEY.unpack(key)[0] for key in disk.body.rows}
    bodies -= {entry.index for entry in shard.desk.unapplied} | set(ledger.left_over)
    if bodies != needed.keys():
        yield f"batches without a use: {bodies - needed.keys()}; missing: {needed.keys() - bodies}"
    rows = {records.U64.unpack_from(key, 1)[0]: row for key, row in disk.state.scan(b"B", b"C")}
    said = {index: records.COUNT.unpack(row)[0] for index, row in rows.items()}
    if said != {index: needed[index] for index in counted}:
        yield f"records that need a batch: {said}, and rows of them: {needed}"


def partitions_add_up(shard: Shard, disk: Disk) -> Iterator[str]:
    for partition, state in shard.ledger.partitions.items():
        size = scheduled = scheduled_bytes = ids = 0
        offset = state.first
        while offset < state.next and (part := shard.ledger.slices.at(partition, offset)) is not None:
            size, offset = size + part.share_bytes, part.end
        for key, row in _rows(disk, b"W", partition):
            waits, first = decode_scheduled(row), records.U64X3.unpack_from(key, 1)[2]
            scheduled += waits.end - first
            scheduled_bytes += share(waits.size, waits.batch_count, first, waits.end)
        for _, row in _rows(disk, b"j", partition):
            ids += records.ID_BATCH.unpack_from(row)[1]
        for _, row in _rows(disk, b"J", partition):
            ids += len(row) // NAME.size - 1
        said = state.bytes, state.scheduled, state.scheduled_bytes, state.ids
        if said != (size + scheduled_bytes, scheduled, scheduled_bytes, ids):
            found = size + scheduled_bytes, scheduled, scheduled_bytes, ids
            yield f"{partition} counts {said} (bytes, scheduled, bytes of these, ids), and its rows {found}"


def _rows(disk: Disk, prefix: bytes, partition: int) -> Iterator[tuple[bytes, bytes]]:
    low = records.key(prefix, partition)
    return disk.state.scan(low, records.after(low))
