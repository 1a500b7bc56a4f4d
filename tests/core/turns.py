"""Runs turns for stand-ins of a worker, in the order that `gossipq.core.turn` describes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gossipq.core.copies import Mail
from gossipq.core.effects import Effects
from gossipq.core.raft import Replication
from gossipq.core.shard import Shard
from gossipq.core.turn import Turn
from gossipq.errors import StoreError
from gossipq.types import Now, ShardId


class Runner(Protocol):
    """A stand-in for the process in which turns run."""

    def commit(self) -> None: ...
    def boot_ms(self) -> int: ...
    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None: ...
    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None: ...
    def send(self, shard: Shard, effects: Effects) -> None: ...
    def refused(self, error: StoreError) -> None: ...
    def stopped(self, shard: ShardId, error: Exception) -> None: ...


def run(runner: Runner, turn: Turn, now: Now, work: Callable[[], None]) -> None:
    """Run a turn with `work`. If the shards must be opened, another turn before it opens them."""
    if turn.must_open(now):
        _run(runner, turn, now, turn.open)
    _run(runner, turn, now, work)


def _run(runner: Runner, turn: Turn, now: Now, work: Callable[[], None]) -> None:
    try:
        turn.begin(now)
        work()
        turn.tick()
        for shard, appends in turn.ready():
            runner.replicate(shard, appends)
        if turn.must_commit:
            turn.write()
            runner.commit()
            turn.stored()
        for shard, answers in turn.answers():
            runner.answer(shard, answers)
        for shard in turn.finish():
            runner.send(shard, turn.advance(shard, runner.boot_ms()))
            turn.sent(shard)
    except Exception as error:
        failure = turn.failure(error)
        turn.start_over(failure)
        if isinstance(failure, StoreError):
            runner.refused(failure)
    while turn.unnoticed:
        stopped = turn.unnoticed.pop()
        runner.stopped(stopped.shard, stopped.error)
