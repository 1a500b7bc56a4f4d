"""Log entries as they are sent to another copy: each row, followed by its batch."""

from msgspec import structs

from gossipq.core.raft import Replication
from gossipq.core.storage import Columns, Entry, decode_row, encode_row
from gossipq.errors import ProtocolError
from gossipq.peer_messages import Append


def pack(sent: Replication) -> tuple[Append, list[bytes]]:
    """Return the Append message and the parts of its second frame."""
    sizes: list[int] = []
    pieces: list[bytes] = []
    for entry in sent.entries:
        row = encode_row(entry)
        sizes += len(row), len(entry.body)
        pieces += row, entry.body
    return structs.replace(sent.append, sizes=sizes), pieces


def unpack(message: Append, frame: memoryview, columns: Columns) -> list[Entry]:
    """Return the entries of a message. Batches are checked, chains are not.

    Raises ProtocolError, CorruptLog.
    """
    sizes = message.sizes
    if len(sizes) % 2 or min(sizes, default=0) < 0 or sum(sizes) != len(frame):
        raise ProtocolError(f"the sizes of APPEND say {sum(sizes)} bytes, and {len(frame)} came")
    entries: list[Entry] = []
    at = 0
    for index, (row, body) in enumerate(zip(sizes[::2], sizes[1::2], strict=True), message.prev_index + 1):
        batch = bytes(frame[at + row : at + row + body])
        entries.append(decode_row(index, bytes(frame[at : at + row]), batch))
        if batch and columns.check(batch) != entries[-1].body_crc:
            raise ProtocolError(f"entry {index} came with another batch than its own")
        at += row + body
    return entries
