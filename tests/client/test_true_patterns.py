"""Random lives of consumers of patterns and of names, while topics are made, removed and made anew: what is
published to a topic that stays is acked in the end."""

import pytest

from client.hand import LEADER
from client.true_parties import User
from client.true_shards import UNRAISABLE, Cluster, lives
from core.harness import client
from gossipq import limits
from gossipq.messages import CreateTopic, DropTopic, Topics
from gossipq.types import META_SHARD, partition_key
from gossipq.values import GroupOptions, TopicInfo, TopicOptions
from gossipq_client.session.credit import Subscription
from gossipq_client.session.pace import CREDIT_START

OPERATOR = client("operator")
NAMES = ("t0", "t1", "t2", "t3")
CHANGING_MS = 12_000
PATIENCE_MS = 120_000


class Watcher(User):
    """Consumes whatever fits, and is told when a topic that it names is gone: then it asks once more."""

    def __init__(self, life: "Life", name: str) -> None:
        super().__init__(life, name)
        self.ask()

    def join(self) -> None:
        """See `ask`: its topics are looked up."""

    def ask(self) -> None:
        names = self.random.choice((["t*"], ["t0", "t*"], list(NAMES)))
        credit, options = (CREDIT_START, limits.CREDIT_BYTES), GroupOptions(lease_ms=5_000)
        self.subscription = Subscription(
            "g", ("first", 0), credit, options, True, names, follows=True, patience_ms=600_000
        )
        self.step(lambda: self.hand.session.subscribe(self.subscription))

    def act(self) -> None:
        if not self.subscription.asked:
            self.step(lambda: self.hand.session.subscribe(self.subscription))
        if self.subscription.error is not None:
            self.repeat(lambda: self.consuming.close(self.subscription))
            self.ask()
        super().act()


class Life(Cluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.topics: dict[str, TopicInfo] = {}
        self.loses, self.interrupts = self.random.choice((0, 0.002)), self.random.choice((0, 0, 0.02))
        for name in ("ada", "bob"):
            self.parties.append(Watcher(self, name))

    def work_ms(self, count: int) -> int:
        return self.random.choice((0, 0, 0, 20))

    def change(self) -> None:
        name = self.random.choice(NAMES)
        if self.topics.pop(name, None) is not None:
            self.worker.ask(META_SHARD, OPERATOR, DropTopic(name))
        if self.random.random() < 0.7:
            self.make(name)

    def make(self, name: str) -> None:
        options = TopicOptions(partitions=self.random.choice((1, 2, 5)))
        made = self.worker.ask(META_SHARD, OPERATOR, CreateTopic(name, options))
        if isinstance(made, Topics):
            (self.topics[name],) = made.topics

    def publish(self) -> None:
        if self.topics:
            info = self.random.choice(list(self.topics.values()))
            at = self.random.randrange(len(info.shards))
            values = [b"v"] * self.random.choice((1, 10, 100))
            self.worker.publish(partition_key(info.id, at), values, shard=info.shards[at])

    @property
    def done(self) -> bool:
        """Everything of each topic is acked."""
        for info in self.topics.values():
            for number, shard_id in enumerate(info.shards):
                ledger, key = self.worker.shards[shard_id].ledger, partition_key(info.id, number)
                cursors = [each.state.cursor for each in ledger.cursors.get(key, {}).values()]
                if cursors != [ledger.partitions[key].next]:
                    return False
        return True

    def run(self, ms: int, changes: float) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and (changes or not self.done):
            self.step()
            if self.random.random() < changes:
                self.change()
            if changes and self.random.random() < 0.05:
                self.publish()
            for party in self.parties:
                if self.random.random() < self.loses:
                    party.reconnect(LEADER)


@UNRAISABLE
@pytest.mark.parametrize("seed", lives(3))
def test_whatever_comes_and_goes_what_stays_is_consumed(seed: int) -> None:
    life = Life(seed)
    life.run(CHANGING_MS, changes=0.004)
    for name in [name for name in NAMES if name not in life.topics]:
        life.make(name)
    life.publish()
    life.loses = life.interrupts = 0
    life.run(PATIENCE_MS, changes=0)
    assert life.done
