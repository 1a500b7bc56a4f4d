"""Whether processes run, by /proc. One that is dead and not yet waited for does not run."""

from pathlib import Path

DEAD = "ZX"


def _state(pid: int | str) -> tuple[str, int]:
    """State and process group. A process that is gone is dead."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return DEAD[0], 0
    return state, int(group)


def lives(pid: int) -> bool:
    return _state(pid)[0] not in DEAD


def group_lives(group: int) -> bool:
    """Whether a process of the group runs."""
    found = (_state(path.name) for path in Path("/proc").glob("[0-9]*"))
    return any(its_group == group and state not in DEAD for state, its_group in found)
