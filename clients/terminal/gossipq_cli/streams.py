"""Repairs standard streams that are closed, ASCII, or non-blocking because of another program."""

import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any


class PatientFile(FileIO):
    """A file that waits while a non-blocking file is full. Python would drop text with exit code 0.

    An error is raised once and ends the command. Later text is dropped, because flushing it at exit
    would fail again, with exit code 120.
    """

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
    """For `python -u`: without a buffer, a partial write would lose text."""

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.flush()
        return count


def prepare() -> None:
    """Prepare the streams. Call it once, before the command line is parsed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # otherwise a connection of the program would get the number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # takes the lowest number, which is its
        elif mode == "w" and isinstance(stream := getattr(sys, name), TextIOWrapper):
            setattr(sys, name, _patient(stream))


def _patient(stream: TextIOWrapper) -> TextIOWrapper:
    stream.flush()
    raw = PatientFile(stream.fileno(), "w", closefd=False)
    return TextIOWrapper(
        UnbufferedWriter(raw) if stream.write_through else BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",  # printing never fails because of the terminal's encoding
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
