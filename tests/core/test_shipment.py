"""What travels to another copy is what the replica said, field for field."""

from gossipq.core.copies import shipment
from gossipq.core.raft import Replication
from gossipq.core.storage import log
from gossipq.peer_messages import Append
from gossipq.wire import batch as batches
from gossipq.wire.opener import Opener


def test_an_append_keeps_every_field_and_its_entries_come_back() -> None:
    body = bytes(batches.seal([b"x"]))
    columns = Opener()
    said = Append("a.1", 7, 3, 5, [], 11, b"c" * 8, 1_700_000_000_000, True, 3)
    assert all(getattr(said, name) for name in said.__struct_fields__ if name != "sizes"), (
        "or a field could get lost unseen"
    )
    entries = [log.seal(b"c" * 8, 8, 3, 12, log.NOOP, b"", b"", 0)]
    entries.append(log.seal(entries[0].chain, 9, 3, 13, log.PUBLISH, b"payload", body, columns.crc(body)))
    sent, pieces = shipment.pack(Replication("b.1", said, entries))
    for name in said.__struct_fields__:
        if name != "sizes":
            assert getattr(sent, name) == getattr(said, name), name
    assert shipment.unpack(sent, memoryview(b"".join(pieces)), columns) == entries
