"""The memory of this process."""

import os
import sys


def resident_bytes() -> int | None:
    """Return the memory of this process: on Linux what it uses now, on macOS the most that it ever used.

    None: the system does not say.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):
        pass
    if sys.platform != "darwin":
        return None
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss
