"""Records that are collected in a batch, the batch until its outcome is
known, and its partition.
"""

from array import array
from collections import deque
from collections.abc import Callable

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError
from gossipq.messages import Publish
from gossipq.types import PartitionKey, partition_key
from gossipq.values import Range, Run, TopicInfo
from gossipq.wire import batch as wire
from gossipq.wire.checksum import crc32
from gossipq_client.values import NOTHING, Named, Terms, Unique, columns, flow_column, key_column

#: batches of one partition being sent; repeats of older ones are refused
UNCONFIRMED_MAX = limits.PRODUCER_REPEATS - 1
WINDOW_BATCHES = 100  #: with this many unconfirmed batches of one partition, the next record waits
assert WINDOW_BATCHES < UNCONFIRMED_MAX
UNKNOWN_OFFSET = -1
NO_TEXTS = Named(None, None)  #: of a plain batch
NO_BATCH = bytearray()  #: of an open flight, or one that is done


class Special:
    """Extra fields of a flight that is not plain: options of its records and their results, or
    the acks of an atomic step.
    """

    __slots__ = (
        "acks",
        "ends",
        "ids",
        "names",
        "places",
        "runs",
        "sealed_ms",
        "strict",
        "subscription",
        "term",
        "terms",
        "then",
        "unique",
    )

    def __init__(self) -> None:
        self.terms: list[Terms] = []
        self.ids: list[bytes] | None = None  #: ids of a list, whose options may be empty
        self.names: list[bytes] | None = None  #: unique names of a list, likewise
        self.unique: Unique | None = None  #: how those are taken
        #: unique names that must be free, in the order of the sealed batch; b"" = none
        self.strict: list[bytes] = []
        self.sealed_ms = 0  #: boot time
        #: place of each record in the batch, if they were sorted by due time
        self.places: list[int] | None = None
        self.runs: list[Run] = []  #: runs in the confirm
        self.ends: list[int] = []  #: end of each run, computed on demand
        self.subscription = 0
        self.acks: list[Range] = []
        self.term = 0  #: term of the leader that it was sent to, as far as known
        self.then: Callable[[Flight], None] | None = None  #: called once, when the flight is done

    def request(self, partition: PartitionKey, level: str, now_ms: int) -> Publish:
        return Publish(partition, level, now_ms - self.sealed_ms, self.subscription, self.acks)


