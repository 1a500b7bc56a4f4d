"""Arguments of handlers and decoding of records; how a handler ends and what the broker is
told; requests and replies.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from client.hand import Hand
from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.messages import Deliver
from gossipq.values import Delivered
from gossipq.wire import batch as wire
from gossipq_client import Message, aio, connect
from gossipq_client.api.aio import consumer as aio_consumer
from gossipq_client.handlers.registry import Handler, Handlers, handler
from gossipq_client.handlers.requests import CORRELATION, ROUTE, TO, Requests, answer
from gossipq_client.session.consume_options import joining
from gossipq_client.session.views import Record
from gossipq_client.values import CheckedCodec, outcomes, payloads
from gossipq_client.values.outcomes import GIVEN_BACK, Outcome, Reject, Retry, RetryFlow, Undecodable


@dataclass
class Order:
    id: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("negative id")


class Model:
    """Of no library that is known."""


@dataclass
class Holder:
    model: Model


@dataclass
class Tree:
    leaves: "list[Tree]" = field(default_factory=list)


@dataclass
class Half:
    other: "Elsewhere"  # type: ignore[name-defined]  # noqa: F821


class Point(msgspec.Struct):
    x: int


class Row(TypedDict):
    a: int


class Pair(NamedTuple):
    a: int
    b: int


class TestPayloads:
    @pytest.mark.parametrize(
        ("annotation", "raw", "value"),
        [
            (bytes, b"\xff\x00", b"\xff\x00"),
            (str, "café".encode(), "café"),
            (dict, b'{"a": [1, null]}', {"a": [1, None]}),
            (dict[str, int], b'{"a": 1}', {"a": 1}),
            (list, b"[1]", [1]),
            (int, b"17", 17),
            (Order, b'{"id": 7, "more": 1}', Order(7)),
            (Point, b'{"x": 1}', Point(1)),
            (Row, b'{"a": 1}', {"a": 1}),
            (Pair, b"[1, 2]", Pair(1, 2)),
            (Any, b"null", None),
            (bytes | None, b"\xff", b"\xff"),
            (str | None, b"no JSON", "no JSON"),
            (list[Order] | None, b'[{"id": 7}]', [Order(7)]),
        ],
    )
    def test_values(self, annotation: Any, raw: bytes, value: Any) -> None:
        assert payloads.decoder(annotation)(raw) == value

    @pytest.mark.parametrize(
        ("annotation", "raw", "says"),
        [
            (str, b"\xff", "utf-8"),
            (dict, b"[]", "Expected `object`, got `array`"),
            (dict, b"{", "truncated"),
            (dict, b'"\xff"', "got `str`"),
            (Order, b'{"id": "x"}', r"Expected `int`, got `str` - at `\$.id`"),
            (Order, b'{"id": -1}', "negative id"),
            (Point, b"", "truncated"),
            (dict, b'{"a":' * 100_000, "recursion|Stack overflow"),  # the second by Python 3.14
        ],
    )
    def test_what_does_not_fit_says_why(self, annotation: Any, raw: bytes, says: str) -> None:
        with pytest.raises(Undecodable, match=says) as refused:
            payloads.decoder(annotation)(raw)
        assert outcomes.of(refused.value) == Outcome(
            True, -1, outcomes.shortened(str(refused.value)), "undecodable"
        )

    @pytest.mark.parametrize("annotation", [Handler, "nonsense", Callable])
    def test_types_that_nothing_decodes_to(self, annotation: Any) -> None:
        if annotation is Handler:
            annotation = type("Plain", (), {})
        with pytest.raises(BadRequest, match="decoded to"):
            payloads.decoder(annotation)

    @pytest.mark.parametrize(
        "annotation", [list[Model], Model | None, dict[str, Model], Holder, list[Holder], tuple[int, Model]]
    )
    def test_a_type_that_nothing_decodes_to_is_found_inside_of_others(self, annotation: Any) -> None:
        """Each record became a dead letter."""
        with pytest.raises(BadRequest, match="Model in it") as refused:
            payloads.decoder(annotation)
        assert "a model of pydantic" in refused.value.hint

    def test_a_type_that_holds_itself_is_looked_at_once(self) -> None:
        assert payloads.decoder(Tree)(b'{"leaves": [{}]}') == Tree([Tree()])

    def test_a_field_whose_type_is_not_there_at_run_time_is_named(self) -> None:
        with pytest.raises(BadRequest, match="Half: name 'Elsewhere' is not defined"):
            payloads.decoder(Half)

    @pytest.mark.parametrize(
        ("value", "raw"),
        [
            (b"x", b"x"),
            (bytearray(b"x"), b"x"),
            ("é", "é".encode()),
            ({"a": 1}, b'{"a":1}'),
            (Order(1), b'{"id":1,"note":""}'),
        ],
    )
    def test_answers(self, value: Any, raw: bytes) -> None:
        assert payloads.encoded(value) == raw

    def test_no_answer_for_what_is_no_value(self) -> None:
        with pytest.raises(BadRequest):
            payloads.encoded(object())


def made(function: Callable[..., Any]) -> Handler:
    return handler(function, joining("t", "g"), 1)


@pytest.fixture
def message() -> Record:
    """Value 17."""
    hand = Hand()
    subscription = hand.subscribe()
    hand.deliver(subscription.parts[0], 17, 1)
    (piece,) = hand.session.consuming.take(subscription, 1)
    return Record(piece.held, 17)


class TestSignatures:
    def test_the_value_the_message_or_both(self, message: Record) -> None:
        def value(order: int) -> None: ...
        def untyped(msg) -> None: ...
        def typed(msg: Message) -> None: ...
        def awaited(msg: aio_consumer.Message) -> None: ...
        def both(order: bytes, msg) -> None: ...
        def turned(msg: Message, order: str, times: int = 3, *rest: int, **more: int) -> None: ...

        assert made(value).arguments(message) == [17]
        for function in (untyped, typed, awaited):
            assert made(function).arguments(message) == [message]
        assert made(both).arguments(message) == [b"17", message]
        assert made(turned).arguments(message) == [message, "17"]
        assert made(value).name.endswith("<locals>.value")
        assert not made(value).is_async

    def test_all_that_can_be_called(self, message: Record) -> None:
        class Office:
            def work(self, order: int) -> None: ...
            async def __call__(self, order: int) -> None: ...

        async def later(order: int, rate: float) -> None: ...

        assert made(Office().work).arguments(message) == [17]
        assert made(Office()).is_async
        assert made(functools.partial(later, rate=2)).arguments(message) == [17]
        assert made(functools.partial(later, rate=2)).is_async

    def test_handlers_that_cannot_be(self) -> None:
        def none() -> None: ...
        def two(a: int, b: int) -> None: ...
        def messages(a, b) -> None: ...
        def keyword(a: int, *, b: int) -> None: ...
        def yields(a: int):
            yield a

        class Yielding:
            def __call__(self, a: int):
                yield a

        def unknown(a: "NotDefinedAnywhere") -> None: ...  # noqa: F821
        def foreign(a: Hand) -> None: ...

        for function in (none, two, messages, keyword, yields, Yielding(), unknown, foreign):
            with pytest.raises(BadRequest) as refused:
                made(function)
            assert refused.value.hint
        for workers in (0, -1, 1.5, 10**6):
            with pytest.raises(BadRequest, match="workers"):
                handler(len, joining("t", "g"), workers)  # type: ignore[arg-type]

    def test_names_that_only_type_checkers_know_are_no_obstacle(self, message: Record) -> None:
        """Tools move such imports under `if TYPE_CHECKING`."""
        text = """
