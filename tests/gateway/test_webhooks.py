"""Webhooks: signatures, addresses, and what becomes of a record by each answer of its receiver."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks

from gossipq.clock import SystemClock
from gossipq.errors import ConfigError
from gossipq_client import aio, testing
from gossipq_gateway.callers import Callers
from gossipq_gateway.counters import Metrics
from gossipq_gateway.dialect import Desk
from gossipq_gateway.service import dialects
from gossipq_gateway.settings import Settings
from gossipq_gateway.webhooks import addresses, hooks, signatures
from gossipq_gateway.webhooks.dialect import Webhooks
from gossipq_gateway.webhooks.hooks import Hook
from waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


# --- signatures: the vector of the specification's libraries, and its library for Python


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_")])
def test_the_vector_of_the_specification(secret: str) -> None:
    made = signatures.headers(
        [signatures.secret_of(secret)],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert made == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_two_secrets_make_two_signatures() -> None:
    other = "whsec_" + "QUJD" * 8
    keys = [signatures.secret_of(each) for each in (other, SECRET)]
    now_s = SystemClock().now().wall_ms // 1_000
    made = signatures.headers(keys, signatures.message_id("1/0/17"), now_s, b"{}")
    for secret in (SECRET, other):
        assert standardwebhooks.Webhook(secret).verify("{}", made) == {}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook("whsec_" + "WFla" * 8).verify("{}", made)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_short", "whsec_!" * 9, "QUJD" * 22])
def test_a_secret_that_is_none(secret: str) -> None:
    with pytest.raises(ConfigError):
        signatures.secret_of(secret)


def test_ids_are_stable_and_have_no_dot() -> None:
    assert (
        signatures.message_id("a.b/0/1")
        == signatures.message_id("a.b/0/1")
        != signatures.message_id("a.b/0/2")
    )
    assert "." not in signatures.message_id("a.b/0/1")


# --- addresses


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "224.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_private_addresses(address: str) -> None:
    assert not addresses.is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert addresses.is_public(address)


def test_a_name_with_one_private_address_is_refused() -> None:
    with pytest.raises(addresses.PrivateAddress, match="localhost has the private address"):
        asyncio.run(addresses.resolve("localhost", 80, allow_private=False))
    assert asyncio.run(addresses.resolve("localhost", 80, allow_private=True)) in ("127.0.0.1", "::1")


# --- the file


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


LINE = f'topic = "orders"\ngroup = "shop"\nsecret = "{SECRET}"\n'


def test_a_file_of_hooks(tmp_path: Path) -> None:
    text = f'[[webhook]]\n{LINE}url = "https://shop.example/hooks"\nbackoff = ["1s", "1m"]\ntimeout = "2s"\n'
    (hook,) = hooks.read(written(tmp_path / "hooks.toml", text))
    assert (hook.timeout_s, hook.concurrency) == (2.0, 4)
    assert hook.consume_options == {"mode": "shared", "create": True, "backoff": ["1s", "1m"]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'[[webhook]]\n{LINE}url = "http://shop.example/"', "not encrypted"),
        (f'[[webhook]]\n{LINE}url = "ftp://shop.example/"', "url = "),
        (f'[[webhook]]\n{LINE}url = "https://u:p@shop.example/"', "url = "),
        (f'[[webhook]]\n{LINE}url = "https://shop.example:x/"', "url = "),
        (f'[[webhook]]\n{LINE}url = "https://a/"\ncolour = 1', "colour"),
        (f'[[webhook]]\n{LINE}url = "https://a/"\nconcurrency = 0', "concurrency"),
        (f'[[webhook]]\n{LINE}url = "https://a/"\ntimeout = "1h"', "timeout"),
        ('[[webhook]]\ntopic = "a"\ngroup = "b"\nurl = "https://a/"\nsecret = "x"', "base64"),
        ("[[", "hooks.toml"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hooks.read(written(tmp_path / "hooks.toml", text))


def test_a_file_that_others_may_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="others may read"):
        hooks.read(written(tmp_path / "hooks.toml", "", mode=0o644))


# --- pushes


class Receiver(ThreadingHTTPServer):
    """Answers as it is told, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []  #: then 204
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks?a=b"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/hooks?a=b"
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((dict(self.headers.items()), body))
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[testing.Client]:
    with testing.Broker() as broker, broker.connect() as client:
        yield client


