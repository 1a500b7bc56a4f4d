"""Names of single records: the text of a ref, and the fields of a request about one record."""

from typing import NamedTuple
from zlib import crc32

from gossipq.errors import BadRequest
from gossipq.types import Offset, partition_key
from gossipq.values import Ref, TopicInfo
from gossipq.wire.batch import id_hash
from gossipq_client.values import inputs

_HINT = 'a ref is "orders/0/17", or "orders/0/@210.3" while the record is scheduled'


def text(topic: str, number: int, offset: Offset, entry: int = 0, record: int = 0) -> str:
    """The ref of a record in partition `number`. It contains the offset, or the log entry and
    record before the offset is known; "" if neither is known.
    """
    if offset >= 0:
        return f"{topic}/{number}/{offset}"
    return f"{topic}/{number}/@{entry}.{record}" if entry else ""


def text_of(topic: str, ref: Ref) -> str:
    return ref.text(topic)


def is_virtual(info: TopicInfo) -> BadRequest:
    """The error for a virtual topic where records are needed."""
    return BadRequest(
        f"topic {info.name!r} is virtual", hint=f"its records are in {', '.join(info.config.virtual)}"
    )


class Address(NamedTuple):
    """One record as the user named it: by offset, by (log entry, record), or by id in a partition
    or anywhere in the topic.
    """

    topic: str
    number: int | None
    offset: Offset = -1
    entry: int = 0
    record: int = 0
    id: bytes = b""

    def ref(self, topic_id: int, number: int) -> Ref:
        return Ref(partition_key(topic_id, number), self.offset, self.entry, self.record, id_hash(self.id))

    def numbers(self, partitions: int) -> list[int]:
        """Partitions to ask, the likeliest first: without a key, the id has chosen the
        partition. Raises BadRequest.
        """
        if self.number is None:
            likely = crc32(self.id) % partitions
            return [likely, *(number for number in range(partitions) if number != likely)]
        if self.number >= partitions:
            raise BadRequest(f"topic {self.topic!r} has partitions 0 to {partitions - 1}, not {self.number}")
        return [self.number]


def address(name: str, partition: int | None, offset: int | None, id: inputs.Value | None) -> Address:
    """The record that a ref, (topic, partition, offset), or topic and id= name. Raises BadRequest
    unless exactly one record is named.
    """
    if "/" in inputs.text_of(name, "record") and (partition, offset, id) == (None, None, None):
        return parse(name)
    if (
        not name
        or "/" in name
        or (offset is None) == (id is None)
        or (offset is not None and partition is None)
    ):
        raise BadRequest(
            f"{name!r} does not name exactly one record",
            hint='pass "orders/0/17", ("orders", 0, 17) or ("orders", id="order-17")',
        )
    number = None if partition is None else inputs.whole(partition, "partition", 0, 0xFFFF)
    if id is not None:
        return Address(name, number, id=inputs.id_bytes(id))
    assert offset is not None, "an offset or an id"
    return Address(name, number, inputs.whole(offset, "offset", 0, 2**63 - 1))


def parse(ref: str) -> Address:
    """Raises BadRequest."""
    topic, _, rest = inputs.text_of(ref, "ref").partition("/")
    number, _, place = rest.partition("/")
    entry, _, record = place.removeprefix("@").partition(".")
    numbers = (number, entry, record) if place.startswith("@") else (number, place)
    if not topic or not all(each.isascii() and each.isdigit() and len(each) < 19 for each in numbers):
        raise BadRequest(f"{ref!r} is no ref", hint=_HINT)
    if place.startswith("@"):
        return Address(topic, int(number), entry=int(entry), record=int(record))
    return Address(topic, int(number), int(place))
