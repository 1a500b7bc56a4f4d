"""What operators ask of a node, and do to topics, groups and clients. Verbs 80 to 95; a part of
`messages`."""

from gossipq import limits
from gossipq.types import Offset, PartitionKey
from gossipq.values import (
    Alarm,
    ClientRow,
    ConfigRow,
    GroupConfig,
    GrowthRow,
    Message,
    SoughtRow,
    Start,
    TopicOptions,
)


class Growth(Message):
    """To a worker: stored roll-ups of the shards it leads. Answered by GROWN."""

    verb = 80
    topics: list[str] = []  #: empty: all topics together, one series for each shard
    hours: bool = False  #: rows of hours, kept for 7 days, instead of minutes, kept for 6 hours
    since_ms: int = 0  #: unix: rows behind that
    after: list[int] = []  #: `more` of the answer before; empty = from the beginning


class Grown(Message):
    verb = 81
    rows: list[GrowthRow]
    more: list[int] = []  #: `after` of the next request; empty = that was all


class ListClients(Message):
    """To a worker: who talks to it. Answered by CLIENTS."""

    verb = 82
    after: bytes = b""  #: `more` of the answer before; b"" = from the beginning


class Clients(Message):
    verb = 83
    rows: list[ClientRow]
    more: bytes = b""  #: `after` of the next request; b"" = that was all


class Kick(Message):
    """To a worker: ends a session, what it holds goes back, and refuses its HELLO for a while. Answered by
    DONE, also when it is not known there: then the count is 0."""

    verb = 84
    session: bytes  #: the first bytes of it
    for_ms: int = limits.KICK_MS


class SetTopic(Message):
    """Changes the policy of a topic; to the meta shard. Answered by TOPICS when every shard of the topic has
    stored it."""

    verb = 85
    name: str
    config: TopicOptions
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class PurgeTopic(Message):
    """Removes records of a partition up to `before`, oldest first, a bounded number at a time. Answered by
    DONE: 0 = that was all. With `dry_run` the count is of all of them."""

    verb = 86
    partition: PartitionKey
    before: Offset
    dry_run: bool = False


class SeekGroup(Message):
    """A group starts anew at other places, in all its partitions of this shard. Answered by SOUGHT; refused
    while it has consumers or dead letters."""

    verb = 87
    topic_id: int
    group: str
    starts: list[Start]
    dry_run: bool = False
    config: GroupConfig | None = (
        None  #: for a shard where nobody has consumed yet: the group is made there; None = refused
    )


class Sought(Message):
    verb = 88
    rows: list[SoughtRow]


class DropGroup(Message):
    """The group ends in this shard; so do its dead letters, if `dead` says so. Answered by DONE; refused
    while it has consumers."""

    verb = 89
    topic_id: int
    group: str
    dead: bool = False
    dry_run: bool = False
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class ShowGroup(Message):
    """To a shard with partitions of the topic. Answered by GROUP_SHOWN."""

    verb = 90
    topic_id: int
    group: str


class GroupShown(Message):
    verb = 91
    config: GroupConfig
    policy: list[tuple[str, str, str]]  #: (name, value, who said so) of what rules its records
    consumers: list[str]


class ListAlarms(Message):
    """To a frontdoor. Answered by ALARMS."""

    verb = 92


class Alarms(Message):
    verb = 93
    rows: list[Alarm]


class ShowConfig(Message):
    """To a frontdoor: the options that the node runs with. Answered by CONFIG_SHOWN."""

    verb = 94


class ConfigShown(Message):
    verb = 95
    rows: list[ConfigRow]


LOADED = Growth.verb
