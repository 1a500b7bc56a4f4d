"""Progress of the demo on stderr.

The overview of `gossipq top` on a large terminal, bars on a small one, a line a second
in a pipe, nothing with -q.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gossipq_cli.options import Choices
from gossipq_cli.output import is_terminal

LINE_EVERY_S = 1.0
COUNTS = ("published", "confirmed", "delivered")


class Screen(Protocol):
    def show(self, published: int, confirmed: int, delivered: int) -> None: ...
    def say(self, text: str) -> None: ...


class Silent:
    def show(self, published: int, confirmed: int, delivered: int) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Lines:
    """For logs and pipes."""

    def __init__(self, total: int) -> None:
        self.total, self.started, self.next_s = total, time.monotonic(), LINE_EVERY_S

    def show(self, published: int, confirmed: int, delivered: int) -> None:
        seconds = time.monotonic() - self.started
        if seconds >= self.next_s:
            self.next_s = seconds + LINE_EVERY_S
            counts = zip(COUNTS, (published, confirmed, delivered), strict=True)
            self.say(
                f"{seconds:5.1f} s  "
                + "  ".join(f"{name} {count:,}" for name, count in counts)
                + f"  of {self.total:,}"
            )

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def bars(total: int, color: bool) -> Iterator[Screen]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True, no_color=True if not color else None)
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=10) as progress:
        tasks = [progress.add_task(name, total=total) for name in COUNTS]

        class Bars:
            def show(self, *counts: int) -> None:
                for task, count in zip(tasks, counts, strict=True):
                    progress.update(task, completed=count)

            def say(self, text: str) -> None:
                progress.console.print(text, highlight=False)

        yield Bars()


@contextmanager
def screen(choices: Choices, total: int, servers: list[str]) -> Iterator[Screen]:
    if choices.quiet:
        yield Silent()
    elif _has_room(choices):
        from gossipq_cli.demo.overview import overview

        with overview(servers, total, choices.color) as drawn:
            yield drawn
    elif is_terminal(sys.stderr):
        with bars(total, choices.color) as shown:
            yield shown
    else:
        yield Lines(total)


def _has_room(choices: Choices) -> bool:
    """True for a terminal that is large enough for the overview."""
    from gossipq_cli.demo.overview import LEAST

    if choices.output != "table" or not all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        return False
    columns, lines = shutil.get_terminal_size()
    return columns >= LEAST[0] and lines >= LEAST[1]
