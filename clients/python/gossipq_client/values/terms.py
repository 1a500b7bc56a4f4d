"""Options of a publish, checked before anything is sent: those of one record, those of a list, and their
columns."""

from array import array
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, NamedTuple, TypedDict

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.record_options import BOUNDS, CHOICES
from gossipq.types import (
    ATTEMPTS,
    BACKOFF,
    DELAY,
    FLOW_HASH,
    FLOWS,
    ID_HASH,
    KEY_HASH,
    LEASE,
    PRIORITY,
    REPLACE,
    TTL,
    UNIQUE_HASH,
    UNTIL,
    Now,
)
from gossipq.wire.batch import Batch, id_column
from gossipq.wire.checksum import crc32
from gossipq_client.values import inputs
from gossipq_client.values.results import with_keep

Clock = Callable[[], Now]
WHILE_CONFIRMED = (
    -1.0
)  #: a wait without a limit of its own: it ends after the client's timeout without a confirm


class RecordOptions(TypedDict, total=False):
    """Options of a record of any kind; the docstring of `Facade.publish` explains them."""

    key: inputs.Value | None
    headers: inputs.Headers | bytes | None
    route: str
    partition: int | None
    ttl: inputs.Duration | None
    lease: inputs.Duration | None
    attempts_max: int | None
    backoff: inputs.Duration | None
    flow: str | None
    priority: int | None
    keep_result: inputs.Duration | None


class Common(RecordOptions, total=False):
    """Options of a published record, or of each of a list."""

    level: str | None
    wait: inputs.Duration | None
    delay: inputs.Duration | None
    at: inputs.Time | None
    until: inputs.Duration | None
    conflict: str | None


class PublishOptions(Common, total=False):
    """Options of `publish`."""

    id: inputs.Value | None
    unique: inputs.Value | None


class ListOptions(Common, total=False):
    """Options of `publish_many`, whose docstring explains them."""

    keys: Sequence[inputs.Value | None] | None
    ids: Sequence[inputs.Value | None] | None
    uniques: Sequence[inputs.Value | None] | None
    delays: Sequence[inputs.Duration | None] | None
    flows: Sequence[str | None] | None
    priorities: Sequence[int | None] | None


class Unique(NamedTuple):
    """How a unique name is taken."""

    until_ms: int = 0  #: 0 = until the record is done
    conflict: str = "keep"  #: "keep", "replace" or "error"


class Terms(NamedTuple):
    """Options of one record beyond key, headers, route and level; 0 and b"" = not set. The default of
    `priority` counts as not set, too.
    """

    due_ms: int = 0  #: boot time; a record that has one is scheduled
    ttl_ms: int = 0
    lease_ms: int = 0
    attempts_max: int = 0
    backoff_ms: int = 0
    id: bytes = b""
    flow: bytes = b""
    priority: int = limits.PRIORITY
    name: bytes = b""  #: unique
    unique: Unique = Unique()


NOTHING = Terms()


class Options(NamedTuple):
    """The options of one record, checked."""

    key: bytes | None
    headers: bytes
    route: bytes
    level: str
    terms: Terms | None
    partition: int | None = None
    wait_s: float | None = WHILE_CONFIRMED

    @property
    def chooser(self) -> bytes | None:
        """Return the bytes that choose the partition."""
        if self.key is not None or self.terms is None:
            return self.key
        return self.terms.name or self.terms.flow or self.terms.id or None

    @property
    def record(self) -> tuple[bytes | None, bytes, bytes, str, Terms | None]:
        """Return the columns that travel with its value."""
        return self[:5]

    @property
    def made_id(self) -> bytes:
        """The id that it has by now."""
        return self.terms.id if self.terms is not None else b""

    def with_id(self, made: bytes) -> "Options":
        """The same with an id, `made` unless it has one."""
        terms = self.terms or NOTHING
        return self if terms.id else self._replace(terms=terms._replace(id=made))


PLAIN = Options(None, b"", b"", "", None)  #: of a record that asks for nothing


