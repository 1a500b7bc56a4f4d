"""Random lives of a client in a cluster whose nodes freeze, die, come back, and lead in turn;
nodes may know old leaders. In all of them each batch is stored once and in order, and in the
end everything is settled.
"""

import random

import pytest

from client.world import SHARD, World, worker
from gossipq.messages import Deliver
from gossipq.values import Delivered, GroupOptions, TopicConfig, TopicInfo
from gossipq.wire import batch as wire
from gossipq_client.session.credit import Subscription
from gossipq_client.session.packer import Flight

PARTITION = 9 << 16
STEPS = 60


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.world.tells_subscribers = self.random.random() < 0.7
        if self.random.random() < 0.5:
            self.world.lag_ms = lambda: self.random.choice((0, 0, 25, 50, 200, 600))
        self.term = 1
        self.flights: list[Flight] = []
        self.offset = 0
        self.acked: list[int] = []
        self.leader = "b"
        self.world.elect("b", 1)
        self.topic = self.world.topic()
        self.subscription = Subscription("g", ("first", 0), (1_000, 1_000_000), GroupOptions(), names=["t"])
        info = TopicInfo(9, "t", 1, TopicConfig(), [SHARD])
        self.world.session.consuming.cover(self.subscription, [info])

    def step(self) -> None:
        do = self.random.choice(
            (
                self.publish,
                self.publish,
                self.publish,
                self.deliver,
                self.ack,
                self.elect,
                self.fall,
                self.rise,
                self.mute,
            )
        )
        do()
        self.world.exchange()
        self.world.run(self.random.choice((25, 50, 200, 1_000, 2_500)))

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            publishing, writer = self.world.session.publishing, self.topic.writers[0]
            if publishing.full(writer):
                return
            (flight,) = publishing.batches(writer, [b"v"], None, b"", b"", "")
            publishing.take(flight)
            self.flights.append(flight)

    def deliver(self) -> None:
        """By the leader, if it knows the subscription."""
        node = self.world.nodes[self.leader]
        known = [each.subscription for each in self.world.subscribed[self.leader]]
        number = self.subscription.parts[0].number
        if node.frozen or not node.leads or number not in known or worker(self.leader) not in self.world._up:
            return
        count = self.random.randrange(1, 8)
        raw = bytes(wire.seal([b"%d" % at for at in range(self.offset, self.offset + count)]))
        piece = Delivered(PARTITION, self.offset, count, 1, len(raw), 10 * count)
        self.world.tell(worker(self.leader), Deliver(number, [piece], 30_000), SHARD, 0, node.leads, raw)
        self.offset += count

    def ack(self) -> None:
        consuming = self.world.session.consuming
        for piece in consuming.take(self.subscription, 100):
            consuming.ack(piece.held, piece.first, piece.end)
            self.acked += range(piece.first, piece.end)

    def elect(self) -> None:
        """Somebody who lives; some hear of it, the others believe what they did."""
        names = [name for name, node in self.world.nodes.items() if node.alive and not node.frozen]
        if len(names) < 2:
            return
        self.term += self.random.choice((1, 1, 1, 3))
        self.leader = self.random.choice(names)
        hear = {self.leader, *self.random.sample(names, self.random.randrange(1, len(names) + 1))}
        self.world.elect(self.leader, self.term, hear)
        self.world.loses_confirms = False

    def fall(self) -> None:
        up = [name for name, node in self.world.nodes.items() if node.alive and not node.frozen]
        if len(up) == len(self.world.nodes):
            name = self.random.choice(up)
            self.random.choice((self.world.kill, self.world.freeze))(name)
            if name == self.leader and not self.world.nodes[name].alive:
                self.world.nodes[name].leads = 0

    def rise(self) -> None:
        for name, node in self.world.nodes.items():
            if node.frozen:
                self.world.thaw(name)
            if not node.alive:
                node.alive, node.leads, node.knows = True, 0, None
            if node.leads and node.leads < self.term:
                self.world.resign(node)

    def mute(self) -> None:
        """The leader stores, and its confirms get lost until the next one leads."""
        self.world.loses_confirms = True

    def heal(self) -> None:
        self.rise()
        self.term += 1
        self.leader = self.random.choice(list(self.world.nodes))
        self.world.elect(self.leader, self.term)
        self.world.loses_confirms = False
        self.world.lag_ms = lambda: 0
        self.world.run(8_000)


@pytest.mark.parametrize("seed", range(100))
def test_each_batch_once_and_in_order(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.heal()
    world = life.world
    assert [flight.error for flight in life.flights if flight.error] == []
    assert all(flight.done for flight in life.flights)
    assert [sequence for _, sequence in world.log] == list(range(1, len(life.flights) + 1))
    assert [flight.offset for flight in life.flights] == list(range(len(life.flights)))
    assert world.session.settled
    acked = {offset for _, ack in world.acked for _, first, end in ack.ranges for offset in range(first, end)}
    assert set(life.acked) <= acked
    assert world.session.consuming.warnings == []