class Flight:
    """One batch of one partition: open while `values` is a list, then sealed in `batch`, at last `done`.

    All records of a flight share keyed or not, scheduled or not, route and level. A receipt points to a
    flight and an index.
    """

    __slots__ = (
        "batch",
        "calls",
        "copies",
        "count",
        "done",
        "duplicate",
        "error",
        "headers",
        "keys",
        "level",
        "offset",
        "producer",
        "request_id",
        "route",
        "scheduled",
        "sequence",
        "size",
        "special",
        "told",
        "uncertain",
        "values",
        "writer",
    )

    def __init__(
        self, writer: "Writer", keyed: bool, route: bytes, level: str, scheduled: bool = False
    ) -> None:
        self.writer, self.route, self.level, self.scheduled = writer, route, level, scheduled
        self.special: Special | None = None
        self.values: list[bytes] | None = []
        self.keys: list[bytes] | None = [] if keyed else None
        self.headers: list[bytes] | None = None
        self.size = self.count = 0
        self.batch = NO_BATCH
        self.producer, self.sequence, self.request_id = writer.producer, 0, 0
        self.told: bytearray | None = None  #: marks records whose error the user has seen
        self.uncertain = False  #: sent on a connection that was lost, so it may be stored
        self.done = level == "none"
        self.offset, self.copies, self.duplicate = UNKNOWN_OFFSET, 0, False
        self.error: GossipqError | None = None
        self.calls: list[Callable[[], None]] | None = None  #: made once, when it is done

    @property
    def sealed(self) -> bool:
        """True if the batch is sealed."""
        return self.values is None

    def takes(self, size: int, count: int, keyed: bool, route: bytes, level: str, scheduled: bool) -> bool:
        """True if `count` records of `size` bytes in all can join. A record larger
        than a batch is sent alone.
        """
        values = self.values
        return (
            values is not None
            and self.size + size <= limits.BATCH_BYTES_MAX
            and len(values) + count <= limits.BATCH_RECORDS_MAX
            and (self.keys is not None) == keyed
            and self.route == route
            and self.level == level
            and self.scheduled == scheduled
        )

    def add(self, value: bytes, key: bytes | None, headers: bytes, terms: Terms | None = None) -> int:
        """Adds a record and returns its index in this flight."""
        values = self.values
        assert values is not None, "records join an open flight"
        index = len(values)
        self.size += len(value)
        self.count = index + 1
        if key is not None:
            assert self.keys is not None, "a keyed record joins a keyed flight"
            self.keys.append(key)
            self.size += len(key)
        if headers and self.headers is None:
            self.headers = [b""] * index
        if self.headers is not None:
            self.headers.append(headers)
            self.size += len(headers)
        if terms is not None and self.special is None:
            self.special = Special()
            self.special.terms = [NOTHING] * index
        if self.special is not None:
            self.special.terms.append(terms or NOTHING)
            if terms is not None:
                self.size += len(terms.id) + len(terms.flow) + len(terms.name)
        values.append(value)  # last: it makes the record valid, see `trim`
        return index

    def merge(self, more: list[bytes], size: int) -> int:
        """Adds plain records of `size` bytes in all and returns the index of the first."""
        values = self.values
        assert values is not None, "records join an open flight"
        index, count = len(values), len(more)
        self.size += size
        self.count = index + count
        if self.headers is not None:
            self.headers += [b""] * count
        if self.special is not None:
            self.special.terms += [NOTHING] * count
        values += more  # last, as in `add`
        return index

    def trim(self) -> int:
        """Removes the fields of a last record that was added only half way. Returns
        how many records are left.
        """
        self.count = count = len(self.values or ())
        for column in (self.keys, self.headers, self.special.terms if self.special is not None else None):
            if column is not None:
                del column[count:]
        return count

    def seal(self, sequence: int, wall_ms: int, now_ms: int) -> None:
        fixed, flows, (ids, names) = None, None, NO_TEXTS
        if self.special is not None:
            fixed, (ids, names) = self._columns(now_ms)
            flows = flow_column(self.special.terms)
        if self.keys is not None:
            fixed = key_column(self.keys) | (fixed or {})
        values = self.values
        assert values, "a flight with records is sealed once"
        self.sequence, self.count, self.producer = sequence, len(values), self.writer.producer
        self.batch = wire.seal(
            values,
            producer=self.producer,
            sequence=sequence,
            publish_ms=wall_ms,
            route=self.route,
            keys=self.keys,
            headers=self.headers,
            ids=ids,
            flows=flows,
            uniques=names,
            fixed=fixed,
        )
        self.values = self.keys = self.headers = None
        if self.special is not None:
            self.special.terms, self.special.ids, self.special.names = [], None, None

    def _columns(self, now_ms: int) -> tuple[dict[int, "array[int]"], Named]:
        special = self.special
        assert special is not None, "a plain flight has no columns of its own"
        special.sealed_ms = now_ms
        if self.scheduled:
            self._sort(special)
        fixed, named = columns(
            special.terms, self.scheduled, now_ms, special.ids, special.names, special.unique
        )
        if named.names is not None:
            if special.unique is None:
                asked = zip(named.names, special.terms, strict=True)
                strict = [name if terms.unique.conflict == "error" else b"" for name, terms in asked]
            else:
                strict = named.names if special.unique.conflict == "error" else []
            special.strict = strict if any(strict) else []
        return fixed, named

    def _sort(self, special: Special) -> None:
        """Sorts by due time; records due together keep their order."""
        dues = [terms.due_ms for terms in special.terms]
        if dues == sorted(dues):
            return
        order = sorted(range(len(dues)), key=dues.__getitem__)
        assert self.values is not None, "an open flight is sorted"
        values = [self.values[at] for at in order]
        terms = [special.terms[at] for at in order]
        ids, names = (column and [column[at] for at in order] for column in (special.ids, special.names))
        keys = self.keys and [self.keys[at] for at in order]
        headers = self.headers and [self.headers[at] for at in order]
        places = sorted(range(len(order)), key=order.__getitem__)
        (
            special.terms,
            special.ids,
            special.names,
            self.values,
            self.keys,
            self.headers,
            special.places,
        ) = (
            terms,
            ids,
            names,
            values,
            keys,
            headers,
            places,
        )  # all or none

    def restamp(self, producer: bytes, sequence: int) -> None:
        """Changes the producer or sequence of a batch that is certainly not stored."""
        self.producer, self.sequence = producer, sequence
        wire.restamp(self.batch, producer, sequence)

    def settle(self, offset: int, copies: int, duplicate: bool) -> None:
        self.offset, self.copies, self.duplicate, self.done = offset, copies, duplicate, True
        self.batch = NO_BATCH
        if self.special is not None or self.calls is not None:
            self.tell()

    def fail(self, error: GossipqError) -> None:
        self.error, self.values, self.batch, self.done = error, None, NO_BATCH, True
        self.tell()

    def show_error(self, index: int, count: int) -> None:
        """Notes that the user sees the error for these records."""
        if self.told is None:
            self.told = bytearray(self.count)
        self.told[index : index + count] = b"\1" * count

    @property
    def untold(self) -> bool:
        """True if there is an error that the user has not seen for all records."""
        return self.error is not None and (self.told is None or 0 in self.told)

    def tell(self) -> None:
        """Tell the outcome to the functions that wait for it. They are forgotten afterwards, so that a torn
        call can be repeated.
        """
        special = self.special
        if special is not None and special.then is not None:
            special.then(self)
            special.then = None
        for call in self.calls or ():
            call()
        self.calls = None


