"""The loop of every actor: wait until the next deadline, take the messages that
arrived, run the actor's turn.
"""

from collections.abc import Callable
from typing import Protocol

from gossipq.clock import Clock
from gossipq.types import Now
from gossipq_node.ports import Incoming, Mailbox


class Actor(Protocol):
    def next_deadline_ms(self) -> int | None:
        """Boot time of the next turn if no message arrives; None: never."""

    def turn(self, arrived: list[Incoming], now: Now) -> None: ...


def run(actor: Actor, mailbox: Mailbox, clock: Clock, running: Callable[[], bool]) -> None:
    """Runs turns until `running` returns False. An actor must not sleep anywhere else."""
    while running():
        deadline_ms = actor.next_deadline_ms()
        timeout_ms = None if deadline_ms is None else max(0, deadline_ms - clock.now().boot_ms)
        arrived = mailbox.receive(timeout_ms)
        actor.turn(arrived, clock.now())
