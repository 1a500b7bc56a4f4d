"""Turns the changes that dispatch collected in a turn into entries. When those are stored, waiting
requests are answered and waiting deliveries leave.

Leases are logged only if they are still open at the next sync. At full speed records are acked
before that, so their leases cost nothing.

An exclusive group, or a consumer with `ack=False`, gets records only after the entry of their
delivery is stored. So a takeover delivers none of these records twice.
"""

from functools import partial

from gossipq.core.delivery.attempts import Budget
from gossipq.core.delivery.dispatch import Delivery, Dispatch
from gossipq.core.delivery.holdings import Failed, Waiter
from gossipq.core.desk import Asker, Desk
from gossipq.core.ledger import Counted, Outcome
from gossipq.core.storage import FailRow, log, payloads
from gossipq.messages import Acked
from gossipq.types import Index, Origin

NONE_FAILED: tuple[list[FailRow], dict[Waiter, None]] = [], {}


class Outbox:
    def __init__(self, desk: Desk, dispatch: Dispatch) -> None:
        self._desk, self._dispatch = desk, dispatch
        self._late: list[list[Delivery]] = []  # deliveries that wait until their entry is stored
        self.ready: list[Delivery] = []  #: deliveries whose entry is stored

    def gather(self) -> None:
        """Propose one entry per group and consumer with its acks and failures, and one for each
        run of dead letters. Changes beyond the turn's budget wait.
        """
        dispatch, desk = self._dispatch, self._desk
        # failures travel in the entry of the acks of the same consumer: one entry instead of two
        failed = self._fail()
        for (group_id, consumer), acks in dispatch.settlement.take_acks().items():
            if acks.ranges:
                rows, waiters = failed.pop((group_id, consumer), NONE_FAILED)
                entry = payloads.AckRanges(group_id, consumer, acks.ranges, rows)
                if acks.results or acks.runs:
                    with_results = payloads.AckWithResults(entry, acks.results, acks.runs)
                    index = desk.propose(log.RESULT, payloads.encode(with_results))
                else:
                    index = desk.propose(log.ACK, payloads.encode(entry))
                self._waits(index, *acks.waiters, *waiters)
            else:
                # all of these acks were lost or repeated: nothing is left to store
                for waiter in acks.waiters:
                    desk.reply(waiter, Acked(waiter.lost))
        for (group_id, _), (rows, waiters) in failed.items():
            if rows:
                index = desk.propose(log.FAIL, payloads.encode(payloads.Fail(group_id, rows)))
                self._waits(index, *waiters)
        parking, dispatch.selector.parking = dispatch.selector.parking, {}
        for group_id, parked in parking.items():
            if parked:
                desk.propose(log.PARK, payloads.encode(payloads.Park(group_id, parked)))

    def _fail(self) -> dict[tuple[int, str], tuple[list[FailRow], dict[Waiter, None]]]:
        """Take failures of this turn within the budget, and propose one DEAD for each run of
        dead letters. Returns, by group and consumer, the records that are retried, and the requests
        that wait for them.
        """
        failed = self._dispatch.holdings.failed
        again: dict[tuple[int, str], tuple[list[FailRow], dict[Waiter, None]]] = {}
        if not failed:
            return again
        budget = Budget()
        waiters: dict[Waiter, None] = {}
        while failed and budget and not self._desk.crowded:
            each = failed.popleft()
            rows, rest = self._sort_out(each, budget)
            # the budget was used up in the middle of a range: the next turn takes the rest first
            if rest is not None:
                failed.appendleft(rest)
            all_rows, of_group = again.setdefault((each.view.group.id, each.consumer), ([], {}))
            all_rows += rows
            if each.waiter is not None:
                each.waiter.entries -= rest is None
                waiters[each.waiter] = None
                of_group |= {each.waiter: None} if rows else {}
        for waiter in waiters:
            if not waiter.entries and not any(waiter in each for _, each in again.values()):
                # no entry is needed
                self._desk.reply(waiter, Acked(waiter.lost))
        return again

    def _sort_out(self, failed: Failed, budget: Budget) -> tuple[list[FailRow], Failed | None]:
        """Propose the dead letters of failed records. Returns the records that are retried, and the
        rest for another turn.
        """
        rows, burials, rest = self._dispatch.attempts.sort_out(failed, self._desk, budget)
        for burial in burials:
            index = self._desk.propose(log.DEAD, payloads.encode(burial.dead), body=burial.body)
            self._waits(index, *([failed.waiter] if failed.waiter else []))
        return rows, rest

    def _waits(self, index: Index, *waiters: Waiter) -> None:
        for waiter in waiters:
            waiter.entries += 1
            self._desk.pending.add(index, partial(self._count_applied, waiter), waiter)

    def log_leases(self) -> None:
        leases = self._dispatch.holdings.take_leases(self._desk.boot_ms, self._desk.timer_ms)
        for group_id, rows in leases.items():
            self._desk.propose(log.LEASE, payloads.encode(payloads.LeaseRows(group_id, rows)))

    def after_commit(self, late: list[Delivery]) -> None:
        """Log the leases of exclusive groups and the acks on delivery, and hold their deliveries back until
        those entries are stored.
        """
        self.log_leases()
        self.gather()
        self._late.append(late)
        self._desk.pending.add(self._desk.last, partial(self._leave, late))

    def _count_applied(self, waiter: Waiter, asker: Asker, index: Index, outcome: Outcome) -> None:
        """Count that an entry of a request was applied, and answer the request after its last one."""
        waiter.entries -= 1
        if isinstance(outcome, Counted):
            waiter.lost += outcome.lost
        if not waiter.entries:
            self._desk.reply(asker, Acked(waiter.lost))

    def _leave(self, late: list[Delivery], asker: Asker, index: Index, outcome: Outcome) -> None:
        """Let these deliveries leave, since their entry is stored."""
        self.ready += late
        self._late = [each for each in self._late if each is not late]

    def take_ready(self) -> list[Delivery]:
        """Return the deliveries whose entry is stored, without the records that were taken from their
        consumers meanwhile.
        """
        ready, self.ready = self.ready, []
        return [left for left in map(self._dispatch.still_valid, ready) if left.parts]

    @property
    def behind(self) -> set[Origin]:
        """Connections with waiting deliveries; AT_END must not overtake them."""
        return {delivery.origin for late in self._late for delivery in late}

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests whose entries are not proposed yet."""
        waiters = dict.fromkeys(self._dispatch.settlement.waiters())
        return [(waiter.origin, waiter.request_id) for waiter in waiters]
