"""`why` ends with a command that changes the state of the record or the group, in each state and in random
histories."""

import random
from array import array
from shlex import split

import pytest

from core.harness import FakeWorker, client, single
from gossipq import next_steps
from gossipq.messages import (
    Ack,
    Cancel,
    Done,
    Nack,
    ReplayDead,
    Requeue,
    SetGroup,
    Subscribe,
    Why,
    WhyGroup,
)
from gossipq.operator_messages import SeekGroup, Sought
from gossipq.types import KEY_HASH, topic_id_of
from gossipq.values import GroupOptions, Ref, Start, TopicOptions

ADA, BOB, OPERATOR = client("ada"), client("bob"), client("operator")
ASKS = {"why", "peek", "ls", "show", "lag", "status", "top"}
LIVES, TRIED = 30, 3


class World:
    """A worker, one partition with the group g, and an operator who executes commands."""

    def __init__(self, **group) -> None:
        self.worker = FakeWorker()
        self.orders = single(self.worker.topic("orders", TopicOptions(backoff_ms=[500], attempts_max=2)))
        self.config, self.newcomers = GroupOptions(**group), 0

    def store(self, count=1, route=b"", **fixed):
        self.worker.publish(self.orders, [b"x"] * count, route=route, fixed=fixed.get("fixed") or {})

    def join(self, who, records=100, routes=()):
        starts = [Start(self.orders)]
        message = Subscribe(1, "g", starts, records, 1 << 20, self.config, routes=list(routes), fetches=True)
        self.worker.ask(1, who, message, 2, (b"c", who.session))

    def leave(self, who):
        self.worker.turn(lambda: self.worker.end_session(who.session))

    def nack(self, who, first, end, **options):
        self.worker.ask(1, who, Nack(1, [(self.orders, first, end)], **options))

    def ack(self, who, first, end):
        self.worker.ask(1, who, Ack(1, [(self.orders, first, end)]))

    def stands(self, offset=0):
        """The standing of a record in the group, and (state, reason, next command) of the group."""
        (standing, *_) = self.worker.ask(1, OPERATOR, Why(Ref(self.orders, offset), "g")).standings
        rows = self.worker.ask(1, OPERATOR, WhyGroup("g", [self.orders])).rows
        return standing, rows[0][1:4] if rows else ("", "", "")

    def execute(self, command):
        """Do what the command line does with this command."""
        words = split(command)
        assert words.pop(0) == "gossipq"
        answer = getattr(self, f"_{words[0]}_{words[1]}", None)
        if answer is not None:
            return answer(*words[2:])
        return getattr(self, f"_{words[0]}")(*words[1:])

    def _pub(self, topic, value):
        self.store()

    def _sub(self, topic, flag, group, *more):
        """NAME stands for a name that the user chooses."""
        assert (topic, flag, group.replace("NAME", "g")) == ("orders", "--group", "g")
        self.newcomers += 1
        self.join(client(f"new{self.newcomers}"), routes=more[1:2] if more else ())

    def _client_kick(self, digits):
        (found,) = (who for who in (ADA, BOB, *self.new()) if who.session.hex().startswith(digits))
        self.leave(found)

    def new(self):
        return [client(f"new{number + 1}") for number in range(self.newcomers)]

    def _msg_requeue(self, ref, flag, group):
        offset = int(ref.rpartition("/")[2])
        assert self.worker.ask(1, OPERATOR, Requeue(Ref(self.orders, offset), group)) == Done(
            1, Ref(self.orders, offset)
        )

    def _dlq_replay(self, topic, flag, group, at):
        offset = int(at.rpartition("/")[2])
        assert self.worker.ask(1, OPERATOR, ReplayDead(self.orders, group, [(offset, offset + 1)])) == Done(1)

    def _group_resume(self, topic, group):
        self._set(paused=False)

    def _group_set(self, topic, group, option, value):
        self._set(**{option.removeprefix("--").replace("-", "_"): int(value)})

    def _set(self, **options):
        message = SetGroup(topic_id_of(self.orders), "g", GroupOptions(**options))
        assert isinstance(self.worker.ask(1, OPERATOR, message), Done)

    def _group_seek(self, topic, group, flag, offset):
        message = SeekGroup(topic_id_of(self.orders), "g", [Start(self.orders, "offset", int(offset))])
        assert isinstance(self.worker.ask(1, OPERATOR, message), Sought)


def paused(world):
    world.store()
    world.join(ADA, 0)
    world._set(paused=True)


def no_consumer(world):
    world.store()
    world.join(ADA, 0)
    world.leave(ADA)


def no_credit(world):
    world.store()
    world.join(ADA, 0)


def in_flight(world):
    world.store()
    world.join(ADA)


def retrying(world):
    world.store()
    world.join(ADA)
    world.nack(ADA, 0, 1, reason="boom")


def dead(world):
    world.store()
    world.join(ADA)
    world.nack(ADA, 0, 1, dead="rejected")


def acked(world):
    world.store()
    world.join(ADA)
    world.ack(ADA, 0, 1)


