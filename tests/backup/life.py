"""A random life of a cluster, and a picture of all that it has."""

import random
import time
from contextlib import suppress

import msgspec

from gossipq.errors import GossipqError
from gossipq.types import partition_of

TOPICS = ("orders", "payments", "007", "dead.or.alive")
#: volatile fields of a group: its consumers and what this leader has delivered
VOLATILE = ("consumers", "delivered", "oldest_ms", "goes_ms", "redelivered", "blocked_by_key", "unmatched")


class Life:
    def __init__(self, mq, seed):
        self.mq, self.dice, self.number = mq, random.Random(seed), 0
        for topic in TOPICS:
            mq.create_topic(topic, partitions=3, if_not_exists=True, dedup="1h")

    def go_on(self, steps):
        """Does `steps` random actions; afterwards no consumer holds a record."""
        for _ in range(steps):
            self.dice.choice((self.publish, self.publish, self.publish, self.consume, self.operate))()
        self.mq.flush(None)
        time.sleep(0.2)  # a record that was given back is noted within 50 ms

    def publish(self):
        dice, topic = self.dice, self.dice.choice(TOPICS)
        values = [b"%d:" % (self.number + at) * dice.randrange(1, 30) for at in range(dice.randrange(1, 20))]
        self.number += len(values)
        more = {}
        if dice.random() < 0.3:
            more["keys"] = [b"k%d" % dice.randrange(5) for _ in values]
        if dice.random() < 0.3:
            more["ids"] = [f"id-{dice.randrange(500)}" for _ in values]
        if dice.random() < 0.2:
            more["delay"] = "2h"
        self.mq.publish_many(topic, values, partition=dice.randrange(3), **more, timeout=10)

    def consume(self):
        dice, topic, group = self.dice, self.dice.choice(TOPICS), self.dice.choice(("billing", "stock"))
        with self.mq.broker.connect() as other:  # gives back what it has not settled
            for message in other.fetch(topic, group, n=dice.randrange(1, 12), wait=0.05):
                deed = dice.random()
                if deed < 0.6:
                    message.ack_soon()
                elif deed < 0.8:
                    message.nack(delay="3h", reason="later")
                else:
                    message.reject("never")
            other.flush(None)

    def operate(self):
        dice, mq, topic = self.dice, self.mq, self.dice.choice(TOPICS)
        deed = dice.randrange(8)
        with suppress(GossipqError):  # what cannot be done is not done
            if deed == 0:
                mq.topic(topic).purge(dice.randrange(3))
            elif deed == 1:
                mq.dead(topic, "billing").replay()
            elif deed == 2:
                mq.dead(topic, "stock").purge()
            elif deed == 3:
                stock = mq.group(topic, "stock")
                stock.pause() if dice.random() < 0.5 else stock.resume()
            elif deed == 4:
                mq.group(topic, "billing").configure(attempts_max=dice.randrange(3, 9))
            elif deed == 5:
                mq.create_topic(f"more-{dice.randrange(3)}", partitions=2)
            elif deed == 6:
                mq.topic(f"more-{dice.randrange(3)}").delete()
            else:
                mq.topic(topic).configure(retention="7d", alarm_lag=dice.randrange(1, 1_000))


def picture(mq):
    """All that lasts: topics, records, where each stands for each group, dead letters, counters, users."""
    found = {"access": mq.admin.access().roles}
    for info in mq.admin.raw.topics():
        found[info.name] = msgspec.to_builtins(info)
        if info.config.virtual:
            continue
        rows = []
        for stretch in mq.read(info.name).batches():
            rows += [
                (stretch.partition, at, value) for at, value in enumerate(stretch.values(), stretch.first)
            ]
        found[info.name, "records"] = sorted(rows)
        stats = mq.admin.raw.stats([info.name])
        found[info.name, "counters"] = sorted(
            (msgspec.structs.replace(row, worker=0) for row in stats.partitions),
            key=lambda row: row.partition,
        )
        firsts = {partition_of(row.partition): row.first for row in stats.partitions}
        for number in range(len(info.shards)):
            runs = [run for page in mq.admin.raw.state_pages(info, number) for run in page.runs]
            found[info.name, number, "states"] = [msgspec.to_builtins(run) for run in runs]
            acks = mq.admin.raw.ack_runs(info, number)[1]
            # those of records that are gone are swept when there is time
            found[info.name, number, "acks"] = [run for run in acks if run.end > firsts[number]]
        groups = sorted(stats.groups, key=lambda row: (row.partition, row.group))
        found[info.name, "groups"] = [
            msgspec.structs.replace(row, **dict.fromkeys(VOLATILE, 0)) for row in groups
        ]
        for group in {row.group for row in groups}:
            letters = mq.dead(info.name, group).letters(values=True)
            found[info.name, group, "dead"] = sorted(letters, key=lambda each: each.ref)
            found[info.name, group, "policy"] = mq.group(info.name, group).describe().config
    return found
