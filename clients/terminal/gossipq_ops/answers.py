"""Answers questions of dashboards with a client that is handed in. Pure."""

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gossipq.errors import GossipqError, UnknownRecord, UnknownTopic, WrongState
from gossipq.texts import moment, readable
from gossipq.times import unix_ms_of
from gossipq.types import partition_of
from gossipq_ops import actions, jobs
from gossipq_ops.hints import hint_of, message_of
from gossipq_ops.inputs import place_of
from gossipq_ops.jobs import DEAD_MAX
from gossipq_ops.questions import (
    Answer,
    Ask,
    Dead,
    Failed,
    Find,
    Flow,
    Open,
    Opened,
    Page,
    Record,
    Records,
    Runs,
    Stand,
    Standing,
    Stands,
    Taken,
    Try,
    Work,
)

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_client.operations import DeadLetter

HEAD_BYTES = 1_024  #: of a value in a list
OPEN_BYTES = 65_536  #: of an opened value
PAGE_BYTES = 4 << 20  #: a page stops reading after this many bytes of values
PARTITIONS_MAX = 64  #: partitions that one page reads
FOUND_MAX = 200
FLOWS_MAX = 10  #: flows with the most waiting records, and as many that wait longest
KEY = "key="


class Answerer:
    """Answers questions one by one. `stop` ends a search that is not wanted any more."""

    def __init__(self, mq: "Client", means: actions.Means) -> None:
        self.mq, self._means = mq, means
        self.stopped = False
        self.read = 0  #: records that searches have examined

    def answer(self, ask: Ask) -> Answer:
        """Return the answer. Faults of nodes and users become a Failed."""
        self.stopped = False
        try:
            if isinstance(ask, Page):
                return self._page(ask)
            if isinstance(ask, Find):
                return self._find(ask)
            if isinstance(ask, Open):
                return self._open(ask.ref)
            if isinstance(ask, Stand):
                return self._stand(ask)
            if isinstance(ask, Work):
                return jobs.working(self.mq, ask)
            if isinstance(ask, Runs):
                return jobs.ticked(self.mq, ask)
            if isinstance(ask, Try):
                return actions.preview(self.mq, ask.act, self._means)
            return actions.execute(self.mq, ask, self._means)
        except GossipqError as error:
            return Failed(message_of(error), hint_of(error))
        except ValueError as error:  # a wrong text of the user
            return Failed(str(error))

    def stop(self) -> None:
        self.stopped = True

    # --- lists

    def _page(self, ask: Page) -> Records:
        """Read the newest records of each partition one by one: the cost is
        independent of the topic's size.
        """
        parts = [
            part
            for part in self.mq.admin.raw.stats([ask.topic]).partitions
            if part.topic == ask.topic and ask.partition in (-1, partition_of(part.partition))
        ]
        parts = sorted(parts, key=lambda part: part.partition)[:PARTITIONS_MAX]
        if not parts:
            raise UnknownTopic(
                f"no topic {ask.topic}" if ask.partition < 0 else f"no partition {ask.topic}/{ask.partition}"
            )
        each, back = -(-ask.most // len(parts)), ask.back // len(parts)
        found, size, more = [], 0, False
        for part in parts:
            end = max(part.first, part.next - back)
            first = max(part.first, end - each)
            more = more or first > part.first
            for offset in range(end - 1, first - 1, -1):
                if size > PAGE_BYTES:
                    break
                record = self._record(ask.topic, partition_of(part.partition), offset)
                size += record.size
                found.append(record)
        found.sort(key=lambda record: (record.time_ms, record.partition, record.offset))
        return Records(found[-ask.most :], len(found), sum(part.next - part.first for part in parts), more)

    def _record(self, topic: str, partition: int, offset: int) -> Record:
        ref = f"{topic}/{partition}/{offset}"
        try:
            found = self.mq.record(topic, partition, offset).show()
        except (UnknownRecord, WrongState):
            return Record(ref, topic, partition, offset, gone=True)
        size = len(found.value)
        return Record(
            ref,
            topic,
            partition,
            offset,
            unix_ms_of(found.stored_time),
            found.key,
            found.value[:HEAD_BYTES],
            size,
        )

    def _find(self, ask: Find) -> Records:
        looked = total = 0

        def progress(done: int, of: int) -> None:
            nonlocal looked, total
            self.read += done - looked
            looked, total = done, of
            if self.stopped:
                raise ValueError("the search was left")

        key = ask.text.removeprefix(KEY) if ask.text.startswith(KEY) else None
        contains = ask.text if ask.text and key is None else None
        first = place_of(ask.first) if ask.first else None
        end = place_of(ask.end) if ask.end else None
        search = self.mq.read(ask.topic, start=first, end=end).where(
            key=key, contains=contains, limit=FOUND_MAX, progress=progress
        )
        found = [_listed(message) for message in search]
        return Records(found, looked, total, len(found) == FOUND_MAX)

    # --- one record, one group

    def _open(self, ref: str) -> Opened:
        found = self.mq.record(ref).show()
        told = self.mq.record(ref).why()
        steps = self.mq.record(ref).trace()
        fields = [
            ("stored", moment(unix_ms_of(found.stored_time))),
            ("published", moment(published_ms(found))),
        ]
        fields += [("key", readable(found.key))] if found.key is not None else []
        fields += [(f"header {name}", header_text(value)) for name, value in found.headers.items()]
        fields += [("route", found.route)] if found.route else []
        fields += [("id", found.id)] if found.id else []
        stands = [
            Stands(
                each.group,
                each.state,
                each.because,
                each.next,
                unix_ms_of(each.time),
                each.attempts,
                each.failures,
            )
            for each in told.standings
        ]
        taken = [
            Taken(unix_ms_of(step.time), step.what, step.group, step.consumer, step.attempt, step.reason)
            for step in steps
        ]
        return Opened(
            found.ref, fields, found.value[:OPEN_BYTES], len(found.value), stands, taken, list(told.lines)
        )

    def _stand(self, ask: Stand) -> Standing:
        group = self.mq.group(ask.topic, ask.group)
        told = group.why()
        rows = [(stand.partition, stand.state, stand.because, stand.next) for stand in told]
        letters = self.mq.dead(ask.topic, ask.group).letters(values=False)
        looked = list(itertools.islice(letters, DEAD_MAX))
        flows = [
            Flow(
                each.flow,
                each.partition,
                each.waiting,
                round(each.oldest.total_seconds() * 1_000),
                each.in_flight,
                each.waits_for,
            )
            for each in group.describe(flows=FLOWS_MAX).flows
        ]
        return Standing(rows, dead_by_error(looked), len(looked) == DEAD_MAX, flows)


def published_ms(record: Any) -> int:
    return unix_ms_of(record.publish_time)


def header_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def dead_by_error(letters: Iterable["DeadLetter"]) -> list[Dead]:
    """Return the reasons of a group's dead letters, the newest first."""
    found: dict[tuple[str, str], Dead] = {}
    for letter in letters:
        at = letter.reason, letter.error
        old = found.get(at, Dead(*at, 0, -1, ""))
        time_ms = unix_ms_of(letter.time)
        newest = (time_ms, letter.ref) if time_ms >= old.time_ms else (old.time_ms, old.ref)
        found[at] = Dead(*at, old.letters + letter.count, *newest)
    return sorted(found.values(), key=lambda dead: -dead.time_ms)


def _listed(message: Any) -> Record:
    ref = f"{message.topic}/{message.partition}/{message.offset}"
    value = message.value
    time_ms = published_ms(message)
    return Record(
        ref,
        message.topic,
        message.partition,
        message.offset,
        time_ms,
        message.key,
        value[:HEAD_BYTES],
        len(value),
    )
