"""Sources of snapshots, each on a thread, so that keys work while a node is silent."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gossipq.errors import GossipqError
from gossipq.health import of_error
from gossipq_cli import failures
from gossipq_cli.dashboard.recordings import Recording, Writer
from gossipq_cli.dashboard.state import Fault
from gossipq_ops.questions import Act, Answer, Ask, Failed
from gossipq_ops.rows import Snapshot

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_ops.answers import Answerer

ASK_TIMEOUT_S = 2.0  #: a node that is silent for longer is shown as silent
FIRST_S = 0.02  #: pause between two looks for the first snapshot
WARM = 60  #: snapshots read before the target of a seek, for charts and events
IDLE_S = 0.1
GAP_S = 5.0  #: longest pause in a replay
PATIENCE_S = 0.2  #: ending threads are waited for this long; they hold no data


class Answered(NamedTuple):
    ask: Ask
    answer: Answer


class Wound(NamedTuple):
    """A replay continues at another place: the snapshots before it, and its number."""

    snapshots: Sequence[Snapshot]


News = Snapshot | Fault | Answered | Wound
Tell = Callable[[News], None]


def fault(error: BaseException) -> Fault:
    told = failures.explain(error)
    state = of_error(error) if isinstance(error, GossipqError) else None
    return Fault(told.message, told.hint, state or "")


class Watch(threading.Thread):
    """Produces a snapshot every `every_s` seconds until it is stopped."""

    def __init__(
        self, connect: "Callable[[str], Client]", server: Callable[[], str], every_s: float, tell: Tell
    ) -> None:
        super().__init__(name="gossipq-top-watch", daemon=True)
        self._connect, self._server, self._tell = connect, server, tell
        self.every_s, self.paused = every_s, False
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()
        self.join(2 * PATIENCE_S)

    def run(self) -> None:
        from gossipq_ops.gather import Gathering

        with Gathering(self._connect, self._server(), lambda: self.every_s) as gathering:
            wait_s = FIRST_S
            while not self._over.wait(wait_s):
                began_s = time.monotonic()
                found: News | None = None
                try:
                    found = None if self.paused else gathering.next()
                except Exception as error:  # an unexpected answer of a node: ask again
                    self._tell(fault(error))
                if found is not None:
                    self._tell(found)
                elif gathering.error is not None:
                    self._tell(fault(gathering.error))
                if found is not None or wait_s > FIRST_S:
                    wait_s = max(0.05, self.every_s - (time.monotonic() - began_s))


class Recorder:
    """Adds snapshots to a file. The first one is complete."""

    def __init__(self, path: Path) -> None:
        self._path, self._writer = path, Writer()

    def add(self, snapshot: Snapshot) -> None:
        """Raises OSError."""
        line = self._writer.line(snapshot)
        with self._path.open("ab") as file:
            file.write(line)


class Player(threading.Thread):
    """Replays a recording at its own pace or faster. The last snapshot stays."""

    def __init__(self, recording: Recording, tell: Tell) -> None:
        super().__init__(name="gossipq-top-player", daemon=True)
        self._recording, self._tell = recording, tell
        self.speed, self.paused = 1.0, False
        self.at = 0  #: number of the last snapshot that was sent
        self._wanted: int | None = None
        self._turned = threading.Event()
        self._over = False

    def stop(self) -> None:
        self._over = True
        self._turned.set()
        self.join(PATIENCE_S)

    def seek(self, at: int) -> None:
        self._wanted = max(0, min(len(self._recording) - 1, at))
        self._turned.set()

    @property
    def count(self) -> int:
        return len(self._recording)

    def number_at(self, time_ms: int) -> int:
        return self._recording.at_ms(time_ms)

    def seek_ms(self, by_ms: int) -> None:
        self.seek(self._recording.at_ms(self._recording.times_ms[self.at] + by_ms))

    def run(self) -> None:
        try:
            self._tell(self._recording[0])
            while not self._over:
                self._turned.wait(self._pause_s())
                self._turned.clear()
                wanted, self._wanted = self._wanted, None
                if self._over:
                    return
                if wanted is not None:
                    self.at = wanted
                    self._tell(Wound(self._recording[max(0, wanted - WARM + 1) : wanted + 1]))
                elif not self.paused and self.at + 1 < len(self._recording):
                    self.at += 1
                    self._tell(self._recording[self.at])
        except ValueError as error:
            self._tell(Fault(str(error), "gossipq top --record FILE makes another one"))

    def _pause_s(self) -> float:
        """Return the time until the next snapshot; long gaps are cut."""
        if self.paused or self.at + 1 >= len(self._recording):
            return IDLE_S
        passed_ms = self._recording.times_ms[self.at + 1] - self._recording.times_ms[self.at]
        return max(FIRST_S, min(GAP_S, passed_ms / 1_000 / self.speed))


class Asker(threading.Thread):
    """Asks questions one by one, with a client of its own.

    A newer question of a kind replaces one that waits.
    """

    def __init__(self, connect: "Callable[[str], Client]", tell: Tell) -> None:
        super().__init__(name="gossipq-top-asker", daemon=True)
        self._connect, self._tell = connect, tell
        self._asks: list[Ask] = []
        self._ready = threading.Condition()
        self._over = False
        self._stop_search: Callable[[], None] = lambda: None
        self._answerer: Answerer | None = None
        self._read = 0

    def read(self) -> int:
        """Return the records that searches have read since the last call."""
        before, self._read = self._read, self._answerer.read if self._answerer is not None else 0
        return max(0, self._read - before)

    @property
    def busy(self) -> bool:
        with self._ready:
            return bool(self._asks)

    def ask(self, ask: Ask) -> None:
        with self._ready:
            kept = [old for old in self._asks if isinstance(old, Act) or type(old) is not type(ask)]
            self._asks = [*kept, ask]
            self._stop_search()
            self._ready.notify()
        if not self.is_alive():
            self.start()

    def stop(self) -> None:
        with self._ready:
            self._over = True
            self._stop_search()
            self._ready.notify()
        if self.is_alive():
            self.join(PATIENCE_S)

    def run(self) -> None:
        while not self._over:
            try:
                with self._connect("") as mq:
                    self._serve(mq)
            except Exception as error:
                told = fault(error)
                with self._ready:
                    asks, self._asks = self._asks, []
                for ask in asks:
                    self._tell(Answered(ask, Failed(told.text, told.hint)))
                with self._ready:
                    while not self._asks and not self._over:
                        self._ready.wait()

    def _serve(self, mq: "Client") -> None:
        from gossipq_cli.means import means
        from gossipq_ops.answers import Answerer

        answerer = self._answerer = Answerer(mq, means(self._connect))
        self._stop_search = answerer.stop
        while True:
            with self._ready:
                while not self._asks and not self._over:
                    self._ready.wait()
                if self._over:
                    return
                ask = self._asks.pop(0)
            self._tell(Answered(ask, answerer.answer(ask)))
