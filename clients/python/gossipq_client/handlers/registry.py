"""Handlers: functions that handle records, and the arguments for their calls."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, NamedTuple, TypeVar, Unpack, get_args, get_origin

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq_client.session import ConsumeOptions, Joining, Record, joining
from gossipq_client.values import CheckedCodec, Codec, inputs, payloads

WORKERS_MAX = 1_000
BATCH_MAX = 10_000
BATCH_WAIT_MS = 1_000
#: batches of credit per worker: one that it handles, and one that arrives meanwhile
BATCHES_LENT = 2

Function = TypeVar("Function", bound=Callable[..., Any])


class Plan(NamedTuple):
    """The schedule that a handler declares. `run` sets it before it consumes."""

    topic: str
    name: str
    value: Any
    options: dict[str, Any]  #: `cron` and `tz`, or `every`


class Handler(NamedTuple):
    """One function and what it consumes.

    With `batch_size` it takes lists of at most `batch_size` records. It gets fewer if no more came within
    `batch_wait_s` after the first.
    """

    function: Callable[..., Any]
    name: str
    asked: Joining
    workers: int
    order: tuple[bool, ...]  #: for each argument: True means the value
    value_type: Any  #: None: the function takes no value
    data_type: Any  #: of `Message[Order]`; None: the data of a message is its value
    decode: payloads.Decode | None
    time_limit_s: float | None = None
    batch_size: int = 0
    batch_wait_s: float = 0.0
    plan: Plan | None = None

    def decoded_by(self, codec: CheckedCodec) -> "Handler":
        """Return this handler with the decoders of a codec. Raises BadRequest."""
        names, value, data = self.asked.names, self.value_type, self.data_type
        return self._replace(
            decode=None if value is None else codec.decoder(value, names),
            asked=self.asked._replace(decode=None if data is None else codec.decoder(data, names)),
        )

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            type(self.function).__call__
        )

    def arguments(self, message: Record) -> list[Any]:
        """The arguments for a call with this message. Raises Undecodable."""
        value = self.value(message)
        return [value if is_value else message for is_value in self.order]

    def value(self, message: Record) -> Any:
        """Decode the value, if the function takes one. Raises Undecodable."""
        return None if self.decode is None else self.decode(message.value)


def handler(
    function: Callable[..., Any],
    asked: Joining,
    workers: int,
    time_limit_s: float | None = None,
    batch_size: int = 0,
    batch_wait_s: float = 0.0,
    codec: CheckedCodec | None = None,
    local_names: Mapping[str, Any] = {},
) -> Handler:
    """Read the function's signature and options. `local_names` are those of the function that defines it,
    for annotations that are text. Raises BadRequest.
    """
    inputs.whole(workers, "workers", 1, WORKERS_MAX)
    name = getattr(function, "__qualname__", None) or repr(function)
    if any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, type(function).__call__)
    ):
        raise BadRequest(
            f"handler {name} is a generator", hint="return instead of yield; returning acks the record"
        )
    names = {"Message": Record, **_globals_of(function)}
    types = [_type_of(each, name, names, local_names) for each in _parameters(function, name)]
    if batch_size:
        types = [_type_of_item(each, name) for each in types]
    kinds = [_kind(each) for each in types]
    values = [annotation for annotation in kinds if annotation is not Record]
    if len(values) > 1 or len(kinds) - len(values) > 1 or not kinds:
        hint = "a handler takes the value, the message, or one of each: see `consumer`"
        raise BadRequest(
            f"{name} takes {len(values)} values and {len(kinds) - len(values)} messages", hint=hint
        )
    messages = [_data_type(each) for each, kind in zip(types, kinds, strict=True) if kind is Record]
    return Handler(
        function,
        name,
        asked,
        workers,
        tuple(kind is not Record for kind in kinds),
        values[0] if values else None,
        messages[0] if messages else None,
        None,
        time_limit_s,
        batch_size,
        batch_wait_s,
    ).decoded_by(codec or CheckedCodec())


def _type_of_item(annotation: Any, name: str) -> Any:
    """Return Order for list[Order]. Raises BadRequest if a batch cannot be of that type."""
    if annotation is inspect.Parameter.empty:
        return annotation
    items = get_args(annotation) if get_origin(annotation) is list else ()
    if len(items) != 1:
        hint = "write list[Order], with the type of a value, or list[Message]"
        raise BadRequest(
            f"{name} takes {annotation!r}, and with batch_size= a handler takes lists", hint=hint
        )
    return items[0]


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters that a call must pass."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{name} cannot be called: {error}", hint="pass a function") from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each for each in found if each.default is each.empty and each.kind not in variadic]
    if any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in needed):
        raise BadRequest(
            f"{name} needs a keyword argument", hint="give it a default, or make it the value or the message"
        )
    return needed


def _type_of(
    parameter: inspect.Parameter, name: str, names: dict[str, Any], local_names: Mapping[str, Any]
) -> Any:
    """The type of an argument. Only the value's and the message's are evaluated: other types may be
    known only to type checkers, and so may the name Message. Raises BadRequest.
    """
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return eval(parameter.annotation, names, {**local_names})
    except Exception as error:
        raise BadRequest(
            f"{name} annotates {parameter.name} as {parameter.annotation}: {type(error).__name__}: {error}",
            hint="import or define that type at the top of the module, not under `if TYPE_CHECKING`",
        ) from None


def _names_around(frame: FrameType | None) -> Mapping[str, Any]:
    """The local names of the caller of this frame: a class may be defined beside its handler."""
    caller = None if frame is None else frame.f_back
    return {} if caller is None else caller.f_locals


def _globals_of(function: Any) -> dict[str, Any]:
    """The names that annotations of a function use."""
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        function = type(function).__call__
    found: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return found


def _kind(annotation: Any) -> Any:
    """Record for an argument that takes the message, else the type of the value."""
    found = get_origin(annotation) or annotation
    if annotation is inspect.Parameter.empty or (isinstance(found, type) and issubclass(found, Record)):
        return Record
    return annotation


def _data_type(annotation: Any) -> Any:
    """Return Order for Message[Order], None for Message."""
    return next(iter(get_args(annotation)), None)


def plan_of(
    function: Callable[..., Any], topics: str | Iterable[str], options: dict[str, Any], value: Any
) -> Plan | None:
    """Return the schedule of a handler; None if it declares none. Raises BadRequest."""
    if not (options.get("cron") or options.get("every")):
        if options or value is not None:
            raise BadRequest("tz= or value= without a schedule", hint='add cron="0 7 * * mon-fri"')
        return None
    if not isinstance(topics, str) or "*" in topics:
        raise BadRequest(
            "a handler with a schedule consumes one topic", hint="use mq.schedule for schedules of others"
        )
    name = getattr(function, "__name__", None) or type(function).__name__
    return Plan(topics, name, b"" if value is None else value, options)


def _batch(
    size: int | None, wait: inputs.Duration | None, time_limit: inputs.Duration | None
) -> tuple[int, float]:
    """Check how a handler takes batches; size 0: it takes single records. Raises BadRequest."""
    if size is None:
        if wait is not None:
            raise BadRequest("batch_wait= without batch_size=", hint="add batch_size=500")
        return 0, 0.0
    inputs.whole(size, "batch_size", 1, BATCH_MAX)
    if time_limit is not None:
        raise BadRequest(
            "time_limit= is for single records, not for batches",
            hint="leave out one of time_limit= and batch_size=",
        )
    wait_ms = BATCH_WAIT_MS if wait is None else inputs.duration_ms(wait, "batch_wait")
    return size, wait_ms / 1000


def _credit(credit: int | None, size: int, workers: int) -> int:
    """Records to ask for, so that each worker can fill a batch. Raises BadRequest."""
    if credit is None:
        return min(BATCHES_LENT * size * workers, limits.IN_FLIGHT_MAX)
    if credit < size:
        raise BadRequest(
            f"credit={credit} and batch_size={size}: no batch would become full",
            hint=f"credit={size} at least",
        )
    return credit


Hook = Callable[[], Any]


class Handlers:
    """Handlers and hooks of one module, without a client.

        billing = gossipq.Handlers()

        @billing.consumer("orders", group="billing")
        def bill(order: Order) -> None: ...

    The application includes them in its client: `mq.include(billing)`. Values are decoded by `codec`, if the
    module names one, else by that of the client.
    """

    def __init__(self, codec: Codec | CheckedCodec | None = None) -> None:
        """Raises BadRequest for a codec that cannot encode and decode."""
        self._codec = codec if isinstance(codec, CheckedCodec) else CheckedCodec(codec)
        self._own: list[Handler] = []
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._included: list[Handlers] = []

    def include(self, *parts: "Handlers") -> None:
        """Add the handlers and hooks of other modules, also those that they register later.

        Raises BadRequest for anything but Handlers.
        """
        for part in parts:
            if not isinstance(part, Handlers):
                raise BadRequest(
                    f"{part!r} has no handlers to include",
                    hint="billing = gossipq.Handlers() in that module, then include(billing)",
                )
            self._included.append(part)

    def on_startup(self, function: Function) -> Function:
        """Register a function without arguments, which `run` calls before it consumes. A decorator."""
        self._startup.append(function)
        return function

    def on_shutdown(self, function: Function) -> Function:
        """Register a function without arguments, which `run` calls after its last handler. A decorator."""
        self._shutdown.append(function)
        return function

    def some(self, codec: CheckedCodec | None = None) -> list[Handler]:
        """Return all handlers; those of modules without a codec decode by this one. Raises BadRequest."""
        other = None if codec is None or codec.is_default else codec
        found = [
            each.decoded_by(other) if other is not None and part._codec.is_default else each
            for part in self._parts()
            for each in part._own
        ]
        if not found:
            raise BadRequest(
                "nothing to run", hint='register a handler: @mq.consumer("orders", group="billing")'
            )
        return found

    def startup(self) -> list[Hook]:
        """Return the hooks of the start, in the order in which they run: those of a part before others."""
        return [hook for part in self._parts() for hook in part._startup]

    def shutdown(self) -> list[Hook]:
        """Return the hooks of the end, in the order in which they run: the reverse one."""
        return [hook for part in self._parts() for hook in part._shutdown][::-1]

    def _parts(self) -> "list[Handlers]":
        """Return these handlers and all that are included, each once."""
        found, waiting = list[Handlers](), [self]
        while waiting:
            part = waiting.pop(0)
            if not any(part is each for each in found):
                found.append(part)
                waiting += part._included
        return found

    def consumer(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        workers: int = 1,
        time_limit: inputs.Duration | None = None,
        batch_size: int | None = None,
        batch_wait: inputs.Duration | None = None,
        cron: str = "",
        tz: str = "",
        every: inputs.Duration | None = None,
        value: Any = None,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[Function], Function]:
        """Register a function as the handler of records, as `Client.consumer` does, with the options of
        `consume`. Durations are in seconds. Raises BadRequest."""
        ticks = {key: each for key, each in (("cron", cron), ("tz", tz), ("every", every)) if each}
        if not group:
            raise BadRequest(
                "a handler without a group",
                hint='name one: group="billing"; or loop over read(..., follow=True), which needs none',
            )
        limit_s = None if time_limit is None else inputs.duration_ms(time_limit, "time_limit", 1) / 1000
        size, wait_s = _batch(batch_size, batch_wait, time_limit)
        if size:
            inputs.whole(workers, "workers", 1, WORKERS_MAX)
            options["credit"] = _credit(options.get("credit"), size, workers)
        asked = joining(topics, group, **options)._replace(key_runs=True)

        def register(function: Function) -> Function:
            local_names = _names_around(inspect.currentframe())
            made = handler(function, asked, workers, limit_s, size, wait_s, self._codec, local_names)
            self._own.append(made._replace(plan=plan_of(function, topics, ticks, value)))
            return function

        return register