class Many(NamedTuple):
    """The options of a list, checked: `keys`, `ids` and a list of `terms` have one entry for each record. The
    ids stay out of the terms: most lists with ids ask for nothing else, and need no terms for each record."""

    keys: list[bytes | None] | None
    headers: bytes
    route: bytes
    level: str
    terms: Terms | list[Terms] | None
    partition: int | None
    wait_s: float | None
    ids: list[bytes] | None = None  #: b"" = a record without an id
    names: list[bytes] | None = None  #: unique ones, likewise
    unique: Unique = Unique()  #: of all `names`

    @property
    def choosers(self) -> Sequence[bytes | None] | None:
        """Return the bytes that choose the partition of each record; None: the client chooses."""
        chosen = self.ids
        flows = [each.flow for each in self.terms] if isinstance(self.terms, list) else []
        if self.names is not None or any(flows):
            nobody = [b""] * len(self.names or flows)
            columns = self.names or nobody, flows or nobody, self.ids or nobody
            chosen = [name or flow or each for name, flow, each in zip(*columns, strict=True)]
        if chosen is None or not any(chosen):
            return self.keys
        if self.keys is None:
            return chosen if b"" not in chosen else [each or None for each in chosen]
        return [each or None if key is None else key for key, each in zip(self.keys, chosen, strict=True)]

    @property
    def made_ids(self) -> list[bytes]:
        """The ids that they have by now."""
        return self.ids or []

    def each(self, count: int) -> list[Options]:
        """Return the options of each record."""
        terms = self.terms if isinstance(self.terms, list) else [self.terms] * count
        if self.ids is not None:
            terms = [
                (asked or NOTHING)._replace(id=each) for asked, each in zip(terms, self.ids, strict=True)
            ]
        if self.names is not None:
            terms = [
                (asked or NOTHING)._replace(name=name, unique=self.unique)
                for asked, name in zip(terms, self.names, strict=True)
            ]
        return [
            Options(key, self.headers, self.route, self.level, asked, self.partition)
            for key, asked in zip(self.keys or [None] * count, terms, strict=True)
        ]

    def with_ids(self, made: list[bytes]) -> "Many":
        """Return the same options, with a new id for each record without one."""
        given = self.ids or [b""] * len(made)
        return self._replace(ids=[mine or its for mine, its in zip(given, made, strict=True)])


def publish_options(
    now: Clock,
    *,
    key: inputs.Value | None = None,
    headers: inputs.Headers | bytes | None = None,
    route: str = "",
    level: str | None = None,
    partition: int | None = None,
    wait: inputs.Duration | None = WHILE_CONFIRMED,
    id: inputs.Value | None = None,
    delay: inputs.Duration | None = None,
    at: inputs.Time | None = None,
    ttl: inputs.Duration | None = None,
    lease: inputs.Duration | None = None,
    attempts_max: int | None = None,
    backoff: inputs.Duration | None = None,
    flow: str | None = None,
    priority: int | None = None,
    keep_result: inputs.Duration | None = None,
    unique: inputs.Value | None = None,
    until: inputs.Duration | None = None,
    conflict: str | None = None,
) -> Options:
    """Raises BadRequest."""
    terms = None
    plain = id is delay is at is ttl is lease is attempts_max is backoff is None
    if not plain or flow is not None or priority is not None:
        name = b"" if id is None else inputs.id_bytes(id)
        policy = _policy(ttl, lease, attempts_max, backoff)
        terms = Terms(_due_ms(now, delay, at), *policy, name, inputs.flow_bytes(flow), _priority(priority))
    if unique is not None or until is not None or conflict is not None:
        named = b"" if unique is None else inputs.unique_bytes(unique)
        terms = (terms or NOTHING)._replace(name=named, unique=_unique(until, conflict, named != b"", level))
    return Options(
        None if key is None else inputs.key_bytes(key),
        inputs.header_bytes(headers) if keep_result is None else with_keep(headers, keep_result),
        inputs.route_bytes(route),
        inputs.level_of(level),
        None if terms == NOTHING else terms,
        inputs.number_of(partition, "partition"),
        _wait_s(wait),
    )


PLAIN_LIST = Many(None, b"", b"", "", None, None, WHILE_CONFIRMED)  #: of a list that asks for nothing


