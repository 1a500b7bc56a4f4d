"""What the entries of a log say. PUBLISH has its own fixed layout in `log`; these are msgpack arrays, append-only."""

import msgspec

from gossipq.messages import GroupConfig, Range, Start, TopicInfo
from gossipq.types import Offset, PartitionKey, SessionId


class Config(msgspec.Struct, array_like=True, frozen=True):
    """The copies of this shard from here on. `voters` are in the order in which they should lead; `witnesses` are those of the
    voters and learners that keep the log without bodies; `learners` have no vote."""

    voters: list[str]
    witnesses: list[str] = []
    learners: list[str] = []


class Topic(msgspec.Struct, array_like=True, frozen=True):
    """TOPIC in a shard that holds partitions of it; META_TOPIC in the meta shard, where the entry's index becomes the id."""

    info: TopicInfo
    deleted: bool = False


class Group(msgspec.Struct, array_like=True, frozen=True):
    """A group and where it starts in partitions that it does not know yet."""

    name: str
    config: GroupConfig
    starts: list[Start]


class LeaseRow(msgspec.Struct, array_like=True, frozen=True):
    """An empty session: given back, or expired."""

    partition: PartitionKey
    first: Offset
    end: Offset
    session: SessionId
    deadline_ms: int  #: leader time
    attempt: int
    consumer: str = ""


class Lease(msgspec.Struct, array_like=True, frozen=True):
    group_id: int
    rows: list[LeaseRow]


class Ack(msgspec.Struct, array_like=True, frozen=True):
    group_id: int
    consumer: str
    ranges: list[Range]


class Trim(msgspec.Struct, array_like=True, frozen=True):
    """Records below `first` leave; `bytes` is the size of the batches that go with them."""

    partition: PartitionKey
    first: Offset
    bytes: int


class Forget(msgspec.Struct, array_like=True, frozen=True):
    """Producers that were idle for too long."""

    producers: list[tuple[PartitionKey, bytes]]


encode = msgspec.msgpack.Encoder().encode
