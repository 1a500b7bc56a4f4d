"""Requests of every kind with any values that their types allow: extreme numbers, foreign names,
records in any state. Each request is answered or refused, none causes a fault of the node, and
the state stays consistent.
"""

import types
import typing
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from core.test_races import ADA, BOB, LATER, ONE, Scene, check_whole
from gossipq import export_messages, limits, messages, operator_messages
from gossipq.core.ledger import Ledger
from gossipq.messages import CreateTopic, DropTopic, Edit, Publish, RefusedMessage
from gossipq.values import Message, Ref
from gossipq.verbs import META_ROOMS, served_by
from gossipq.wire import batch as batches

REQUESTS = 1_500
LOOK = 50  #: requests between two checks of the whole state
RARE = 0.05  #: probability of a request that creates or removes a topic, when it is chosen
EDGES = [-2, -1, 0, 1, 2, 5, 11, 13, 100, 2**31, 2**32, 2**53, 2**62 - 1, 2**62, 2**63 - 1, limits.HOUR_MS]
TEXTS = [
    "",
    "orders",
    "billing",
    "other",
    "first",
    "new",
    "offset",
    "time",
    "shared",
    "exclusive",
    "key_ordered",
]
TEXTS += ["rejected", "dead", "drop", "x" * 300, "a\0b", "*", "eu.*"]


def kinds() -> list[type[Message]]:
    """All message types of clients and nodes. A shard refuses those that it does not serve."""
    found = [
        kind
        for module in (messages, operator_messages, export_messages)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    ]
    return sorted(set(found), key=lambda kind: kind.verb)


class Stranger:
    """Makes up requests."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice, self._patch = Random(f"any request/{seed}"), monkeypatch
        self.begin()

    def begin(self) -> None:
        with self._patch.context() as patch:
            self.scene = Scene(patch, consuming=True)
            self.scene.noting = False
        self.worker = self.scene.worker

    def partition(self) -> int:
        return self.scene.partition if self.dice.random() < 0.9 else self.dice.choice(EDGES)

    def named(self) -> dict[str, Callable[[], Any]]:
        """Makers for fields that name what a request is about; mostly they
        return something that exists.
        """
        return {
            "partition": self.partition,
            "topic_id": lambda: self.scene.topic_id,
            "group": lambda: "billing",
            "subscription": lambda: 1,
        }

    def make(self, kind: type[Any]) -> Any:
        hints, named = typing.get_type_hints(kind), self.named()
        said = {}
        for field in msgspec.structs.fields(kind):
            if field.required or self.dice.random() < 0.6:
                usual = field.name in named and self.dice.random() < 0.8
                said[field.name] = named[field.name]() if usual else self.value(hints[field.name])
        return kind(**said)

    def value(self, wanted: Any) -> Any:
        dice, origin, inner = self.dice, typing.get_origin(wanted), typing.get_args(wanted)
        plain: dict[Any, Callable[[], Any]] = {
            int: lambda: dice.choice([*EDGES, self.scene.partition, self.scene.scheduled]),
            bool: lambda: dice.random() < 0.5,
            str: lambda: dice.choice(TEXTS),
            bytes: lambda: dice.choice([b"", b"x", ADA.session, b"z" * 300]),
            float: lambda: dice.choice([0.0, -1.0, 1e308]),
            type(None): lambda: None,
            Ref: lambda: Ref(
                self.partition(), dice.randrange(-1, 14), self.scene.scheduled, dice.randrange(3)
            ),
        }
        if wanted in plain:
            return plain[wanted]()
        if origin in (typing.Union, types.UnionType):
            return self.value(dice.choice(inner))
        if origin is list:
            return [self.value(inner[0]) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
        if origin is dict:
            return {self.value(inner[0]): self.value(inner[1]) for _ in range(dice.choice((0, 1, 2)))}
        if origin is tuple and inner in ((int, int), (int, int, int)) and dice.random() < 0.8:
            first = dice.randrange(14)
            rows = (self.partition(), first, first + dice.choice((0, 1, 1, 2, 5)))
            return rows[-len(inner) :]
        if origin is tuple:
            return tuple(map(self.value, inner))
        return self.make(wanted)

    def ask(self, kind: type[Message]) -> bool:
        """Runs one turn with one request and returns whether a shard serves that kind. Fails if the
        request causes a fault of the node.
        """
        request, who = self.make(kind), self.dice.choice((ADA, ADA, ADA, BOB))
        batch = self.dice.choice((ONE, LATER))
        shard = 0 if kind in served_by(*META_ROOMS) else 1
        if isinstance(request, Publish):
            effects = self.worker.turn(
                lambda: self.worker.take(shard, (b"c", b"1"), 7, who, request, batches.check(batch), batch)
            )
        else:
            body = batch if isinstance(request, Edit) else b""
            effects = self.worker.turn(
                lambda: self.worker.step(shard, (b"c", b"1"), 7, who, request, batch=body)
            )
        faults = [fault for each in effects.values() for fault in each.faults]
        assert not faults, f"{request}: {faults}"
        answers = [answer for each in effects.values() for _, _, answer in each.replies]
        return not any(isinstance(each, RefusedMessage) and each.code == "unknown_verb" for each in answers)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_asked_is_answered_or_refused(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    stranger = Stranger(seed, monkeypatch)
    dice, served = stranger.dice, kinds()
    total = len(served)
    for number in range(REQUESTS):
        kind = dice.choice(served)
        if kind in (CreateTopic, DropTopic) and dice.random() > RARE:
            continue
        ledger: Ledger = stranger.worker.shards[1].ledger
        if stranger.scene.partition not in ledger.partitions:
            stranger.begin()
        if dice.random() < RARE:
            stranger.worker.subscribe(ADA, stranger.scene.partition)
            stranger.worker.publish(stranger.scene.partition, [b"n", b"m"])
        if not stranger.ask(kind):
            served.remove(kind)
        if number % LOOK == 0:
            stranger.worker.advance(dice.choice((1, 100, 5_000, limits.HOUR_MS)))
            stranger.worker.turn()
            check_whole(stranger.scene)
    assert 30 < len(served) < total, "or it asks nothing"
