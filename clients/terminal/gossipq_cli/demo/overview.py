"""The demo on a terminal: the overview of `gossipq top`, with the demo's progress below it."""

import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from gossipq_cli import ask
from gossipq_cli.dashboard import state
from gossipq_cli.dashboard.frame import screen
from gossipq_cli.dashboard.painter import Painter, colors_of
from gossipq_cli.dashboard.sources import ASK_TIMEOUT_S, News, Watch
from gossipq_cli.dashboard.table import BAD, GOOD, LIVE, box, wrapped
from gossipq_cli.dashboard.terminal import Terminal
from gossipq_cli.options import Choices
from gossipq_ops.figures import bar
from gossipq_ops.rows import Snapshot

if TYPE_CHECKING:
    from gossipq_client import Client

COUNTS = (("published", LIVE), ("confirmed", LIVE), ("delivered", GOOD))
SAID_LINES = 3  #: lines for the newest remarks
BELOW = len(COUNTS) + SAID_LINES + 2  #: lines of the demo's box
LEAST = state.LEAST[0], state.LEAST[1] + BELOW
EVERY_S = 0.5  #: between two snapshots
FRAME_S = 0.25


class Overview:
    """Drawn by a thread a few times a second, so that it continues while the demo waits."""

    def __init__(self, terminal: Terminal, total: int, colors: str | None) -> None:
        self._terminal, self._total = terminal, total
        self._board, self._ui = state.Board(), state.Ui(every_s=EVERY_S)
        self._painter = Painter(colors)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipq-demo-overview", daemon=True)
        self._anew = False
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.said: list[str] = []
        self._counts: Sequence[int] = (0, 0, 0)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop drawing."""
        self._over.set()
        self._thread.join()

    def show(self, published: int, confirmed: int, delivered: int) -> None:
        self._counts = published, confirmed, delivered

    def say(self, text: str) -> None:
        self.said.append(text)

    def anew(self) -> None:
        """Redraw, because the terminal was resized or used by another program."""
        self._anew = True

    def _run(self) -> None:
        while not self._over.wait(FRAME_S):
            self.draw()

    def draw(self) -> None:
        if self._anew:
            self._anew = False
            self._painter.forget()
        while not self.news.empty():
            news = self.news.get()
            if isinstance(news, Snapshot):
                self._board.history.add(news)
        width, height = self._terminal.size()
        lines = screen(self._board, self._ui, width, max(1, height - BELOW + 1))[:-1] + self._below(width)
        text = self._painter.paint(lines[:height])
        if text:
            self._terminal.write(text)

    def _below(self, width: int) -> list[Text]:
        lines = []
        for (name, style), count in zip(COUNTS, self._counts, strict=True):
            line = Text(f"{name:<10}").append(bar(count / max(1, self._total), max(8, width - 46)), style)
            lines.append(line.append(f" {count:>11,} of {self._total:,}"))
        said = [part for text in self.said[-SAID_LINES:] for part in wrapped(text, width - 4, BAD)]
        return box(
            "demo: every line of Python's own library",
            lines + said[-SAID_LINES:],
            width,
            BELOW,
            "Ctrl-C ends it",
        )


@contextmanager
def overview(servers: list[str], total: int, color: bool) -> Iterator[Overview]:
    """Take the terminal until the demo ends, and print its remarks again afterwards."""
    drawn: Overview | None = None

    def anew() -> None:
        if drawn is not None:
            drawn.anew()

    def connect(address: str) -> "Client":
        return ask.connect(Choices(servers=[address] if address else servers, timeout_s=ASK_TIMEOUT_S))

    try:
        with Terminal(anew) as terminal:
            drawn = Overview(terminal, total, colors_of(color))
            watch = Watch(connect, lambda: servers[0], EVERY_S, drawn.news.put)
            watch.start()
            drawn.start()
            try:
                yield drawn
            finally:
                watch.stop()
                drawn.stop()
    finally:
        for text in drawn.said if drawn is not None else ():
            print(text, file=sys.stderr)
