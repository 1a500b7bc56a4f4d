"""The publish window of a connection is enforced where messages come in, and costs the others nothing."""

from collections import deque
from collections.abc import Iterable

import pytest

from gossipq import limits
from gossipq.types import Origin
from gossipq.values import Member
from gossipq_node.actors.intake import Intake
from gossipq_node.ports import Incoming

ADA, BOB, PEER = (b"c", b"ada"), (b"c", b"bob"), (b"p", b"n2")


class Mail:
    """A mailbox with this much in it."""

    def __init__(self) -> None:
        self.there: deque[Incoming] = deque()
        self.ended: list[Origin] = []

    def add(self, origin: Origin, size: int, count: int = 1) -> None:
        self.there += [Incoming(origin, b"", bytes(size)) for _ in range(count)]

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        found, room = list[Incoming](), limits.TURN_BYTES_MAX
        while self.there and room > 0 and len(found) < limits.TURN_MESSAGES_MAX:
            found.append(self.there.popleft())
            room -= len(found[-1].batch)
        return found

    def from_client(self, origin: Origin) -> bool:
        return origin[0] != b"p"

    def from_peer(self, origin: Origin) -> bool:
        return origin[0] == b"p"

    def admit(self, members: Iterable[Member]) -> None: ...

    def encrypted(self, origin: Origin) -> bool:
        return True

    @property
    def turned_away(self) -> int:
        return 0

    def address(self, origin: Origin) -> str:
        raise AssertionError("nobody asks")

    def crowded(self, origin: Origin) -> bool:
        return False

    def moving(self, origin: Origin) -> bool:
        return False

    def answerer(self, origin: Origin) -> str:
        return ""

    def gone(self) -> list[Origin]:
        ended, self.ended = self.ended, []
        return ended


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Mail:
    monkeypatch.setattr(limits, "TURN_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "BATCH_BYTES_HARD_MAX", 40)
    return Mail()


def turns(intake: Intake, mail: Mail) -> tuple[list[list[Incoming]], list[Incoming]]:
    """The messages of each turn until none waits, and all refused ones."""
    taken, refused = [], []
    while True:
        now, no = intake.take(mail.receive(0))
        taken.append(now)
        refused += no
        if not intake.waiting:
            return taken, refused


def test_what_a_turn_can_take_goes_through_as_it_came(mail: Mail) -> None:
    mail.add(ADA, 30, 3)
    arrived = mail.receive(0)
    intake = Intake(mail, 200)
    assert intake.take(arrived) == (arrived, [])
    assert not intake.waiting


def test_a_connection_may_have_its_window_and_what_is_beyond_is_refused(mail: Mail) -> None:
    mail.add(ADA, 40, 20)
    mail.add(BOB, 40, 2)
    taken, refused = turns(Intake(mail, 200), mail)
    assert {message.origin for message in refused} == {ADA}
    assert len(refused) == 14  # 240 bytes are the window and one batch
    assert [len(each) for each in taken] == [3, 3, 2]
    assert sum(message.origin == BOB for each in taken for message in each) == 2


def test_all_connections_together_are_bounded_too(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INTAKE_BYTES_MAX", 320)
    for number in range(10):
        mail.add((b"c", b"%d" % number), 40, 5)
    taken, refused = turns(Intake(mail, 200), mail)
    assert (sum(map(len, taken)), len(refused)) == (8, 42)


def test_other_nodes_and_small_messages_are_never_refused(mail: Mail) -> None:
    mail.add(ADA, 40, 20)
    mail.add(PEER, 90, 20)
    mail.add(ADA, 0, 50)
    taken, refused = turns(Intake(mail, 200), mail)
    assert {message.origin for message in refused} == {ADA}
    assert len(refused) == 14, "of those with a batch, which nobody keeps any more"
    assert not any(message.batch for message in refused)
    assert {message.origin for message in taken[0]} == {PEER}
    assert sum(message.origin == PEER for each in taken for message in each) == 20
    assert sum(not message.batch for each in taken for message in each) == 50


def test_a_connection_has_ended_when_nothing_of_it_waits(mail: Mail) -> None:
    mail.add(ADA, 40, 5)
    intake = Intake(mail, 200)
    intake.take(mail.receive(0))
    mail.ended = [ADA, BOB]
    assert intake.gone() == [BOB]
    intake.take([])
    assert intake.gone() == [ADA]
    assert intake.gone() == []
