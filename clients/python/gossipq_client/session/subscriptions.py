"""Subscriptions at their leaders: one part per shard. Each part gets credit, which
moves to where records wait.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from gossipq import limits
from gossipq.errors import BadRequest, Busy, GossipqError, NotLeader, UnknownTopic
from gossipq.messages import (
    Ack,
    AckResults,
    Credit,
    Nack,
    Recall,
    Recalled,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from gossipq.types import Offset, PartitionKey, topic_id_of
from gossipq.values import Range, Start, TopicInfo
from gossipq_client.session.calls import RETRY_MS, Call, Calls
from gossipq_client.session.connections import NOWHERE
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.held import Held, merge
from gossipq_client.session.links import Links
from gossipq_client.session.views import Record

LOST_MAX = 1_000  #: lost acks, in ranges, that are kept for the next flush
#: an unanswered SUBSCRIBE is sent again after this time, then after twice as long, up to the maximum:
#: a frontdoor that is full drops messages in both directions
SUBSCRIBE_AGAIN_MS, SUBSCRIBE_AGAIN_MAX_MS = 3 * limits.SECOND_MS, 30 * limits.SECOND_MS
#: time between two looks at user code's records; a record seen in both is reported as begun
HAND_MS = 10


class Subscribing:
    def __init__(self, links: Links, calls: Calls) -> None:
        self.warnings: list[str] = []
        #: acks that are not stored and not reported to the user: (part,
        #: partition, first, end, reason)
        self.lost: deque[tuple[Part, PartitionKey, Offset, Offset, GossipqError | None]] = deque(
            maxlen=LOST_MAX
        )
        #: records that users have finished, one by one. Any thread may append at any moment;
        #: the next step joins them
        self.noted: list[Record] = []
        self.cancels = 0  #: messages of leaders that records which are here are void
        self.ack_due_ms = 0  #: when fresh acks must be sent; 0 = none wait
        #: when reports of progress are sent next, 0 = none waits; and the earliest time for that
        self.progress_due_ms = self.progress_ms = 0
        self._links, self._calls = links, calls
        calls.stands = self.stands
        self.parts: dict[int, Part] = {}
        self._subscribing: dict[int, Part] = {}
        self.fresh: dict[Part, None] = {}  #: parts with acks or failures that `flush` sends
        #: parts of which user code may have records, to be looked at again
        self.hands: dict[Part, None] = {}
        self._hand_due_ms = 0  #: when they are looked at
        self.unminded = False  #: a waiting caller does not know of that time
        self.due: dict[Part, None] = {}  #: parts whose credit or end `flush` looks at
        #: parts whose leaders sent READY when there was no free credit
        self.hungry: dict[Part, None] = {}
        self._numbers = 0
        self._left_over: list[Held] = []  #: slices that the user held at the end of the session
        self._look_ms = 0  #: when timed work is checked again, with many parts
        self._due_ms: int | None = None  #: when the next timed work was due at the last check

    def cover(
        self,
        subscription: Subscription,
        topics: Iterable[TopicInfo],
        firsts: Mapping[PartitionKey, Offset] | None = None,
    ) -> None:
        """Adds parts for topics that the subscription does not have yet. With `firsts`, only for
        these partitions, from these offsets.
        """
        # a group belongs to its topic, so there is a part for each shard and topic. With an
        # order over all partitions, each is a part, so that waiting records of one cannot use
        # up the credit of another
        starts: dict[tuple[int, int], list[Start]] = {}
        covered = {topic_id_of(partition) for part in subscription.parts for partition in part.starts}
        for topic in topics:
            if topic.config.virtual:
                self._virtual(subscription, topic)
            elif topic.id not in covered:
                covered.add(topic.id)
                subscription.topics[topic.id] = topic
                for start, shard in zip(subscription.start_of(topic), topic.shards, strict=True):
                    key = start.partition
                    if firsts is None or key in firsts:
                        found = start if firsts is None else Start(key, "offset", firsts[key])
                        part_of = topic.id if subscription.order is None else key
                        starts.setdefault((shard, part_of), []).append(found)
        made: list[Part] = []
        for (shard, _), each in starts.items():
            self._numbers += 1
            made.append(Part(subscription, self._numbers, shard, each))
            self.parts[made[-1].number] = made[-1]
        subscription.parts += made  # all or none: see `rebuild`
        if starts:
            if subscription.order is not None:  # each of them can bring records
                subscription.credit_records = max(subscription.credit_records, len(subscription.parts))
            self.share_out(subscription)
            for part in subscription.parts:
                self._pump(part)

    @staticmethod
    def _virtual(subscription: Subscription, topic: TopicInfo) -> None:
        """A virtual topic holds no records: naming it is an error that says what to
        name; a pattern skips it.
        """
        if topic.name in subscription.names:
            hint = f"its records are in {', '.join(topic.config.virtual)}: consume those"
            subscription.error = BadRequest(f"topic {topic.name!r} is virtual", hint=hint)

    def share_out(self, subscription: Subscription) -> None:
        """Gives all parts equal shares. With more parts than records of credit,
        the rest begin with READY.
        """
        if not subscription.parts:
            return
        records, rest = divmod(subscription.credit_records, len(subscription.parts))
        for at, part in enumerate(subscription.parts):
            part.share_records = records + (at < rest)

    def lend(self, subscription: Subscription, records: int, size: int) -> None:
        """Changes the credit of a subscription, or resumes it after a pause."""
        if not subscription.paused and (records, size) == (
            subscription.credit_records,
            subscription.credit_bytes,
        ):
            return
        subscription.credit_records, subscription.credit_bytes, subscription.paused = records, size, False
        self.share_out(subscription)
        for part in subscription.parts:
            self.due[part] = None

    def _pump(self, part: Part) -> None:
        """Subscribes where this part is not known yet, and again where no answer came in time. Its
        credit begins from 0 there.
        """
        lane, now_ms = self._links.lane(part.shard), self._links.now_ms
        if lane is None or now_ms < part.retry_at_ms:
            return
        if self._links.standing(lane, part.shard) == part.standing and (
            part.request_id not in self._subscribing or now_ms < part.again_ms
        ):
            return
        self._subscribe(part)

    def _holding(self, part: Part) -> list[Range]:
        """Ranges that are here, and ranges with an unanswered ack or nack."""
        here = [
            (held.partition, low, high)
            for held in part.outstanding
            for low, high in held.open_ranges(held.first, held.end)
        ]
        settled = [each for message in self._unanswered(part) for each in message.ranges]
        fresh = [(partition, first, end) for partition, first, end in part.fresh]
        return merge([*here, *settled, *fresh])[: limits.RANGES_MAX]  # the rest is redelivered

    def _unanswered(self, part: Part) -> list[Ack | AckResults | Nack]:
        messages = self._calls.unanswered()
        return [
            each
            for each in messages
            if isinstance(each, Ack | AckResults | Nack) and each.subscription == part.number
        ]

    def _subscribe(self, part: Part) -> None:
        """Sends SUBSCRIBE. The first one at a leader claims the records of a group that are here, and so
        do the following ones until one of them is answered.
        """
        lane = self._links.lane(part.shard)
        if lane is None:
            part.standing = NOWHERE
            return
        self._subscribing.pop(part.request_id, None)
        self.hungry.pop(part, None)  # a new leader is told again
        standing = self._links.standing(lane, part.shard)
        if standing != part.standing:
            part.claims, part.patience_ms = bool(part.subscription.group), 0
            part.claimed_at = lane.endpoint if part.claims else ""
        part.standing, part.request_id = standing, self._links.next_id()
        part.patience_ms = min(max(SUBSCRIBE_AGAIN_MS, 2 * part.patience_ms), SUBSCRIBE_AGAIN_MAX_MS)
        part.again_ms = self._links.now_ms + part.patience_ms
        part.lent_records = part.lent_bytes = 0
        part.subscribed = part.at_end = part.recalling = part.fed = False
        self._subscribing[part.request_id] = part
        subscription = part.subscription
        self._links.send(
            lane,
            Subscribe(
                part.number,
                subscription.group,
                part.start_list(),
                *part.lend(),
                subscription.options,
                subscription.notify_end,
                self._holding(part) if part.claims else None,
                subscription.routes,
                subscription.acks,
                sorted({each.shard for each in subscription.parts}),
                shares=subscription.shares,
                gaps=subscription.leased,
                key_runs=subscription.key_runs,
                fetches=subscription.by_fetches,
                cancels=subscription.leased,
            ),
            part.shard,
            part.request_id,
        )

    def subscribed(self, request_id: int, answer: Subscribed) -> bool:
        part = self._subscribing.pop(request_id, None)
        if part is None:
            return False
        part.standing = part.standing[0], self._links.term(part.shard)
        part.known, part.subscribed, part.lease_ms = part.standing, True, answer.lease_ms
        part.claims, part.patience_ms = False, 0
        part.attempts_max = answer.attempts_max
        if part.outstanding:  # this leader may not know which of them have begun, whatever it was sent before
            part.told = []
            self._look_at_hand(part)
        part.silent_since_ms = None
        subscription = part.subscription
        subscription.mode = answer.mode or subscription.mode
        if not subscription.group:
            for partition, position, _ in answer.ends:
                part.positions.setdefault(partition, position)
        return True

    def refused(self, request_id: int, error: GossipqError) -> bool:
        part = self._subscribing.pop(request_id, None)
        if part is None:
            return False
        if isinstance(error, NotLeader) or type(error) is Busy:
            pause_ms = 0 if isinstance(error, NotLeader) else error.retry_after_ms or RETRY_MS
            part.standing, part.retry_at_ms = NOWHERE, self._links.now_ms + pause_ms
        elif isinstance(error, UnknownTopic) and part.subscription.patterns:
            self._remove(part)
        else:
            # the subscription ended there, for example because its topic was removed during a
            # takeover; open requests are asked there
            part.known = part.standing = part.standing[0], self._links.term(part.shard)
            part.subscription.error = error
        return True

    def _listen(self, part: Part) -> None:
        """Notes since when no leader knows the part."""
        lane = self._links.lane(part.shard)
        if part.subscribed and lane is not None and self._links.standing(lane, part.shard) == part.known:
            part.silent_since_ms = None
        elif part.silent_since_ms is None:
            part.silent_since_ms = self._links.now_ms

    def silence_ms(self, subscription: Subscription) -> int:
        """How long the oldest unanswered request of a subscription has waited: for the place of its
        topics, or for the leader of a shard. 0 if all are answered.
        """
        since = [part.silent_since_ms for part in subscription.parts if part.silent_since_ms is not None]
        since += [subscription.looked_up_ms] if subscription.lookups else []
        return self._links.now_ms - min(since, default=self._links.now_ms)

    def stands(self, number: int) -> bool:
        """True if the leader knows the subscription, or if the subscription has ended."""
        part = self.parts.get(number)
        lane = self._links.lane(part.shard) if part is not None else None
        return part is None or (lane is not None and self._links.standing(lane, part.shard) == part.known)

    def forgotten(self, request_id: int, shard: int) -> None:
        """The leader of `shard` has forgotten the session: its parts subscribe
        again on the next greeting.
        """
        self._subscribing.pop(request_id, None)
        for part in self.parts.values():
            if part.shard == shard:
                part.standing = NOWHERE

    def _remove(self, part: Part) -> None:
        self.parts.pop(part.number, None)
        self._subscribing.pop(part.request_id, None)
        self.fresh.pop(part, None)
        self.hands.pop(part, None)
        self.due.pop(part, None)
        self.hungry.pop(part, None)
        if part in part.subscription.parts:
            part.subscription.parts.remove(part)

    def _leave(self, part: Part) -> None:
        """Ends a subscription as soon as no ack of it waits: a new
        leader would not know who acks.
        """
        if (
            not part.outstanding
            and not part.fresh
            and not self._unanswered(part)
            and part.number in self.parts
        ):
            self._calls.ask(Unsubscribe(part.number), part.shard)
            self._remove(part)

    def _look_at_hand(self, part: Part) -> None:
        if not self.hands:
            self._hand_due_ms, self.unminded = self._links.now_ms + HAND_MS, True
        self.hands[part] = None

    @property
    def hands_due(self) -> bool:
        """True if it is time to look at the records of user code."""
        return bool(self.hands) and self._links.now_ms >= self._hand_due_ms

    def pump_all(self) -> None:
        for part in self.parts.values():
            self._pump(part)

    # --- credit on the move

    def _lend(self, part: Part) -> None:
        lane = self._links.lane(part.shard)
        standing = self._links.standing(lane, part.shard) if lane is not None else NOWHERE
        if lane is None or standing != part.standing or part.subscription.closing or part.subscription.paused:
            return
        if part.recalling:
            return  # the recalled credit is subtracted first; its share is looked at after that
        records, size = part.lend()
        if part.has_loan:
            self.hungry.pop(part, None)
        if records or size:
            self._links.send(lane, Credit(part.number, records, size), part.shard)

    def ready(self, number: int) -> None:
        """A leader has records but no credit. It may have said so before it got the credit that is on
        its way, and says it again if that is not enough.
        """
        part = self.parts.get(number)
        if part is not None and not part.has_loan:
            self.hungry[part] = None
            self._feed(part)

    def _feed(self, part: Part) -> None:
        """Gives free credit to a part without any. Otherwise moves the share of an idle part, or
        gives back some records that others would get again. Until then the part stays hungry.
        """
        subscription = part.subscription
        if subscription.closing:
            self.hungry.pop(part, None)
        if subscription.closing or subscription.paused or part.has_loan or part.fed:
            return
        if any(part.offer()):
            self.due[part] = None
            return
        if subscription.order is not None:
            return  # its records here wait for other parts, which need their credit
        others = [other for other in subscription.parts if other is not part and other not in self.hungry]
        idle = max((other for other in others if other.idle), key=_lent, default=None)
        if idle is not None:
            part.fed = True
            self._recall(idle, part)
            return
        richest = max(others, key=_want, default=part)
        if part.want_records <= 0 < richest.want_records:
            richest.cede(part, (richest.want_records + 1) // 2)
            self.due[part] = None

    def take_in(self, subscription: Subscription) -> None:
        """Recalls unused credit: no fetch is running, and other consumers shall get the records."""
        for part in subscription.parts:
            if part.has_loan and not part.recalling:
                self._recall(part)

    def _recall(self, part: Part, needy: Part | None = None) -> None:
        """Recalls the credit of a part, for another one."""
        part.recalling = True
        self._calls.ask(Recall(part.number), part.shard, lambda call: self._recalled(part, needy, call))

    def _recalled(self, part: Part, needy: Part | None, call: Call) -> None:
        # only for the present credit, not for credit that ended with another SUBSCRIBE
        if call.request_id > part.request_id:
            part.recalling = False
            if isinstance(call.reply, Recalled):
                part.lent_records -= call.reply.records
                part.lent_bytes -= call.reply.bytes
        if needy is not None:
            needy.fed = False
            part.cede(needy, max(0, part.want_records))
        self.due |= {each: None for each in (part, needy) if each is not None and each.number in self.parts}


def _lent(part: Part) -> tuple[int, int]:
    return part.lent_records, part.lent_bytes


def _want(part: Part) -> int:
    return part.want_records
