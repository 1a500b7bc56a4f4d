"""A shard of one topic whose consumers, publishers and operators do several things at once, at random,
and what is known of each record by what was said about it."""

from array import array
from collections.abc import Callable
from functools import partial
from random import Random

from core.fleet import FallibleFleet
from core.harness import client
from core.places import NEVER, held_or_moving, offsets, on_the_way_to_disk, returned, waiting
from gossipq import limits
from gossipq.core.delivery import Delivery, PartitionView
from gossipq.core.desk import Client
from gossipq.core.effects import Effects
from gossipq.core.ledger import Cursor
from gossipq.core.shard import Shard
from gossipq.messages import (
    Ack,
    Acked,
    Cancel,
    Credit,
    Extend,
    Nack,
    Publish,
    PurgeDead,
    Recall,
    ReplayDead,
    Requeue,
    SetGroup,
    Started,
    Subscribe,
    Unsubscribe,
)
from gossipq.operator_messages import DropGroup, PurgeTopic, SeekGroup
from gossipq.types import ATTEMPTS, DELAY, KEY_HASH, LEASE, TTL, Now, Offset, SessionId, topic_id_of
from gossipq.values import GroupOptions, Message, Range, Ref, Start
from gossipq.wire import batch as batches

CONSUMERS = [client(name) for name in ("ada", "bob", "eve")]
OPERATOR = client("operator")
LEASE_MS, LONG_MS, KEEP_MS, ALL = 4_000, 10**7, limits.RETENTION_MS, 10**6
WINDOWS, PARKED_MAX = [4, 4, 6, 20, 1_000], [0, 2, 4, 1_000, 1_000, 1_000]  #: small ones, so that many wait
ROUTES = [[], ["eu"], ["us"], ["eu", "us"]]


class Attempts:
    """As which attempt each record has to come: the same as last time if that did not begin, else one more.
    What was not logged is lost with its leader: then it may be less, but no less than was known of all
    copies."""

    def __init__(self) -> None:
        self.last: dict[Offset, int] = {}
        self.logged: dict[Offset, int] = {}
        self.unsure: set[Offset] = set()  #: came before somebody fell, and not since
        self.fell = False

    def came(self, offset: Offset, attempt: int, most: int) -> None:
        last = self.last.get(offset, 0)
        low = max(1, self.logged.get(offset, 0) if self.fell else last)
        assert low <= attempt <= max(last + 1, most), f"{offset} came as attempt {attempt} after {last}"
        self.last[offset] = attempt
        self.unsure.discard(offset)

    def fall(self) -> None:
        self.fell = True
        self.unsure |= self.last.keys()

    def log(self) -> None:
        """All is logged."""
        self.logged |= {at: attempt for at, attempt in self.last.items() if at not in self.unsure}


