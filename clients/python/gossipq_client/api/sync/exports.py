# Made by clients/python/make_twins.py from api/aio/exports.py: change that, then run it.
"""Questions of exports and backups: positions with leases, acks and states as the log has them."""

from collections.abc import Sequence

from gossipq.export_messages import BackedUp, BackUp, States
from gossipq.messages import StatusReply
from gossipq.types import Index, PartitionKey
from gossipq.values import AckRun, TopicInfo
from gossipq_client.api.sync.connection import Connection
from gossipq_client.api.sync.operator import Operator
from gossipq_client.operations import Span
from gossipq_client.values import inputs


class Exports:
    """The questions of `gossipq export` and `gossipq backup`. Their answers have the form of the wire."""

    def __init__(self, client: Connection) -> None:
        self._operator = Operator(client)

    def status(self) -> StatusReply:
        """Return the state of the connected node."""
        return self._operator.run(self._operator.asking.status())

    def spans(self, topics: Sequence[TopicInfo], start: inputs.Start = "first") -> dict[PartitionKey, Span]:
        """Return (start, end) offsets of each partition of these topics. `start` is the first offset, or the
        one where a reader from `start` would begin; `end` is one past the last record. Waits for a leader of
        each shard, which `stats` does not. Raises NotFound."""
        where = inputs.start_of(start, self._operator.wall_ms)
        return self._operator.run(self._operator.asking.spans(topics, where))

    def ack_runs(self, topic: TopicInfo, partition: int, since: Index = 0) -> tuple[Index, list[AckRun]]:
        """Return acks of a partition by log entries from `since` on, and the entry up to which these are
        all."""
        return self._operator.run(self._operator.asking.acks(topic, partition, since))

    def state_pages(self, topic: TopicInfo, partition: int) -> list[States]:
        """Return the state of each record of a partition, for each group."""
        return self._operator.run(self._operator.asking.states(topic, partition))

    def backup_part(self, shard: int, request: BackUp) -> tuple[BackedUp, bytes]:
        """Return a part of a restore point of a shard, as its leader sends it. Raises Refused when the point
        is gone."""
        return self._operator.run(self._operator.asking.backup_part(shard, request))