def window_full(world):
    world.config = GroupOptions(in_flight_max=1)
    world.store(2)
    world.join(ADA)


def limited(world):
    world.config = GroupOptions(order="fair", concurrency=1)
    world.store(2)
    world.join(ADA)


def unmatched(world):
    world.store(route=b"us")
    world.join(ADA, routes=["eu"])


def behind_a_held_key(world):
    world.config = GroupOptions(mode="key_ordered")
    world.store(2, fixed={KEY_HASH: array("I", [7, 7])})
    world.join(ADA, 1)
    world.join(BOB)


def behind_a_failed_key(world):
    behind_a_held_key(world)
    world.nack(ADA, 0, 1, reason="boom")


@pytest.mark.parametrize(
    ("make", "offset", "state"),
    [
        (paused, 0, "ready"),
        (no_consumer, 0, "ready"),
        (no_credit, 0, "ready"),
        (in_flight, 0, "in_flight"),
        (retrying, 0, "retrying"),
        (dead, 0, "dead"),
        (acked, 0, "acked"),
        (window_full, 1, "ready"),
        (limited, 1, "ready"),
        (unmatched, 0, "parked"),
        (behind_a_held_key, 1, "parked"),
        (behind_a_failed_key, 1, "parked"),
    ],
)
def test_the_next_step_changes_the_record(make, offset, state) -> None:
    world = World()
    make(world)
    before, _ = world.stands(offset)
    assert before.state == state, before
    world.execute(before.next)
    after, _ = world.stands(offset)
    assert (after.state, after.because) != (before.state, before.because)


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (paused, "paused"),
        (no_consumer, "no consumer"),
        (no_credit, "no credit"),
        (acked, "idle"),
        (retrying, "retrying"),
        (unmatched, "unmatched"),
        (window_full, "window full"),
        (limited, "limited"),
    ],
)
def test_the_next_step_changes_the_group(make, state) -> None:
    world = World()
    make(world)
    _, before = world.stands()
    assert before[0] == state, before
    world.execute(before[2])
    _, after = world.stands()
    assert after[:2] != before[:2]


def test_a_record_that_no_group_reads_leads_to_a_group() -> None:
    world = World()
    world.store()
    (before,) = world.worker.ask(1, OPERATOR, Why(Ref(world.orders, 0))).standings
    assert (before.state, before.next) == ("ready", "gossipq sub orders --group NAME")
    world.execute(before.next)
    after, _ = world.stands()
    assert after.state == "in_flight"


def test_a_record_that_is_gone_has_no_next_step() -> None:
    world = World()
    world.store(2)
    world.join(ADA, 0)
    world.worker.ask(1, OPERATOR, Cancel(Ref(world.orders, 0)))
    standing, _ = world.stands()
    assert (standing.state, standing.next) == ("voided", "")


def lived(number) -> World:
    """A world after thirty random things, and the offsets that it has."""
    chance, world = random.Random(f"next steps {number}"), World()
    world.config = GroupOptions(
        mode=chance.choice(["shared", "key_ordered"]), in_flight_max=chance.choice([3, 100])
    )
    members = {}
    for _ in range(30):
        what = chance.randrange(7)
        if what == 0:
            count = chance.randint(1, 4)
            keys = {KEY_HASH: array("I", [chance.choice([0, 7, 9]) for _ in range(count)])}
            world.store(count, chance.choice([b"", b"eu", b"us"]), fixed=keys)
        elif what == 1:
            who = chance.choice([ADA, BOB])
            world.join(who, chance.choice([0, 1, 50]), chance.choice([(), ("eu",)]))
            members[who.session] = who
        elif what == 2 and members:
            world.leave(members.pop(chance.choice(sorted(members))))
        elif what == 3:
            world.worker.tick(chance.choice([10, 500, 40_000]))
        elif what == 4 and members:
            world._set(paused=chance.random() < 0.5)
        elif members:
            who, offset = members[chance.choice(sorted(members))], chance.randrange(10)
            do = chance.choice([world.ack, world.nack])
            do(who, offset, offset + 1)
    return world


@pytest.mark.parametrize("number", range(LIVES))
def test_each_next_step_of_a_random_history_changes_something(number) -> None:
    ends = lived(number).worker.shards[1].ledger.partitions
    offsets = range(next(iter(ends.values())).next if ends else 0)
    for offset in random.Random(number).sample(offsets, min(TRIED, len(offsets))):
        world = lived(number)
        if world.orders not in world.worker.shards[1].ledger.partitions:
            return
        if not getattr(world.worker.ask(1, OPERATOR, Why(Ref(world.orders, offset), "g")), "standings", None):
            continue  # no group yet, or the record is gone
        before, group = world.stands(offset)
        assert not ASKS.intersection(split(before.next)[1:3]), before
        if before.next:
            world.execute(before.next)
            after, changed = world.stands(offset)
            assert (after, changed) != (before, group), before


def test_no_step_only_asks() -> None:
    for step in (*next_steps.OF_RECORD.values(), *next_steps.OF_GROUP.values()):
        assert not ASKS.intersection(step.command.split()[1:3])
