"""Joins of jobs, as talks."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from gossipq.errors import BadRequest
from gossipq.messages import Done, JoinJobs
from gossipq.values import JoinPart, TopicInfo
from gossipq_client.operations.questions import Asking, Talk
from gossipq_client.operations.schedules import Place, check_options
from gossipq_client.session import Receipt
from gossipq_client.values import Address, RecordOptions, count_of, inputs, refs

TIMEOUT = "7d"  #: for which a record waits by itself


class JoinOptions(RecordOptions, total=False):
    """Options of `join`, whose docstring names them."""

    id: inputs.Value | None


def joined_records(jobs: Iterable[str | Receipt]) -> list[Address]:
    """Return the records that receipts and refs name; a receipt of a list names all of them. Raises
    BadRequest."""
    if isinstance(jobs, str | Receipt):
        jobs = [jobs]
    return [refs.parse(ref) for job in jobs for ref in ([job] if isinstance(job, str) else _refs(job))]


def _refs(receipt: Receipt) -> Iterator[str]:
    for each in receipt.receipts or (receipt,):
        if each is not receipt and each.receipts:
            yield from _refs(each)
        elif not each.ref:
            raise BadRequest('records of level "none" cannot be joined', hint="publish them with a level")
        elif each.count == 1:
            yield each.ref
        else:  # a batch: its records follow each other
            for at in range(each.count):
                yield refs.text(each.topic, each.partition, each.offset + at)


class Joining:
    """Stores records that wait for jobs."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def join(
        self, place: Place, batch: bytes, jobs: list[Address], when: str | int, timeout_ms: int, group: str
    ) -> Talk[str]:
        """Store a record that waits for jobs. Return its ref. Raises BadRequest, NotFound."""
        count, topics, parts = count_of(when, jobs), dict[str, TopicInfo](), list[JoinPart]()
        for job in jobs:
            if job.topic not in topics:
                topics[job.topic] = yield from self._asking.topic(job.topic)
            info = topics[job.topic]
            (number,) = job.numbers(len(info.shards))
            parts.append(JoinPart(job.ref(info.id, number), info.name, info.shards[number]))
        message = JoinJobs(place.key, parts, timeout_ms, count, group)
        done = yield from self._asking.ask(message, place.shard, Done, batch)
        return refs.text_of(place.info.name, done.ref) if done.ref is not None else ""


def then_of(then: Any, options: Collection[str]) -> tuple[str, Any]:
    """Return topic and value of the record, whose options have these names. Raises BadRequest."""
    check_options(options, JoinOptions.__annotations__, "a join")
    if not isinstance(then, tuple | list) or len(then) != 2:
        raise BadRequest(f"then={then!r}", hint='pass a topic and a value: then=("pages", page)')
    topic, value = then
    return inputs.text_of(topic, "topic"), value
