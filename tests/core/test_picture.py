"""The picture of roles in ARCHITECTURE.md equals the table in the code."""

from pathlib import Path

from gossipq.core.raft.replica import TRANSITIONS

ARCHITECTURE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"


def test_the_picture_is_the_table() -> None:
    width = max(len(before) for before, _ in TRANSITIONS)
    drawn = [
        f"    {before:<{width}}  ->  {after:<{width}}  {why}" for (before, after), why in TRANSITIONS.items()
    ]
    assert "\n".join(drawn) in ARCHITECTURE.read_text()