class Busy:
    """One group "g" of some `mode`. Whatever is told is for the leader's next turn."""

    def __init__(self, seed: int, mode: str) -> None:
        self.random = random = Random(seed)
        self.mode, self.log = mode, list[str]()
        self.requests = 10
        self.asked: dict[int, tuple[int | None, list[Range]]] = {}  # acks: of which group, and what
        self.known_group: int | None = None
        self.known_term = 0
        self.begin_anew()
        self.habits: dict[Callable[[], None], float] = {
            deed: weight * random.choice([0, 1, 1, 4]) for deed, weight in self.deeds().items()
        }
        self.keyed, self.routed, self.slow = random.random() < 0.9, random.random() < 0.5, False
        self.keys = random.choice([[1, 2, 1, 1], [0, 1, 0, 0], [1, 3, 1, 0]])  # of each; 0: none
        self.trimmed = random.random() < 0.4
        self.window, self.parked_max = random.choice(WINDOWS), random.choice(PARKED_MAX)
        self.routes: dict[SessionId, list[str]] = {who.session: [] for who in CONSUMERS}
        self.gaps = {who.session: random.random() < 0.5 for who in CONSUMERS}
        self.took_runs: set[SessionId] = set()  #: who may still hold several records of a key
        self.auto = {who.session: random.random() < 0.2 for who in CONSUMERS}
        self.fleet = FallibleFleet(1, random.choice(["a", "abc"]), self.hear)
        self.partition = self.fleet.topic(
            backoff_ms=[300, 1_500],
            attempts_max=random.choice([2, 4, 50]),
            expire=random.choice(["dead", "drop", "try_once"]),
            trace=random.choice(["all", "failures", "off"]),
            retention_ms=random.choice([0, 3_000, KEEP_MS]) if self.trimmed else KEEP_MS,
        )
        self.topic_id = topic_id_of(self.partition)
        self.subscribe(CONSUMERS[0])
        self.fleet.settle()

    def begin_anew(self) -> None:
        """Nothing is known of the records: the group is another."""
        self.done: set[Offset] = set()  # an ack of it was answered
        self.anew: set[Offset] = set()  # an operator wants it to be handed out as if it were new
        self.attempts = Attempts()

    # --- what there is ----------------------------------------------------------------------------------

    @property
    def shard(self) -> Shard:
        return self.fleet.leader

    @property
    def group_id(self) -> int | None:
        return self.shard.ledger.group_ids.get((self.topic_id, "g"))

    @property
    def cursor(self) -> Cursor | None:
        group_id = self.group_id
        return None if group_id is None else self.shard.ledger.cursors[self.partition].get(group_id)

    @property
    def view(self) -> PartitionView | None:
        group_id = self.group_id
        group = None if group_id is None else self.shard.dispatch.groups.get(group_id)
        return group.views.get(self.partition) if group else None

    @property
    def next(self) -> Offset:
        return self.shard.ledger.partitions[self.partition].next

    def held(self, who: Client) -> list[Range]:
        leases = self.view.window.leases() if self.view else ()
        return [(self.partition, first, end) for first, end, lease in leases if lease.session == who.session]

    # --- what is told -----------------------------------------------------------------------------------

    def tell(self, who: Client, message: Message) -> int:
        self.requests += 1
        self.log.append(f"{who.consumer}: {message}")
        self.fleet.led.step((b"c", who.session), self.requests, who, message)
        return self.requests

    def later(self, what: str, step: Callable[[], None]) -> None:
        """Something else than a message."""
        self.log.append(what)
        self.fleet.led.inbox.append(step)

    def who(self) -> Client:
        return self.random.choice(CONSUMERS)

    def ranges(self, who: Client) -> list[Range]:
        """What a client speaks of: mostly what it holds, record by record or in runs; sometimes anything."""
        random = self.random
        held = [at for _, first, end in self.held(who) for at in range(first, end)]
        if not held or random.random() < 0.25:
            return [self.any_range() for _ in range(random.randint(1, 4))]
        some = sorted(random.sample(held, random.randint(1, min(len(held), 12))))
        if random.random() < 0.3:
            begin = random.randrange(len(held))
            some = held[begin : begin + random.randint(1, 10)]
        if random.random() < 0.1:
            random.shuffle(some)
        if random.random() < 0.1:
            some.append(some[0])
        found: list[Range] = []
        together = random.random() < 0.3
        for at in some:
            if together and found and found[-1][2] == at:
                found[-1] = (self.partition, found[-1][1], at + 1)
            else:
                found.append((self.partition, at, at + 1))
        return found

    def any_range(self) -> Range:
        first = self.random.randint(0, self.next + 3)
        count = self.random.randint(-1, self.random.choice([1, 3, 30]))
        return self.partition, first, max(0, first + count)

    def batch(self, count: int) -> bytes:
        random, fixed = self.random, {}
        if self.keyed and random.random() < 0.85:
            fixed[KEY_HASH] = array("I", random.choices([0, 1, 2, 3], self.keys, k=count))
        if random.random() < 0.15:
            fixed[TTL] = array("q", random.choices([0, 700, LONG_MS], k=count))
        if random.random() < 0.1:
            fixed[ATTEMPTS] = array("I", random.choices([0, 1, 2], k=count))
        if random.random() < 0.1:
            fixed[LEASE] = array("I", random.choices([0, 900, 5_000], k=count))
        if random.random() < 0.1:
            fixed[DELAY] = array("q", sorted(random.choices([0, 50, 2_000], k=count)))
        route = random.choice([b"", b"eu", b"eu", b"us", b"us"]) if self.routed else b""
        return bytes(batches.seal([b"v"] * count, route=route, fixed=fixed))

    # --- deeds of consumers and publishers --------------------------------------------------------------

    def publish(self) -> None:
        batch = self.batch(self.random.choice([1, 3, 8, 20]))
        info = batches.verify(batch)
        self.log.append(f"publish {info.count}")
        self.fleet.led.publish((b"c", b"p"), 9, None, Publish(self.partition), info, batch)

    def step(self) -> None:
        """Acks and publishes, both or neither."""
        who = self.who()
        held = [at for _, first, end in self.held(who) for at in range(first, end)]
        if not held:
            return
        some = sorted(self.random.sample(held, min(len(held), self.random.randint(1, 3))))
        acks = [(self.partition, at, at + 1) for at in some]
        batch = self.batch(1)
        self.requests += 1
        self.asked[self.requests] = self.group_id, acks
        self.log.append(f"{who.consumer}: publish and ack {some}")
        message = Publish(self.partition, subscription=1, acks=acks)
        origin = b"c", who.session
        self.fleet.led.publish(origin, self.requests, who, message, batches.verify(batch), batch)

    def subscribe(self, who: Client | None = None, holding: bool = False) -> None:
        random, who = self.random, who or self.who()
        if self.routed and random.random() < 0.5:
            self.routes[who.session] = random.choice(ROUTES)
        message = Subscribe(
            1,
            "g",
            [Start(self.partition)],
            random.choice([0, 1, 3, 10, 100]),
            limits.CREDIT_BYTES,
            GroupOptions(self.mode, LEASE_MS, in_flight_max=self.window, parked_max=self.parked_max),
            notify_end=random.random() < 0.3,
            holding=[each for each in self.held(who) if random.random() < 0.8] if holding else None,
            routes=self.routes[who.session],
            gaps=self.gaps[who.session],
            auto=self.auto[who.session],
            shares=random.random() < 0.5,
            key_runs=random.random() < 0.5,
        )
        if message.key_runs:
            self.took_runs.add(who.session)
        elif not self.held(who):
            self.took_runs.discard(who.session)
        self.tell(who, message)

    def ack(self) -> None:
        who = self.who()
        ranges = self.ranges(who)
        group_id = self.group_id
        self.asked[self.tell(who, Ack(1, ranges, self.random.random() < 0.05))] = group_id, ranges

    def nack(self) -> None:
        who, random = self.who(), self.random
        delay_ms, failed = random.choice([-1, 0, 0, 0, 500]), random.random() < 0.4
        dead = random.choice(["", "", "", "rejected"])
        self.tell(who, Nack(1, self.ranges(who), delay_ms, failed, "why", dead))

    def extend(self) -> None:
        who = self.who()
        self.tell(who, Extend(1, self.ranges(who), self.random.choice([1, 100, LEASE_MS, 2 * LEASE_MS])))

    def start(self) -> None:
        who = self.who()
        self.tell(who, Started(1, self.ranges(who)))

    def lend(self) -> None:
        self.tell(self.who(), Credit(1, self.random.choice([1, 2, 5, 50]), limits.MIB))

    def recall(self) -> None:
        self.tell(self.who(), Recall(1))

    def unsubscribe(self) -> None:
        self.tell(self.who(), Unsubscribe(1))

    def leave(self, who: Client | None = None) -> None:
        who, silent = who or self.who(), self.random.random() < 0.3
        led = self.fleet.led
        self.later(f"{who.consumer} leaves", partial(led.turn.end_session, who.session, silent))

    def renew(self) -> None:
        who = self.who()
        self.later(f"{who.consumer} is there", partial(self.fleet.led.turn.renew, who.session))

    # --- deeds of operators -----------------------------------------------------------------------------

    def some_ref(self) -> Ref:
        """Any record, or one that waits on disk."""
        rows = sorted(waiting(self.cursor)) if self.cursor and self.random.random() < 0.5 else []
        return Ref(self.partition, self.random.choice(rows or range(max(1, self.next))))

    def again(self, some: set[Offset]) -> None:
        self.done -= some
        self.anew |= some

    def requeue(self) -> None:
        ref = self.some_ref()
        self.again({ref.offset})
        self.tell(OPERATOR, Requeue(ref, "g"))

    def letters(self) -> None:
        first = self.random.randint(0, self.next + 1)
        ranges = [(first, first + self.random.randint(1, 5))] if self.random.random() < 0.5 else []
        if self.random.random() < 0.3:
            self.tell(OPERATOR, PurgeDead(self.partition, "g", ranges))
            return
        # also what is a letter by then: of what is told in the same turn, or on its way
        soon = self.fleet.led.inbox or list(self.shard.desk.unapplied)
        dead = self.cursor.dead.scan() if self.cursor and not soon else ()
        leases = held_or_moving(self.view) if self.view else ()
        letters = {at for each in dead for at in range(each.first, each.end)}
        self.again(set(range(self.next)) if soon else letters | set(offsets(leases)))
        self.tell(OPERATOR, ReplayDead(self.partition, "g", ranges))

    def cancel(self) -> None:
        self.tell(OPERATOR, Cancel(self.some_ref()))

    def seek(self) -> None:
        place = Start(self.partition, "offset", self.random.randint(0, self.next))
        self.tell(OPERATOR, SeekGroup(self.topic_id, "g", [place]))

    def drop(self) -> None:
        self.tell(OPERATOR, DropGroup(self.topic_id, "g", dead=True))

    def set_group(self, **options: object) -> None:
        self.tell(OPERATOR, SetGroup(self.topic_id, "g", GroupOptions(**options)))  # type: ignore[arg-type]

    def change(self) -> None:
        self.window, self.parked_max = self.random.choice(WINDOWS), self.random.choice(PARKED_MAX)
        attempts_max = self.random.choice([1, 3, 100])
        self.set_group(in_flight_max=self.window, parked_max=self.parked_max, attempts_max=attempts_max)

    def pause(self) -> None:
        self.set_group(paused=self.random.random() < 0.4)

    def purge(self) -> None:
        if self.trimmed:
            self.tell(OPERATOR, PurgeTopic(self.partition, self.random.randint(0, self.next)))

    def deeds(self) -> dict[Callable[[], None], int]:
        """All that may happen, and how often. Each life has habits of its own: what it does not, or does most
        of the time."""
        return {
            self.publish: 30, self.ack: 32, self.nack: 24, self.lend: 26, self.start: 12, self.requeue: 12,
            self.extend: 10, self.subscribe: 16, self.leave: 6, self.step: 6, self.recall: 4,
            self.unsubscribe: 4, self.renew: 4, self.letters: 4, self.cancel: 4, self.change: 4,
            self.purge: 4, self.pause: 2, self.seek: 1, self.drop: 1,
        }  # fmt: skip

    def act(self, count: int) -> None:
        deeds, weights = list(self.habits), list(self.habits.values())
        for deed in self.random.choices([self.publish, *deeds], [10, *weights], k=count):
            deed()

    # --- what follows -----------------------------------------------------------------------------------

    def step_on(self) -> None:
        """A turn; the other copies are slow for some turns, and then not for some."""
        self.slow = self.random.random() < (0.8 if self.slow else 0.3)
        self.turn(slow=self.slow)

    def turn(self, ms: int = 0, slow: bool = False) -> None:
        self.log.append(f"turn after {ms} ms" + " of the leader alone" * slow)
        while ms > limits.HEARTBEAT_MS and len(self.fleet.seats) > 1:  # or it would lead no more
            self.fleet.take_turns(limits.HEARTBEAT_MS)
            ms -= limits.HEARTBEAT_MS
        self.fleet.take_turns(ms, slow)
        if not self.fleet.serving:
            self.fleet.lead()

    def jump(self, ms: int) -> None:
        """Of the wall clock."""
        self.log.append(f"the clock jumps by {ms} ms")
        self.fleet.now = Now(self.fleet.now.boot_ms, self.fleet.now.wall_ms + ms)

    def refuse(self) -> None:
        """The disk refuses what this turn stores."""
        self.log.append("the disk refuses")
        self.fleet.refuse()
        self.come_back()

    def fall(self) -> None:
        self.log.append("the leader falls")
        self.fleet.fall(elsewhere=len(self.fleet.seats) > 1 and self.random.random() < 0.5)
        self.come_back()

    def come_back(self) -> None:
        """Somebody leads again; most consumers come back with most of what they hold."""
        self.asked.clear()
        self.fleet.lead()
        for who in CONSUMERS:
            if self.random.random() < 0.8:
                self.subscribe(who, self.random.random() < 0.7)
        self.turn()

    def hear(self, name: str, heard: list[Effects]) -> None:
        """What one copy says in its turn."""
        shard = self.fleet.seats[name].shard
        for effects in heard:
            assert not effects.faults, effects.faults
        if not shard.leading:
            return
        group_id = shard.ledger.group_ids.get((self.topic_id, "g"))
        if group_id != self.known_group:
            self.known_group = group_id
            self.begin_anew()
        if shard.term != self.known_term:
            self.known_term = shard.term
            self.attempts.fall()
        for effects in heard:
            for _, request_id, message in effects.replies:
                if isinstance(message, Acked):
                    self.acked(request_id, message)
            for rows in effects.confirms.values():
                for request_id, *_ in rows:
                    self.acked(request_id, Acked())
            for delivery in effects.deliveries:
                self.delivered(delivery)

    def acked(self, request_id: int, answer: Acked) -> None:
        group_id, ranges = self.asked.pop(request_id, (None, []))
        if group_id is not None and group_id == self.group_id:
            acked, lost = (
                {at for _, first, end in each for at in range(first, min(end, self.next))}
                for each in (ranges, answer.lost)
            )
            self.done |= acked - lost - self.anew

    def delivered(self, delivery: Delivery) -> None:
        came: list[Offset] = []
        for part in delivery.parts:
            for first, end in part.ranges or [(part.offset, part.end)]:
                came += range(first, end)
                for at in range(first, end):
                    assert at not in self.done, f"{at} came as attempt {part.attempt} after its ack"
                    if at not in self.anew:
                        # a leader that takes over counts what the log says was handed out, also what waited
                        # in an exclusive group and was taken back
                        unseen = self.mode == "exclusive" and self.attempts.fell
                        self.attempts.came(at, part.attempt, part.attempt if unseen else 0)
        self.in_order(came)

    def in_order(self, came: list[Offset]) -> None:
        """None of its key that waits was passed. Consumers of some routes keep the order among those; what an
        operator wants again comes out of order."""
        view = self.view
        if view is None or view.keys is None or self.routed:
            return
        dispatch, first_of = self.shard.dispatch, dict[int, Offset]()
        leased, parking = set(offsets(held_or_moving(view))), on_the_way_to_disk(self.shard)
        left = (
            returned(view) | waiting(view.cursor) - leased | parking | set(range(view.window.next, self.next))
        )
        for at in left - self.anew:
            for _, key_hash in dispatch.key_order.hashes(view, at, at + 1):
                first_of[key_hash] = min(at, first_of.get(key_hash, NEVER))
        for at in came:
            for _, key_hash in dispatch.key_order.hashes(view, at, at + 1):
                first = first_of.get(key_hash, NEVER)
                assert at < first or at in self.anew, f"{at} came before {first}, of the same key"
