# Made by clients/python/make_twins.py from api/aio/operators.py: change that, then run it.
"""The operator of a whole cluster: how it grows, who is connected, alarms, and the verbs for topics and
groups."""

from collections.abc import Iterable
from typing import Unpack

from gossipq import limits
from gossipq.operator_messages import GroupShown
from gossipq.values import Alarm, ClientRow, ConfigRow, GrowthRow, SoughtRow, TopicInfo
from gossipq_client.api.sync.menders import Menders
from gossipq_client.values import TopicPolicy, inputs, topic_options


class Operators(Menders):
    """The part of a client that looks after nodes, topics and groups."""

    def alarms(self) -> list[Alarm]:
        """What the node that this client is connected to has to say now; the topic `_alarms` has that of all,
        over time."""
        return self.talk(self.engine.asking.alarms())

    def running_config(self) -> list[ConfigRow]:
        """The options that node runs with, and where each comes from."""
        return self.talk(self.engine.asking.running_config())

    def growth(
        self, topics: Iterable[str] = (), *, hours: bool = False, since_ms: int = 0
    ) -> list[GrowthRow]:
        """Counters at the end of each minute of the last 6 hours, or of each hour of the last 7 days; of all
        topics together, or of those named. `gossipq_client.growth.series` makes curves of them."""
        return self.talk(self.engine.asking.growth(topics, hours, since_ms))

    def clients(self) -> list[ClientRow]:
        """Who is connected: a row for each session and worker that knows it."""
        return self.talk(self.engine.asking.clients())

    def kick(self, session: bytes, for_ms: int = limits.KICK_MS) -> int:
        """Ends a session at every worker: what it holds goes back, and it is not greeted for so long. Returns
        how many knew it."""
        return self.talk(self.engine.asking.kick(session, for_ms))

    def set_topic(self, name: str, **policy: Unpack[TopicPolicy]) -> TopicInfo:
        """Changes the policy of a topic; what is left away stays. Raises UnknownTopic, BadRequest."""
        return self.talk(self.engine.asking.set_topic(name, topic_options(**policy)))

    def purge_topic(self, name: str, partition: int | None = None, *, dry_run: bool = False) -> int:
        """Removes all records that a topic, or one of its partitions, has now; scheduled ones stay. Returns
        how many."""
        return self.talk(self.engine.asking.purge_topic(name, partition, dry_run))

    def seek_group(
        self, topic: str, group: str, to: inputs.Start, *, dry_run: bool = False
    ) -> list[SoughtRow]:
        """A group goes on from somewhere else: "first", "new", an offset, an aware datetime, "-10m". Its
        counters start over.

        Raises WrongState while it has consumers or dead letters."""
        return self.talk(self.engine.asking.seek_group(topic, group, to, dry_run))

    def delete_group(self, topic: str, group: str, *, dead: bool = False) -> int:
        """A group ends; with `dead` also when it has dead letters, which go with it. Returns in how many
        shards it was.

        Raises WrongState while it has consumers."""
        return self.talk(self.engine.asking.delete_group(topic, group, dead))

    def group_policy(self, topic: str, group: str) -> GroupShown:
        """What rules the records of a group, who said so, and its consumers. Raises BadRequest when there is
        no such group."""
        return self.talk(self.engine.asking.group_policy(topic, group))
