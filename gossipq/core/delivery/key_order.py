"""Key order of a group's records: which keys are closed, and which records continue when one opens.

`keys` remembers the keys of one group in one partition. This module finds the keys of records in
the ledger, and releases the records that wait behind a key, from memory or from disk.
"""

from collections.abc import Iterator, Sequence

from gossipq.core.delivery.consumers import DeliveryTurn, PartitionView, first_left, place_of
from gossipq.core.delivery.keys import Keys
from gossipq.core.delivery.window import Lease, WaitingRecords
from gossipq.core.ledger import Ledger, key_lane, key_of
from gossipq.types import KEY_HASH, Offset

DONE, FAILED, BACK = "done", "failed", "back"


class KeyOrder:
    """The keys of records in key-ordered groups. Groups of other modes have no keys."""

    def __init__(self, ledger: Ledger, turn: DeliveryTurn) -> None:
        self._ledger, self.turn = ledger, turn

    def take_keys(self, view: PartitionView, first: Offset, end: Offset, lease: Lease) -> None:
        """In a key-ordered group, closes the keys of leased records to all other consumers."""
        if view.keys is not None:
            for at, hashes in self.columns(view, first, end):
                view.keys.hold(hashes, at, lease.owner)

    def hashes(self, view: PartitionView, first: Offset, end: Offset) -> Iterator[tuple[Offset, int]]:
        """(offset, key hash) of records in a key-ordered group, without those that have no key."""
        for at, hashes in self.columns(view, first, end):
            for offset, key_hash in enumerate(hashes, at):
                if key_hash:
                    yield offset, key_hash

    def columns(
        self, view: PartitionView, first: Offset, end: Offset
    ) -> Iterator[tuple[Offset, Sequence[int]]]:
        """The key hashes of records of a key-ordered group, in runs, each with its first offset."""
        while first < end:
            place = place_of(self._ledger, view.cursor, view.partition, first)
            if place is None:  # this record left; later ones may exist
                first = first_left(self._ledger, view, first + 1, end)
                continue
            stop = min(end, place.end)
            column = self._ledger.opened.column(place.entry, KEY_HASH) if place.columns & KEY_HASH else None
            if column:
                yield first, column[place.record : place.record + stop - first]
            first = stop

    def release_keys(
        self, view: PartitionView, first: Offset, end: Offset, outcome: str, held: bool = True
    ) -> None:
        """Records of a key-ordered group are no longer in flight, or wait for a route. Keys that
        become free let their next records through.
        """
        keys = view.keys
        if keys is None:
            return
        free = keys.release(first, end) if held else []  # also for records that have left meanwhile
        if outcome == FAILED:
            for offset, key_hash in self.hashes(view, first, end):
                keys.failed(key_hash, offset)
        elif outcome == DONE and keys.some_failed:
            for at, column in self.columns(view, first, end):
                keys.done_many(column, at)
        in_memory, on_disk = view.window.lanes.of_keys, keys.on_disk
        if in_memory or on_disk:
            hashes = set[int]().union(*(column for _, column in self.columns(view, first, end)))
            for key_hash in hashes.union(free):
                if key_hash in in_memory or key_hash in on_disk:
                    self.unblock_key(view, key_hash)
        self.turn.dirty.add(view.group.id)

    def unblock_key(self, view: PartitionView, key_hash: int) -> None:
        """If the key is free, lets the first record that waits for it through: from
        memory or from disk. From both, if one record is first in both because it was read
        back from disk meanwhile.
        """
        assert view.keys is not None
        lane, on_disk = key_lane(key_hash), view.keys.on_disk.get(key_hash)
        waiting = view.window.lanes.of_keys.get(key_hash)
        here = waiting.starts[0] if waiting else None
        firsts = [each for each in (here, on_disk) if each is not None]
        if not view.keys.opens(key_hash, min(firsts, default=0)) or not firsts:
            return
        if here == min(firsts):
            view.open_lane(lane)  # records after those on disk come back into the lane
        if on_disk == min(firsts):
            view.draining.setdefault(lane, on_disk)

    def key_done(self, view: PartitionView, offset: Offset, key_hash: int) -> None:
        """A record of a key-ordered group is finished for good."""
        if view.keys is not None:
            view.keys.done(key_hash, offset)
            self.unblock_key(view, key_hash)

    def reopen_keys(self, view: PartitionView) -> None:
        """Closes the keys of records that wait on disk. The cost grows with keys that
        have parked records, and with failed records, but not with parked records, which
        may be a hundred thousand.
        """
        assert view.keys is not None
        exceptions, kept_from = view.cursor.exceptions, self._ledger.partitions[view.partition].first
        for lane, first in exceptions.fronts():
            if key_hash := key_of(lane):
                view.keys.parked(key_hash, first)
                view.draining[lane] = 0
        for found in exceptions.retrying() if view.cursor.state.retrying else ():
            if found.first < kept_from:
                continue  # the end of this record would not free its key
            hashes, record = self._ledger.opened.column(found.row.index, KEY_HASH), found.row.record
            for offset, key_hash in enumerate(
                hashes[record : record + found.total] if hashes else (), found.first
            ):
                view.keys.failed(key_hash, offset)

    def trim_keys(self, view: PartitionView, keys: Keys, first: Offset, some: bool) -> None:
        """Handles keys of records below `first`. Records that are kept, such as replayed dead
        letters, have no key any more, so their end would not release records behind them. The same
        holds for a record that continued and left at once. With `some`, memory had such records.
        """
        states = [state for _, _, state in view.window.overlap(0, first)]
        for lane in {each.lane for each in states if isinstance(each, WaitingRecords) and key_of(each.lane)}:
            view.window.open_lane(lane)  # all of it: the end of the first ones would not release the others
        touched = keys.trim(first)
        if some:
            touched += keys.on_disk
        for key_hash in touched:
            self.unblock_key(view, key_hash)

    def close_failed(self, view: PartitionView, first: Offset, end: Offset) -> None:
        """Records of a key-ordered group wait for their next attempt."""
        assert view.keys is not None
        for found in view.cursor.exceptions.overlap(first, end):
            if not found.row.lane:
                for offset, key_hash in self.hashes(view, found.first, found.end):
                    view.keys.failed(key_hash, offset)
