"""A progress line on stderr, on a terminal only, which makes room for lines on stdout."""

import sys
import time

from gossipq_cli.output import is_terminal

EVERY_S = 0.1
WIDTH = 24
CLEAR = "\r\x1b[K"


class Progress:
    """Call `progress(done, total)` at any time, `clear()` before output,
    and `close()` at the end.
    """

    def __init__(self, what: str, quiet: bool = False) -> None:
        self.what, self.on = what, not quiet and is_terminal(sys.stderr)
        self._drawn = False
        self._began_s = time.monotonic()
        self._next_s = self._began_s + EVERY_S

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if not self.on or now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        share = min(1.0, done / total) if total else 1.0
        bar = ("#" * round(share * WIDTH)).ljust(WIDTH, ".")
        rate = done / (now_s - self._began_s)
        sys.stderr.write(f"{CLEAR}[{bar}] {share:4.0%}  {done:,} of {total:,} {self.what}, {rate:,.0f}/s")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            self._drawn = False

    close = clear