@contextmanager
def pushed(mq: testing.Client, *found: Hook) -> Iterator[Metrics]:
    """Serve hooks in a thread during the block."""
    metrics, began, ending = Metrics(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with aio.connect(mq.broker.endpoint) as client:
            desk = Desk(client, SystemClock(), metrics.of("webhooks"), logging.getLogger("webhooks"))
            async with Webhooks(found).serve(desk):
                began.set()
                await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert began.wait(30)
    try:
        yield metrics
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


@pytest.fixture
def hook(receiver: Receiver, request: pytest.FixtureRequest) -> Hook:
    topic = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return Hook(
        topic=topic,
        group="shop",
        url=receiver.url,
        secret=SECRET,
        allow_private=True,
        insecure=True,
        create=True,
        concurrency=1,
        attempts_max=3,
        backoff="10ms",
    )


def changed(hook: Hook, **fields: Any) -> Hook:
    return Hook(**{**{name: getattr(hook, name) for name in hook.__struct_fields__}, **fields})


def acked(mq: testing.Client, hook: Hook) -> Callable[[], int]:
    return lambda: sum(row.acked for row in mq.group(hook.topic, hook.group).counters())


def test_a_record_is_pushed_and_acked(shared: testing.Client, receiver: Receiver, hook: Hook) -> None:
    shared.publish(hook.topic, {"item": "figs"})
    shared.publish(hook.topic, b"\x00\xff")
    with pushed(shared, hook) as metrics:
        until(lambda: acked(shared, hook)() == 2)
        page = metrics.page().decode()
    (headers, body), (others, raw) = receiver.got
    assert standardwebhooks.Webhook(SECRET).verify(body, headers) == {"item": "figs"}
    assert (headers["content-type"], others["content-type"]) == (
        "application/json",
        "application/octet-stream",
    )
    assert (raw, headers["user-agent"].partition("/")[0]) == (b"\x00\xff", "gossipq")
    assert headers["webhook-id"] != others["webhook-id"]
    assert 'gossipq_gateway_messages_acked_total{dialect="webhooks"} 2.0' in page


def test_a_record_is_pushed_again_with_the_same_id(
    shared: testing.Client, receiver: Receiver, hook: Hook
) -> None:
    receiver.answers = [(500, {}), (302, {"location": "http://127.0.0.1:1/"})]
    shared.publish(hook.topic, b"{}")
    with pushed(shared, hook):
        until(lambda: acked(shared, hook)() == 1)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len(receiver.got) == 3, "a redirect is a failure, and is not followed"


def test_a_record_that_fails_too_often_is_a_dead_letter(
    shared: testing.Client, receiver: Receiver, hook: Hook
) -> None:
    receiver.answers = [(400, {})] * 3
    shared.publish(hook.topic, b"{}")
    with pushed(shared, hook):
        until(lambda: list(shared.dead(hook.topic, hook.group).letters()))
    (letter,) = shared.dead(hook.topic, hook.group).letters()
    assert (letter.reason, letter.error) == ("failures", "webhook: HTTP 400")


def test_retry_after_counts(shared: testing.Client, receiver: Receiver, hook: Hook) -> None:
    receiver.answers = [(503, {"retry-after": "3600"})]
    shared.publish(hook.topic, b"{}")
    with pushed(shared, hook):
        until(lambda: any(row.retrying for row in shared.group(hook.topic, hook.group).counters()))
        assert len(receiver.got) == 1
        shared.advance("61m")
        until(lambda: acked(shared, hook)() == 1)


def test_pushes_keep_to_the_rate_of_the_group(shared: testing.Client, receiver: Receiver, hook: Hook) -> None:
    shared.create_topic(hook.topic, 1)
    shared.group(hook.topic, hook.group).ack_below({0: 0})
    shared.group(hook.topic, hook.group).configure(order="fair", rate="1/1h")
    for _ in range(2):
        shared.publish(hook.topic, b"{}")
    with pushed(shared, changed(hook, concurrency=2)):
        until(lambda: acked(shared, hook)() == 1)
        assert len(receiver.got) == 1
        shared.advance("61m")
        until(lambda: acked(shared, hook)() == 2)


def test_a_receiver_that_is_gone_pauses_the_group(
    shared: testing.Client, receiver: Receiver, hook: Hook
) -> None:
    receiver.answers = [(410, {})]
    shared.publish(hook.topic, b"{}")
    with pushed(shared, hook):
        until(lambda: any(row.paused for row in shared.group(hook.topic, hook.group).counters()))
        shared.group(hook.topic, hook.group).resume()
        until(lambda: acked(shared, hook)() == 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"allow_private": False}, "127.0.0.1 has the private address 127.0.0.1"),
        ({"url": "http://127.0.0.1:1/"}, "ConnectionRefusedError"),
        ({"url": "http://nobody.invalid/"}, "gaierror"),
    ],
)
def test_a_request_that_cannot_be_sent_is_a_failure(
    shared: testing.Client, receiver: Receiver, hook: Hook, change: dict[str, Any], says: str
) -> None:
    hook = changed(hook, attempts_max=1, **change)
    shared.publish(hook.topic, b"{}")
    with pushed(shared, hook):
        until(lambda: list(shared.dead(hook.topic, hook.group).letters()))
    (letter,) = shared.dead(hook.topic, hook.group).letters()
    assert says in letter.error
    assert receiver.got == []


def test_a_receiver_that_is_silent_or_speaks_no_http_is_a_failure(shared: testing.Client, hook: Hook) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"SSH-2.0\r\n\r\n" if said else b"")
        await reader.read()
        writer.close()

    said: list[bool] = []
    hook = changed(hook, attempts_max=2, timeout="200ms")
    loop, ready, ending = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def serve() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await ending.wait()
        server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        hook = changed(hook, url=f"http://127.0.0.1:{ports[0]}/", backoff="1h")
        shared.publish(hook.topic, b"{}")
        with pushed(shared, hook):
            until(lambda: any(row.retrying for row in shared.group(hook.topic, hook.group).counters()))
            said.append(True)
            shared.advance("61m")
            until(lambda: list(shared.dead(hook.topic, hook.group).letters()))
        (letter,) = shared.dead(hook.topic, hook.group).letters()
        assert "no HTTP" in letter.error
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


def test_the_gateway_reads_the_file(tmp_path: Path) -> None:
    text = f'[[webhook]]\n{LINE}url = "https://shop.example/"\n'
    path = written(tmp_path / "hooks.toml", text)
    callers = Callers(lambda token: aio.connect(), SystemClock(), "x")
    assert [each.name for each in dialects(Settings(webhooks=path), callers)][1:] == ["webhooks"]
