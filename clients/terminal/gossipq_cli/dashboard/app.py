"""The main loop of the dashboard: reads keys and news, and paints. `keys` and the views decide."""

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace
from rich.text import Text

from gossipq_cli.dashboard import keys
from gossipq_cli.dashboard.frame import AROUND, screen
from gossipq_cli.dashboard.painter import Painter, svg
from gossipq_cli.dashboard.recordings import Recording
from gossipq_cli.dashboard.sources import Answered, Asker, News, Player, Recorder, Watch, Wound
from gossipq_cli.dashboard.state import LEAST, Board, Fault, Ui, wanted
from gossipq_cli.dashboard.terminal import Terminal
from gossipq_cli.failures import Failure
from gossipq_cli.files import save_picture
from gossipq_ops.history import History
from gossipq_ops.questions import Act, Ask, Done, Failed, Find, Page, Try
from gossipq_ops.rows import Snapshot

if TYPE_CHECKING:
    from gossipq_client import Client

ESCAPE_S = 0.05  #: a lone Escape is recognised after this pause
TICK_S = 1.0
ASK_AGAIN_S = 2.0  #: details of a record or group are asked for again after this time
LIST_LINES = AROUND + 3  #: lines of the screen around a list


class Options(NamedTuple):
    """The options of the command."""

    #: a function, because it needs an import that should not delay the first screen
    server: Callable[[], str]
    colors: str | None
    recording: Recording | None = None
    record_to: Path | None = None


class App:
    def __init__(self, connect: "Callable[[str], Client]", ui: Ui, options: Options) -> None:
        self._connect, self.ui, self._options = connect, ui, options
        self.board = Board()
        self.board.recorded = options.recording is not None
        self._recorder = Recorder(options.record_to) if options.record_to is not None else None
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._painter = Painter(options.colors)
        self._decoder = keys.Decoder()
        self._asked: dict[Ask, float] = {}
        self._heard_s = time.monotonic()
        self._anew = False
        self._lines: list[Text] = []

    def run(self) -> None:
        """Run until q. The terminal is always restored. KeyboardInterrupt
        and SystemExit pass through.
        """
        with Terminal(self._redraw) as terminal:

            def tell(news: News) -> None:
                self._news.put(news)
                terminal.wake()

            recording = self._options.recording
            source: Watch | Player
            if recording is None:
                source = Watch(self._connect, self._options.server, self.ui.every_s, tell)
            else:
                source = Player(recording, tell)
            asker = Asker(self._connect, tell)
            self._paint(terminal, *terminal.size())  # before other threads need the CPU
            source.start()
            try:
                self._loop(terminal, source, asker)
            except EOFError:
                return
            finally:
                source.stop()
                asker.stop()

    def _redraw(self) -> None:
        self._anew = True

    def _loop(self, terminal: Terminal, source: Watch | Player, asker: Asker) -> None:
        while True:
            width, height = terminal.size()
            self._paint(terminal, width, height)
            self._ask(asker, height)
            typed = terminal.wait(ESCAPE_S if self._decoder.waiting else TICK_S)
            self.board.history.read(asker.read())
            self._hear(source)
            pressed = self._decoder.feed(typed) if typed else self._decoder.flush()
            for key in pressed:
                seen = width >= LEAST[0] and height >= LEAST[1]
                stepped = keys.step(self.ui, key, self.board, max(1, height - LIST_LINES), seen)
                self.ui = stepped.ui
                for deed in stepped.deeds:
                    if isinstance(deed, keys.Quit):
                        return
                    if isinstance(deed, keys.Seek) and isinstance(source, Player):
                        self._seek(deed, source)
                    else:
                        self._do(deed, asker, width)
            source.paused = self.ui.paused
            if isinstance(source, Player):
                source.speed = self.ui.speed
            else:
                source.every_s = self.ui.every_s

    def _paint(self, terminal: Terminal, width: int, height: int) -> None:
        if terminal.behind:
            return
        if self._anew:
            self._anew = False
            self._painter.forget()
        if not self.ui.paused:
            self.board.age_ms = round((time.monotonic() - self._heard_s) * 1_000)
        self._lines = screen(self.board, self.ui, width, height)
        text = self._painter.paint(self._lines)
        if text:
            terminal.write(text)

    def _do(self, deed: keys.Deed, asker: Asker, width: int) -> None:
        if isinstance(deed, keys.Redraw):
            self._anew = True
        elif isinstance(deed, keys.Save):
            self.ui = self._save(deed.path, width)
        elif isinstance(deed, Try):
            asker.ask(deed)
        elif isinstance(deed, Act):
            self.ui = replace(self.ui, notice="asking ...", bad=False)
            asker.ask(deed)

    def _seek(self, deed: keys.Seek, player: Player) -> None:
        if deed.steps:
            player.seek(player.at + deed.steps)
        elif deed.to_ms:
            player.seek(player.number_at(deed.to_ms))
        else:
            player.seek_ms(deed.by_ms)

    def _save(self, path: str, width: int) -> Ui:
        path = path or f"gossipq-top-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            save_picture(str(Path(path).expanduser()), svg(self._lines, width, "gossipq top"))
        except OSError as error:
            return replace(self.ui, notice=f"{error.strerror}: {path}", bad=True)
        except Failure as error:
            return replace(self.ui, notice=error.message, bad=True)
        return replace(self.ui, notice=f"saved {path}", bad=False)

    # --- news

    def _count(self, source: Watch | Player) -> None:
        if isinstance(source, Player):
            self.board.played = source.at + 1, source.count

    def _hear(self, source: Watch | Player) -> None:
        while True:
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                return
            if isinstance(news, Snapshot):
                self._heard_s, self.board.fault = time.monotonic(), None
                self.board.history.add(news)
                if self._recorder is not None:
                    self._recorder.add(news)
                self._count(source)
            elif isinstance(news, Wound):
                self._heard_s, self.board.history = time.monotonic(), History()
                for snapshot in news.snapshots:
                    self.board.history.add(snapshot)
                self._count(source)
            elif isinstance(news, Fault):
                self.board.fault = news
            else:
                self._answered(news)

    def _answered(self, news: Answered) -> None:
        if not isinstance(news.ask, Act | Try):
            self.board.keep(news.ask, news.answer)
            return
        if isinstance(news.ask, Act):
            self._asked.clear()  # the shown details have changed
        if isinstance(news.answer, Done | Failed):
            self.ui = keys.answered(self.ui, news.ask, news.answer)

    def _ask(self, asker: Asker, height: int) -> None:
        """Ask for the data that the view needs and has not received lately."""
        ask = wanted(self.ui, max(1, height - LIST_LINES))
        if ask is None or self.board.recorded or self.ui.paused:
            return
        now_s = time.monotonic()
        again_s = (
            self.ui.every_s
            if isinstance(ask, Page) and self.ui.tail
            else float("inf")
            if isinstance(ask, Find)
            else ASK_AGAIN_S
        )
        if now_s - self._asked.get(ask, float("-inf")) >= again_s and not asker.busy:
            self._asked = {ask: now_s}
            asker.ask(ask)
