"""Positions of a stream in the ids of its events.

An id has the next offset of each partition, by name and id of its topic, as in
`orders@12/0:5,1:7;news@14/0:2`. A time would not do: records have their producer's clock, and
partitions are independent.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gossipq.errors import BadRequest, UnknownTopic
from gossipq.types import partition_of
from gossipq.values import TopicInfo
from gossipq_client.aio import Client
from gossipq_client.answers import Span
from gossipq_client.values import inputs

TEXT_BYTES_MAX = 32_000  #: enough for the largest topic, within the gateway's limit of headers
NOTHING = "-"  #: for no topic yet, because an empty id does not count
_TOPIC = re.compile(r"([A-Za-z0-9._-]{1,255})@(\d{1,18})/(\d{1,5}:\d{1,18}(?:,\d{1,5}:\d{1,18})*)", re.ASCII)
_SHOWN = 60  #: characters of a wrong id in an error
_ANEW = "reconnect without Last-Event-ID, and set start="


class Place(NamedTuple):
    """The position in one topic: its id, and the next offset of each partition."""

    topic_id: int
    offsets: dict[int, int]

    def text(self, topic: str) -> str:
        return f"{topic}@{self.topic_id}/" + ",".join(f"{at}:{next_}" for at, next_ in self.offsets.items())


class Positions:
    """The positions of one stream, which become the id of its next event."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        """Raises BadRequest if they exceed an id's size."""
        self._places = dict(places)
        self._texts = {topic: place.text(topic) for topic, place in places.items()}
        self._join()

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        """Return the offsets for `subscribe`."""
        return {topic: dict(place.offsets) for topic, place in self._places.items()}

    def told(self, topic: str, topic_id: int, partition: int, offset: int) -> None:
        """Move a partition behind a sent record. Raises BadRequest if the id gets too long."""
        place = self._places.get(topic)
        # new, or created again: partitions without an entry are at "first"
        if place is None or place.topic_id != topic_id:
            place = self._places[topic] = Place(topic_id, {})
        place.offsets[partition] = offset + 1
        self._texts[topic] = place.text(topic)
        self._join()

    def _join(self) -> None:
        self.text = ";".join(self._texts.values()) or NOTHING
        check_size(len(self.text))


def check_size(size: int) -> None:
    """Raises BadRequest."""
    if size > TEXT_BYTES_MAX:
        raise BadRequest(
            f"the positions of this stream take {size} bytes, and the id of an event has {TEXT_BYTES_MAX}",
            hint="name fewer topics for one stream, or consume in a group, which keeps its own positions",
        )


def parse(text: str) -> dict[str, Place]:
    """Parse an id. Raises BadRequest."""
    if len(text) > TEXT_BYTES_MAX:
        raise BadRequest(f"Last-Event-ID of {len(text)} bytes; {TEXT_BYTES_MAX} are allowed", hint=_ANEW)
    found: dict[str, Place] = {}
    for part in text.split(";") if text != NOTHING else ():
        matched = _TOPIC.fullmatch(part)
        if matched is None or matched[1] in found:
            raise _foreign(text, f"{_cut(part)!r} is not TOPIC@ID/PARTITION:OFFSET,...")
        pairs = [pair.split(":") for pair in matched[3].split(",")]
        offsets = {int(number): int(offset) for number, offset in pairs}
        if len(offsets) < len(pairs):
            raise _foreign(text, f"it names a partition of {_cut(matched[1])} twice")
        found[matched[1]] = Place(int(matched[2]), offsets)
    return found


async def begin(mq: Client, topics: Sequence[str], start: inputs.Start) -> Positions:
    """Return the positions of a stream that begins at `start` in all existing partitions.

    Raises UnknownTopic, OffsetOutOfRange, BadRequest.
    """
    found = await _found(mq, topics, start)
    return Positions(
        {
            info.name: Place(info.id, {number: span.first for number, span in spans.items()})
            for info, spans in found
        }
    )


async def go_on(mq: Client, topics: Sequence[str], last: str) -> Positions:
    """Return the positions of a stream that continues behind the event with this id.

    Partitions and topics that it does not name begin at their first record, and so do topics that
    were created again and ranges that retention removed. Raises UnknownTopic, BadRequest.
    """
    said, places = parse(last), dict[str, Place]()
    for info, spans in await _found(mq, topics, "first"):
        place = said.pop(info.name, None)
        named = place.offsets if place is not None and place.topic_id == info.id else {}
        for number, offset in named.items():
            if number not in spans:
                raise _foreign(last, f"{info.name} has {len(spans)} partitions")
            if offset > spans[number].end:
                raise _foreign(last, f"partition {number} of {info.name} ends at {spans[number].end}")
        offsets = {number: max(span.first, named.get(number, 0)) for number, span in spans.items()}
        places[info.name] = Place(info.id, offsets)
    for topic in said:  # a topic that matched a pattern was removed
        if not inputs.fits(topic, topics):
            raise _foreign(last, f"this stream is not of {_cut(topic)}")
    return Positions(places)


async def _found(
    mq: Client, names: Sequence[str], start: inputs.Start
) -> list[tuple[TopicInfo, dict[int, Span]]]:
    """Return existing topics, and the start of a reader in each partition.

    Raises UnknownTopic, OffsetOutOfRange, BadRequest.
    """
    pages = await asyncio.gather(*(mq.admin.raw.topics(name) for name in names))
    infos = {info.name: info for page in pages for info in page if not info.config.virtual}
    check_size(sum(len(f"{name}@/") + 4 * len(info.shards) for name, info in infos.items()))
    for name in names:
        if "*" not in name and name not in infos:
            await mq.topic(name).positions()  # raises the error for a missing or virtual topic
    found: list[tuple[TopicInfo, dict[int, Span]]] = []
    for name, info in sorted(infos.items()):
        try:
            spans = await mq.admin.raw.spans([info], start)
        except UnknownTopic:  # removed a moment ago
            if name in names:
                raise
        else:
            found.append((info, {partition_of(key): span for key, span in sorted(spans.items())}))
    return found


def _foreign(last: str, why: str) -> BadRequest:
    return BadRequest(f"Last-Event-ID {_cut(last)} is not from this stream: {why}", hint=_ANEW)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
