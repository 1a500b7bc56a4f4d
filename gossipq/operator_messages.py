"""Messages of operators about nodes, topics, groups and clients. Verbs 80 to 95.

They belong to `messages`.
"""

from gossipq import limits
from gossipq.types import Offset, PartitionKey
from gossipq.values import (
    Alarm,
    ClientRow,
    ConfigRow,
    FlowRow,
    GroupConfig,
    GrowthRow,
    Message,
    SoughtRow,
    Start,
    TopicOptions,
)


class Growth(Message):
    """Ask a worker for the stored roll-ups of the shards it leads. Answered by GROWN."""

    verb = 80
    topics: list[str] = []  #: empty: all topics together, one series for each shard
    hours: bool = False  #: rows of hours, kept for 7 days, instead of minutes, kept for 6 hours
    since_ms: int = 0  #: only rows after this time, in unix milliseconds
    after: list[int] = []  #: `more` of the previous answer; empty = from the beginning


class Grown(Message):
    verb = 81
    rows: list[GrowthRow]
    more: list[int] = []  #: `after` of the next request; empty = this was the last page


class ListClients(Message):
    """Ask a worker for its sessions. Answered by CLIENTS."""

    verb = 82
    after: bytes = b""  #: `more` of the previous answer; b"" = from the beginning


class Clients(Message):
    verb = 83
    rows: list[ClientRow]
    more: bytes = b""  #: `after` of the next request; b"" = this was the last page


class Kick(Message):
    """End a session at a worker, give its records back, and refuse its HELLO for a while.

    Answered by DONE. The count is 0 if the worker does not know the session.
    """

    verb = 84
    session: bytes  #: the first bytes of its name
    for_ms: int = limits.KICK_MS


class SetTopic(Message):
    """Change the policy of a topic; to the meta shard. Answered by TOPICS.

    The answer comes when every shard of the topic has stored the change.
    """

    verb = 85
    name: str
    config: TopicOptions
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class PurgeTopic(Message):
    """Remove records of a partition up to `before`, oldest first. Answered by DONE.

    One request removes a bounded number; 0 = nothing was left to remove. With `dry_run` the answer
    counts all of them and removes nothing.
    """

    verb = 86
    partition: PartitionKey
    before: Offset
    dry_run: bool = False


class SeekGroup(Message):
    """Move a group to other offsets, in all its partitions of this shard. Answered by SOUGHT.

    Refused while the group has consumers or dead letters.
    """

    verb = 87
    topic_id: int
    group: str
    starts: list[Start]
    dry_run: bool = False
    #: policy of the group if this shard does not have it yet; None = refuse in this case
    config: GroupConfig | None = None


class Sought(Message):
    verb = 88
    rows: list[SoughtRow]


class DropGroup(Message):
    """Delete a group in this shard. Answered by DONE.

    Refused while it has consumers, or has dead letters and `dead` is False.
    """

    verb = 89
    topic_id: int
    group: str
    dead: bool = False
    dry_run: bool = False
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class ShowGroup(Message):
    """Ask a shard with partitions of the topic for a group. Answered by GROUP_SHOWN."""

    verb = 90
    topic_id: int
    group: str
    flows: int = 0  #: as many of its busiest flows, and of those that wait longest, are shown


class GroupShown(Message):
    verb = 91
    config: GroupConfig
    policy: list[tuple[str, str, str]]  #: (name, value, origin) of each policy in force
    consumers: list[str]
    flows: list[FlowRow] = []


class ListAlarms(Message):
    """Ask a frontdoor for the alarms of its node. Answered by ALARMS."""

    verb = 92


class Alarms(Message):
    verb = 93
    rows: list[Alarm]


class ShowConfig(Message):
    """Ask a frontdoor for the options with which its node runs. Answered by CONFIG_SHOWN."""

    verb = 94


class ConfigShown(Message):
    verb = 95
    rows: list[ConfigRow]


LOADED = Growth.verb