class Writer:
    """The way into one partition: sequences, the open flight, and the
    unconfirmed flights in order.
    """

    __slots__ = (
        "flights",
        "freed_ms",
        "gap",
        "greeting",
        "number",
        "open",
        "partition",
        "paused_until_ms",
        "producer",
        "sent",
        "sequence",
        "shard",
        "topic",
    )

    def __init__(self, topic: "Topic", number: int, producer: bytes) -> None:
        self.topic, self.number, self.producer = topic, number, producer
        self.partition = partition_key(topic.info.id, number)
        self.shard = topic.info.shards[number]
        self.sequence = 1  #: sequence of the next batch
        self.open: Flight | None = None
        self.flights: deque[Flight] = deque()
        self.sent = 0  #: how many of `flights` were sent on the greeting `greeting`
        self.greeting = 0
        self.paused_until_ms = 0
        self.gap = 0  #: sequence of a refused flight while later ones get lower sequences
        self.freed_ms = 0  #: when the last flight ended

    @property
    def full(self) -> bool:
        return len(self.flights) >= WINDOW_BATCHES


class Topic:
    """A topic for a producer. Records without a key go to one partition for a batch,
    then to the next partition.
    """

    __slots__ = ("info", "learned_ms", "name", "turn", "writers")

    def __init__(self, info: TopicInfo, producer: bytes) -> None:
        self.info, self.name = info, info.name
        self.turn = 0
        self.learned_ms = 0
        self.writers = [Writer(self, number, producer) for number in range(len(info.shards))]

    @property
    def level(self) -> str:
        """The level for records without one. Each batch names it, since the topic may have another
        level when the batch arrives, or may have been created again.
        """
        return self.info.config.level

    @property
    def virtual(self) -> list[str]:
        """The topics that get a copy each; empty for a real topic."""
        return self.info.config.virtual

    def writer(self, key: bytes | None, number: int | None) -> Writer:
        """The writer of a partition. `key` (a record's key or id) or `number` chooses it. Raises
        BadRequest if the topic lacks that partition.
        """
        writers = self.writers
        if number is not None:
            if not 0 <= number < len(writers):
                raise BadRequest(f"topic {self.name!r} has partitions 0 to {len(writers) - 1}, not {number}")
            return writers[number]
        if len(writers) == 1:
            return writers[0]
        return writers[(self.turn if key is None else crc32(key)) % len(writers)]

    def writer_in(self, shard: int, number: int) -> "Writer | None":
        """A partition in that shard, `number` if possible; None if the shard has none."""
        near = [writer for writer in self.writers if writer.shard == shard]
        return next((writer for writer in near if writer.number == number), near[0] if near else None)


def runs(sizes: list[int]) -> list[tuple[int, int]]:
    """Half-open index ranges of records with these sizes; each range makes one batch, in order."""
    found: list[tuple[int, int]] = []
    first = total = 0
    for at, size in enumerate(sizes):
        if at > first and (total + size > limits.BATCH_BYTES_MAX or at - first == limits.BATCH_RECORDS_MAX):
            found.append((first, at))
            first, total = at, 0
        total += size
    found.append((first, len(sizes)))
    return found
