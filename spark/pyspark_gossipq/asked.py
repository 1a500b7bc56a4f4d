"""Options of a reader: Kafka's names and ours, checked in one place for every way of reading."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from gossipq.errors import BadRequest
from gossipq.wire import export
from gossipq.wire.times import micros, seconds

EARLIEST, LATEST = -2, -1  #: as Kafka writes them in JSON
Offsets = dict[str, dict[str, int]]  #: topic -> partition as text -> offset

#: option -> field of Asked
NAMES = {
    "path": "path",
    "servers": "servers",
    "dataSet": "data_set",
    "topics": "topics",
    "subscribe": "topics",
    "topicsPattern": "pattern",
    "subscribePattern": "pattern",
    "assign": "assign",
    "partitions": "partitions",
    "ranges": "ranges",
    "startingOffsets": "starting",
    "endingOffsets": "ending",
    "startingOffsetsByTimestamp": "starting_times",
    "startingTimestamp": "starting_time",
    "endingTimestamp": "ending_time",
    "failOnDataLoss": "fail_on_data_loss",
    "maxOffsetsPerTrigger": "offsets_per_trigger",
    "minOffsetsPerTrigger": "offsets_min",
    "maxTriggerDelay": "trigger_delay_s",
    "maxRecordsPerPartition": "records_per_task",
    "minPartitions": "tasks_min",
    "verify": "verify",
    "asOf": "as_of_us",
    "group": "group",
    "kafkaSchema": "kafka_schema",
}
FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class Bound:
    """Begin or end of a read: earliest, latest, or an offset for each named partition."""

    default: int
    offsets: tuple[tuple[str, int, int], ...] = ()  #: (topic, partition, offset, EARLIEST or LATEST)

    def of(self, topic: str, partition: int, first: int, end: int) -> int:
        for name, number, offset in self.offsets:
            if (name, number) == (topic, partition):
                return {EARLIEST: first, LATEST: end}.get(offset, offset)
        return first if self.default == EARLIEST else end


@dataclass(frozen=True)
class Asked:
    """Checked options. Either `path` or `servers` is set."""

    path: str = ""
    servers: tuple[str, ...] = ()
    data_set: str = export.MESSAGES
    topics: tuple[str, ...] = ()  #: names and patterns with *; empty: all
    pattern: str = ""  #: a regular expression for whole topic names
    assign: tuple[tuple[str, tuple[int, ...]], ...] = ()
    partitions: tuple[int, ...] = ()
    #: (topic id, partition, start, end), instead of offsets by topic
    ranges: tuple[tuple[int, int, int, int], ...] = ()
    starting: Bound | None = None  #: None: earliest; latest for a stream of a live cluster
    ending: Bound | None = None
    starting_times: tuple[tuple[str, int, int], ...] = ()  #: (topic, partition, microseconds)
    starting_us: int | None = None
    ending_us: int | None = None
    as_of_us: int | None = None  #: read the export as it was then
    fail_on_data_loss: bool = True
    offsets_per_trigger: int = 0  #: 0: no limit
    offsets_min: int = 0  #: a batch waits for this many records, but at most trigger_delay_s
    trigger_delay_s: float = 15 * 60.0
    records_per_task: int = 0
    tasks_min: int = 0
    verify: bool | None = None  #: check the SHA-256 of every file; None: only of small exports
    group: str = ""
    kafka_schema: bool = False

    def wants(self, topic: str, partition: int) -> bool:
        if self.partitions and partition not in self.partitions:
            return False
        if self.assign:
            return any(topic == name and partition in numbers for name, numbers in self.assign)
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return not self.topics or any(fnmatchcase(topic, name) for name in self.topics)

    @property
    def live_names(self) -> list[str]:
        """Topics to ask the cluster for. `wants` filters its answer."""
        return [name for name, _ in self.assign] or list(self.topics) or ["*"]


def parse(options: Mapping[str, str]) -> Asked:
    """Check options. Raises BadRequest, which names the option and, if
    unknown, the nearest known one.
    """
    known = {name.lower(): (name, field) for name, field in NAMES.items()}
    given: dict[str, tuple[str, str]] = {}
    for option, value in options.items():
        if option.lower() not in known:
            close = get_close_matches(option.lower(), known, n=1)
            hint = f"did you mean {known[close[0]][0]}?" if close else f"known are {', '.join(NAMES)}"
            raise BadRequest(f"option {option!r} is not known", hint=hint)
        name, field = known[option.lower()]
        if field in given:
            raise BadRequest(
                f"options {given[field][0]} and {name} say the same thing", hint="keep one of them"
            )
        given[field] = name, str(value)
    return _asked(given)


def _asked(given: dict[str, tuple[str, str]]) -> Asked:
    fields: dict[str, object] = {}
    for field, (name, value) in given.items():
        if field in ("path", "pattern", "group"):
            fields[field] = value
        elif field in ("servers", "topics"):
            fields[field] = tuple(part.strip() for part in value.split(",") if part.strip())
        elif field == "partitions":
            fields[field] = tuple(_whole(name, part) for part in value.split(","))
        elif field == "assign":
            fields[field] = _assign(value)
        elif field == "ranges":
            fields[field] = _ranges(value)
        elif field in ("starting", "ending"):
            fields[field] = bound(name, value)
        elif field == "starting_times":
            fields[field] = _times(name, value)
        elif field == "trigger_delay_s":
            fields[field] = seconds(name, value)
        elif field == "as_of_us":
            fields[field] = micros(name, value)
        elif field in ("starting_time", "ending_time"):
            fields[field.replace("time", "us")] = micros(name, value)
        elif field in ("fail_on_data_loss", "kafka_schema", "verify"):
            if value.lower() not in FLAGS:
                raise BadRequest(f"{name}={value!r}", hint="true or false")
            fields[field] = FLAGS[value.lower()]
        elif field == "data_set":
            if value not in export.SCHEMAS:
                raise BadRequest(f"{name}={value!r}", hint=f"one of {', '.join(export.SCHEMAS)}")
            fields[field] = value
        else:
            fields[field] = _whole(name, value, 1)
    for field in ("topics", "pattern", "assign", "ranges"):
        if field in given and not fields[field]:  # an empty choice would read everything
            name, value = given[field]
            raise BadRequest(f"{name}={value!r} chooses nothing", hint="leave it away to read everything")
    asked = Asked(**fields)  # type: ignore[arg-type]
    _check(asked)
    return asked


def _check(asked: Asked) -> None:
    if bool(asked.path) == bool(asked.servers):
        raise BadRequest(
            "path= or servers= says where to read",
            hint='option("path", "export") or option("servers", "tcp://127.0.0.1:7700")',
        )
    if sum(map(bool, (asked.topics, asked.pattern, asked.assign))) > 1:
        raise BadRequest("topics, topicsPattern and assign exclude each other", hint="keep one of them")
    if asked.ranges and (asked.starting or asked.ending):
        raise BadRequest("ranges and offsets exclude each other", hint="keep one of them")
    if asked.pattern:
        try:
            re.compile(asked.pattern)
        except re.error as error:
            raise BadRequest(
                f"topicsPattern={asked.pattern!r}: {error}", hint="a regular expression, as orders[.].*"
            ) from None
    if asked.starting_times and (asked.starting or asked.starting_us is not None):
        raise BadRequest(
            "startingOffsetsByTimestamp, startingTimestamp and startingOffsets exclude each other",
            hint="keep one",
        )
    if asked.starting_times and asked.path:
        raise BadRequest(
            "startingOffsetsByTimestamp is for clusters", hint="startingTimestamp= chooses by publish_time"
        )
    if asked.servers and asked.as_of_us is not None:
        raise BadRequest("asOf is for exports", hint="endingTimestamp= says where to end in a cluster")
    if asked.data_set == export.MESSAGES:
        return
    if asked.servers:
        raise BadRequest(f"dataSet={asked.data_set} comes from an export", hint='option("path", "export")')
    if (
        asked.starting
        or asked.ending
        or asked.starting_us is not None
        or asked.ending_us is not None
        or asked.kafka_schema
    ):
        raise BadRequest(
            f"offsets and times choose messages, not {asked.data_set}",
            hint="filter the frame: df.filter(...)",
        )


def bound(name: str, value: str) -> Bound:
    """Parse earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}}. Raises BadRequest.

    -2 is earliest, -1 is latest.
    """
    if value.lower() in ("earliest", "latest"):
        return Bound(EARLIEST if value.lower() == "earliest" else LATEST)
    hint = 'earliest, latest, or {"orders": {"0": 23, "1": -2}}'
    try:
        told = json.loads(value)
        offsets = tuple(
            (str(topic), int(number), offset)
            for topic, numbers in told.items()
            for number, offset in numbers.items()
        )
    except (ValueError, AttributeError):
        raise BadRequest(f"{name}={value!r}", hint=hint) from None
    if any(type(offset) is not int or offset < EARLIEST for _, _, offset in offsets):
        raise BadRequest(f"{name}={value!r}", hint=hint)
    return Bound(EARLIEST if name == "startingOffsets" else LATEST, offsets)


def _times(name: str, value: str) -> tuple[tuple[str, int, int], ...]:
    """Parse times in Kafka's form. Raises BadRequest.

    For example {"orders": {"0": 1790000000000}}, in milliseconds since 1970.
    """
    try:
        told = json.loads(value)
        return tuple(
            (str(topic), int(number), micros(name, str(time)))
            for topic, times in told.items()
            for number, time in times.items()
        )
    except (ValueError, AttributeError):
        raise BadRequest(f"{name}={value!r}", hint='{"orders": {"0": 1790000000000}}') from None


def _assign(value: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    try:
        return tuple(
            (str(topic), tuple(int(number) for number in numbers))
            for topic, numbers in json.loads(value).items()
        )
    except (ValueError, AttributeError, TypeError):
        raise BadRequest(f"assign={value!r}", hint='{"orders": [0, 1]}') from None


def _ranges(value: str) -> tuple[tuple[int, int, int, int], ...]:
    try:
        told = tuple(
            (int(topic_id), int(number), int(start), int(end))
            for topic_id, number, start, end in json.loads(value)
        )
    except (ValueError, TypeError):
        told = ((0, 0, 0, -1),)
    if any(not 0 <= start <= end for _, _, start, end in told):
        raise BadRequest(
            f"ranges={value!r}", hint="[[topic id, partition, start, end], ...] with 0 <= start <= end"
        )
    return told


def _whole(name: str, value: str, least: int = 0) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise BadRequest(f"{name}={value!r}", hint=f"a whole number from {least}")
    return number
