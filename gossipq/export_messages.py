"""Messages of exports and backups to the leaders of shards. Verbs 24 to 31.

Acks are read by log index, not by offset or time: an ack of a late retry is far below others, and the clocks
of two leaders differ, but the log index always rises. States are read page by page, each consistent at one
log index, so that a leader need not keep a spool for a client that may not return.
"""

from gossipq.types import Index, Offset, PartitionKey
from gossipq.values import AckRun, Message, StateRun


class ListAcks(Message):
    """Ask for the acks of a partition, with the log entries that stored them.

    The answer ACK_RUNS begins at `offset` of group `group_id`.
    """

    verb = 24
    partition: PartitionKey
    since: Index = 0  #: only acks at this log index and above
    group_id: int = 0
    offset: Offset = 0


class AckRuns(Message):
    """`more_group_id` and `more_offset` are where the next page begins; -1: this was the last page.

    An empty page can have a next one.
    """

    verb = 25
    index: Index  #: the page shows the state after this log entry
    runs: list[AckRun]
    more_group_id: int = -1
    more_offset: Offset = 0


class ListStates(Message):
    """Ask for the state of all records of a partition. Answered by STATES.

    The answer begins at `offset` of group `group_id`.
    """

    verb = 26
    partition: PartitionKey
    group_id: int = 0
    offset: Offset = 0


class States(Message):
    """Runs of each group, without gaps from the start of the group.

    Behind the groups come voided records, with group "". `more_group_id` and `more_offset` are as
    in ACK_RUNS.
    """

    verb = 27
    index: Index  #: the page shows the state after this log entry
    runs: list[StateRun]
    more_group_id: int = -1
    more_offset: Offset = 0


class BackUp(Message):
    """Ask for one part of a backup point of this shard. Answered by BACKED_UP.

    With index 0 the leader makes a new point of its current state. The request is refused with
    wrong_state if the point was dropped. A leader drops a point after a minute without a request,
    when another point is made, and when it loses leadership.
    """

    verb = 28
    index: Index = 0
    kind: str = ""  #: "state", "kept", "batches"
    at: int = 0  #: for the state: number of the part; else the first log index of the part


class BackedUp(Message):
    """The second frame is the part, as a msgpack array. The answer to a new point has none.

    - state: rows of (key, row)
    - kept: log indexes whose batches exist
    - batches: rows of (log index, batch)
    """

    verb = 29
    index: Index  #: the state is the one after this log entry
    term: int
    chain: bytes  #: chain of that log entry
    time_ms: int  #: leader time of that log entry, in unix milliseconds
    more: int = -1  #: `at` of the next part; -1: this was the last one


LOADED = ListAcks.verb
