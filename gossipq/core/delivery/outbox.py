"""What dispatch collected in a turn becomes entries. Who waits for those is answered when they are stored,
and what must not leave before them leaves then."""

from functools import partial
from typing import Protocol

from gossipq.core.delivery.dispatch import Delivery, Dispatch
from gossipq.core.delivery.failures import Budget
from gossipq.core.delivery.leases import Failed, Waiter
from gossipq.core.ledger import Counted, Outcome
from gossipq.core.raft import Pending, Requester
from gossipq.core.storage import log, payloads
from gossipq.messages import Acked
from gossipq.types import Index, Origin
from gossipq.values import Message


class OutboxHost(Protocol):
    """What this room asks of its shard."""

    acked: int

    @property
    def boot_ms(self) -> int: ...
    @property
    def leader_ms(self) -> int: ...
    @property
    def last(self) -> Index:
        """The newest entry."""

    @property
    def crowded(self) -> bool:
        """Whether no more may wait for the other copies now."""

    def propose(self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"") -> Index: ...
    def reply(self, origin: Origin, request_id: int, message: Message) -> None: ...


class Outbox:
    def __init__(self, host: OutboxHost, dispatch: Dispatch, pending: Pending[Outcome]) -> None:
        self._host, self._dispatch, self._pending = host, dispatch, pending
        self._late: list[list[Delivery]] = []  # go out when an entry is stored
        self._ready: list[Delivery] = []  # it is stored

    def gather(self) -> None:
        """One entry per group and consumer, one for each dead letter; what is beyond the budget of a turn
        waits."""
        leases, selection = self._dispatch.leases, self._dispatch.selection
        for (group_id, consumer), acks in leases.take_acks().items():
            if acks.ranges:
                entry = payloads.AckRanges(group_id, consumer, acks.ranges)
                self._waits(self._host.propose(log.ACK, payloads.encode(entry)), *acks.waiters)
                self._host.acked += sum(end - first for _, first, end in acks.ranges)
            else:
                for waiter in acks.waiters:
                    self._host.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))
        budget = Budget()
        while leases.failed and budget and not self._host.crowded:
            rest = self._fail(leases.failed.popleft(), budget)
            if rest is not None:
                leases.failed.appendleft(rest)
        parking, selection.parking = selection.parking, {}
        for group_id, rows in parking.items():
            if rows:
                self._host.propose(log.PARK, payloads.encode(payloads.Park(group_id, rows)))

    def _fail(self, failed: Failed, budget: Budget) -> Failed | None:
        """Entries of a failure; returns what is left of it for another turn."""
        propose = self._host.propose
        rows, burials, rest = self._dispatch.selection.failures.sort_out(failed, self._host.leader_ms, budget)
        indexes = [propose(log.DEAD, payloads.encode(burial.dead), body=burial.body) for burial in burials]
        if rows:
            indexes.append(propose(log.FAIL, payloads.encode(payloads.Fail(failed.view.group.id, rows))))
        waiter = failed.waiter
        if waiter is not None:
            waiter.entries -= rest is None
            for index in indexes:
                self._waits(index, waiter)
            if not waiter.entries:  # the records are gone meanwhile
                self._host.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))
        return rest

    def _waits(self, index: Index, *waiters: Waiter) -> None:
        for waiter in waiters:
            waiter.entries += 1
            self._pending.add(index, partial(self._landed, waiter), waiter.origin, waiter.request_id)

    def log_leases(self) -> None:
        leases = self._dispatch.leases.take_leases(self._host.boot_ms, self._host.leader_ms)
        for group_id, rows in leases.items():
            self._host.propose(log.LEASE, payloads.encode(payloads.LeaseRows(group_id, rows)))

    def after_commit(self, late: list[Delivery]) -> None:
        """Leases of exclusive groups, and acks that come before the push, are stored before anything
        leaves."""
        self.log_leases()
        self.gather()
        self._late.append(late)
        self._pending.add(self._host.last, partial(self._leave, late))

    def _landed(self, waiter: Waiter, asker: Requester, index: Index, outcome: Outcome) -> None:
        """One of the entries that a request waits for is applied."""
        waiter.entries -= 1
        if isinstance(outcome, Counted):
            waiter.lost += outcome.lost
        if not waiter.entries:
            self._host.reply(*asker, Acked(waiter.lost))

    def _leave(self, late: list[Delivery], asker: Requester, index: Index, outcome: Outcome) -> None:
        """What waited for an entry may leave."""
        self._ready += late
        self._late = [each for each in self._late if each is not late]

    def take_ready(self) -> list[Delivery]:
        """What waited for an entry and may leave now. What was taken from its taker meanwhile goes to whoever
        has it next."""
        ready, self._ready = self._ready, []
        return [left for left in map(self._dispatch.still, ready) if left.parts]

    @property
    def behind(self) -> set[Origin]:
        """Who has deliveries to come: no AT_END overtakes them."""
        return {delivery.origin for late in self._late for delivery in late}

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests for which there is no entry yet."""
        waiters = dict.fromkeys(self._dispatch.leases.waiters())
        return [(waiter.origin, waiter.request_id) for waiter in waiters]