from __future__ import annotations
import functools

def plain(msg: Message, rate: Rate = 1) -> Result: ...

def outer(function):
    @functools.wraps(function)
    def inner(*arguments: Anything): ...
    return inner

@outer
def wrapped(order: int) -> Result: ...

class Office:
    def __call__(self, msg: Message) -> Result: ...
    def work(self, order: int) -> Result: ...

def needed(order: Order) -> None: ...
"""
        module: dict[str, Any] = {}
        exec(text, module)
        office = module["Office"]()
        for function, taken in (
            (module["plain"], message),
            (functools.partial(module["plain"], rate=2), message),
            (module["wrapped"], 17),
            (office, message),
            (office.work, 17),
        ):
            assert made(function).arguments(message) == [taken]
        with pytest.raises(BadRequest, match="needed annotates order as Order: NameError") as refused:
            made(module["needed"])
        assert "not under `if TYPE_CHECKING`" in refused.value.hint

    def test_annotations_name_classes_that_are_defined_beside_a_handler(self) -> None:
        """Annotations are text under this import, and such a handler was refused."""
        text = """
from __future__ import annotations
import msgspec

def register(consumer):
    class Order(msgspec.Struct):
        id: int

    @consumer("orders", group="g")
    def bill(order: Order) -> Missing: ...
