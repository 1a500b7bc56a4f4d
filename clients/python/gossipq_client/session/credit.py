"""A subscription and its parts, one for each shard, with the credit at each leader and the
records delivered for it.

In each part, the unused credit at the leader (`lent`) plus the records that the user has not
taken (`untaken`) stay within the part's share. The shares of a subscription add up to the user's
credit. For an exclusive consumer, records that the user holds count too, so a credit of 1 means
strictly one after the other. A leader without credit sends READY; then an idle part is recalled
and its share moves over.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

REPAY_FRACTION = 4  #: credit is granted again when 1/4 of a share is due


class Subscription:
    """The options of one consumer, and a part for each shard that holds some of its partitions."""

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
        #: of a reader, by topic and partition: offsets at which it begins instead of `start`
        self._offsets = offsets
        self._begun: dict[str, int] = {}  #: the topics for which these offsets were used
        #: records are leased to the user until it acks them or gives them back
        self.leased = bool(group) and acks
        self.mode = options.mode or ""  #: mode of the group, as soon as it is known
        self.credit_records, self.credit_bytes = credit
        self.awaits = False  #: some topics do not exist yet
        self.creates = creates  #: create missing topics
        #: how long to wait for missing topics; boot time of its end after the first request
        self.patience_ms = patience_ms
        self.pace, self.follows = Pace(), follows  #: whether the credit follows the user's pace
        self.parts: list[Part] = []
        self.topics: dict[int, TopicInfo] = {}
        self.ready: deque[Held] = deque()
        #: of a reader in the order of publish time: records that wait for other partitions
        self.order = None if late_after_ms is None else TimeOrder[Held](late_after_ms)
        self.error: GossipqError | None = None
        self.lookups: set[Call] = set()  #: running look-ups of topics
        self.looked_up_ms = 0  #: when the first of them began
        #: several records of a key may be here; user code gets one after the other
        self.key_runs = False
        self.by_fetches = False  #: its records come only by fetches
        self.decode: Callable[[bytes], Any] | None = None  #: makes `data` of the values of its records
        self.has_handler = False  #: a handler takes its records, and the log reports their outcome
        self.looked_up = False  #: a look-up of its topics was answered once
        self.asked = False  #: its topics are being looked up, or were
        #: running fetches, and the records that each has taken
        self.fetches: dict[object, list[Piece]] = {}
        self.whole = False  #: a batch that cannot be opened is an error, and is not skipped
        self.over = False  #: the user takes no more records, or the subscription is being closed
        self.kept = False  #: a wait for its next message may be interrupted and begun again
        self.closing = self.paused = self.streak = False
        self.ahead = ahead  #: repeated fetches may grant more credit than each needs
        self.touched_ms = 0  #: when the user last took a record
        self.progress = (0, 0)  #: the slice that the user is at, and how far it is in there

    def start_of(self, topic: TopicInfo) -> list[Start]:
        """The start of each partition of a topic. A partition in start= that
        does not exist sets `error`.
        """
        # a topic that was created again under its name has other offsets
        named = self._begun.setdefault(topic.name, topic.id) == topic.id
        offsets = self._offsets.get(topic.name, {}) if named else {}
        count = len(topic.shards)
        if (beyond := max(offsets, default=0)) >= count:
            hint = f"partitions 0 to {count - 1} are there; mq.topic({topic.name!r}).positions()"
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
        """True if records that the user has not begun may go to idle consumers."""
        return self.leased and not self.exclusive and not self.key_ordered

    @property
    def here(self) -> list[Held]:
        """Slices that the user has not taken completely."""
        return [*self.ready, *(self.order or ())]

    def arrange(self, now_ms: int) -> None:
        """Makes the next slice in the order of publish time ready, if there is such an order."""
        if self.order is None or self.ready:
            return
        found = self.order.next(self.awaited, now_ms)
        if found is not None:
            held, late = found
            held.late = late
            self.ready.append(held)

    def order_ms(self) -> int | None:
        """When records that wait for other partitions may continue."""
        return None if self.order is None or self.ready else self.order.due_ms(self.awaited)

    @property
    def awaited(self) -> list[PartitionKey]:
        """Partitions that may bring more records. With `notify_end`, those
        at their end are left out.
        """
        return [key for part in self.parts if not (self.notify_end and part.at_end) for key in part.starts]

    def free(self) -> tuple[int, int]:
        """Records and bytes of credit that are neither granted to a leader
        nor used by records here.
        """
        return (
            self.credit_records - sum(part.lent_records + part.here_records for part in self.parts),
            self.credit_bytes - sum(part.lent_bytes + part.untaken_bytes for part in self.parts),
        )

    @property
    def untaken_records(self) -> int:
        return sum(part.untaken_records for part in self.parts)

    @property
    def finished(self) -> bool:
        """True if, with notify_end, all readable records were delivered and
        the user has taken them all.
        """
        return (
            self.notify_end
            and not self.lookups
            and not self.awaits
            and not self.here
            and all(part.at_end and not part.aside for part in self.parts)
        )


class Part:
    """The partitions of one subscription in one shard."""

    __slots__ = (
        "again_ms",
        "aside",
        "at_end",
        "attempts_max",
        "barred",
        "claimed_at",
        "claims",
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
        "patience_ms",
        "positions",
        "progress",
        "recalling",
        "refused",
        "request_id",
        "results",
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
        self.attempts_max = 0  #: failures that make a record without its own number a dead letter
        #: since when no leader knows the subscription; None if one does
        self.silent_since_ms: int | None = None
        self.standing = self.known = NOWHERE  #: the state of the leader at the request, and at its answer
        self.subscribed = self.at_end = self.recalling = False
        #: when an unanswered SUBSCRIBE is sent again, and how long it waits for its answer
        self.again_ms = self.patience_ms = 0
        self.claims = False  #: its claim of records was sent, and not answered
        self.claimed_at = ""  #: the endpoint that got its last claim
        self.fed = False  #: another part's credit is being recalled for this one
        self.share_records = 0
        self.lent_records = self.lent_bytes = 0
        self.untaken_records = self.untaken_bytes = 0
        self.ends: dict[PartitionKey, Offset] = {}  #: one past the last offset in AT_END
        #: of a reader: next offset of each partition
        self.positions: dict[PartitionKey, Offset] = {}
        self.high: dict[PartitionKey, Offset] = {}  #: of a group: one past the highest offset seen
        self.outstanding: dict[Held, None] = {}
        #: of these, records that came again while an ack or a failure of them is
        #: unanswered; the answer decides
        self.aside: dict[Held, None] = {}
        self.fresh: list[list[int]] = []  #: acks that were not sent yet: [partition, first, end]
        #: results of acks that were not sent yet: slice, offset, `keep_ms`, kind, value
        self.results: list[tuple[Held, Offset, int, str, bytes]] = []
        #: reports of handlers that were not sent yet, by partition and offset
        self.progress: dict[tuple[PartitionKey, Offset], tuple[float, str]] = {}
        self.nacks: dict[Outcome, Call] = {}  #: failures that were not sent yet
        self.in_hand: list[Range] = []  #: records that user code had at the last look
        self.told: list[Range] = []  #: those of them that were reported to the leader
        self.late: list[Range] = []  #: acked here after other consumers had got them
        #: refused acks with their errors: (partition, first, end, error)
        self.refused: list[tuple[PartitionKey, Offset, Offset, GossipqError]] = []
        #: for each unanswered NACK: its partition, and key hash -> offset from which records of
        #: that key are given back
        self.barred: dict[Call, tuple[PartitionKey, dict[int, Offset]]] = {}

    @property
    def share_bytes(self) -> int:
        """The part's share of the bytes, in the same proportion as of the records."""
        subscription = self.subscription
        return subscription.credit_bytes * self.share_records // max(1, subscription.credit_records)

    @property
    def here_records(self) -> int:
        """Records here that count against the share."""
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
        """True if the user has taken enough records to grant credit for them again."""
        records, size = self.want_records, self.want_bytes
        return (records > 0 and records * REPAY_FRACTION >= self.share_records) or (
            size > 0 and size * REPAY_FRACTION >= self.share_bytes > 0
        )

    @property
    def has_loan(self) -> bool:
        """True if the leader has credit to deliver records."""
        return self.lent_records > 0 and self.lent_bytes > 0

    @property
    def idle(self) -> bool:
        """True if it has unused credit, or only a part of one, and no records here."""
        return (
            (self.lent_records > 0 or self.lent_bytes > 0)
            and self.untaken_records == 0
            and not self.recalling
        )

    def offer(self) -> tuple[int, int]:
        """The credit that would fill the share again, within the subscription's credit.
        Returns (0) if the leader would have records without bytes, or bytes without
        records, since it could not use them.
        """
        free_records, free_bytes = self.subscription.free()
        records, size = max(0, min(self.want_records, free_records)), max(0, min(self.want_bytes, free_bytes))
        return (records, size) if self.lent_records + records > 0 and self.lent_bytes + size > 0 else (0, 0)

    def lend(self) -> tuple[int, int]:
        """Grants credit and returns it, as (records, bytes)."""
        records, size = self.offer()
        self.lent_records += records
        self.lent_bytes += size
        return records, size

    def cede(self, other: "Part", records: int) -> None:
        """Moves this many records of its share to the other part."""
        self.share_records -= records
        other.share_records += records

    def start_list(self) -> list[Start]:
        """Where each partition starts: a reader continues at its position; a group's start
        counts only the first time.
        """
        at = self.positions
        return [Start(key, "offset", at[key]) if key in at else start for key, start in self.starts.items()]

    def bars(self, partition: PartitionKey) -> dict[int, Offset]:
        """Key hashes with a failed record that the leader may not know yet,
        each with its first offset.
        """
        bars: dict[int, Offset] = {}
        for where, keys in self.barred.values():
            for key, offset in keys.items() if where == partition else ():
                bars[key] = min(offset, bars.get(key, offset))
        return bars

    def saw(self, partition: PartitionKey, end: Offset) -> None:
        """Notes that the slice up to `end` is here completely."""
        places = self.high if self.subscription.group else self.positions
        places[partition] = max(end, places.get(partition, 0))
