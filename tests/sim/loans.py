"""P23: no leader delivers more records than a consumer has given it credit for.

SUBSCRIBE and CREDIT add credit, RECALLED takes it back. Counted from the messages alone, not from the state
of the leader, which a planted bug could have changed.
"""

from collections import defaultdict
from collections.abc import Iterator

from gossipq.core.delivery import Delivery
from gossipq.messages import Credit, Recalled, Subscribe, Subscribed
from gossipq.types import ShardId
from gossipq.values import Message

Name = tuple[ShardId, int, str, int]
"""Shard, term, sender, number of the subscription."""


class Loans:
    """The credit that consumers have given the leaders of one node, less the deliveries."""

    def __init__(self) -> None:
        self.left: dict[Name, int] = {}  #: records
        self.most: dict[str, int] = {}  #: by consumer, the highest credit in records that it had at a time
        # by subscription and request: records that are credited when the request is stored
        self._joining = defaultdict[Name, dict[int, int]](dict)

    def heard(self, shard: ShardId, term: int, sender: str, request_id: int, message: Message) -> None:
        """Note that a consumer gives credit."""
        if isinstance(message, Subscribe):
            name = shard, term, sender, message.subscription
            self._joining[name][request_id] = message.credit_records
        elif isinstance(message, Credit):
            name = shard, term, sender, message.subscription
            if name in self.left:
                self._lend(name, self.left[name] + message.records)
            joining = self._joining[name]
            for each in joining:
                joining[each] += message.records

    def said(self, shard: ShardId, term: int, sender: str, request_id: int, message: Message) -> None:
        """Note an answer of a leader, which begins a subscription or takes credit back."""
        if isinstance(message, Subscribed):
            name = shard, term, sender, message.subscription
            lent = self._joining[name].pop(request_id, None)
            if lent is not None:
                self._lend(name, lent)
        elif isinstance(message, Recalled):
            name = shard, term, sender, message.subscription
            if name in self.left:
                self.left[name] -= message.records

    def _lend(self, name: Name, records: int) -> None:
        self.left[name] = records
        self.most[name[2]] = max(self.most.get(name[2], 0), records)

    def delivered(self, shard: ShardId, term: int, delivery: Delivery) -> Iterator[str]:
        """Count a delivery, and yield a fault if it exceeds the credit. A delivery that waited for an entry
        is left out, because its subscription can have ended meanwhile."""
        name = shard, term, delivery.origin[0].decode(), delivery.subscription
        if delivery.late is not None or name not in self.left:
            return
        count = sum(part.count for part in delivery.parts)
        self.left[name] -= count
        if self.left[name] < 0:
            yield f"P23 {name[2]} got {count} records, {-self.left[name]} more than its credit in term {term}"
            self.left[name] = 0
