"""Records that wait on disk for their key or route come back as soon as they may, whatever happens
while they are written or read back.
"""

from array import array
from functools import partial

from core.fleet import STEP_MS, Fleet
from core.harness import FakeWorker, Step, client, single
from gossipq import limits
from gossipq.core.delivery.consumers import PartitionView
from gossipq.core.delivery.window import MovingRecords
from gossipq.core.desk import Client
from gossipq.core.ledger import route_lane
from gossipq.core.shard import Shard
from gossipq.messages import Ack, Credit, GroupExplained, Nack, ReplayDead, Requeue, Subscribe, WhyGroup
from gossipq.operator_messages import PurgeTopic
from gossipq.types import KEY_HASH, PartitionKey
from gossipq.values import GroupOptions, Message, Ref, Start

ADA, BOB, EVE, OPERATOR = map(client, ("ada", "bob", "eve", "operator"))
KEY = 7
ORDERED = GroupOptions(mode="key_ordered", in_flight_max=4)


def view_of(shard: Shard) -> PartitionView:
    (group,) = shard.dispatch.groups.values()
    (view,) = group.views.values()
    return view


def parked(shard: Shard) -> int:
    return view_of(shard).cursor.state.parked


class Alone(FakeWorker):
    """A worker with one shard and one topic of one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.partition: PartitionKey = single(self.topic())

    def tell(self, who: Client, message: Message) -> object:
        return self.ask(1, who, message, origin=(b"c", who.session))

    def joins(self, who: Client, credit: int, options: GroupOptions, *routes: str) -> None:
        starts = [Start(self.partition)]
        self.tell(who, Subscribe(1, "g", starts, credit, limits.MIB, options, routes=list(routes)))

    def send_keyed(self, *keys: int, route: bytes = b"") -> None:
        self.publish(self.partition, [b"x"] * len(keys), route=route, fixed={KEY_HASH: array("I", keys)})

    def work_off(self) -> list[int]:
        """Consumers ack all that they get and grant as much credit again. Returns the offsets that
        were delivered, in order.
        """
        came: list[int] = []
        for _ in range(30):
            self.tick(500)
            came += [offset for _, first, end, _ in self.taken() for offset in range(first, end)]
            for who in (ADA, BOB):
                leases = view_of(self.shards[1]).window.leases()
                held = [
                    (self.partition, low, high) for low, high, each in leases if each.session == who.session
                ]
                if held:
                    self.tell(who, Ack(1, held))
                    self.tell(who, Credit(1, sum(high - low for _, low, high in held), limits.MIB))
        return came


def test_who_joins_while_records_of_its_route_go_to_disk_gets_them() -> None:
    worker = Alone()
    options = GroupOptions(in_flight_max=4)
    worker.joins(ADA, 100, options, "eu")
    worker.slow = True
    worker.publish(worker.partition, [b"x"] * 8, route=b"us")
    assert worker.shards[1].dispatch.selector.parking, "the entry is about to be written"
    worker.joins(BOB, 100, options, "us")
    assert worker.work_off() == list(range(8))
    assert parked(worker.shards[1]) == 0


def test_a_key_that_becomes_free_while_its_records_go_to_disk_goes_on_in_order() -> None:
    fleet = Fleet(1, "abc")
    partition = fleet.topic()
    name = fleet.leader.replica.me

    def tell(who: Client, message: Message) -> None:
        fleet.led.step((b"c", who.session), 7, who, message)

    def ask(who: Client, message: Message) -> None:
        tell(who, message)
        fleet.run(4 * STEP_MS)

    ask(ADA, Subscribe(1, "g", [Start(partition)], 1, limits.MIB, ORDERED))
    ask(BOB, Subscribe(1, "g", [Start(partition)], 0, limits.MIB, ORDERED))
    fleet.publish(partition, *[b"x"] * 8, fixed={KEY_HASH: array("I", [KEY] * 8)})
    fleet.run(4 * STEP_MS)
    tell(BOB, Credit(1, 100, limits.MIB))
    for _ in range(6):
        fleet.turn(name)  # only the leader takes turns, so nothing is committed
    view = view_of(fleet.leader)

    def moving() -> list[MovingRecords]:
        states = [state for _, _, state in view.window.overlap(0, 2**62)]
        return [state for state in states if isinstance(state, MovingRecords)]

    assert moving(), "records are on their way to the disk"
    tell(ADA, Nack(1, [(partition, 0, 1)], 0, failed=False))
    fleet.turn(name)
    assert moving(), "they still are"
    done: list[int] = []
    for _ in range(30):
        held = [(low, high, each.session) for low, high, each in view.window.leases()]
        for low, high, session in held:
            tell(ADA if session == ADA.session else BOB, Ack(1, [(partition, low, high)]))
            done += range(low, high)
        tell(ADA, Credit(1, 1, limits.MIB))
        fleet.run(4 * STEP_MS)
    assert done == list(range(8))
    assert parked(fleet.leader) == 0


def test_a_record_that_is_requeued_from_the_disk_does_not_close_its_key() -> None:
    worker = Alone()
    worker.joins(ADA, 1, ORDERED)
    worker.joins(BOB, 100, ORDERED)
    worker.send_keyed(*[KEY] * 8)
    worker.tick(100)
    assert parked(worker.shards[1]) > 0
    worker.tell(OPERATOR, Requeue(Ref(worker.partition, 1), "g"))
    assert worker.work_off() == list(range(8))
    assert parked(worker.shards[1]) == 0


def test_letters_whose_batch_is_gone_do_not_close_the_key_they_had() -> None:
    worker = Alone()
    worker.send_keyed(KEY, KEY)
    worker.joins(ADA, 2, ORDERED)
    worker.tell(ADA, Nack(1, [(worker.partition, 0, 2)], dead="rejected"))
    worker.send_keyed(*[KEY] * 4, *[0] * 4)
    worker.tell(OPERATOR, ReplayDead(worker.partition, "g"))
    worker.tick(100)
    worker.tell(ADA, Credit(1, 1, limits.MIB))
    worker.joins(BOB, 100, ORDERED)
    for _ in range(4):
        worker.tick(100)
    assert parked(worker.shards[1]) == 4
    worker.tell(OPERATOR, PurgeTopic(worker.partition, 2))
    assert set(worker.work_off()) == set(range(10))
    assert parked(worker.shards[1]) == 0


def test_a_record_that_waits_for_its_route_does_not_close_its_key() -> None:
    """Record 2 waits in memory behind its key, and no consumer takes its route when the key becomes
    free. Behind it, on disk, lie records of a route that a consumer takes.
    """
    worker = Alone()
    worker.joins(EVE, 1, ORDERED)
    worker.send_keyed(KEY, KEY, route=b"us")
    worker.send_keyed(KEY, route=b"eu")
    worker.send_keyed(0, 0, 0, route=b"us")
    worker.joins(BOB, 3, ORDERED)
    worker.send_keyed(*[KEY] * 4, route=b"us")
    worker.tell(BOB, Credit(1, 100, limits.MIB))
    worker.tick(100)
    shard = worker.shards[1]
    worker.turn(
        lambda: worker.step(1, (b"c", EVE.session), 5, EVE, Ack(1, [(worker.partition, 0, 1)])),
        lambda: worker.step(1, (b"c", EVE.session), 0, EVE, Credit(1, 1, limits.MIB)),
    )
    worker.send_keyed(*[KEY] * 4, route=b"us")
    worker.send_keyed(*[0] * 30, route=b"us")
    worker.tick(100)
    assert view_of(shard).window.lanes.of_keys, "the record of the other route waits in memory"
    assert parked(shard) > 4, "and what is behind it on disk"
    worker.joins(ADA, 0, ORDERED, "us")
    ends: list[Step] = [
        partial(worker.step, 1, (b"c", who.session), 5, who, Ack(1, [(worker.partition, low, high)]))
        for low, high, lease in view_of(shard).window.leases()
        for who in (BOB, EVE)
        if lease.session == who.session
    ]
    ends += [partial(worker.end_session, who.session) for who in (BOB, EVE)]
    worker.turn(*ends)
    worker.tell(ADA, Credit(1, 100, limits.MIB))
    worker.work_off()
    assert view_of(shard).window.lanes.keys() == {route_lane(b"eu")}
    left = view_of(shard).cursor.exceptions.scan()
    assert {each.first for each in left} == {2}, "that of the other route alone"


def test_why_names_the_retry_that_a_busy_key_waits_for() -> None:
    """A record whose key failed does not wait for a consumer of its route."""
    worker = Alone()
    worker.joins(ADA, 1, ORDERED)
    worker.send_keyed(KEY, KEY, KEY)
    worker.taken()
    worker.tell(ADA, Nack(1, [(worker.partition, 0, 1)], 60_000, True, "boom"))
    worker.tell(ADA, Credit(1, 100, limits.MIB))
    worker.tick(100)
    explained = worker.tell(ADA, WhyGroup("g", [worker.partition]))
    assert isinstance(explained, GroupExplained)
    ((_, state, because, _, _),) = explained.rows
    assert state == "retrying"
    assert because.startswith("1 record waits for another attempt, the next is in ")
    assert because.endswith("; 2 records wait behind others of their key")
