"""Names of writes, so that a repeated task or batch publishes its rows under the same ids.

A write is named by facts that stay the same when Spark repeats it:

    a stream into a topic            query (kept in its checkpoint) and batch
    a save inside foreachBatch       query, batch, and number of earlier saves in the batch
    a save or stream with writeId    that name; for a stream also query and batch
    any other save                   a random name: running it again is another write

Tasks know query and batch, but not which save of the batch they belong to. The driver counts saves,
but does not know the batch of the next one. So each planned write carries the counts of all
queries, and its tasks look up theirs. The counts are in the folder that Spark keeps on the driver
for the files of an application, and are deleted with it.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossipq.errors import BadRequest

#: local properties of Spark's streams
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: the same in all that one run of a batch executes; a repeated batch has another
ROOT = "spark.sql.execution.root.id"
FILE = "gossipq-saves.json"

Property = Callable[[str], str | None]


class Batch(NamedTuple):
    """One run of one batch."""

    query: str
    number: str
    root: str


class Commits(NamedTuple):
    """Number of finished saves in a query's newest batch."""

    root: str
    batch: str
    saves: int


class Write(NamedTuple):
    name: str  #: prefix of the ids of its rows
    label: str  #: for people: the header x-replay-id
    batch: Batch | None = None  #: the batch whose saves are counted
    ordinal: int = 0


def write_of(name: str, named: bool, streams: bool, commits: dict[str, Commits], of: Property) -> Write:
    """Return the write that a task belongs to.

    `name` is the writeId, or random if not `named`. `streams`: the write is a stream's own.
    """
    query, number = of(QUERY), of(BATCH)
    if not query or number is None:
        return Write(name, name)
    if named:
        return Write(f"{query}/{number}/{name}", name)
    if streams:
        return Write(f"{query}/{number}", query)
    batch = Batch(query, number, of(ROOT) or "")
    done = commits.get(query)
    ordinal = done.saves if done is not None and (done.root, done.batch) == (batch.root, batch.number) else 0
    return Write(f"{query}/{number}/#{ordinal}", query, batch, ordinal)


def commits(folder: Path) -> dict[str, Commits]:
    """Return the counts by query; empty before the first save is done."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Commits])
    except FileNotFoundError:
        return {}


def commit(folder: Path, batch: Batch, ordinal: int) -> None:
    """Count a finished save. Raises BadRequest if another one of the batch has taken its number."""
    with (folder / f"{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = commits(folder)
        done = known.get(batch.query)
        count = (
            done.saves if done is not None and (done.root, done.batch) == (batch.root, batch.number) else 0
        )
        if count != ordinal:
            raise BadRequest(
                f"two saves of batch {batch.number} ran at the same time, and equal rows of them may be "
                "stored only once",
                hint=(
                    'name each save in foreachBatch: option("writeId", "detail"), or run one after the other'
                ),
            )
        known[batch.query] = Commits(batch.root, batch.number, count + 1)
        written = folder / f"{FILE}.new"
        written.write_bytes(msgspec.json.encode(known))
        os.replace(written, folder / FILE)
