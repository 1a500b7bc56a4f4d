"""`df.write.format("gossipq")` and `writeStream`: publish rows under ids that a repeat makes again.

Spark repeats failed tasks, and batches of a stream after a crash. The ids are the same then
(`identities`), and a topic stores an id once, as long as it remembers it. The default is 10 minutes
and a million ids in each partition; create_topic(dedup=..., dedup_count=...) changes it.
"""

import os
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from gossipq.errors import BadRequest, UnknownTopic
from gossipq_client import Client, PendingReceipt, connect
from pyspark_gossipq import identities, schemas
from pyspark_gossipq.identities import Commits, Property, Write

NAMES = ("servers", "topic", "writeId", "recordsPerSecond", "checkpointLocation")
RUN, RUN_BYTES = 500, 4 << 20  #: rows under one receipt, and their approximate bytes
UNDER_WAY = 64  #: receipts that may be open at a time
PATIENCE_S = 60.0
PLACE = ("topic", "partition", "offset")
REPLAY_OF, REPLAY_ID = "x-replay-of", "x-replay-id"
#: columns that identify a record for good: another topic may have the same name later
PLACED = (*PLACE, "topic_id")


@dataclass(frozen=True)
class Target:
    """Checked options of a writer."""

    servers: tuple[str, ...]
    topic: str
    write_id: str
    named: bool  #: named by the user; otherwise the name is random
    replay: bool  #: rows come from a topic, with their place in it
    per_second: float  #: limit of each task; 0: none
    streams: bool  #: the write is a stream's own, not a save
    commits: dict[str, Commits]  #: finished saves of running batches

    def write_of(self, of: Property) -> Write:
        """Return the write of a task, from its local properties."""
        return identities.write_of(self.write_id, self.named, self.streams, self.commits, of)


class Message(WriterCommitMessage):
    """The message of a task to the driver."""

    def __init__(self, write: Write) -> None:
        self.write = write


def parse(options: Mapping[str, str], schema: StructType, overwrite: bool, streams: bool = False) -> Target:
    """Check options. Raises BadRequest."""
    if overwrite:
        raise BadRequest(
            "topics are only appended to", hint='df.write.mode("append"), or outputMode("append") of a stream'
        )
    given = {}
    for option, value in options.items():
        name = next((name for name in NAMES if name.lower() == option.lower()), None)
        if name is None:
            close = get_close_matches(option, NAMES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(NAMES)}"
            raise BadRequest(f"option {option!r} is not known", hint=hint)
        given[name] = value
    servers = tuple(part.strip() for part in given.get("servers", "").split(",") if part.strip())
    if not servers:
        raise BadRequest("servers= says where to publish", hint='option("servers", "tcp://127.0.0.1:7700")')
    names = set(schema.fieldNames())
    replay, topic = set(PLACE) <= names, given.get("topic", "")
    if not topic and (replay or "topic" not in names):
        because = (
            "rows that were read from a topic never go back by themselves"
            if replay
            else "there is no column topic"
        )
        raise BadRequest(
            f"topic= says where to publish to: {because}", hint='option("topic", "orders.replayed")'
        )
    _check_columns(schema)
    try:
        per_second = float(given.get("recordsPerSecond", "0"))
    except ValueError:
        per_second = -1
    if not per_second >= 0:
        raise BadRequest(
            f"recordsPerSecond={given['recordsPerSecond']!r}", hint="records a second, of each task"
        )
    name = given.get("writeId", "")
    done = {} if streams else identities.commits(_application())
    return Target(servers, topic, name or uuid.uuid4().hex, bool(name), replay, per_second, streams, done)


def _application() -> Path:
    """Return Spark's folder for the files of this application, on the driver."""
    return Path(SparkFiles.getRootDirectory())


def _check_columns(schema: StructType) -> None:
    plain = (BinaryType(), StringType())
    kinds: dict[str, Sequence[DataType]] = {
        "value": plain,
        "key": plain,
        "id": plain,
        "route": (StringType(),),
    }
    if "value" not in schema.fieldNames():
        raise BadRequest(
            "the frame has no column value", hint="df.select(to_json(struct('*')).alias('value'))"
        )
    for field in schema:
        allowed = kinds.get(field.name)
        if allowed and field.dataType not in allowed:
            told = " or ".join(kind.simpleString() for kind in allowed)
            raise BadRequest(
                f"column {field.name} is {field.dataType.simpleString()}", hint=f"cast it to {told}"
            )
    headers = next((field.dataType for field in schema if field.name == "headers"), None)
    if headers is not None and headers.simpleString() != schemas.HEADERS.simpleString():
        raise BadRequest(
            f"column headers is {headers.simpleString()}", hint=f"cast it to {schemas.HEADERS.simpleString()}"
        )