"""
        module: dict[str, Any] = {}
        exec(text, module)
        for client in (aio.connect("tcp://127.0.0.1:1"), connect("tcp://127.0.0.1:1")):
            module["register"](client.consumer)
            (one,) = client.handlers.some()
            assert one.decode is not None
            assert one.decode(b'{"id":7}').id == 7

    def test_the_decorator_leaves_the_function_as_it_is(self) -> None:
        registry = Handlers()
        with pytest.raises(BadRequest, match="nothing to run"):
            registry.some()

        @registry.consumer("orders", group="g", workers=2, mode="key_ordered")
        def double(order: int) -> int:
            return 2 * order

        assert double(4) == 8
        (one,) = registry.some()
        assert (one.function, one.workers, one.asked.options.mode) == (double, 2, "key_ordered")
        with pytest.raises(BadRequest):
            registry.consumer("orders", group="g", attempts_max=0)


class TestOutcomes:
    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (Retry(), Outcome(True, -1)),
            (Retry("5s", "not yet"), Outcome(True, 5_000, "not yet")),
            (RetryFlow("5s", "429"), Outcome(False, 5_000, "429", "", True)),
            (Reject("no such customer"), Outcome(True, -1, "no such customer", "rejected")),
            (ValueError("bad"), Outcome(True, -1, "ValueError: bad")),
            (KeyboardInterrupt(), GIVEN_BACK),
            (SystemExit(1), GIVEN_BACK),
        ],
    )
    def test_what_an_exception_means(self, error: BaseException, outcome: Outcome) -> None:
        assert outcomes.of(error) == outcome

    def test_a_reason_is_cut_where_a_node_would(self) -> None:
        assert outcomes.shortened("é" * limits.ERROR_BYTES_MAX) == "é" * (limits.ERROR_BYTES_MAX // 2)
        assert outcomes.shortened("\ud800") == "?"

    @pytest.mark.parametrize("delay", ["-1s", -1, float("nan"), "soon", "4000d"])
    def test_no_such_delay(self, delay: Any) -> None:
        with pytest.raises(BadRequest, match="delay"):
            Retry(delay)


class TestRequests:
    def test_a_request_says_where_its_reply_goes(self) -> None:
        requests = Requests()
        requests.route = "mine"
        first = requests.headers(requests.begin(), {"a": "b"})
        assert first == {"a": "b", TO: "_replies", ROUTE: "mine", CORRELATION: "1"}
        assert requests.headers(requests.begin(), None)[CORRELATION] == "2"

    def test_replies_find_their_requests_and_others_are_dropped(self) -> None:
        hand, requests = Hand(), Requests()
        requests.subscription = hand.subscribe(group="")
        assert requests.ready
        one, two = requests.begin(), requests.begin()
        consuming = hand.session.consuming
        assert requests.reply(one, consuming) is None
        deliver_replies(hand, requests, [two, "77", "", one])
        found = requests.reply(one, consuming)
        assert found is not None
        assert found[0].value(found[1]) == b"3"
        requests.end(one)
        assert requests.reply(one, consuming) is None
        answer = requests.reply(two, consuming)
        assert answer is not None
        assert answer[0].value(answer[1]) == b"0"

    def test_who_asks_for_no_reply_gets_none(self, message: Record) -> None:
        assert answer(message, b"x", CheckedCodec()) is None


def deliver_replies(hand: Hand, requests: Requests, correlations: list[str]) -> None:
    """Replies with their number as value."""
    assert requests.subscription is not None
    (part,) = requests.subscription.parts
    headers = [msgspec.msgpack.encode({CORRELATION: each}) if each else b"\xc1" for each in correlations]
    raw = bytes(wire.seal([b"%d" % at for at in range(len(correlations))], headers=headers))
    piece = Delivered(next(iter(part.starts)), 0, len(correlations), 1, len(raw), 10)
    hand.tell(Deliver(part.number, [piece], 0), part.shard, batch=raw)
