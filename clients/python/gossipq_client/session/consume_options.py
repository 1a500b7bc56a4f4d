"""Options of `consume`, `fetch` and `consumer`, checked before any message is sent."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.values import GroupOptions
from gossipq_client.session.credit import Subscription
from gossipq_client.session.pace import CREDIT_START
from gossipq_client.values import ConsumePolicy, consume_policy, inputs

Routes = str | Iterable[str]

LATE_AFTER_MS = 1_000  #: default time that a record waits for other partitions


class FetchOptions(ConsumePolicy, total=False):
    """Options of `fetch`; the docstring of `Facade.consume` explains them."""

    start: inputs.Start | inputs.Starts | None
    route: Routes | None
    create: bool | None
    ack: bool
    ahead: bool


class ConsumeOptions(FetchOptions, total=False):
    """Options of `consume`."""

    credit: int | None
    wait: inputs.Duration | None


class ReadOptions(TypedDict, total=False):
    """Options of `read`, whose docstring explains them."""

    route: Routes | None
    order: Literal["time"] | None
    late_after: inputs.Duration | None
    credit: int | None
    create: bool | None


class Joining(NamedTuple):
    """A consumer before it subscribes."""

    names: list[str]
    group: str
    start: inputs.Start | inputs.Starts | None
    credit: tuple[int, int]
    options: GroupOptions
    routes: list[str]
    ack: bool
    follows: bool  #: the credit follows the pace of the consumer
    creates: bool = False
    patience_ms: int = 0
    late_after_ms: int | None = None  #: None unless all partitions have one order
    ahead: bool = True
    #: user code gets the records of a key one after the other, though several may be here
    key_runs: bool = False
    by_fetches: bool = False  #: it is served by fetches, which ask for as many records as they need
    decode: Callable[[bytes], Any] | None = None  #: makes `data` of values; None: `data` is the value

    def one_range(self) -> tuple[str, inputs.Start]:
        """The one topic and the start of a range that is read in bulk. Raises BadRequest."""
        plain = not (self.routes or self.late_after_ms is not None or isinstance(self.start, Mapping))
        if len(self.names) != 1 or "*" in self.names[0] or not plain:
            raise BadRequest(
                "whole batches come from one topic, without route= and order=, and from one start",
                hint="iterate over the records instead, or read each topic by itself",
            )
        assert not isinstance(self.start, Mapping)
        return self.names[0], "first" if self.start is None else self.start

    def subscription(self, wall_ms: int, stop_at_end: bool) -> Subscription:
        offsets = self.start if isinstance(self.start, Mapping) else {}
        start = "first" if isinstance(self.start, Mapping) else self.start
        if start is None:
            start = "first" if self.group or stop_at_end else "new"
        made = Subscription(
            self.group,
            inputs.start_of(start, wall_ms),
            self.credit,
            self.options,
            stop_at_end,
            self.names,
            routes=self.routes,
            acks=self.ack,
            follows=self.follows,
            creates=self.creates,
            patience_ms=self.patience_ms,
            late_after_ms=self.late_after_ms,
            offsets=offsets,
            ahead=self.ahead,
        )
        made.key_runs = self.key_runs and self.follows
        made.by_fetches, made.decode = self.by_fetches, self.decode
        return made


def joining(
    topics: str | Iterable[str],
    group: str | None,
    *,
    start: inputs.Start | inputs.Starts | None = None,
    route: Routes | None = None,
    ack: bool = True,
    ahead: bool = True,
    credit: int | None = None,
    create: bool | None = None,
    wait: inputs.Duration | None = None,
    **policy: Unpack[ConsumePolicy],
) -> Joining:
    """Checks the options. Raises BadRequest."""
    options, mode = consume_policy(**policy), policy.get("mode")
    if not group and (names := [f"{name}=" for name, value in policy.items() if value is not None]):
        raise BadRequest(f"{', '.join(names)} without a group", hint='name one: group="billing"')
    if not group and not ack:
        raise BadRequest(
            "ack=False without a group",
            hint="leave it out: records that are read without a group have no acks",
        )
    names = inputs.names_of(topics)
    where = _checked_start(start, group, names)
    follows = bool(group) and credit is None and mode != "exclusive"
    lent = CREDIT_START if follows else credit_of(credit, mode, "credit"), limits.CREDIT_BYTES
    patience_ms = 0 if wait is None else inputs.duration_ms(wait, "wait")
    group = inputs.text_of(group or "", "group")
    routes = routes_of(route)
    creates = bool(group) if create is None else create
    return Joining(
        names, group, where, lent, options, routes, ack, follows, creates, patience_ms, ahead=ahead
    )


def reading(
    topics: str | Iterable[str],
    *,
    start: inputs.Start | inputs.Starts | None = None,
    route: Routes | None = None,
    order: Literal["time"] | None = None,
    late_after: inputs.Duration | None = None,
    credit: int | None = None,
    create: bool | None = None,
) -> Joining:
    """Checks the options of a reader. Raises BadRequest."""
    late_after_ms = _late_after_ms(order, late_after)
    asked = joining(topics, None, start=start, route=route, credit=credit, create=create)
    return asked._replace(late_after_ms=late_after_ms)


def _checked_start(
    start: inputs.Start | inputs.Starts | None, group: str | None, names: list[str]
) -> inputs.Start | inputs.Starts | None:
    """Raises BadRequest."""
    if isinstance(start, Mapping):
        if group:
            raise BadRequest(
                "start= with an offset for each partition is for readers: a group keeps its own positions",
                hint="use read(), or move the group: mq.group(topic, group).seek",
            )
        return inputs.starts_of(start, names)
    if start is not None:
        inputs.start_of(start, 0)
    return start


def _late_after_ms(order: str | None, late_after: inputs.Duration | None) -> int | None:
    """None if each partition has its own order. Raises BadRequest."""
    if order is None:
        if late_after is not None:
            raise BadRequest("late_after= without an order", hint='add order="time"')
        return None
    if order != "time":
        hint = 'write order="time", or leave it out; a group has the orders "priority" and "fair"'
        raise BadRequest(f"order={order!r}", hint=hint)
    return LATE_AFTER_MS if late_after is None else inputs.duration_ms(late_after, "late_after")


def credit_of(credit: int | None, mode: str | None, what: str) -> int:
    """The credit in records. An exclusive consumer has 1 unless it asks
    for more. Raises BadRequest.
    """
    if credit is None:
        return 1 if mode == "exclusive" else limits.CREDIT_RECORDS
    return inputs.whole(credit, what, 1, limits.IN_FLIGHT_MAX)


class More(NamedTuple):
    """How long a fetch with messages waits for more."""

    least: int
    linger_s: float | None  #: None: as long as for the first message


def more_of(count: int, least: int | None, linger: inputs.Duration | None) -> More:
    """For a fetch of at most `count` messages. Raises BadRequest."""
    linger_s = None if linger is None else inputs.seconds(linger, "linger")
    if least is None:
        return More(1 if linger is None else count, linger_s)
    return More(inputs.whole(least, "min", 1, count), linger_s)


def routes_of(route: Routes | None) -> list[str]:
    """Patterns of words between dots: `*` matches one word, `#` any number of words.
    Raises BadRequest.
    """
    found = [route] if isinstance(route, str) else list(route or ())
    for pattern in found:
        if not isinstance(pattern, str) or not pattern:
            raise BadRequest(f"route={route!r}", hint='write routes as in "eu.fr", "eu.*" or ["eu.#", "us"]')
        words = pattern.split(".")
        if any(len(word) > 1 and ("*" in word or "#" in word) for word in words):
            raise BadRequest(f"route={pattern!r}", hint='* and # stand for whole words, as in "eu.*"')
        if set(words) == {"#"}:
            raise BadRequest(f"route={pattern!r} fits every route", hint="leave route= out to take all")
        inputs.route_bytes(pattern)
    return found
