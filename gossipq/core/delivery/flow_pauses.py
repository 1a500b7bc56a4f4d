"""Pauses of flows: a consumer says that a whole flow must wait, for example because a service answered 429.

The leader pauses a flow at once, and logs it. So a new leader finds the pause in its ledger.
"""

from gossipq.core.delivery.consumers import DeliveryTurn, PartitionView, Subscription
from gossipq.core.delivery.flow_feed import FlowFeed
from gossipq.core.storage import payloads
from gossipq.types import PartitionKey
from gossipq.values import Range


class FlowPauses:
    def __init__(self, turn: DeliveryTurn, feed: FlowFeed) -> None:
        self._turn, self._feed = turn, feed

    def pause(
        self, subscription: Subscription, ranges: list[Range], until_ms: int, reason: str
    ) -> list[payloads.FlowPause]:
        """Pause the flows of records that a session holds, until a timer time. Returns the rows to log: none
        in a group of another order than "fair".
        """
        assert subscription.group is not None, "readers are refused before"
        rows: dict[tuple[PartitionKey, int], payloads.FlowPause] = {}
        for partition, first, end in ranges:
            view = subscription.group.views.get(partition)
            if view is None or view.flows is None or not view.flows.by_flow:
                continue
            for low, high, lease in view.window.leased(first, end):
                if lease.session != subscription.session:
                    continue
                for _, flow, _, _ in self._feed.runs_of(view, view.flows, low, high):
                    rows[partition, flow] = payloads.FlowPause(
                        partition, flow, until_ms, subscription.consumer, reason
                    )
        for row in rows.values():
            self._set(subscription.group.views[row.partition], row)
        return list(rows.values())

    def restore(self, view: PartitionView) -> None:
        """Pause the flows of a view as the ledger says."""
        for row in view.cursor.pauses.values():
            if row.until_ms > self._turn.timer_ms:
                self._set(view, row)

    def _set(self, view: PartitionView, row: payloads.FlowPause) -> None:
        until_ms = self._turn.boot_ms + row.until_ms - self._turn.timer_ms
        view.pause_flow(row.flow, until_ms)
