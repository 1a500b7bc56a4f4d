"""Outcomes of applied entries, computed from the entry and the ledger, so equal on every copy.

An entry is checked when it is requested, and again when it is applied, because other entries come
between. It is applied completely, or refused without any change. Applying an entry never raises
because of its content.
"""

from typing import Any

import msgspec

from gossipq.core.storage import Entry
from gossipq.types import Index, Offset, PartitionKey
from gossipq.values import Range, Run, TopicInfo


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""  #: code of a refusal, as in `gossipq.errors`; "" = applied
    why: str = ""  #: reason of a refusal, for people
    detail: int = 0


DONE = Outcome()


class Published(Outcome, frozen=True):
    """PUBLISH, STEP, EDIT: the place of the batch.

    `added` counts stored records. `runs` has the places if they are not simply one slice.
    """

    partition: PartitionKey
    offset: Offset
    added: int
    duplicate: bool = False
    runs: list[Run] | None = None
    replaced: list[Offset] = []  #: records of the same partition that left for these


class Voided(Outcome, frozen=True):
    """VOID, EDIT: the record that replaced the voided one."""

    published: Published | None = None


class Counted(Outcome, frozen=True):
    """ACK, FAIL, DEAD, REPLAY, PURGE, REQUEUE, TRIM, FORGET: how many records (producers) changed.

    Also the ranges whose group or partition no longer exists, and those that were voided before the ack.
    """

    count: int = 0
    lost: list[Range] = []


class Released(Outcome, frozen=True):
    """RELEASE: the partitions that got records."""

    partitions: frozenset[PartitionKey]


class TopicChanged(Outcome, frozen=True):
    """TOPIC, META_TOPIC: the topic as it is now, or as it was removed."""

    info: TopicInfo
    deleted: bool = False


class Regrouped(Outcome, frozen=True):
    """REGROUP: the group that ended."""

    group_id: Index


#: an entry, its decoded payload, and its outcome
AppliedEntry = tuple[Entry, Any, Outcome]


def refused(error: str, why: str, detail: int = 0) -> Outcome:
    return Outcome(error=error, why=why, detail=detail)
