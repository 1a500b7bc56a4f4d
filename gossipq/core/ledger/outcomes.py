"""What an entry did when it was applied. It follows from the entry and the ledger alone, so it is the same on
every copy.

An entry was checked when it was asked for, against a ledger that other entries have moved since. So it is
checked again when it is applied: it is done wholly, or refused and changes nothing. Apply never raises for
what an entry asks.
"""

import msgspec

from gossipq.types import Index, Offset, PartitionKey
from gossipq.values import Range, Run, TopicInfo


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""  #: code of a refusal, as in `gossipq.errors`; "" = done
    why: str = ""  #: of a refusal, for people
    detail: int = 0


DONE = Outcome()


class Published(Outcome, frozen=True):
    """PUBLISH, STEP, EDIT: where the batch lies. `added` are records that count, `runs` where each lies when
    that is not simply one slice."""

    partition: PartitionKey
    offset: Offset
    added: int
    duplicate: bool = False
    runs: list[Run] | None = None


class Voided(Outcome, frozen=True):
    """VOID, EDIT: what took the record's place."""

    published: Published | None = None


class Counted(Outcome, frozen=True):
    """ACK, FAIL, DEAD, REPLAY, PURGE, REQUEUE, TRIM, FORGET: how many records (producers) it moved, and the
    ranges of which the group or the partition is gone."""

    count: int = 0
    lost: list[Range] = []


class Released(Outcome, frozen=True):
    """RELEASE: the partitions that grew."""

    partitions: frozenset[PartitionKey]


class TopicChanged(Outcome, frozen=True):
    """TOPIC, META_TOPIC: the topic as it is known now, or that is gone."""

    info: TopicInfo
    deleted: bool = False


class Regrouped(Outcome, frozen=True):
    """REGROUP: the group that ended."""

    group_id: Index


def refused(error: str, why: str, detail: int = 0) -> Outcome:
    return Outcome(error=error, why=why, detail=detail)
