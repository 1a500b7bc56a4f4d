"""The state of a group in one partition: the decoded cursor row and its other rows.

The window of a group limits the open records above its cursor. These records may lie up to 64
windows apart (`window_end`), so no record waits for the holder of the first one. No entry moves
this bound back. So a new leader knows how far the earlier one can have come.
"""

from bisect import bisect_right
from operator import attrgetter, itemgetter

from gossipq.core.ledger import life, records
from gossipq.core.ledger.acks import AckRows
from gossipq.core.ledger.exceptions import Exceptions, dead_rows
from gossipq.core.ledger.records import CursorState, Hold
from gossipq.core.storage import StoredIntervals, StoredRangeMap, Table, payloads
from gossipq.types import Offset, Ranges

#: finished records above the first open one can reach this many windows ahead
WINDOWS_PASSED_MAX = 64
#: replayed records per group that are examined when retention looks for what it can remove
REPLAYED_LOOKED_AT = 1_024
PAUSES_MAX = 1_024  #: paused flows of a group in a partition; of more, the pauses that end first are dropped


class Cursor:
    __slots__ = ("_table", "acks", "dead", "exceptions", "holds", "passed", "pauses", "state")

    def __init__(self, table: Table, state: CursorState) -> None:
        self._table, self.state = table, state
        self.passed = StoredIntervals()
        self.holds: StoredRangeMap[Hold] = StoredRangeMap()
        self.exceptions = Exceptions(table, state.partition, state.group_id)
        self.dead = dead_rows(table, state.partition, state.group_id)
        self.acks = AckRows(table, state.partition, state.group_id)
        self.pauses: dict[int, payloads.FlowPause] = {}  #: by hash of the flow; some may be over

    @property
    def exceptional(self) -> bool:
        """True if exception rows exist. Groups without such rows do no work for them."""
        return self.state.retrying + self.state.parked > 0

    def write(self) -> None:
        """Write the changed rows. The cost depends on the changes, not on the number of open
        records.
        """
        state, put, delete = self.state, self._table.put, self._table.delete
        name = records.key(b"", state.partition, state.group_id)
        put(b"C" + name, records.encode(state))
        changes, pack, prefix = self.passed.changes(), records.U64.pack, b"p" + name
        for first, end in changes:
            if end is None:
                delete(prefix + pack(first))
        passed = [(prefix + pack(first), pack(end)) for first, end in changes if end is not None]
        if passed:
            self._table.put_many(passed)
        held: list[tuple[bytes, bytes]] = []
        for first, row in self.holds.changes():
            row_key = b"h" + name + records.U64.pack(first)
            if row is None:
                delete(row_key)
            else:
                held.append((row_key, records.encode(records.HoldRow(*row))))
        if held:
            self._table.put_many(held)

    def pause(self, row: payloads.FlowPause, time_ms: int) -> None:
        """Pause a flow, unless it is paused for longer, and forget pauses that are over at a leader time."""
        kept = {flow: each for flow, each in self.pauses.items() if each.until_ms > time_ms}
        if row.flow not in kept or kept[row.flow].until_ms < row.until_ms:
            kept[row.flow] = row
        while len(kept) > PAUSES_MAX:
            del kept[min(kept.values(), key=attrgetter("until_ms", "flow")).flow]
        self.pauses = kept
        name = records.key(b"f", self.state.partition, self.state.group_id)
        self._table.put(name, records.encode(list(kept.values())))

    def fresh(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """Return the parts of [first, end) that the cursor has not passed."""
        return self.passed.missing(max(first, self.state.cursor), end)

    def fresh_in(self, ranges: Ranges) -> Ranges:
        """Like `fresh` for each range. They must rise."""
        # the cursor has passed everything below
        at = bisect_right(ranges, self.state.cursor, key=itemgetter(1))
        ranges = ranges[at:] if at else ranges
        if not ranges:
            return []
        if ranges[0][0] >= self.state.cursor and not self.passed.reaches_any(ranges):
            return ranges
        return [part for each in ranges for part in self.fresh(*each)]

    def move(self, state: str, event: str, count: int) -> None:
        """Count a change of state for `count` records. The only writer of these counters.

        Raises NoSuchChange if the table does not list it.
        """
        change, counters = life.change_of(state, event), self.state
        if change.to != state:
            for name in life.STATES[state].counters:
                setattr(counters, name, getattr(counters, name) - count)
            for name in life.STATES[change.to].counters:
                setattr(counters, name, getattr(counters, name) + count)

    def passes(self, first: Offset, end: Offset, event: str) -> None:
        """[first, end) stops being open: it is finished, or it is stored in a row."""
        # in order: the cursor moves without a row
        if first == self.state.cursor and not self.passed:
            self.state.cursor, count = end, end - first
        else:
            count = self.passed.add(first, end)
        self.move(life.OPEN, event, count)
        if self.holds:
            self.holds.clear(first, end)

    def pass_all(self, ranges: Ranges, counts: dict[str, int]) -> None:
        """Like `passes` for several rising open ranges. `counts` maps each event to its records."""
        if self.holds:
            for first, end in ranges:
                self.holds.clear(first, end)
        if ranges[0][0] == self.state.cursor and not self.passed:
            self.state.cursor, ranges = ranges[0][1], ranges[1:]
        if ranges:
            self.passed.add_all(ranges)
        for event, count in counts.items():
            self.move(life.OPEN, event, count)

    def window_end(self, window: int, ahead: int = 0) -> Offset:
        """Return the offset below which records may be delivered.

        At most `window` records above the cursor are open then. Finished records extend the limit,
        so that a consumer which holds the first one does not stop the others, but at most by
        WINDOWS_PASSED_MAX windows. The limit never falls. `ahead`: at least this many expired
        records behind the window; they do not extend it.
        """
        passed = max(0, self.passed.total() - ahead)
        return self.state.cursor + window + min(passed, WINDOWS_PASSED_MAX * window)

    def filled_to(self, window: int) -> Offset:
        """Return the offset below which `window` records are open, counted from the cursor."""
        room, at = window, self.state.cursor
        for first, end in self.passed:
            if first - at >= room:
                break
            room, at = room - (first - at), end
        return at + room

    def behind(self, end: Offset) -> int:
        """Count the records below `end` that are not finished: fresh ones, retrying and parked
        ones.
        """
        return end - self.state.cursor - self.passed.total() + self.state.retrying + self.state.parked

    def unaccounted(self) -> int:
        """Passed records without a counter: always 0."""
        counted = sum(getattr(self.state, name) for name in life.COUNTERS)
        return self.state.cursor - self.state.start + self.passed.total() - int(counted)

    def advance(self, offset: Offset = 0) -> None:
        """Everything below `offset` is finished: move the cursor there, and over finished records
        behind it.
        """
        state, passed = self.state, self.passed
        state.cursor = max(state.cursor, offset)
        if passed.starts and passed.starts[0] <= state.cursor:
            passed.drop_below(state.cursor)
            if passed.starts and passed.starts[0] == state.cursor:
                state.cursor = passed.ends[0]
                passed.drop_below(state.cursor)

    def done_below(self) -> Offset:
        """Below this offset each record is acked, dead or removed."""
        waiting = next(iter(self.exceptions.scan()), None) if self.exceptional else None
        return self.state.cursor if waiting is None else min(waiting.first, self.state.cursor)

    def needs_from(self, first: Offset) -> Offset:
        """Return the lowest offset that this group still needs in the log of the partition.

        The log begins at `first`. Only some of many replayed records are examined; the rest counts
        as needed.
        """
        if self.exceptional:
            for number, found in enumerate(self.exceptions.scan(first)):
                if found.first >= self.state.cursor:
                    break
                if not found.row.own_body or number == REPLAYED_LOOKED_AT:
                    return found.first
        return self.state.cursor
