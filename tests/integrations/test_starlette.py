"""FastAPI and Starlette on a broker in this process: the application starts twice in one process."""

import asyncio
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Route

import gossipq
from gossipq_client import testing
from gossipq_starlette import Attached
from waiting import until

WELCOMED: list[str] = []

mq = gossipq.aio.connect()
broker = Attached(mq)
app = FastAPI(lifespan=broker.lifespan)
app.add_route("/readyz", broker.readyz)


@mq.consumer("signups", group="mails")
async def welcome(user: dict[str, str]) -> None:
    WELCOMED.append(user["name"])


@app.post("/signups/{name}")
async def sign_up(name: str, mq: Annotated[gossipq.aio.Client, Depends(broker)]) -> dict[str, str]:
    return {"ref": (await mq.publish("signups", {"name": name})).ref}


@pytest.fixture(autouse=True)
def _own_broker(gossipq_broker: testing.Broker) -> None:
    WELCOMED.clear()


@pytest.mark.parametrize("name", ["ada", "bob"])
def test_an_application_starts_again_in_the_same_process(name: str) -> None:
    """Each time in another event loop, and with another broker."""
    with TestClient(app) as web:
        assert web.get("/readyz").json() == {"ready": True, "why": ""}
        assert web.post(f"/signups/{name}").json() == {"ref": "signups/0/0"}
        until(lambda: name in WELCOMED)
    assert [name] == WELCOMED


def test_readyz_says_why_it_is_not(gossipq_broker: testing.Broker) -> None:
    attached = Attached(gossipq.aio.connect(), handlers=False)
    site = Starlette(routes=[Route("/readyz", attached.readyz)], lifespan=attached.lifespan)
    assert TestClient(site).get("/readyz").json()["why"] == "the application is not running"
    with TestClient(site) as web:
        assert web.get("/readyz").status_code == 200
        gossipq_broker.close()
        answer = web.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert answer.json()["why"]
    assert TestClient(site).get("/readyz").status_code == 503


def test_handlers_that_end_make_it_not_ready(gossipq_broker: testing.Broker) -> None:
    failing = gossipq.aio.connect()

    @failing.consumer("missing", group="mails", create=False)
    async def handle(value: bytes) -> None: ...

    attached = Attached(failing)
    with TestClient(Starlette(routes=[Route("/readyz", attached.readyz)], lifespan=attached.lifespan)) as web:
        why = until(lambda: web.get("/readyz").json()["why"])
    assert why.startswith("handlers have ended: no topic missing")


def test_a_lifespan_of_ones_own() -> None:
    told: list[str] = []

    async def publish(request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse((await own.mq.publish("signups", b"x")).ref)

    own = Attached(gossipq.aio.connect(), handlers=False)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        async with own.running() as mq:
            told.append((await mq.publish("signups", b"begun")).ref)
            yield

    with TestClient(Starlette(routes=[Route("/", publish)], lifespan=lifespan)) as web:
        assert web.get("/").text == "signups/0/1"
    assert told == ["signups/0/0"]


def test_what_is_published_is_stored_when_the_application_has_ended() -> None:
    posting = Attached(gossipq.aio.connect())

    async def use() -> None:
        async with posting.running() as mq:
            mq.post("signups", b"posted")

    asyncio.run(use())
    with gossipq.connect() as client:
        (msg,) = client.read("signups")
        assert msg.value == b"posted"
