"""The dashboard without a terminal: one screen as text, JSON or a picture."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gossipq_cli.dashboard.frame import AROUND
from gossipq_cli.dashboard.state import Board, Ui, wanted
from gossipq_ops.history import History
from gossipq_ops.questions import Failed
from gossipq_ops.rows import Snapshot

if TYPE_CHECKING:
    from gossipq_client import Client


def recorded(snapshots: Sequence[Snapshot]) -> Board:
    """Return the board at the end of a recording."""
    board = Board(History())
    board.recorded = True
    for snapshot in snapshots:
        board.history.add(snapshot)
    return board


def asked(connect: "Callable[[str], Client]", server: str, ui: Ui, lines: int, rates: bool = True) -> Board:
    """Ask for two snapshots, because rates need two, and for the view's
    data. Raises GossipqError.
    """
    from gossipq_cli.means import means
    from gossipq_ops import gather
    from gossipq_ops.answers import Answerer

    board = Board(History())
    board.history.add(gather.once(connect, server))
    if rates:
        time.sleep(ui.every_s)
        board.history.add(gather.once(connect, server))
    ask = wanted(ui, max(1, lines - AROUND - 3))
    if ask is not None:
        with connect("") as mq:
            board.keep(ask, Answerer(mq, means(connect)).answer(ask))
    return board


def trouble(board: Board) -> Failed | None:
    """Return the answer if it is an error."""
    return next((answer for answer in board.answers.values() if isinstance(answer, Failed)), None)