class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run one task. Raises the cluster's refusals; then Spark tries the task again."""
        context = TaskContext.get()
        assert context is not None, "Spark runs tasks with a context"
        write = self.target.write_of(context.getLocalProperty)
        with connect(self.target.servers, name=f"spark-{os.getpid()}") as mq:
            task = Task(mq, self.target, write, context.partitionId())
            for batch in iterator:
                task.publish(batch)
            task.finish()
        return Message(write)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:
        """Count the save when everything is confirmed.

        Raises BadRequest if two saves of one batch ran at the same time without a writeId.
        """
        write = next((each.write for each in messages if isinstance(each, Message)), None)
        if write is not None and write.batch is not None:
            identities.commit(_application(), write.batch, write.ordinal)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:
        """Do nothing: published rows stay. Repeated with the same writeId,
        they are not published twice.
        """


class Task:
    """Publishes the rows of one task, with a bounded number of open receipts."""

    def __init__(self, mq: Client, target: Target, write: Write, partition: int) -> None:
        self._mq, self._target, self._write, self._partition = mq, target, write, partition
        self._seen: Counter[bytes] = Counter()
        self._waiting: deque[PendingReceipt] = deque()
        self._began_s = time.monotonic()
        self._sent = 0
        self._known: set[str] = set()

    def publish(self, batch: pa.RecordBatch) -> None:
        names = [name for name in batch.schema.names if name in _USED]
        run = max(1, min(RUN, RUN_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for at in range(0, batch.num_rows, run):
            rows = batch.slice(at, run)
            self._hold_back(rows.num_rows)
            self._run({name: rows.column(name).to_pylist() for name in names}, rows.num_rows)

    def _run(self, columns: dict[str, list[Any]], count: int) -> None:
        ids = self.ids(columns, count)
        values, keys = columns["value"], columns.get("key")
        if None in values:
            raise BadRequest("a row has no value", hint="df.where('value is not null')")
        topics = [self._target.topic] * count if self._target.topic else columns["topic"]
        plain = not self._target.replay and not any(
            map(any, (columns.get(name, ()) for name in ("headers", "route")))
        )
        if plain and len(set(topics)) == 1:
            self._require(topics[0])
            self._wait(self._mq.post_many(topics[0], values, keys=keys, ids=ids))
            return
        for row in range(count):
            self._require(topics[row])
            told = {name: column[row] for name, column in columns.items()}
            headers, route = self._headers(told), told.get("route") or ""
            receipt = self._mq.post(
                topics[row], values[row], key=told.get("key"), headers=headers, route=route, id=ids[row]
            )
            self._wait(receipt, RUN)

    def _require(self, topic: str) -> None:
        """Check that the topic exists, so that a typing error creates none. Raises UnknownTopic."""
        if topic not in self._known:
            if not topic or "*" in topic or not self._mq.topics(topic):
                raise UnknownTopic(
                    f"topic {topic!r} does not exist", hint=f"gossipq topic create {topic} --dedup 7d"
                )
            self._known.add(topic)

    def ids(self, columns: dict[str, list[Any]], count: int) -> list[bytes]:
        """Return the row's own id, else one made of its content and its number among equal rows.

        A row that names a record of a topic has the same id in every task, so a repeated
        batch may be divided into other tasks. Equal rows without a place are different rows,
        so their ids name the task.
        """
        name = self._write.name if set(PLACED) <= columns.keys() else f"{self._write.name}/{self._partition}"
        own = columns.get("id") if not self._target.replay else None
        made = []
        for row, given in enumerate(own or [None] * count):
            if given:  # an empty id does not count
                made.append(given.encode() if isinstance(given, str) else given)
                continue
            like = _digest(name, *(columns[column][row] for column in sorted(columns)))
            self._seen[like] += 1
            made.append(b"%s-%d" % (like, self._seen[like]))
        return made

    def _headers(self, row: dict[str, Any]) -> dict[str, Any] | None:
        headers = {header["key"]: header["value"] or b"" for header in row.get("headers") or ()}
        if self._target.replay:
            headers |= {REPLAY_OF: "{topic}/{partition}/{offset}".format(**row), REPLAY_ID: self._write.label}
        return headers or None

    def _hold_back(self, count: int) -> None:
        """Wait to keep the rate."""
        self._sent += count
        if self._target.per_second:
            ahead_s = (self._sent - count) / self._target.per_second - (time.monotonic() - self._began_s)
            if ahead_s > 0:
                time.sleep(ahead_s)

    def _wait(self, receipt: PendingReceipt, share: int = 1) -> None:
        self._waiting.append(receipt)
        while len(self._waiting) > UNDER_WAY * share:
            self._waiting.popleft().result(PATIENCE_S)

    def finish(self) -> None:
        """Wait until everything is confirmed."""
        while self._waiting:
            self._waiting.popleft().result(PATIENCE_S)


_USED = {"value", "key", "headers", "route", "id", "topic_id", *PLACE}


def _digest(*parts: Any) -> bytes:
    """Return a digest of parts with their lengths, so that their borders matter."""
    digest = blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(b"%d:%s" % (len(raw), raw))
    return digest.hexdigest().encode()
