"""A closed cluster: callers may do what the users may whose tokens they show."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conftest import RunningNode
from gateway.conftest import RunningGateway
from gossipq.answers import AccessRule, Role, TokenDigest, User
from gossipq.permissions import digest
from gossipq_client import connect

pytestmark = pytest.mark.e2e
TOKENS = {name: bytes([number]) * 32 for number, name in enumerate(("boss", "reader", "writer"), 1)}


def shown(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer gq_{TOKENS[name].hex()}"}


@pytest.fixture(scope="module")
def gateway(shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """The gateway's own user may do everything; what its callers may is theirs."""
    home = tmp_path_factory.mktemp("closed")
    everything = ("read", "publish", "create", "mend", "operate", "cluster", "observe")
    roles = [
        Role("boss", (AccessRule("*", everything),)),
        Role("reader", (AccessRule("open*", ("read",)),)),
        Role("writer", (AccessRule("open*", ("publish", "create")),)),
    ]
    users = [User(name, (name,), (TokenDigest(digest(token)),)) for name, token in TOKENS.items()]
    with connect(shared_node.endpoint, credentials=b"") as mq:
        mq.admin.set_access(users=users, roles=roles, closed=True, secret=_secret(shared_node))
    own = home / "credentials"
    own.write_text(f"gq_{TOKENS['boss'].hex()}\n")
    own.chmod(0o600)
    with RunningGateway(shared_node.endpoint, "--credentials", str(own), home=home) as running:
        yield running
        assert running.stop() == 0
    assert "Traceback" not in running.said


def _secret(node: RunningNode) -> bytes:
    return (Path(node.data) / "secret").read_bytes().strip()


def test_each_caller_is_its_user(http: httpx.Client) -> None:
    path = "/v1/topics/open/records"
    assert http.post(path, content=b"x", headers=shown("writer")).status_code == 201
    read = http.post(path, content=b"x", headers=shown("reader"))
    assert (read.status_code, read.json()["code"]) == (403, "forbidden")
    other = http.post("/v1/topics/other/records", content=b"x", headers=shown("writer"))
    assert (other.status_code, other.json()["code"]) == (403, "forbidden")
    assert len(http.get(path, headers=shown("reader")).json()["records"]) == 1
    assert http.get("/v1/whoami", headers=shown("reader")).json()["user"] == "reader"
    fetched = http.post("/v1/topics/open/groups/g/fetch", json={"wait": "5s"}, headers=shown("reader"))
    (record,) = fetched.json()["records"]
    stolen = http.post("/v1/ack", json={"leases": [record["lease"]]}, headers=shown("writer"))
    assert stolen.status_code == 409, "a lease is its caller's"
    mine = http.post("/v1/ack", json={"leases": [record["lease"]]}, headers=shown("reader"))
    assert mine.json()["settled"] == 1


def test_who_shows_nothing_is_nobody(http: httpx.Client) -> None:
    """Not the gateway's own user, which may do everything."""
    answer = http.post("/v1/topics/open/records", content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert http.get("/v1/whoami").json()["user"] == "anonymous"


@pytest.mark.parametrize(
    "text", ["Bearer", "Bearer x", "Basic YTpi", "gq_" + "ab" * 32, "Bearer gq_" + "zz" * 32]
)
def test_what_is_no_token_is_refused(http: httpx.Client, text: str) -> None:
    answer = http.get("/v1/whoami", headers={"authorization": text})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


def test_a_token_that_nobody_has_is_refused(http: httpx.Client) -> None:
    for _ in range(3):
        answer = http.get("/v1/whoami", headers={"authorization": "Bearer gq_" + "ab" * 32})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    assert http.get("/v1/whoami", headers=shown("reader")).status_code == 200
