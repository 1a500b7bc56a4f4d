"""Clients whose operations are recorded, beside those of the load: a reader, ids, delays, and a policy."""

import time
from contextlib import suppress
from typing import Any

from e2e.load import PARTITIONS, PATIENCE_S, TOPIC, Actor, Load, name_text
from gossipq.errors import GossipqError, Refused, StoreFull
from gossipq_client import Client, connect

PAUSE_S = 0.05
DELAY_MS_MAX = 1_500
IDS_TOPIC, DELAYS_TOPIC, POLICY_TOPIC = "named", "delayed", "policy"


class Tail(Actor):
    """Reads the topic of the load from its first record on, while faults last."""

    def live(self, life: int) -> None:
        reader = f"{self.name}.{life}"
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            while not self.stopping.is_set():
                with self.history.recorder.call("poll", [["poll"]], client=reader) as call:
                    rows: dict[int, list[list[Any]]] = {}
                    for msg in mq.fetch(TOPIC, n=400, wait=0.2, start="first"):
                        rows.setdefault(msg.partition, []).append([msg.offset, name_text(msg.value)])
                    call.ok([["poll", rows]])


class Names(Actor):
    """Publishes records with ids, many of them again: at once, later, or by its next client."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._count, self._recent = 0, list[int]()

    def live(self, life: int) -> None:
        end = time.monotonic() + self.random.uniform(2, 6)
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(IDS_TOPIC, partitions=PARTITIONS, if_not_exists=True)
            while not self.stopping.is_set() and time.monotonic() < end:
                if self._recent and self.random.random() < 0.5:
                    self._publish(mq, self.random.choice(self._recent))
                else:
                    self._count += 1
                    self._recent = [*self._recent[-20:], self._count]
                    self._publish(mq, self._count)
                self.stopping.wait(PAUSE_S)

    def _publish(self, mq: Client, number: int) -> None:
        name = f"{self.number}/{number}"
        call = self.history.recorder.invoke("publish", [name, name], client=self.name, topic=IDS_TOPIC)
        try:
            receipt = mq.publish(
                IDS_TOPIC,
                name.encode(),
                id=name.encode(),
                partition=number % PARTITIONS,
                timeout=PATIENCE_S,
            )
        except StoreFull as error:
            call.fail(repr(error))
        except BaseException as error:
            call.info(repr(error))
            raise
        else:
            call.ok([name, name, receipt.offset])


class Delays(Actor):
    """Publishes records with delays and consumes them; what arrives is noted when the program has it."""

    def live(self, life: int) -> None:
        recorder, count = self.history.recorder, 0
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(DELAYS_TOPIC, if_not_exists=True)
            while not self.stopping.is_set():
                name, delay_ms = f"{self.number}.{life}/{count}", self.random.randrange(DELAY_MS_MAX)
                count += 1
                call = recorder.invoke("schedule", [name, delay_ms], client=self.name, topic=DELAYS_TOPIC)
                try:
                    mq.publish(DELAYS_TOPIC, name.encode(), delay=delay_ms / 1_000, timeout=PATIENCE_S)
                except StoreFull as error:
                    call.fail(repr(error))
                except BaseException as error:
                    call.info(repr(error))
                    raise
                else:
                    call.ok([name, delay_ms])
                arrive(self, mq, PAUSE_S)


def arrive(actor: Actor, mq: Client, wait_s: float) -> int:
    """Fetches scheduled records that are due; returns how many."""
    with actor.history.recorder.call("arrive", client=actor.name, topic=DELAYS_TOPIC) as call:
        batch = mq.fetch(DELAYS_TOPIC, "due", n=100, wait=wait_s)
        call.ok([msg.value.decode() for msg in batch])
        mq.ack_soon(batch)
    return len(batch)


class Policies(Actor):
    """Sets and reads one policy of one topic; several of these share the topic."""

    def live(self, life: int) -> None:
        count = 0
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(POLICY_TOPIC, if_not_exists=True, alarm_lag=0)
            while not self.stopping.is_set():
                count += 1
                # numbers differ, so that a read names its write
                number = (self.number + 1) * 1_000_000 + life * 10_000 + count
                with suppress(Refused):
                    if self.random.random() < 0.4:
                        self._write(mq, number)
                    else:
                        self._read(mq)
                self.stopping.wait(PAUSE_S)

    def _write(self, mq: Client, number: int) -> None:
        call = self.history.recorder.invoke("write", number, client=self.name, topic=POLICY_TOPIC)
        try:
            mq.topic(POLICY_TOPIC).configure(alarm_lag=number)
        except GossipqError as error:  # even a refusal may follow a first request whose answer was lost
            call.info(repr(error))
            raise
        call.ok(number)

    def _read(self, mq: Client) -> None:
        with self.history.recorder.call("read", client=self.name, topic=POLICY_TOPIC) as call:
            call.ok(mq.topics(POLICY_TOPIC)[0].config.alarm_lag)


def add_to(load: Load, seed: int) -> None:
    """Adds one client of each kind, and three of the policy, to a load whose history has a recorder."""
    settings = load.servers, load.history
    load.others += [Tail(*settings, 0, seed), Names(*settings, 0, seed), Names(*settings, 1, seed)]
    load.others += [Delays(*settings, 0, seed), *(Policies(*settings, number, seed) for number in range(3))]


def finish(load: Load) -> None:
    """Records the end: scheduled records that are left, and the ids that are stored."""
    delays = next(actor for actor in load.others if isinstance(actor, Delays))
    end_s = time.monotonic() + PATIENCE_S
    with connect(*load.servers, timeout=PATIENCE_S) as mq:
        while time.monotonic() < end_s:
            arrive(delays, mq, DELAY_MS_MAX / 5_000)
            mq.flush(PATIENCE_S)
            stats = mq.admin.stats([DELAYS_TOPIC])
            left = sum(row.ready + row.in_flight for row in stats.groups)
            if not left + sum(row.scheduled for row in stats.partitions):
                break
        with load.history.recorder.call("stored-ids", topic=IDS_TOPIC) as call:
            call.ok([msg.value.decode() for msg in mq.read(IDS_TOPIC)])
