"""Bounds the records of a flow that wait in a group: a publish beyond `flow_backlog` is refused.

The depth of a flow is read from the index of its view. Records of publishes that are logged and not applied
are counted apart, so a pipeline of publishes cannot pass the bound.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping

from gossipq.core.delivery.consumers import DeliveryTurn, PartitionView
from gossipq.core.delivery.flow_feed import FlowFeed
from gossipq.core.ledger import Ledger
from gossipq.errors import Busy, FlowFull
from gossipq.types import Index, PartitionKey

FEED_MS = 20  #: pause before a client publishes again while the leader still counts


class FlowBacklogs:
    def __init__(
        self,
        ledger: Ledger,
        turn: DeliveryTurn,
        feed: FlowFeed,
        view_of: Callable[[int, PartitionKey], PartitionView],
    ) -> None:
        self._ledger = ledger
        self._turn = turn
        self._feed = feed
        self._view_of = view_of
        #: records by flow in publishes that are not applied yet, by partition, the oldest first
        self._logged: dict[PartitionKey, deque[tuple[Index, Counter[int]]]] = {}

    def bounded(self, partition: PartitionKey) -> list[int]:
        """Return the ids of the groups that bound the flows of a partition."""
        groups = self._ledger.groups
        return [each for each in self._ledger.cursors.get(partition, ()) if groups[each].config.flow_backlog]

    def require_room(
        self,
        partition: PartitionKey,
        group_ids: list[int],
        counts: Mapping[int, int],
        name_of: Callable[[int], str],
    ) -> None:
        """For a publish with `counts` records of each flow. Raises FlowFull, Busy."""
        logged = self._not_applied(partition)
        for group_id in group_ids:
            view = self._view_of(group_id, partition)
            if view.flows is None:
                continue  # its order changes
            if not self._feed.feed(view, view.flows, self._turn.leader_ms):
                raise Busy("the leader still counts the records of each flow", retry_after_ms=FEED_MS)
            config, group = view.group.state.config, view.group.state
            for flow, count in counts.items():
                depth = view.flows.backlog(flow, view.window) + sum(each[flow] for _, each in logged)
                if depth + count <= config.flow_backlog:
                    continue
                topic = self._ledger.topics[group.topic_id].name
                raise FlowFull(
                    f"flow {name_of(flow)} has {depth:,} records waiting in group {group.name}, and "
                    f"{count:,} more would pass its flow_backlog of {config.flow_backlog:,}",
                    hint=f"publish again when some are done, or: gossipq group set {topic} {group.name} "
                    f"--flow-backlog {max(2 * config.flow_backlog, depth + count)}",
                )

    def add(self, partition: PartitionKey, index: Index, counts: Counter[int]) -> None:
        """The publish is logged as entry `index`."""
        self._logged.setdefault(partition, deque()).append((index, counts))

    def _not_applied(self, partition: PartitionKey) -> deque[tuple[Index, Counter[int]]]:
        logged = self._logged.get(partition)
        if logged is None:
            return deque()
        while logged and logged[0][0] <= self._ledger.applied:
            logged.popleft()
        if not logged:
            del self._logged[partition]
        return logged
