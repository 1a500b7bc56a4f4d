"""What exports and backups ask of the leaders of shards. Verbs 24 to 31."""

from gossipq.types import Index, Offset, PartitionKey
from gossipq.values import AckRun, Message, StateRun


class ListAcks(Message):
    """Acks of a partition by the entry that brought them, from `offset` of group `group_id` on. Answered by
    ACK_RUNS."""

    verb = 24
    partition: PartitionKey
    since: Index = 0  #: only those of this log index and later ones
    group_id: int = 0
    offset: Offset = 0


class AckRuns(Message):
    """`more_group_id` and `more_offset` are where the next page begins, also after one without runs; -1: that
    was all."""

    verb = 25
    index: Index  #: the page holds what is so after this entry
    runs: list[AckRun]
    more_group_id: int = -1
    more_offset: Offset = 0


class ListStates(Message):
    """Where all records of a partition stand, from `offset` of group `group_id` on. Answered by STATES."""

    verb = 26
    partition: PartitionKey
    group_id: int = 0
    offset: Offset = 0


class States(Message):
    """Runs of a group lie side by side from its start on; behind all groups come, with group "", records that
    were voided. `more_group_id` and `more_offset` are as in ACK_RUNS."""

    verb = 27
    index: Index  #: the page holds what is so after this entry
    runs: list[StateRun]
    more_group_id: int = -1
    more_offset: Offset = 0


class BackUp(Message):
    """For a backup: a part of the point at `index` of this shard, or, with index 0, that a point is made of
    what is stored now. Answered by BACKED_UP; refused with wrong_state when the point is gone: after a
    minute in which nobody asked, when another one is made, and when the leader changes."""

    verb = 28
    index: Index = 0
    kind: str = ""  #: "state", "kept", "batches"
    at: int = 0  #: of the state: the number of the part; else a log index, from which on


class BackedUp(Message):
    """Its second frame is the part, as a msgpack array: of (key, row) of the state; of the log indexes whose
    batches are there; of (log index, batch). A new point has none."""

    verb = 29
    index: Index  #: everything is as it was after this entry
    term: int
    chain: bytes  #: of that entry
    time_ms: int  #: leader time of it, unix
    more: int = -1  #: `at` of the next part; -1: that was all


LOADED = ListAcks.verb