def list_options(
    count: int,
    now: Clock,
    *,
    key: inputs.Value | None = None,
    keys: Sequence[inputs.Value | None] | None = None,
    headers: inputs.Headers | bytes | None = None,
    route: str = "",
    level: str | None = None,
    partition: int | None = None,
    wait: inputs.Duration | None = WHILE_CONFIRMED,
    ids: Sequence[inputs.Value | None] | None = None,
    delay: inputs.Duration | None = None,
    delays: Sequence[inputs.Duration | None] | None = None,
    at: inputs.Time | None = None,
    ttl: inputs.Duration | None = None,
    lease: inputs.Duration | None = None,
    attempts_max: int | None = None,
    backoff: inputs.Duration | None = None,
    flow: str | None = None,
    flows: Sequence[str | None] | None = None,
    priority: int | None = None,
    priorities: Sequence[int | None] | None = None,
    keep_result: inputs.Duration | None = None,
    uniques: Sequence[inputs.Value | None] | None = None,
    until: inputs.Duration | None = None,
    conflict: str | None = None,
) -> Many:
    """For `count` records. Raises BadRequest."""
    policy = _policy(ttl, lease, attempts_max, backoff)
    due_ms = _due_ms(now, delay, at)
    one = Terms(due_ms, *policy, b"", inputs.flow_bytes(flow), _priority(priority))
    terms: Terms | list[Terms] | None = one
    if flow is not None or not delays is flows is priorities is None:
        each = {
            "due_ms": None if delays is None else _dues_ms(now, delays, count, due_ms > 0),
            "flow": _each(flows, inputs.flow_bytes, flow, "flow", count),
            "priority": _each(priorities, _priority, priority, "priority", count),
        }
        given = [each.get(name) or repeat(value, count) for name, value in one._asdict().items()]
        terms = list(map(Terms, *given))
    return Many(
        inputs.keys_of(None if key is None else inputs.key_bytes(key), keys, count),
        inputs.header_bytes(headers) if keep_result is None else with_keep(headers, keep_result),
        inputs.route_bytes(route),
        inputs.level_of(level),
        None if terms == NOTHING else terms,
        inputs.number_of(partition, "partition"),
        _wait_s(wait),
        None if ids is None else _ids(ids, count),
        None if uniques is None else _names(uniques, count),
        Unique() if until is conflict is None else _unique(until, conflict, uniques is not None, level),
    )


def _priority(priority: int | None) -> int:
    return limits.PRIORITY if priority is None else inputs.whole(priority, "priority", *BOUNDS["priority"])


def _each(
    given: Sequence[Any] | None, check: Callable[[Any], Any], common: object, name: str, count: int
) -> list[Any] | None:
    """Check the values that an option gives to each record. Raises BadRequest."""
    if given is None:
        return None
    more = "flows" if name == "flow" else "priorities"
    if isinstance(given, str | bytes) or len(given) != count or common is not None:
        raise BadRequest(
            f"{more}= needs one {name} for each value, without {name}=",
            hint=f"{len(given)} {more} for {count} values",
        )
    return list(map(check, given))


def _unique(until: inputs.Duration | None, conflict: str | None, has_name: bool, level: str | None) -> Unique:
    """Raises BadRequest."""
    if not has_name:
        raise BadRequest("until= and conflict= belong to a unique name", hint='add unique="report:7"')
    if conflict is not None and conflict not in CHOICES["conflict"]:
        raise BadRequest(f"conflict={conflict!r}", hint='"keep", "replace" or "error"')
    if conflict == "error" and level == "none":
        raise BadRequest(
            'conflict="error" needs a confirm, and level="none" has none', hint='use level="stored"'
        )
    until_ms = 0
    if until not in (None, "acked"):
        until_ms = inputs.duration_ms(until, "until", *BOUNDS["until"])
    return Unique(until_ms, conflict or "keep")


def _wait_s(wait: inputs.Duration | None) -> float | None:
    if wait is None or wait is WHILE_CONFIRMED:
        return wait
    return inputs.duration_ms(wait, "wait") / 1000


