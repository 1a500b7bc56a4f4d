"""Standard streams as a command finds them: closed, in ASCII, or set to non-blocking by another program."""

import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any


class PatientFile(FileIO):
    """Waits where a non-blocking file takes nothing now: Python would drop the text that it does not take,
    and the command would end with exit code 0. An error is raised once and ends the command. What is written
    after it is dropped: the rest of a buffer would fail again as Python exits, with exit code 120."""

    _failed = False

    def write(self, data: Any, /) -> int:
        if self._failed:
            return len(data)
        try:
            while (count := super().write(data)) is None:
                select.select([], [self], [])
        except OSError:
            self._failed = True
            raise
        return count


class UnbufferedWriter(BufferedWriter):
    """For `python -u`. Without a buffer, the text layer would drop what a file takes only in part."""

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.flush()
        return count


def prepare() -> None:
    """Call it once, before the command line is read."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # else the program's own connections would take the place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # takes the lowest number, which is its
        elif mode == "w" and isinstance(stream := getattr(sys, name), TextIOWrapper):
            setattr(sys, name, _patient(stream))


def _patient(stream: TextIOWrapper) -> TextIOWrapper:
    stream.flush()
    raw = PatientFile(stream.fileno(), "w", closefd=False)
    return TextIOWrapper(
        UnbufferedWriter(raw) if stream.write_through else BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",  # no answer fails on what a terminal cannot show
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
