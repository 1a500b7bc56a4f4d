"""The table of verbs: each message has its row, and each room serves exactly the verbs of its rows."""

from core.harness import FakeWorker
from gossipq import verbs
from gossipq.messages import MESSAGES
from gossipq.peer_messages import Append, Bundle
from gossipq.types import META_SHARD
from gossipq.verbs import LEADER_ROOMS, OF_NODES, ROOMS, SETTLES, SPEAKERS, VERBS, Room, served_by

OF_NODES_NUMBERS = range(96, 128)  #: PROTOCOL.md section 12


def test_every_message_has_one_row() -> None:
    assert set(VERBS) == set(MESSAGES.values())
    assert len(verbs._ROWS) == len(VERBS), "no message has two"


def test_numbers_from_96_to_127_are_messages_of_nodes() -> None:
    assert {kind for verb, kind in MESSAGES.items() if verb in OF_NODES_NUMBERS} == OF_NODES


def test_a_copy_names_itself_in_each_message_of_copies() -> None:
    assert SPEAKERS.keys() == served_by(Room.COPIES)
    for kind, field in SPEAKERS.items():
        assert field in kind.__struct_fields__


def test_who_settles_reads_nothing() -> None:
    assert {ROOMS[kind] for kind in SETTLES} == {Room.SESSION, Room.CONSUMING}
    assert all(VERBS[kind].need in (verbs.FREE, verbs.OWN) for kind in SETTLES)
    assert Append not in SETTLES
    assert ROOMS[Bundle] is Room.PROCESS


def test_each_room_of_a_leader_serves_the_verbs_of_its_rows() -> None:
    leader = FakeWorker().shards[META_SHARD].leadership
    assert leader is not None
    assert leader._rooms.keys() | {Room.BACKUPS} == LEADER_ROOMS
    for room in (Room.CONSUMING, Room.MENDING, Room.SCHEDULING, Room.JOBS, Room.EXPLAINING, Room.REGISTER):
        assert leader._rooms[room]._handlers.keys() == served_by(room), room.name  # type: ignore[attr-defined]
