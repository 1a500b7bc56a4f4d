"""A group in one partition as the ledger keeps it: the cursor row, opened, and the rows beside it."""

from bisect import bisect_right
from operator import itemgetter

from gossipq.core.ledger import life, records
from gossipq.core.ledger.acks import AckRows
from gossipq.core.ledger.exceptions import Exceptions, Ranges, dead_rows
from gossipq.core.ledger.records import CursorState, Hold
from gossipq.core.storage import StoredIntervals, StoredRangeMap, Table
from gossipq.types import Offset

WINDOWS_PASSED_MAX = 64  #: so many windows of records may be done above the first that is open
REPLAYED_LOOKED_AT = 1_024  #: for what retention may remove, in each group


class Cursor:
    __slots__ = ("_table", "acks", "dead", "exceptions", "holds", "passed", "state")

    def __init__(self, table: Table, state: CursorState) -> None:
        self._table, self.state = table, state
        self.passed = StoredIntervals()
        self.holds: StoredRangeMap[Hold] = StoredRangeMap()
        for first, end in state.passed:
            self.passed.add(first, end)
        for first, end, hold in state.holds:
            self.holds.set(first, end, hold)
        self.exceptions = Exceptions(table, state.partition, state.group_id)
        self.dead = dead_rows(table, state.partition, state.group_id)
        self.acks = AckRows(table, state.partition, state.group_id)

    @property
    def exceptional(self) -> bool:
        """Whether there are exception rows. Plain groups have none and pay nothing."""
        return self.state.retrying + self.state.parked > 0

    def write(self) -> None:
        """What has changed, as rows: the cost goes with that, not with what is open."""
        state, put, delete = self.state, self._table.put, self._table.delete
        if state.passed or state.holds:  # of a store of 0.1
            state.passed, state.holds = [], []
        name = records.key(b"", state.partition, state.group_id)
        put(b"C" + name, records.encode(state))
        for first, end in self.passed.changes():
            row_key = b"p" + name + records.U64.pack(first)
            delete(row_key) if end is None else put(row_key, records.U64.pack(end))
        held: list[tuple[bytes, bytes]] = []
        for first, row in self.holds.changes():
            row_key = b"h" + name + records.U64.pack(first)
            if row is None:
                delete(row_key)
            else:
                held.append((row_key, records.encode(records.HoldRow(*row))))
        if held:
            self._table.put_many(held)

    def fresh(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """The parts of [first, end) that the cursor has not passed."""
        return self.passed.missing(max(first, self.state.cursor), end)

    def fresh_in(self, ranges: Ranges) -> Ranges:
        """`fresh` of each; they rise."""
        at = bisect_right(ranges, self.state.cursor, key=itemgetter(1))  # what is below has passed
        ranges = ranges[at:] if at else ranges
        if not ranges:
            return []
        first, end = ranges[0][0], ranges[-1][1]
        if first >= self.state.cursor and not self.passed.reaches(first, end):
            return ranges
        return [part for each in ranges for part in self.fresh(*each)]

    def move(self, state: str, event: str, count: int) -> None:
        """Books a change of so many records. Nothing else writes these counters. Raises NoSuchChange."""
        change, counters = life.change_of(state, event), self.state
        if change.to != state:
            for name in life.STATES[state].counters:
                setattr(counters, name, getattr(counters, name) - count)
            for name in life.STATES[change.to].counters:
                setattr(counters, name, getattr(counters, name) + count)

    def passes(self, first: Offset, end: Offset, event: str) -> None:
        """[first, end) is open no more: it is done here, or has a row of its own."""
        if first == self.state.cursor and not self.passed:  # in order: no row comes and goes
            self.state.cursor, count = end, end - first
        else:
            count = self.passed.add(first, end)
        self.move(life.OPEN, event, count)
        if self.holds:
            self.holds.clear(first, end)

    def pass_all(self, ranges: Ranges, counts: dict[str, int]) -> None:
        """As `passes` of each; they are open, and rise. `counts`: how many records meet which event."""
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
        """What lies below may be handed out: then at most `window` records above the cursor are open. The
        distance does not count, so that nobody waits for who holds the first of them; it is bounded too. An
        entry never moves this back. `ahead`: records that expired behind the window, so many at least; they
        make no room in it."""
        passed = max(0, self.passed.total() - ahead)
        return self.state.cursor + window + min(passed, WINDOWS_PASSED_MAX * window)

    def filled_to(self, window: int) -> Offset:
        """The offset below which `window` records are open, counted from the cursor on."""
        room, at = window, self.state.cursor
        for first, end in self.passed:
            if first - at >= room:
                break
            room, at = room - (first - at), end
        return at + room

    def behind(self, end: Offset) -> int:
        """Records below `end` that are not done: fresh ones, and those that wait for another attempt or for
        their lane."""
        return end - self.state.cursor - self.passed.total() + self.state.retrying + self.state.parked

    def unaccounted(self) -> int:
        """What is passed and counted nowhere: always 0."""
        counted = sum(getattr(self.state, name) for name in life.COUNTERS)
        return self.state.cursor - self.state.start + self.passed.total() - int(counted)

    def advance(self, offset: Offset = 0) -> None:
        """Everything below `offset` is done; moves the cursor over what has passed behind it."""
        state, passed = self.state, self.passed
        state.cursor = max(state.cursor, offset)
        if passed.starts and passed.starts[0] <= state.cursor:
            passed.drop_below(state.cursor)
            if passed.starts and passed.starts[0] == state.cursor:
                state.cursor = passed.ends[0]
                passed.drop_below(state.cursor)

    def done_below(self) -> Offset:
        """Below it nothing waits: each record is acked, dead, or gone."""
        waiting = next(iter(self.exceptions.scan()), None) if self.exceptional else None
        return self.state.cursor if waiting is None else min(waiting.first, self.state.cursor)

    def needs_from(self, first: Offset) -> Offset:
        """The lowest offset that this group still needs in the partition's log, which begins at `first`. Of
        many letters that were replayed it looks at some, and says that they are needed, too."""
        if self.exceptional:
            for number, found in enumerate(self.exceptions.scan(first)):
                if found.first >= self.state.cursor:
                    break
                if not found.row.own_body or number == REPLAYED_LOOKED_AT:
                    return found.first
        return self.state.cursor
