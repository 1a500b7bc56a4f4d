"""What an export asks of the leaders of shards: acks, and where all records stand. Verbs 24 to 31."""

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


LOADED = ListAcks.verb
