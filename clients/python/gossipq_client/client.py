"""The sync client: its I/O happens inline in the calling thread, under one lock; a keeper thread fills the pauses."""

import os
from collections.abc import Iterable
from typing import Unpack

from gossipq.messages import CreateTopic, DropTopic, Resolve, StatsReply, Status, StatusReply, Topics
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq.values import GroupStats, TopicInfo
from gossipq_client import inputs
from gossipq_client.engine import REQUEST_SECONDS
from gossipq_client.operators import Operators
from gossipq_client.policies import TopicPolicy, as_asked, topic_options
from gossipq_client.reader import Readers
from gossipq_client.workers import Workers


class Client(Workers, Operators, Readers):
    """A connection to a cluster. Safe to share between threads; not across fork. Use `connect` to make one."""

    # --- topics and status

    def create_topic(
        self, name: str, partitions: int | None = None, *, if_not_exists: bool = False, **policy: Unpack[TopicPolicy]
    ) -> TopicInfo:
        """Policy: retention, retain, bytes_max, overflow, level, beside, ttl, expire, dedup, dedup_count, trace, lease,
        attempts_max, backoff; see TopicPolicy. With `if_not_exists` a topic that is there stays as it is. Raises TopicExists,
        also for one with other partitions; BadName, BadRequest.
        """
        config = topic_options(partitions, **policy)
        return as_asked(self._ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics).topics[0], partitions)

    def delete_topic(self, name: str) -> None:
        """The topic, its records and its groups. Raises UnknownTopic."""
        self._ask(DropTopic(name), META_SHARD, Topics)
        with self.lock:
            self.engine.session.publishing.drop(name)

    def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Topics whose name fits, `*` standing for any text; never makes one."""
        return self._ask(Resolve([pattern]), META_SHARD, Topics).topics

    def groups(self, topic: str) -> list[GroupStats]:
        """Counters of each group of a topic, one row for each partition."""
        return self.stats([topic]).groups

    def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Counters of partitions and groups, of all topics or the ones named; led anywhere, or at one endpoint."""
        with self.lock:
            self.engine.check()
            calls = self.engine.stats_calls(list(topics), endpoint)
        for call in calls:
            self._answered(call, self.timeout)
        return self.engine.merged_stats(calls)

    def status(self) -> StatusReply:
        """How the node sees itself and its workers."""
        return self._ask(Status(), NODE_SHARD, StatusReply)


def connect(*addresses: str | Iterable[str], name: str = "", timeout: float = REQUEST_SECONDS) -> Client:
    """A client of the cluster behind these addresses; none: $GOSSIPQ_SERVER, else tcp://127.0.0.1:7700.

    `name` is shown by `gossipq status`. Raises Unreachable when no node answers within `timeout` seconds.
    """
    return Client(inputs.addresses_of(addresses), name or f"python-{os.getpid()}", timeout)
