"""Which write a row belongs to, so that a task or a batch that is done again publishes under the same ids.

A write is named by what stays the same when Spark does it again:

    a stream into a topic            query (kept in its checkpoint) and batch
    a save inside foreachBatch       query, batch, and how many saves of the batch were done before it
    a save or stream with writeId    that name; of a stream also query and batch
    any other save                   nothing: it is named at random; whoever runs it again runs another write

Tasks know their query and batch, but not which save of it they work for; the driver counts saves as they are
done, but does not know for which batch the next one is. So each planned write takes the counts of all queries
along, and its tasks look up theirs. The counts lie in the folder that Spark keeps for the files of an
application on its driver, and go away with it.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossipq.errors import BadRequest

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  #: local properties of Spark's streams
#: of everything that a run of a batch executes; a batch that is done again has another
ROOT = "spark.sql.execution.root.id"
FILE = "gossipq-saves.json"

Property = Callable[[str], str | None]


class Batch(NamedTuple):
    """One run of one batch."""

    query: str
    number: str
    root: str


class Commits(NamedTuple):
    """How many saves of a query's newest batch are done."""

    root: str
    batch: str
    saves: int


class Write(NamedTuple):
    name: str  #: what the ids of its rows begin with
    label: str  #: for people: the header x-replay-id
    batch: Batch | None = None  #: whose saves are counted
    ordinal: int = 0


def write_of(name: str, named: bool, streams: bool, commits: dict[str, Commits], of: Property) -> Write:
    """The write that a task works for. `name`: the writeId, made up unless `named`; `streams`: the write is a
    stream's own."""
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
    """By query; empty before the first save is done."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Commits])
    except FileNotFoundError:
        return {}


def commit(folder: Path, batch: Batch, ordinal: int) -> None:
    """Counts a save that is done. Raises BadRequest when another one of the batch took its number
    meanwhile."""
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
