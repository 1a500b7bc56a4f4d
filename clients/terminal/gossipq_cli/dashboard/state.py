"""The Ui: the user's choices, replaced only by `keys.step`. The Board: all data for views."""

from typing import NamedTuple

import msgspec

from gossipq_cli.dashboard.table import Sorting
from gossipq_ops.history import History
from gossipq_ops.questions import Act, Answer, Ask, Find, Open, Page, Runs, Stand, Subject, Work

RATES_S = (0.5, 1.0, 2.0, 5.0, 10.0)
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
VIEWS = ("overview", "nodes", "topics", "groups", "clients", "messages", "growth")
JOBS = "jobs"  #: third name of the path to the jobs of a group; a fourth one is a schedule
LEAST = (60, 20)  #: on smaller screens only one line is shown


class Look(msgspec.Struct, frozen=True):
    """The state of one list."""

    chosen: str = ""  #: key of the row under the pointer
    at: int = 0  #: last index of that row
    filter: str = ""
    sorting: Sorting | None = None  #: None = the view's default


class Menu(msgspec.Struct, frozen=True):
    """The verbs of a row, while the user chooses."""

    subject: Subject
    at: int = 0


class Prompt(msgspec.Struct, frozen=True):
    """A line that is being typed, or a question that waits for a yes."""

    #: "filter", "command", "search", "verb" (text for `then`), "try" (waits for
    #: the cluster), "confirm"
    kind: str
    label: str
    text: str = ""
    then: Act | None = None


class Ui(msgspec.Struct, frozen=True):
    view: str = "overview"
    path: tuple[str, ...] = ()  #: the opened page
    looks: dict[str, Look] = {}  #: by place
    paused: bool = False
    help: bool = False
    help_at: int = 0  #: first visible line of the help
    prompt: Prompt | None = None
    menu: Menu | None = None
    notice: str = ""
    bad: bool = False  #: True if the notice is an error
    every_s: float = 1.0
    speed: float = 1.0  #: of a replay
    graph: str = "block"
    topic: str = ""  #: of the messages view
    partition: int = -1
    tail: bool = True
    back: int = 0  #: records before the end, if not at the tail
    find: str = ""

    @property
    def place(self) -> str:
        return "/".join((self.view, *self.path))

    @property
    def look(self) -> Look:
        return self.looks.get(self.place) or Look()

    def looking(self, **changed: object) -> "Ui":
        look = msgspec.structs.replace(self.look, **changed)
        return msgspec.structs.replace(self, looks={**self.looks, self.place: look})


class Fault(NamedTuple):
    """Why there is no newer snapshot."""

    text: str
    hint: str = ""
    state: str = ""  #: the health word for it; "" = none


class Board:
    """The snapshots, the last answers, and the last error."""

    def __init__(self, history: History | None = None) -> None:
        self.history = history or History()
        self.answers: dict[Ask, Answer] = {}
        self.age_ms = 0  #: of the last snapshot
        self.fault: Fault | None = None
        self.played = 0, 0  #: number of the shown snapshot, and of all, in a replay
        self.recorded = False  #: True in a replay: questions are impossible

    def keep(self, ask: Ask, answer: Answer) -> None:
        """Keep the newest answer of each kind."""
        for old in [old for old in self.answers if type(old) is type(ask)]:
            del self.answers[old]
        self.answers[ask] = answer


def wanted(ui: Ui, lines: int) -> Ask | None:
    """Return the question for data that the view needs from a node.
    `lines` is the length of lists.
    """
    if ui.view == "messages" and ui.path:
        return Open(ui.path[0])
    if ui.view == "messages" and ui.topic:
        if ui.find:
            return Find(ui.topic, ui.find)
        return Page(ui.topic, ui.partition, 0 if ui.tail else ui.back, max(1, lines))
    if ui.view == "groups" and len(ui.path) == 2:
        return Stand(*ui.path)
    if ui.view == "groups" and len(ui.path) == 3:
        return Work(ui.path[0], ui.path[1])
    if ui.view == "groups" and len(ui.path) == 4:
        return Runs(ui.path[0], ui.path[1], ui.path[3])
    return None


STALE_INTERVALS = 2.5
STALE_MS = 2_500


def stale(board: Board, ui: Ui) -> bool:
    """True if the node has not answered for too long."""
    return (
        bool(board.history.count)
        and not board.recorded
        and board.age_ms > max(STALE_MS, STALE_INTERVALS * 1_000 * ui.every_s)
    )
