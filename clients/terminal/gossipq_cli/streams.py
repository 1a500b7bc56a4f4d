"""Standard streams as a command finds them: closed, in ASCII, or set to non-blocking by another program."""

import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any


class PatientFile(FileIO):
    """Waits where a non-blocking file takes nothing now. Python would drop the text that it does not take,
    and the command would end with exit code 0."""

    def write(self, data: Any, /) -> int:
        while (count := super().write(data)) is None:
            select.select([], [self], [])
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
        BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",  # no answer fails on what a terminal cannot show
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