def _policy(
    ttl: inputs.Duration | None,
    lease: inputs.Duration | None,
    attempts_max: int | None,
    backoff: inputs.Duration | None,
) -> tuple[int, int, int, int]:
    if backoff is not None and not isinstance(backoff, int | float | str | timedelta):
        raise BadRequest(
            f"backoff={backoff!r}", hint="a record has one backoff; lists are for groups and topics"
        )
    return (
        0 if ttl is None else inputs.duration_ms(ttl, "ttl", *BOUNDS["ttl"]),
        0 if lease is None else inputs.duration_ms(lease, "lease", *BOUNDS["lease"]),
        0 if attempts_max is None else inputs.whole(attempts_max, "attempts_max", *BOUNDS["attempts_max"]),
        0 if backoff is None else inputs.duration_ms(backoff, "backoff", *BOUNDS["backoff"]),
    )


def _due_ms(now: Clock, delay: inputs.Duration | None, at: inputs.Time | None) -> int:
    """Return boot time in ms; 0 = at once, also for records that are due already."""
    if delay is not None and at is not None:
        raise BadRequest("delay= and at= are two due times", hint="pass one of them")
    if delay is not None:
        delay_ms = inputs.duration_ms(delay, "delay", *BOUNDS["delay"])
        return now().boot_ms + _rounded_ms(delay_ms) if delay_ms else 0
    if at is not None:
        at_ms, clocks = inputs.time_ms(at, "at"), now()
        ahead_ms = at_ms - clocks.wall_ms
        if ahead_ms > limits.DELAY_MS_MAX:
            raise BadRequest(
                f"at={at!r} is too far ahead", hint=f"at most {inputs.span(limits.DELAY_MS_MAX)} from now"
            )
        return clocks.boot_ms + _rounded_ms(ahead_ms) if ahead_ms > 0 else 0
    return 0


def _rounded_ms(delay_ms: int) -> int:
    """Never early: the clocks show whole milliseconds, rounded down. Nodes take no more than the maximum."""
    return min(delay_ms + 1, limits.DELAY_MS_MAX)


def _dues_ms(now: Clock, delays: Sequence[inputs.Duration | None], count: int, due: bool) -> list[int]:
    if due or len(delays) != count:
        raise BadRequest(
            "delays= needs one delay for each value, without delay= and at=",
            hint=f"{len(delays)} delays for {count} values",
        )
    now_ms = now().boot_ms
    return [now_ms + _rounded_ms(delay_ms) if delay_ms else 0 for delay_ms in _delays_ms(delays)]


