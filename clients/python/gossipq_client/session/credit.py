"""A subscription and its parts, one for each shard: the loan at the leader, and what was delivered for it.

For each part: lent (unused at the leader) + untaken (here, not yet in the user's hands) stay at or below its
share; the shares of a subscription add up to the credit the user lends. For an exclusive consumer what is in
the user's hands counts too, so that a credit of 1 is strictly one after the other. A leader without loan says
READY; then a part that stands idle is recalled and its share moves over.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gossipq.errors import BadRequest, GossipqError
from gossipq.types import Offset, PartitionKey, ShardId, partition_key
from gossipq.values import GroupOptions, Range, Start, TopicInfo
from gossipq_client.session.connections import NOWHERE
from gossipq_client.session.held import Held, Piece
from gossipq_client.session.pace import Pace
from gossipq_client.session.time_order import TimeOrder
from gossipq_client.values import Outcome

if TYPE_CHECKING:
    from gossipq_client.session.calls import Call

REPAY_FRACTION = 4  #: credit goes back when this part of a share is due


class Subscription:
    """What one consumer asked for; a part for each shard that holds some of it."""

    def __init__(
        self,
        group: str,
        start: tuple[str, int],
        credit: tuple[int, int],
        options: GroupOptions,
        notify_end: bool = False,
        names: Sequence[str] = (),
        routes: Sequence[str] = (),
        acks: bool = True,
        follows: bool = False,
        creates: bool = False,
        patience_ms: int = 0,
        late_after_ms: int | None = None,
        offsets: Mapping[str, Mapping[int, Offset]] = {},
        ahead: bool = True,
    ) -> None:
        self.group, self.start, self.options, self.notify_end = group, start, options, notify_end
        self.names, self.routes, self.acks = names, list(routes), acks
        self._offsets = offsets  #: of a reader, by topic and partition: where it begins other than at `start`
        self._begun: dict[str, int] = {}  #: the topics that these were taken for
        self.leased = bool(group) and acks  #: what comes is held for the user until it is acked or given back
        self.mode = options.mode or ""  #: of the group, as soon as it is known
        self.credit_records, self.credit_bytes = credit
        self.awaits = False  #: topics that are not there yet
        self.creates = creates  #: topics that are not there
        self.patience_ms = patience_ms  #: how long they are waited for; the boot time of its end once asked
        self.pace, self.follows = Pace(), follows  #: whether the credit is what the pace of the user asks for
        self.parts: list[Part] = []
        self.topics: dict[int, TopicInfo] = {}
        self.ready: deque[Held] = deque()
        #: of a reader in the order of publish time: what waits for other partitions before it is ready
        self.order = None if late_after_ms is None else TimeOrder[Held](late_after_ms)
        self.error: GossipqError | None = None
        self.lookups: set[Call] = set()  #: of topics, under way
        self.looked_up_ms = 0  #: when the first of them began
        #: several records of a key may be here: user code gets one after the other
        self.key_runs = False
        self.has_handler = False  #: a handler takes its records, and the log says what becomes of them
        self.looked_up = False  #: whether its topics are there was answered once
        self.asked = False  #: its topics are, or were, looked up
        self.fetches: dict[object, list[Piece]] = {}  #: under way, and what each has taken
        self.whole = False  #: what cannot be opened is an error, and not passed over
        self.over = False  #: the user takes no more, or it is being closed
        self.kept = False  #: whoever waits for its next message may break that off, and wait again later
        self.closing = self.paused = self.streak = False
        self.ahead = ahead  #: a fetch that follows another one may lend more credit than it asks for
        self.touched_ms = 0  #: when the user last took something
        self.progress = (0, 0)  #: the slice the user is at, and how far

    def start_of(self, topic: TopicInfo) -> list[Start]:
        """Where each partition of a topic begins. Who names one that is not there is told."""
        # one that was made anew under its name has nothing to do with these offsets
        named = self._begun.setdefault(topic.name, topic.id) == topic.id
        offsets = self._offsets.get(topic.name, {}) if named else {}
        count = len(topic.shards)
        if (beyond := max(offsets, default=0)) >= count:
            hint = f"partitions 0 to {count - 1} are there; mq.admin.positions({topic.name!r})"
            self.error = BadRequest(f"start= names partition {beyond} of {topic.name}", hint=hint)
        keys = [partition_key(topic.id, number) for number in range(count)]
        return [
            Start(key, "offset", offsets[number]) if number in offsets else Start(key, *self.start)
            for number, key in enumerate(keys)
        ]

    def answered(self, lookup: "Call") -> None:
        self.lookups.discard(lookup)
        self.looked_up |= not self.lookups

    @property
    def patterns(self) -> bool:
        return any("*" in name for name in self.names)

    @property
    def exclusive(self) -> bool:
        return self.mode == "exclusive" and self.leased

    @property
    def key_ordered(self) -> bool:
        return self.mode == "key_ordered" and self.leased

    @property
    def shares(self) -> bool:
        """What it has not come to may go to others that have nothing to do."""
        return self.leased and not self.exclusive and not self.key_ordered

    @property
    def here(self) -> list[Held]:
        """Slices that the user has not wholly taken."""
        return [*self.ready, *(self.order or ())]

    def arrange(self, now_ms: int) -> None:
        """What is next in the order of publish time becomes ready, if there is such an order."""
        if self.order is None or self.ready:
            return
        found = self.order.next(self.awaited, now_ms)
        if found is not None:
            held, late = found
            held.late = late
            self.ready.append(held)

    def order_ms(self) -> int | None:
        """When what waits for other partitions may go on."""
        return None if self.order is None or self.ready else self.order.due_ms(self.awaited)

    @property
    def awaited(self) -> list[PartitionKey]:
        """Partitions that may bring more; one that has reached the end brings nothing to who stops there."""
        return [key for part in self.parts if not (self.notify_end and part.at_end) for key in part.starts]

    def free(self) -> tuple[int, int]:
        """Records and bytes of the credit that are neither lent nor here."""
        return (
            self.credit_records - sum(part.lent_records + part.here_records for part in self.parts),
            self.credit_bytes - sum(part.lent_bytes + part.untaken_bytes for part in self.parts),
        )

    @property
    def untaken_records(self) -> int:
        return sum(part.untaken_records for part in self.parts)

    @property
    def finished(self) -> bool:
        """With notify_end: everything readable has been handed out, and nothing of it waits here."""
        return (
            self.notify_end
            and not self.lookups
            and not self.awaits
            and not self.here
            and all(part.at_end and not part.aside for part in self.parts)
        )


class Part:
    """The partitions of one subscription that lie in one shard."""

    __slots__ = (
        "aside",
        "at_end",
        "attempts_max",
        "barred",
        "ends",
        "fed",
        "fresh",
        "high",
        "in_hand",
        "known",
        "late",
        "lease_ms",
        "lent_bytes",
        "lent_records",
        "nacks",
        "number",
        "outstanding",
        "positions",
        "recalling",
        "refused",
        "request_id",
        "retry_at_ms",
        "shard",
        "share_records",
        "silent_since_ms",
        "standing",
        "starts",
        "subscribed",
        "subscription",
        "told",
        "untaken_bytes",
        "untaken_records",
    )

    def __init__(self, subscription: Subscription, number: int, shard: ShardId, starts: list[Start]) -> None:
        self.subscription, self.number, self.shard = subscription, number, shard
        self.starts = {start.partition: start for start in starts}
        self.request_id = self.retry_at_ms = self.lease_ms = 0
        self.attempts_max = 0  #: failures until a record that names no number itself is a dead letter
        self.silent_since_ms: int | None = None  #: no leader knows of it since then; None: one does
        self.standing = self.known = (
            NOWHERE  #: under which it was asked for, and under which the leader has answered
        )
        self.subscribed = self.at_end = self.recalling = False
        self.fed = False  #: a recall for it is under way
        self.share_records = 0
        self.lent_records = self.lent_bytes = 0
        self.untaken_records = self.untaken_bytes = 0
        self.ends: dict[PartitionKey, Offset] = {}  #: one past the last offset that AT_END spoke of
        self.positions: dict[PartitionKey, Offset] = {}  #: of a reader: next offset
        self.high: dict[PartitionKey, Offset] = {}  #: of a group: one past the highest offset seen
        self.outstanding: dict[Held, None] = {}
        #: of these, what came again while an ack or a failure of it has no answer: that decides
        self.aside: dict[Held, None] = {}
        self.fresh: list[list[int]] = []  #: acked, not yet told to the leader: [partition, first, end]
        self.nacks: dict[Outcome, Call] = {}  #: what failed and was not told to the leader yet
        self.in_hand: list[Range] = []  #: records that user code had when that was last looked at,
        self.told: list[Range] = []  #: and those of them that the leader has heard of
        self.late: list[Range] = []  #: acked here, and others had them by then
        #: acks that were refused, and why: (partition, first, end, error)
        self.refused: list[tuple[PartitionKey, Offset, Offset, GossipqError]] = []
        #: of each NACK without an answer: its partition, and from which offset on it bars which key hash
        self.barred: dict[Call, tuple[PartitionKey, dict[int, Offset]]] = {}

    @property
    def share_bytes(self) -> int:
        """The same part of the bytes as of the records."""
        subscription = self.subscription
        return subscription.credit_bytes * self.share_records // max(1, subscription.credit_records)

    @property
    def here_records(self) -> int:
        """What counts against the share beside the loan."""
        return (
            sum(held.left for held in self.outstanding)
            if self.subscription.exclusive
            else self.untaken_records
        )

    @property
    def want_records(self) -> int:
        return self.share_records - self.lent_records - self.here_records

    @property
    def want_bytes(self) -> int:
        return self.share_bytes - self.lent_bytes - self.untaken_bytes

    @property
    def due(self) -> bool:
        """Whether enough was taken to lend it again."""
        records, size = self.want_records, self.want_bytes
        return (records > 0 and records * REPAY_FRACTION >= self.share_records) or (
            size > 0 and size * REPAY_FRACTION >= self.share_bytes > 0
        )

    @property
    def has_loan(self) -> bool:
        """Whether the leader may hand out something."""
        return self.lent_records > 0 and self.lent_bytes > 0

    @property
    def idle(self) -> bool:
        """Has a loan, or a part of one, and nothing to show for it."""
        return (
            (self.lent_records > 0 or self.lent_bytes > 0)
            and self.untaken_records == 0
            and not self.recalling
        )

    def offer(self) -> tuple[int, int]:
        """What could go to the leader so that the share is full again, within the credit of the subscription.
        Records without bytes, or bytes without records, are of use to nobody: then it is nothing."""
        free_records, free_bytes = self.subscription.free()
        records, size = max(0, min(self.want_records, free_records)), max(0, min(self.want_bytes, free_bytes))
        return (records, size) if self.lent_records + records > 0 and self.lent_bytes + size > 0 else (0, 0)

    def lend(self) -> tuple[int, int]:
        """What goes to the leader now."""
        records, size = self.offer()
        self.lent_records += records
        self.lent_bytes += size
        return records, size

    def cede(self, other: "Part", records: int) -> None:
        """So much of its share moves over."""
        self.share_records -= records
        other.share_records += records

    def start_list(self) -> list[Start]:
        """A reader goes on where it is; a group's start counts only the first time."""
        at = self.positions
        return [Start(key, "offset", at[key]) if key in at else start for key, start in self.starts.items()]

    def bars(self, partition: PartitionKey) -> dict[int, Offset]:
        """Key hashes of which a record failed and its leader may not know yet, with the first offset."""
        bars: dict[int, Offset] = {}
        for where, keys in self.barred.values():
            for key, offset in keys.items() if where == partition else ():
                bars[key] = min(offset, bars.get(key, offset))
        return bars

    def saw(self, partition: PartitionKey, end: Offset) -> None:
        """A slice up to `end` is here, wholly."""
        places = self.high if self.subscription.group else self.positions
        places[partition] = max(end, places.get(partition, 0))

    def recover(self) -> None:
        """A step was torn and all ways were closed: no leader is known, nothing is lent, and what is here
        counts."""
        self.standing = self.known = NOWHERE
        self.subscribed = self.at_end = self.recalling = self.fed = False
        self.lent_records = self.lent_bytes = self.retry_at_ms = 0
        self.nacks = {}  # their calls are asked like all others
        self.in_hand = []
        self.told = []
        self.aside = {}
        ready = [held for held in self.subscription.here if held.part is self]
        for held in list(self.outstanding):
            held.recount()
            if not held.left or (held.taken == held.first and held not in ready):
                del self.outstanding[held]  # the leader hears that it is not here
        for held in [*self.outstanding, *ready]:
            self.saw(held.partition, held.end)
        self.untaken_records = sum(held.end - held.taken for held in ready)
        self.untaken_bytes = sum(held.charge for held in ready)
