"""Several processes of one application: started, started again when they die or their files change, ended
together."""

import glob
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from types import FrameType

from gossipq_client.app.application import open_log, parse

POLL_S = 0.2
RESTART_S_FIRST, RESTART_S_MAX = 0.5, 10.0
SETTLED_S = 60.0  #: who lived that long is started again at once
RECYCLED = 83  #: exit code of a process that has reached max_records or max_memory
HOPELESS = (2, 78)  #: exit codes for which another start is useless: usage, configuration

log = logging.getLogger("gossipq_client")


def source_directory(target: str) -> Path:
    """The directory with the files of "app:mq": that of its package, or of its module."""
    top = parse(target)[0].split(".")[0]
    package = Path.cwd() / top
    return package if package.is_dir() else Path.cwd()


#: path of a file -> (time of its last change in ns, size in bytes)
Files = dict[str, tuple[int, int]]


def snapshot(directory: Path) -> Files:
    """All Python files below, hidden directories and virtual environments left out."""
    found: Files = {}
    for place, directories, files in os.walk(directory):
        directories[:] = [
            name for name in directories if not name.startswith(".") and not _is_environment(place, name)
        ]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                try:
                    state = os.stat(path)
                except FileNotFoundError:  # an editor at work
                    continue
                found[path] = (state.st_mtime_ns, state.st_size)
    return found


def remove_bytecode(paths: Iterable[str]) -> None:
    """Removes the compiled code of these source files.

    Python takes compiled code for fresh while the size of its source and the whole second of its
    change are the same. Of two changes within a second that keep the size, it would run the first.
    """
    for path in paths:
        compiled = Path(cache_from_source(path))
        # of every level of optimization
        for found in compiled.parent.glob(f"{glob.escape(Path(path).stem)}.*.pyc"):
            try:
                found.unlink(missing_ok=True)
            except OSError as error:  # another user's: this user's children have not written it
                log.warning("compiled code cannot be removed: %s", error)


def _is_environment(place: str, name: str) -> bool:
    return name == "__pycache__" or os.path.exists(os.path.join(place, name, "pyvenv.cfg"))


class Member:
    """One process, over all its lives. It stands in a session of its own, so that a terminal's Ctrl-C reaches
    the parent alone; the end of its standard input tells it that the parent is gone."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None  #: it ended, and stays so
        self._started_s = self._pause_s = self._again_s = 0.0
        self._told = 0  #: the last signal

    def look(self, now_s: float) -> None:
        """Starts it, or notes its end."""
        if self.process is None:
            if self.code is None and now_s >= self._again_s:
                self._started_s = now_s
                self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
            return
        code = self.process.poll()
        if code is None:
            return
        self._bury()
        if code == 0 or code in HOPELESS:
            self.code = code
            return
        if code == RECYCLED:
            self._again_s = now_s
            return
        lived_s = now_s - self._started_s
        self._pause_s = (
            RESTART_S_FIRST
            if lived_s >= SETTLED_S
            else min(2 * self._pause_s or RESTART_S_FIRST, RESTART_S_MAX)
        )
        self._again_s = now_s + self._pause_s
        log.warning("a process ended with code %d; starts again in %.1f s", code, self._pause_s)

    def tell(self, number: int) -> None:
        self._told = number
        if self.process is not None:
            self.process.send_signal(number)

    def end(self) -> int:
        """Waits for its end; its exit code, 1 when a signal ended it. The SIGTERM that it was told ends well
        who had not begun."""
        if self.process is not None:
            self.code = self.process.wait()
            self._bury()
            if self.code == RECYCLED or self.code == -signal.SIGTERM == -self._told:
                self.code = 0
        return 1 if self.code is not None and self.code < 0 else self.code or 0

    def _bury(self) -> None:
        assert self.process is not None, "it ran"
        assert self.process.stdin is not None, "started with a pipe"
        self.process.stdin.close()
        self.process = None


class Fleet:
    def __init__(self, command: Sequence[str], processes: int, watched: Path | None) -> None:
        self._command, self._processes, self._watched = command, processes, watched
        self._signals = 0

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C, which each process is told once; a second one ends them at once. The exit
        code."""
        open_log()
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = 0
            for files in self._generations():
                code = self._run_members(files)
            return code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _generations(self) -> Iterator[Files]:
        """The files as they are, once; with a watched directory again each time they have changed."""
        yield (files := self._files())
        while self._watched is not None and not self._signals:
            before, files = files, self._files()
            remove_bytecode(path for path, state in files.items() if before.get(path) != state)
            yield files

    def _files(self) -> Files:
        return {} if self._watched is None else snapshot(self._watched)

    def _run_members(self, files: Files) -> int:
        """Until they have ended, a signal has come, or the files are others."""
        members = [Member(self._command) for _ in range(self._processes)]
        while not self._signals:
            for member in members:
                member.look(time.monotonic())
            codes = [member.code for member in members]
            if self._watched is None and (
                all(code is not None for code in codes) or any(code in HOPELESS for code in codes)
            ):
                break
            time.sleep(POLL_S)
            if self._watched is not None and self._files() != files:
                log.info("files have changed: starting again, once running handlers have ended")
                break
        return self._end(members)

    def _end(self, members: list[Member]) -> int:
        for member in members:
            member.tell(signal.SIGTERM)
        while any(member.process is not None and member.process.poll() is None for member in members):
            if self._signals > 1:
                for member in members:
                    member.tell(signal.SIGKILL)
            time.sleep(POLL_S / 4)
        return max(member.end() for member in members)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
