"""A gateway behind a proxy, which ends TLS, may remove the front of a path, and calls it by an address of its
own."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from conftest import RunningNode
from gateway import amazon
from gateway.conftest import RunningGateway
from gossipq.errors import ConfigError
from gossipq_gateway.dialect import Place
from gossipq_gateway.listener import listening
from gossipq_gateway.manners import Manners
from gossipq_gateway.settings import Settings

PUBLIC = "https://mq.example:8443/mq"
HTTPS = {"x-forwarded-proto": "https"}


@pytest.fixture(scope="module")
def gateway(shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    home = tmp_path_factory.mktemp("gateway")
    with RunningGateway(shared_node.endpoint, *amazon.flags(home), home=home) as running:
        yield running


@pytest.mark.parametrize("url", ["https://mq.example", "http://10.0.0.7:81/mq", "https://[::1]:8443"])
def test_a_public_url_is_taken(url: str) -> None:
    Settings(public_url=url).check()


@pytest.mark.parametrize(
    "url",
    [
        "mq.example",
        "ftp://mq.example",
        "https://",
        "https://mq.example/",
        "https://mq.example/mq/",
        "https://mq.example?a=b",
        "https://ada@mq.example",
        "https://mq.example:no",
        "https://[mq",
    ],
)
def test_a_public_url_of_no_gateway_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--public-url"):
        Settings(public_url=url).check()


def test_a_proxy_is_named_by_its_address_or_network() -> None:
    Settings(proxies=("10.0.0.7", "10.0.0.0/24", "fd00::/8")).check()
    for wrong in ("proxy.example", "10.0.0.7/24", "*", ""):
        with pytest.raises(ConfigError, match="--trust-proxy"):
            Settings(proxies=(wrong,)).check()


def test_pages_and_callers_of_the_public_url_are_its_own() -> None:
    """Also where the proxy calls the gateway by another host name than browsers call the proxy."""
    settings = Settings(public_url="https://MQ.example:8443/mq")
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])

    async def status(host: str, origin: str) -> int:
        manners = Manners(app, settings.http, settings.known_hosts, settings.known_origins)
        headers = [(b"host", host.encode()), (b"origin", origin.encode())]
        said = [{"status": 200}]

        async def send(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/ack", "headers": headers}
        await manners(scope, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type,return-value]
        return next(part["status"] for part in reversed(said) if "status" in part)

    async def run() -> None:
        for host in ("mq.example", "mq.example:8443", "127.0.0.1:7781"):
            assert await status(host, "https://mq.example:8443") == 200
            assert await status(host, "https://evil.example") == 403
        assert await status("evil.example", "https://mq.example:8443") == 421

    asyncio.run(run())
    assert asked == ["/v1/ack"] * 3


@pytest.mark.parametrize(
    ("proxies", "scheme"), [((), "http"), (("127.0.0.0/8",), "https"), (("10.0.0.7",), "http")]
)
def test_a_scheme_is_believed_if_a_proxy_says_it(proxies: tuple[str, ...], scheme: str) -> None:
    schemes: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        schemes.append(scope["scheme"])
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async def run() -> None:
        async with listening(app, Place("127.0.0.1", 0), proxies) as at, httpx.AsyncClient() as client:
            await client.get(f"http://{at}/", headers=HTTPS)

    asyncio.run(run())
    assert schemes == [scheme]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _queue_url(url: str, path: str = "/sqs", **headers: str) -> str:
    """Of a new queue, asked for as by a proxy that calls the gateway at `url`."""
    client = boto3.client(
        "sqs",
        endpoint_url=url + path,
        region_name="eu-1",
        aws_access_key_id=amazon.KEY,
        aws_secret_access_key=amazon.SECRET,
    )
    client.meta.events.register("before-send", lambda request, **given: request.headers.update(headers))
    return str(client.create_queue(QueueName="proxied")["QueueUrl"])


@pytest.mark.e2e
def test_the_url_of_a_queue_begins_as_callers_began(gateway: RunningGateway) -> None:
    place = gateway.url.removeprefix("http://")
    assert _queue_url(gateway.url) == f"http://{place}/sqs/000000000000/proxied"
    assert _queue_url(gateway.url, **HTTPS) == f"https://{place}/sqs/000000000000/proxied"


@pytest.mark.e2e
def test_the_url_of_a_queue_begins_with_the_public_url(shared_node: RunningNode, tmp_path: Path) -> None:
    """Callers sign the path that they asked for, of which the proxy removes the front."""
    flags = (*amazon.flags(tmp_path), "--public-url", PUBLIC)
    with RunningGateway(shared_node.endpoint, *flags, home=tmp_path) as gateway:
        client = boto3.client(
            "sqs",
            endpoint_url="https://mq.example:8443/mq/sqs",
            region_name="eu-1",
            aws_access_key_id=amazon.KEY,
            aws_secret_access_key=amazon.SECRET,
        )

        def proxy(request: AWSPreparedRequest, **given: Any) -> AWSResponse:
            asked = {name: _text(value) for name, value in request.headers.items()}
            url = request.url.replace(PUBLIC, gateway.url)
            answer = httpx.post(url, content=request.body, headers={**asked, "host": "mq.example:8443"})
            told = AWSResponse(request.url, answer.status_code, dict(answer.headers), None)
            told._content = answer.content
            return told

        client.meta.events.register("before-send", proxy)
        url = client.create_queue(QueueName="proxied-2")["QueueUrl"]
        assert url == f"{PUBLIC}/sqs/000000000000/proxied-2"
        client.send_message(QueueUrl=url, MessageBody="17 apples")
        assert amazon.bodies(client.receive_message(QueueUrl=url, WaitTimeSeconds=5)) == ["17 apples"]


@pytest.mark.e2e
@pytest.mark.parametrize("path", ["/v1/topics/streamed/stream", "/console/live?page=topics"])
def test_a_proxy_passes_a_stream_on_as_it_comes(gateway: RunningGateway, path: str) -> None:
    httpx.post(f"{gateway.url}/v1/topics", json={"name": "streamed"})
    with httpx.stream("GET", gateway.url + path, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers.get_list("cache-control") == ["no-store, no-transform"]


@pytest.mark.e2e
def test_a_cookie_that_came_by_https_goes_by_https_alone(gateway: RunningGateway) -> None:
    for headers, secure in (({}, False), (HTTPS, True)):
        seal = re.search(r'name="seal" value="([0-9a-f]+)"', httpx.get(f"{gateway.url}/console/nodes").text)
        assert seal is not None
        answer = httpx.post(f"{gateway.url}/console/sign-out", data={"seal": seal[1]}, headers=headers)
        assert ("secure" in answer.headers["set-cookie"].lower()) is secure
