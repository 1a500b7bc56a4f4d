"""The pictures of docs/operate/top.md and of the README, drawn from a recording of a real cluster.

Run as a program it draws them anew."""

from collections.abc import Iterator
from pathlib import Path

from gossipq_cli.dashboard.frame import screen
from gossipq_cli.dashboard.painter import svg
from gossipq_cli.dashboard.state import Ui
from gossipq_cli.dashboard.still import recorded
from gossipq_ops.rows import Snapshot

HOME = Path(__file__).resolve().parents[3]
FOLDER = HOME / "docs" / "pictures"
SIZE = 120, 36
PICTURES = {
    "top-overview": Ui(),
    "top-topic": Ui(view="topics", path=("orders",)),
    "top-growth": Ui(view="growth"),
}


def pictures(snapshots: list[Snapshot]) -> Iterator[tuple[Path, str]]:
    """Where each lies, and what is in it."""
    board = recorded(snapshots)
    board.recorded = False  # the mark of a recording would only puzzle
    for name, ui in PICTURES.items():
        yield FOLDER / f"{name}.svg", svg(screen(board, ui, *SIZE), SIZE[0], "gossipq top")


if __name__ == "__main__":
    import scene

    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in pictures(scene.kept()):
        path.write_text(text, "utf-8")
