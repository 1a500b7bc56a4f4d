"""Parts of applications: middleware, typed values, time limits, logs, traces, requests that fail at
once with a reason, and a web server around them.
"""

import asyncio
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from httpx import ASGITransport, AsyncClient
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gossipq.errors import BadRequest, LeaseLost, NoReply, UnknownTopic
from gossipq.wire.plain import UNREADABLE
from gossipq_client import Message, Middleware, Reject, TimeLimitExceeded, aio, connect, testing
from gossipq_client.api.sync.runs import Run
from gossipq_client.metrics import Metrics
from gossipq_client.middleware import MessageLog
from gossipq_client.traces import Tracing
from waiting import until

EXAMPLES = Path(__file__).resolve().parents[2] / "clients" / "python" / "examples"
PATIENCE_S = 60


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as mq:
        yield mq


@contextmanager
def running(mq: testing.Client) -> Iterator[None]:
    thread = threading.Thread(target=mq.run, kwargs={"signals": False})
    thread.start()
    try:
        yield
    finally:
        mq.stop()
        thread.join()


class Noting(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
        options["headers"][self.name] = topic

    def before(self, message: Any) -> None:
        self.notes.append(f"{self.name} before {message.value.decode()}")

    def after(self, message: Any, result: Any) -> None:
        self.notes.append(f"{self.name} after {result}")

    def error(self, message: Any, error: BaseException) -> None:
        self.notes.append(f"{self.name} error {error}")


def test_middleware_hears_of_what_is_published_in_an_atomic_step(mq: testing.Client) -> None:
    mq.create_topic("step.source")
    mq.create_topic("step.outcome", beside="step.source")
    mq.publish("step.source", b"x")
    mq.add_middleware(Noting("seen", []))
    (msg,) = mq.fetch("step.source", "g", n=1, wait=PATIENCE_S)
    msg.ack_with("step.outcome", b"y", timeout=PATIENCE_S)
    (found,) = mq.read("step.outcome")
    assert found.headers == {"seen": "step.outcome"}


def test_middleware_stands_around_handlers_and_before_publishes(mq: testing.Client) -> None:
    notes, headers = list[str](), list[dict[str, Any]]()
    for name in ("outer", "inner"):
        mq.add_middleware(Noting(name, notes))

    @mq.consumer("wared", group="g")
    def work(msg: aio.Message) -> str:
        headers.append(msg.headers)
        if msg.value == b"bad":
            raise Reject("no luck")
        return "done"

    mq.publish("wared", b"good", headers={"mine": "1"}, timeout=PATIENCE_S)
    mq.publish_many("wared", [b"bad"], timeout=PATIENCE_S)
    mq.run(stop_at_end=True)
    assert headers == [
        {"mine": "1", "outer": "wared", "inner": "wared"},
        {"outer": "wared", "inner": "wared"},
    ]
    assert notes == [
        *("outer before good", "inner before good", "inner after done", "outer after done"),
        *("outer before bad", "inner before bad", "inner error no luck", "outer error no luck"),
    ]


def test_middleware_that_raises_fails_the_message_and_nothing_else(mq: testing.Client) -> None:
    notes = list[str]()

    class Broken(Middleware):
        def before(self, message: Any) -> None:
            raise Reject("not today")

    class BrokenError(Middleware):
        def error(self, message: Any, error: BaseException) -> None:
            raise RuntimeError("twice")

    for ware in (Noting("outer", notes), BrokenError(), Broken()):
        mq.add_middleware(ware)

    @mq.consumer("broken", group="g")
    def work(value: bytes) -> None:
        notes.append("never")

    mq.publish("broken", b"x", timeout=PATIENCE_S)
    mq.run(stop_at_end=True)
    assert notes == ["outer before x", "outer error not today"]
    assert [letter.error for letter in mq.dead("broken", "g").letters()] == ["not today"]


FOREIGN = b"\xc1"  # no map of msgpack


def test_headers_passed_on_as_bytes_meet_middleware_that_adds_its_own(mq: testing.Client) -> None:
    """Tracing raised TypeError, so that a handler that passed a record on failed until it was dead."""
    mq.create_topic("relay.source")
    mq.create_topic("relay.copy", beside="relay.source")
    mq.publish("relay.source", b"x", headers={"b": b"\xff\x00", "t": "text"})
    mq.publish("relay.source", b"x", headers=FOREIGN)
    mq.add_middleware(Noting("seen", []))
    mq.add_middleware(Tracing(TracerProvider().get_tracer("test")))
    for msg in mq.fetch("relay.source", "g", n=2, wait=PATIENCE_S):
        for verb in (mq.post, mq.publish):
            verb("relay.copy", b"x", headers=msg.header_bytes)
        mq.post_many("relay.copy", [b"x"], headers=msg.header_bytes)
        msg.ack_with("relay.copy", b"x", headers=msg.header_bytes, timeout=PATIENCE_S)
    found = [each.headers for each in mq.read("relay.copy")]
    own = [{name: headers.pop(name) for name in ("seen", "traceparent")} for headers in found]
    assert {headers["seen"] for headers in own} == {"relay.copy"}
    assert found == 4 * [{"b": b"\xff\x00", "t": "text"}] + 4 * [{UNREADABLE: FOREIGN}]


def test_headers_that_middleware_does_not_change_go_on_byte_for_byte(mq: testing.Client) -> None:
    class Looking(Middleware):
        def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
            assert isinstance(options["headers"], dict)

    class Passing(Middleware):
        def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
            options["headers"] = options["headers"].get("of") or options["headers"]

    for ware in (Looking(), Passing(), Looking()):
        mq.add_middleware(ware)
    long_form = b"\xde\x00\x01\xa1a\xa1b"  # another encoder would write \x81
    other = msgspec.msgpack.encode({"c": "d"})
    for headers in (FOREIGN, long_form, {"of": other}, None):
        mq.publish("unchanged", b"x", headers=headers)
    found = [each.header_bytes for each in mq.read("unchanged")]
    assert found == [FOREIGN, long_form, other, b""]


@pytest.mark.parametrize("traced", [False, True])
def test_headers_of_another_form_are_refused_with_and_without_middleware(
    mq: testing.Client, traced: bool
) -> None:
    if traced:
        mq.add_middleware(Tracing())
    pairs: Any = [("a", "b")]
    with pytest.raises(BadRequest, match="headers must be a mapping of names to values, not list"):
        mq.post("pairs", b"x", headers=pairs)


@pytest.mark.parametrize("headers", [b"\x81\xa1a\xa1b", {"a": "b"}, FOREIGN])
def test_a_request_may_pass_headers_on(broker: testing.Broker, mq: testing.Client, headers: Any) -> None:
    shown = {UNREADABLE: FOREIGN} if headers == FOREIGN else {"a": "b"}

    @mq.consumer("asked", group="g")
    def reply(msg: Message) -> dict[str, Any]:
        return {"passed": msg.headers.items() >= shown.items()}

    async def main() -> bytes:
        async with aio.connect(broker.endpoint) as asking:
            asking.add_middleware(Tracing())
            reply = await asking.request("asked", b"x", headers=headers, timeout=PATIENCE_S)
            return reply.value

    with running(mq):
        until(lambda: mq.topic("asked").groups() and mq.topic("asked").groups()[0].consumers == 1)
        assert asyncio.run(main()) == b'{"passed":true}'


@dataclass
class Order:
    who: str
    apples: int


class Parcel(msgspec.Struct):
    to: str


@pytest.mark.parametrize("value", [{"a": [1, None]}, [1, 2], 7, Order("ada", 2), Parcel("ada"), "é", b"\xff"])
def test_handlers_get_what_was_published(mq: testing.Client, value: Any) -> None:
    topic, got = f"typed.{type(value).__name__}", list[Any]()

    def work(value: Any) -> None:
        got.append(value)

    work.__annotations__["value"] = type(value)
    mq.consumer(topic, group="g")(work)
    mq.publish(topic, value)
    mq.publish_many(topic, [value], timeout=PATIENCE_S)
    mq.run(stop_at_end=True)
    assert got == [value, value]


@pytest.mark.parametrize("value", [None, object(), float("nan"), {"x": [0.5, float("-inf")]}])
def test_values_that_json_has_no_form_for_are_refused_by_each_verb(
    broker: testing.Broker, mq: testing.Client, tmp_path: Path, value: Any
) -> None:
    """NaN and infinity came out as null."""
    mq.create_topic("unsaid", 1, if_not_exists=True)
    mq.create_topic("unsaid-results", beside="unsaid", if_not_exists=True)
    receipt = mq.publish("unsaid", b"source")
    with connect(broker.endpoint, spool=tmp_path) as spooling:
        verbs: list[Callable[[Any], Any]] = [
            partial(mq.post, "unsaid"),
            partial(mq.publish, "unsaid"),
            lambda value: mq.post_many("unsaid", [b"first", value]),
            partial(spooling.post, "unsaid"),
            partial(mq.fetch("unsaid", "g", n=1)[0].ack_with, "unsaid-results"),
        ]
        if value is not None:  # leaves the value as it is
            verbs.append(lambda value: mq.record(receipt.ref).edit(value=value))
        for verb in verbs:
            with pytest.raises(BadRequest):
                verb(value)
    stored = [msg.value for msg in mq.read("unsaid", start=receipt.offset)]
    assert stored == [b"source"]


def test_a_handler_that_returns_nan_has_failed(mq: testing.Client) -> None:
    @mq.consumer("ratios", group="g", attempts_max=1)
    def divide(value: bytes) -> dict[str, float]:
        return {"ratio": float("nan")}

    with running(mq):
        until(lambda: mq.topic("ratios").groups() and mq.topic("ratios").groups()[0].consumers == 1)
        with pytest.raises(NoReply, match=r"the value has nan at \$\.ratio"):
            mq.request("ratios", b"0/0")


def test_publish_is_one_call_in_both_twins(broker: testing.Broker, mq: testing.Client) -> None:
    assert mq.publish("waited", b"x", timeout="60s").offset == 0

    async def main() -> int:
        async with aio.connect(broker.endpoint) as twin:
            return (await twin.publish("waited", b"y")).offset

    assert asyncio.run(main()) == 1


def test_a_handler_that_takes_too_long_has_failed(mq: testing.Client) -> None:
    errors, free = list[BaseException](), threading.Event()

    class Watching(Middleware):
        def error(self, message: Any, error: BaseException) -> None:
            errors.append(error)

    mq.add_middleware(Watching())

    @mq.consumer("slow", group="thread", time_limit="50ms", attempts_max=1)
    def in_a_thread(value: bytes) -> None:
        free.wait(PATIENCE_S)

    @mq.consumer("slow", group="task", time_limit=0.05, attempts_max=1)
    async def in_a_task(value: bytes) -> None:
        await asyncio.sleep(PATIENCE_S)

    mq.publish("slow", b"x", timeout=PATIENCE_S)
    with running(mq):
        until(lambda: len(list(mq.dead("slow").letters())) == 2)
        free.set()
    assert sorted(letter.group for letter in mq.dead("slow").letters()) == ["task", "thread"]
    assert all("took longer than 0.05 s" in letter.error for letter in mq.dead("slow").letters())
    assert {type(error) for error in errors} == {TimeLimitExceeded}


def test_an_asyncio_handler_that_takes_too_long_has_failed(broker: testing.Broker) -> None:
    free = threading.Event()

    async def main() -> list[str]:
        async with aio.connect(broker.endpoint) as mq:

            @mq.consumer("aslow", group="task", time_limit="50ms", attempts_max=1)
            async def in_a_task(value: bytes) -> None:
                await asyncio.sleep(PATIENCE_S)

            @mq.consumer("aslow", group="thread", time_limit="50ms", attempts_max=1)
            def in_a_thread(value: bytes) -> None:
                free.wait(PATIENCE_S)

            await mq.publish("aslow", b"x")
            run = asyncio.create_task(mq.run(signals=False))
            dead = list[str]()
            while len(dead) < 2:
                await asyncio.sleep(0.01)
                dead = [letter.group async for letter in mq.dead("aslow").letters()]
            free.set()
            mq.stop()
            await run
            return sorted(dead)

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == ["task", "thread"]


class Expired(Middleware):
    """Notes messages that exceeded their time limit, and failures."""

    def __init__(self) -> None:
        self.refs, self.errors = list[str](), list[BaseException]()

    def expired(self, message: Any, error: BaseException) -> None:
        self.refs.append(message.ref)
        raise RuntimeError("middleware that fails hurts nobody")

    def error(self, message: Any, error: BaseException) -> None:
        self.errors.append(error)


def late_work(free: threading.Event, late: list[str]) -> Callable[[Message], None]:
    """A handler in a thread that exceeds its time limit and then acks."""

    def work(msg: Message) -> None:
        free.wait(PATIENCE_S)
        for act in (msg.ack_soon, lambda: msg.post_with("overdue.more", b"y"), lambda: msg.extend("5s")):
            try:
                act()
            except LeaseLost as lost:
                late.append(lost.message)
        raise ValueError("too late")

    return work


def test_a_handler_that_goes_on_beyond_its_limit_has_lost_its_message(
    mq: testing.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be stopped: its message has failed meanwhile, what it does with it is refused, and the log
    says that a worker is held up."""
    free, late, seen = threading.Event(), list[str](), Expired()
    mq.create_topic("overdue", attempts_max=1)
    mq.create_topic("overdue.more", beside="overdue")
    mq.add_middleware(seen)
    mq.consumer("overdue", group="g", workers=2, time_limit="50ms")(late_work(free, late))
    ref = mq.publish("overdue", b"x", timeout=PATIENCE_S).ref
    with caplog.at_level("INFO", "gossipq_client"), running(mq):
        until(lambda: len(list(mq.dead("overdue").letters())) == 1 and seen.refs)
        assert (
            "it keeps running without its message, another worker takes its place (stuck=1 at=" in caplog.text
        )
        assert not seen.errors, "it is not through"
        free.set()
        until(lambda: seen.errors)
    assert [ref] == seen.refs
    assert [type(error) for error in seen.errors] == [TimeLimitExceeded]
    assert len(late) == 3, "each was refused"
    assert "has ended, after its time limit" in caplog.text
    assert "too late" in caplog.text
    (letter,) = mq.dead("overdue").letters()
    assert "took longer than 0.05 s" in letter.error
    assert list(mq.read("overdue.more")) == []


def test_a_handler_that_ends_with_its_time_limit_has_failed_by_that(
    mq: testing.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be through before its time limit has told anybody."""
    told = Run.expire

    def slowly(*about: Any) -> None:
        time.sleep(0.2)
        told(*about)

    monkeypatch.setattr(Run, "expire", slowly)
    mq.publish("limits", b"x", timeout=PATIENCE_S)

    @mq.consumer("limits", group="narrow", time_limit="50ms", attempts_max=1)
    def work(msg: Message) -> None:
        time.sleep(0.1)

    mq.run(stop_at_end=True)
    (letter,) = mq.dead("limits", "narrow").letters()
    assert letter.error.startswith("TimeLimitExceeded: ")


def test_the_asyncio_client_gives_such_a_handler_no_other_message(broker: testing.Broker) -> None:
    """Its worker waits for it: the next message would wait behind it, and fail without ever being seen."""
    free, seen, began = threading.Event(), Expired(), list[bytes]()

    async def main() -> list[str]:
        async with aio.connect(broker.endpoint) as mq:
            mq.add_middleware(seen)

            @mq.consumer("aoverdue", group="g", time_limit="1s", attempts_max=1)
            def work(msg: aio.Message) -> None:
                began.append(msg.value)
                if msg.value == b"stuck":
                    free.wait(PATIENCE_S)

            await mq.publish_many("aoverdue", [b"stuck", b"next"])
            run = asyncio.create_task(mq.run(signals=False))
            while not seen.refs:
                await asyncio.sleep(0.01)
            free.set()
            while len(began) < 2:
                await asyncio.sleep(0.01)
            mq.stop()
            await run
            return [letter.ref async for letter in mq.dead("aoverdue").letters()]

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == seen.refs == ["aoverdue/0/0"]
    assert began == [b"stuck", b"next"]
    assert [type(error) for error in seen.errors] == [TimeLimitExceeded]


def test_who_asked_hears_of_a_time_limit_at_once(broker: testing.Broker, mq: testing.Client) -> None:
    free = threading.Event()
    with broker.connect() as worker:

        @worker.consumer("asked.long", group="g", time_limit="50ms")
        def work(value: str) -> None:
            free.wait(PATIENCE_S)

        with running(worker):
            until(lambda: "asked.long" in [topic.name for topic in mq.topics()])
            until(lambda: any(group.consumers for group in mq.topic("asked.long").groups()))
            with pytest.raises(NoReply, match="took longer than"):
                mq.request("asked.long", "x", timeout=PATIENCE_S)
            free.set()


def test_a_request_says_at_once_what_is_wrong(broker: testing.Broker, mq: testing.Client) -> None:
    mq.create_topic("lonely")
    with pytest.raises(NoReply, match="nobody consumes 'lonely'"):
        mq.request("lonely", b"x", timeout=PATIENCE_S)
    with pytest.raises(UnknownTopic):
        mq.request("lonly", b"x", timeout=PATIENCE_S)
    with broker.connect() as worker:

        @worker.consumer("asked", group="g")
        def work(value: str) -> str | None:
            if value == "bad":
                raise ValueError("no such thing")
            return value.upper() if value else None

        with running(worker):
            until(lambda: "asked" in [topic.name for topic in mq.topics()])
            until(lambda: any(group.consumers for group in mq.topic("asked").groups()))
            assert mq.request("asked", "a", timeout=PATIENCE_S).value == b"A"
            with pytest.raises(NoReply, match="failed: ValueError: no such thing"):
                mq.request("asked", "bad", timeout=PATIENCE_S)
            with pytest.raises(NoReply, match="returned nothing"):
                mq.request("asked", "", timeout=PATIENCE_S)
    assert len(mq.topics("_replies")[0].shards) > 1


def test_replies_of_different_clients_do_not_all_go_through_one_partition(
    broker: testing.Broker, mq: testing.Client
) -> None:
    with broker.connect() as worker:

        @worker.consumer("spread", group="g")
        def work(value: str) -> str:
            return value

        with running(worker):
            until(lambda: "spread" in [topic.name for topic in mq.topics()])
            until(lambda: any(group.consumers for group in mq.topic("spread").groups()))
            partitions = set[int]()
            for number in range(16):
                with broker.connect() as asker:
                    partitions.add(asker.request("spread", f"{number}", timeout=PATIENCE_S).partition)
    assert len(partitions) > 1


def test_lines_of_the_log_have_topic_and_ref(mq: testing.Client) -> None:
    lines, messages = list[logging.LogRecord](), MessageLog()
    mq.add_middleware(messages)

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    handler, loggers = Kept(), [logging.getLogger(name) for name in ("shop", "gossipq_client")]
    handler.addFilter(messages)
    for logger in loggers:
        logger.addHandler(handler)

    @mq.consumer("logged", group="g")
    async def work(value: bytes) -> None:
        logging.getLogger("shop").warning("at work")
        raise Reject("no")

    try:
        ref = mq.publish("logged", b"x", timeout=PATIENCE_S).ref
        mq.run(stop_at_end=True)
        logging.getLogger("shop").warning("outside")
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    told = [(line.getMessage().partition(":")[0], line.__dict__["ref"]) for line in lines]
    assert told[0] == ("at work", ref)
    assert told[1][1] == ref, "what the client says of the message itself"
    assert told[-1] == ("outside", "")


def failures(mq: testing.Client, topic: str, caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, int]]:
    """The log of a handler that always fails: level, attempt and number of lines of each entry."""

    @mq.consumer(topic, group="g", backoff=0, attempts_max=3)
    def fail(value: bytes) -> None:
        raise ValueError("no\nluck")

    caplog.clear()
    with running(mq):
        until(lambda: any(record.levelname == "ERROR" for record in caplog.records))
    entries = [record for record in caplog.records if record.name == "gossipq_client"]
    lines = [logging.Formatter().format(record).splitlines() for record in entries]
    assert all("ValueError: no" in "".join(each) for each in lines)
    return [
        (record.levelname, record.attempt, len(each))  # type: ignore[attr-defined]
        for record, each in zip(entries, lines, strict=True)
    ]


def test_a_failure_that_is_retried_is_one_line_of_the_log(
    mq: testing.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them had a traceback of 18 lines."""
    caplog.set_level(logging.WARNING, "gossipq_client")
    mq.publish("unlucky", b"x")
    *retried, last = failures(mq, "unlucky", caplog)
    assert retried == [("WARNING", 1, 1), ("WARNING", 2, 1)]
    assert last[:2] == ("ERROR", 3)
    assert last[2] > 5, "the last one has its traceback"


def test_tracebacks_of_retried_failures_come_on_request(
    mq: testing.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gossipq_client")
    mq.publish("traced", b"x")
    assert all(lines > 5 for _, _, lines in failures(mq, "traced", caplog))


def test_the_last_attempt_is_that_of_the_record_if_it_names_one(
    mq: testing.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gossipq_client")
    mq.publish("own", b"x", attempts_max=1)
    assert [entry[:2] for entry in failures(mq, "own", caplog)] == [("ERROR", 1)]


def test_a_failure_that_nobody_retries_has_its_traceback(
    mq: testing.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Without acks a consumer gets each record once."""

    @mq.consumer("read", group="g", ack=False)
    def fail(value: bytes) -> None:
        raise ValueError("no luck")

    mq.publish("read", b"x")
    mq.run(stop_at_end=True)
    assert [record.exc_info is not None for record in caplog.records if record.name == "gossipq_client"] == [
        True
    ]


@pytest.mark.parametrize("handler", ["def", "async def"])
def test_a_trace_goes_from_the_publish_to_the_handler(mq: testing.Client, handler: str) -> None:
    spans, provider, topic = InMemorySpanExporter(), TracerProvider(), f"traced.{len(handler)}"
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = provider.get_tracer("test")
    mq.add_middleware(Tracing(tracer))

    def work(value: str) -> None:
        with tracer.start_as_current_span("inside"):
            if value == "bad":
                raise Reject("no")

    async def awork(value: str) -> None:
        work(value)

    mq.consumer(topic, group="g")(work if handler == "def" else awork)
    for value in ("good", "bad"):
        mq.publish(topic, value, timeout=PATIENCE_S)
    mq.run(stop_at_end=True)
    found = spans.get_finished_spans()
    sent = [span for span in found if span.kind is SpanKind.PRODUCER]
    processed = [span for span in found if span.kind is SpanKind.CONSUMER]
    inside = [span for span in found if span.name == "inside"]
    assert [span.name for span in sent] == [f"send {topic}"] * 2
    assert [link.context.span_id for span in processed for link in span.links] == [
        span.context.span_id for span in sent
    ]
    assert [span.context.trace_id for span in processed] == [span.context.trace_id for span in sent]
    assert [span.parent.span_id for span in inside] == [span.context.span_id for span in processed]
    assert [span.status.status_code for span in processed] == [StatusCode.UNSET, StatusCode.ERROR]


@pytest.mark.parametrize("handler", ["def", "async def"])
def test_metrics_count_what_goes_out_and_comes_in(mq: testing.Client, handler: str) -> None:
    reader, topic = InMemoryMetricReader(), f"metered.{len(handler)}"
    mq.add_middleware(Metrics(MeterProvider([reader]).get_meter("test")))

    def work(value: str) -> None:
        if value == "bad":
            raise Reject("no")

    async def awork(value: str) -> None:
        work(value)

    mq.consumer(topic, group="g")(work if handler == "def" else awork)
    mq.publish(topic, "bad", timeout=PATIENCE_S)
    mq.publish_many(topic, ["good", "good"], timeout=PATIENCE_S)
    mq.run(stop_at_end=True)
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name: list(metric.data.data_points) for metric in scope.metrics}
    sent, consumed = points["messaging.client.sent.messages"], points["messaging.client.consumed.messages"]
    assert [(point.value, point.attributes["messaging.destination.name"]) for point in sent] == [(3, topic)]
    assert [point.value for point in consumed] == [3]
    took = {point.attributes.get("error.type"): point.count for point in points["messaging.process.duration"]}
    assert took == {None: 2, "Reject": 1}


def test_metrics_count_what_goes_on_beyond_its_time_limit(mq: testing.Client) -> None:
    reader, free = InMemoryMetricReader(), threading.Event()
    mq.add_middleware(Metrics(MeterProvider([reader]).get_meter("test")))

    @mq.consumer("metered.long", group="g", time_limit="50ms", attempts_max=1)
    def work(value: bytes) -> None:
        free.wait(PATIENCE_S)

    def expired() -> list[float]:
        data = reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics if data is not None else []
        return [
            point.value
            for metric in metrics
            if metric.name == "gossipq.client.expired.messages"
            for point in metric.data.data_points
        ]

    mq.publish("metered.long", b"x", timeout=PATIENCE_S)
    with running(mq):
        until(lambda: expired() == [1])
        free.set()


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_web_application(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOSSIPQ_SERVER", broker.endpoint)
    module = example("web")

    async def main() -> str:
        said = ""
        transport = ASGITransport(module.app)
        async with (
            module.lifespan(module.app),
            AsyncClient(transport=transport, base_url="http://web") as web,
        ):
            assert (await web.post("/signups/ada")).json()["ref"].startswith("signups/0/0")
            while "welcome ada" not in said:
                said += capsys.readouterr().out
                await asyncio.sleep(0.01)
        return said

    assert "welcome ada" in asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
