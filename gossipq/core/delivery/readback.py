"""Reads records back from disk: those whose next attempt is due, and those that waited for a route
or a key.

A record that does not wait for its time is due at 0. Timer time can be behind the leader time of an
entry, and a record that is given back must be ready at once.
"""

from itertools import islice

from gossipq.core.delivery import tries
from gossipq.core.delivery.consumers import DeliveryTurn, PartitionView
from gossipq.core.delivery.holdings import Holdings
from gossipq.core.delivery.key_order import KeyOrder
from gossipq.core.delivery.window import ReadyRecords, WaitingRecords
from gossipq.core.ledger import clip, key_of, ranges_of
from gossipq.core.storage import Deadlines
from gossipq.types import Offset

REFILL_ROWS = 512  #: exception rows that are read back at a time


class Readback:
    """Exception rows that come back into memory, a bounded number in a turn."""

    def __init__(self, turn: DeliveryTurn, holdings: Holdings, key_order: KeyOrder) -> None:
        self.turn = turn
        self.holdings = holdings
        self.key_order = key_order
        #: leader time at which exception rows are due
        self.retry_deadlines: Deadlines[PartitionView] = Deadlines()

    def set_retry_deadline(self, view: PartitionView, due_ms: int | None) -> None:
        """Sets when exception rows of a view are to be read back; None if
        no row waits for its time.
        """
        view.due_ms = due_ms
        if due_ms is None:
            self.retry_deadlines.cancel(view)
        else:
            self.retry_deadlines.set(view, due_ms)

    def refill(self, view: PartitionView) -> None:
        """Reads back exception rows whose time has come, or whose lane is open."""
        if len(view.window.ready) >= REFILL_ROWS:
            return
        if view.due_ms is not None and view.due_ms <= self.turn.timer_ms:
            rows = view.cursor.exceptions.due(view.since, self.turn.timer_ms, REFILL_ROWS)
            for due_ms, first in rows:
                view.since = due_ms, first + 1
                self._read_back(view, first)
                if len(view.window.ready) >= 2 * REFILL_ROWS:
                    break  # a row may have many records
            else:
                if len(rows) < REFILL_ROWS:
                    later = view.cursor.exceptions.due(view.since, 2**62, 1)
                    self.set_retry_deadline(view, later[0][0] if later else None)
        if view.waking is not None:
            self._wake(view, view.waking)
        for lane, first in list(islice(view.draining.items(), REFILL_ROWS)):
            if len(view.window.ready) >= REFILL_ROWS:
                return
            self._drain(view, lane, first)

    def _read_back(self, view: PartitionView, first: Offset) -> None:
        whole = view.cursor.exceptions.row_at(first)
        if whole is None:
            return
        ranges = clip(ranges_of(whole), first, whole.end)
        tried = tries.after(whole.row.attempts + whole.row.handed_out, not whole.row.handed_out)
        if ranges and not view.window.reaches(first, whole.end):
            view.window.move_all(ranges, ReadyRecords(tried))
            return
        for low, high in ranges:
            self._come_back(view, low, high, tried)

    @staticmethod
    def _come_back(view: PartitionView, first: Offset, end: Offset, tried: int) -> None:
        """Make records ready that nobody holds. Of records that came back before, memory may know
        newer tries than the row.
        """
        window, at = view.window, first
        for low, high, state in window.overlap(first, end):
            if at < low:
                window.move(at, low, ReadyRecords(tried))
            if isinstance(state, (ReadyRecords, WaitingRecords)):
                window.move(low, high, ReadyRecords(max(state.tries, tried)))
            at = high
        if at < end:
            window.move(at, end, ReadyRecords(tried))

    def _drain(self, view: PartitionView, lane: bytes, first: Offset) -> None:
        """Reads rows of a lane back in order. Records of the lane in memory
        follow after the last row.
        """
        firsts = view.cursor.exceptions.in_lane(lane, first, REFILL_ROWS)
        for each in firsts:
            self._read_back(view, each)
        more = view.cursor.exceptions.in_lane(lane, firsts[-1] + 1, 1) if len(firsts) == REFILL_ROWS else []
        if view.keys is not None and key_of(lane):
            view.keys.unparked(key_of(lane), more[0] if more else None)
        del view.draining[lane]
        if not more:
            view.open_lane(lane)
        elif not key_of(lane):
            view.draining[lane] = more[0]

    def wake_lanes(self, view: PartitionView) -> None:
        """Members came or went, or key order ended. Reads back parked rows that a member takes now,
        or whose key no longer counts, some lanes at a time.
        """
        if view.cursor.state.parked:
            view.waking = b""

    def _wake(self, view: PartitionView, behind: bytes) -> None:
        lanes = view.cursor.exceptions.lanes(behind, REFILL_ROWS)
        for lane in lanes:
            self._wake_lane(view, lane)
        view.waking = lanes[-1] if len(lanes) == REFILL_ROWS else None

    @staticmethod
    def _wake_lane(view: PartitionView, lane: bytes) -> None:
        if view.keys is None if key_of(lane) else view.group.takes(lane[1:]):
            view.draining.setdefault(lane, 0)

    def parked(self, view: PartitionView, lane: bytes, first: Offset, end: Offset) -> None:
        """Records have arrived in a lane on disk. Consumers that may have them now did
        not find them there before.
        """
        self.holdings.entry_applied(view, [(first, end)])
        self.holdings.recheck_expiry(view, [(first, end)])
        if view.keys is not None and key_of(lane):
            view.keys.parked(key_of(lane), first)
            self.key_order.unblock_key(view, key_of(lane))
        else:
            self._wake_lane(view, lane)
        self.turn.dirty.add(view.group.id)