def _delays_ms(delays: Sequence[inputs.Duration | None]) -> list[int]:
    """A list of plain numbers costs little."""
    high_ms = limits.DELAY_MS_MAX
    numbers = [delay for delay in delays if type(delay) is float or type(delay) is int]
    if len(numbers) == len(delays) and all(0 <= number <= high_ms // 1000 for number in numbers):
        return [round(number * 1000) for number in numbers]
    return [0 if delay is None else inputs.duration_ms(delay, "delay", 0, high_ms) for delay in delays]


def _ids(ids: Sequence[inputs.Value | None], count: int) -> list[bytes]:
    if isinstance(ids, str | bytes) or len(ids) != count:
        raise BadRequest("ids= needs one id for each value", hint=f"{len(ids)} ids for {count} values")
    return inputs.ids_of(ids)


def _names(uniques: Sequence[inputs.Value | None], count: int) -> list[bytes]:
    if isinstance(uniques, str | bytes) or len(uniques) != count:
        raise BadRequest(
            "uniques= needs one name for each value", hint=f"{len(uniques)} names for {count} values"
        )
    return inputs.ids_of(uniques, inputs.unique_bytes)


def delay_of(now: Clock, delay: inputs.Duration | None, at: inputs.Time | None) -> int:
    """Milliseconds from now, for a request that moves a due time. Raises BadRequest."""
    if delay is None and at is None:
        raise BadRequest("no due time", hint='pass delay= ("5m") or at= (an aware datetime)')
    due_ms = _due_ms(now, delay, at)
    return max(0, due_ms - now().boot_ms) if due_ms else 0


def key_column(keys: list[bytes]) -> dict[int, "array[int]"]:
    """CRC-32 of each. 0 stands for no key, so a key whose CRC-32 is 0, as that of the empty one, gets 1."""
    hashes = list(map(crc32, keys))
    return {KEY_HASH: array("I", [each or 1 for each in hashes] if 0 in hashes else hashes)}


def own_options(batch: Batch, at: int) -> dict[str, float | int | str]:
    """The options that the producer of record number `at` gave it, for another publish; durations in s."""
    found: dict[str, float | int | str] = {}
    for bit, name, unit in (
        (TTL, "ttl", 1_000),
        (LEASE, "lease", 1_000),
        (ATTEMPTS, "attempts_max", 1),
        (BACKOFF, "backoff", 1_000),
    ):
        column = batch.fixed(bit)
        if column is not None and column[at]:
            found[name] = column[at] if unit == 1 else column[at] / unit
    flows, priorities = batch.column(FLOWS), batch.fixed(PRIORITY)
    if flows is not None and flows[at]:
        found["flow"] = flows[at].decode(errors="backslashreplace")
    if priorities is not None and priorities[at] != limits.PRIORITY:
        found["priority"] = priorities[at]
    return found


def terms_of(own: dict[str, float | int | str], record_id: bytes) -> Terms:
    """`own_options` as they go into a batch."""
    ttl, lease, backoff = (round(float(own.get(name, 0)) * 1_000) for name in ("ttl", "lease", "backoff"))
    return Terms(
        ttl_ms=ttl,
        lease_ms=lease,
        attempts_max=int(own.get("attempts_max", 0)),
        backoff_ms=backoff,
        id=record_id,
        flow=str(own.get("flow", "")).encode(),
        priority=int(own.get("priority", limits.PRIORITY)),
    )


class Named(NamedTuple):
    """The texts of a batch: its ids and its unique names; None = no record has one."""

    ids: list[bytes] | None
    names: list[bytes] | None


def columns(
    terms: list[Terms],
    scheduled: bool,
    sealed_ms: int,
    ids: list[bytes] | None = None,
    names: list[bytes] | None = None,
    unique: Unique | None = None,
) -> tuple[dict[int, "array[int]"], Named]:
    """The fixed-width columns of a batch, and its texts: only those that a record asks for. `ids` and `names`
    are in place of those in the terms; without terms nothing but them is asked for."""
    fixed: dict[int, array[int]] = {}
    untils: Sequence[int] = ()
    replaces: Sequence[int] = ()
    if terms:
        dues, ttls, leases, attempts, backoffs, its_ids, *more = zip(*terms, strict=True)
        flows, priorities, its_names, uniques = more
        fixed = {
            bit: array(code, column)
            for bit, code, column in (
                (TTL, "q", ttls),
                (LEASE, "I", leases),
                (ATTEMPTS, "I", attempts),
                (BACKOFF, "I", backoffs),
            )
            if any(column)
        }
        if any(flows):
            fixed[FLOW_HASH] = id_column(flows)
        if priorities.count(limits.PRIORITY) < len(priorities):
            fixed[PRIORITY] = array("B", priorities)
        if scheduled:
            fixed[DELAY] = array("q", [max(0, due_ms - sealed_ms) for due_ms in dues])
        ids = ids or list(its_ids)
        if names is None and any(its_names):
            names = list(its_names)
            untils = [each.until_ms for each in uniques]
            replaces = [each.conflict == "replace" for each in uniques]
    if names is not None and unique is not None:
        untils, replaces = ([each] * len(names) for each in (unique.until_ms, unique.conflict == "replace"))
    if names is not None and any(names):
        fixed[UNIQUE_HASH] = id_column(names)
        fixed |= {
            bit: array(code, column)
            for bit, code, column in ((UNTIL, "q", untils), (REPLACE, "I", replaces))
            if any(column)
        }
    else:
        names = None
    if ids is None or not any(ids):
        return fixed, Named(None, names)
    fixed[ID_HASH] = id_column(ids)
    return fixed, Named(ids, names)


def flow_column(terms: list[Terms]) -> list[bytes] | None:
    """Return the flow of each record; None if none has one."""
    flows = [each.flow for each in terms]
    return flows if any(flows) else None
