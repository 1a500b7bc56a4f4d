"""A real node is closed, used by users, and opened again, by the commands that its operator types."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import RunningNode
from gossipq.errors import ConfigError, Forbidden, GossipqError, NotConfirmed, TurnedAway, Unreachable
from gossipq_cli import access
from gossipq_cli.main import main
from gossipq_client import connect
from gossipq_client.io import contexts
from gossipq_client.values import Credentials, file_text
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 60.0


@pytest.fixture
def gossipq(node: RunningNode, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """(exit code, stdout, stderr) of a line; the node's own secret is at hand."""

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["-s", node.endpoint, *argv])
        return code, *capsys.readouterr()

    return run


def refused(ask: Callable[[], Any]) -> str:
    """Repeats a request until it is refused; returns the code of the refusal."""
    said: list[str] = []

    def asked() -> bool:
        try:
            ask()
        except (Forbidden, TurnedAway) as error:
            said.append(getattr(error, "why", "") or error.code)
        return bool(said)

    until(asked)
    return said[0]


def test_closing_using_and_opening(node: RunningNode, gossipq: Callable[..., Any], tmp_path: Path) -> None:
    secret = ("--secret-file", str(node.data / "secret"))
    admin, ada = str(tmp_path / "admin.token"), str(tmp_path / "ada.token")
    with connect(node.endpoint) as stranger:
        stranger.publish("invoices", b"1", timeout=PATIENCE_S)
        stranger.publish("orders", b"1", timeout=PATIENCE_S)
        assert gossipq("cluster", "close", "--save", admin, *secret)[0] == 0
        assert os.stat(admin).st_mode & 0o777 == 0o600
        assert refused(lambda: stranger.publish("invoices", b"2", timeout=PATIENCE_S)) == "forbidden"
        assert refused(stranger.admin.status) == "forbidden"
    by = ("--credentials", admin)
    assert gossipq("status")[0] != 0
    assert gossipq(*by, "status")[0] == 0
    for line in (
        ("user", "role", "add", "billing"),
        ("user", "role", "grant", "billing", "invoices*", "read", "publish"),
        ("user", "add", "ada", "--role", "billing", "--expires", "1d", "--save", ada),
    ):
        assert gossipq(*by, *line)[0] == 0, line
    assert gossipq(*by, "user", "test", "ada", "publish", "invoices")[0] == 0
    assert gossipq(*by, "user", "test", "ada", "PURGE_TOPIC", "invoices")[0] == 1
    code, out, _ = gossipq("--credentials", ada, "user", "whoami", "-o", "names")
    assert (code, out) == (0, "ada\n")
    told = gossipq(*by, "user", "rotate", "ada", "--save", ada)[2]
    assert "It never expires, and the one before did" in told
    code, out, _ = gossipq("--credentials", ada, "topic", "ls", "-o", "names")
    assert (code, out) == (0, "invoices\n")
    code, _, err = gossipq("--credentials", ada, "pub", "orders", "2")
    assert code == 6
    assert "orders" in err
    code, _, err = gossipq("--credentials", ada, "topic", "purge", "invoices", "--yes")
    assert code == 6
    assert "PURGE_TOPIC on topic invoices needs the permission operate, which ada does not have" in err

    with connect(node.endpoint, credentials=ada) as mq:
        mq.publish("invoices", b"2", timeout=PATIENCE_S)
        got = mq.consume("invoices", group="g", start="first")
        assert [next(got).value for _ in range(2)] == [b"1", b"2"]
        gossipq(*by, "user", "set", "ada")
        assert refused(lambda: mq.publish("invoices", b"3", timeout=PATIENCE_S)) == "forbidden"
        gossipq(*by, "user", "set", "ada", "--role", "billing")
        until(lambda: goes(lambda: mq.publish("invoices", b"4", timeout=PATIENCE_S)))
        gossipq(*by, "user", "rm", "ada")
        last = mq.post("invoices", b"5")
        until(lambda: mq._driver.engine.session.links.refusal is not None)
        with pytest.raises(NotConfirmed, match="no user has the token"):
            last.result(1)
        mq.close(flush=False)

    def audited() -> set[tuple[str, str, str]]:
        _, out, _ = gossipq(*by, "user", "audit", "-o", "jsonl")
        rows = [json.loads(line) for line in out.splitlines()]
        return {(row["user"], row["verb"], row["outcome"]) for row in rows}

    seen = {("ada", "PURGE_TOPIC", "forbidden"), ("admin", "SET_ACCESS", "admitted")}
    until(lambda: seen | {("", "HELLO", "forbidden")} <= audited())
    node.kill()
    node.start()
    assert gossipq("topic", "show", "invoices")[0] == 6, "it stays closed"
    assert gossipq("cluster", "open", *secret)[0] == 0, "who has the secret is never locked out"
    with connect(node.endpoint) as mq:
        values = [record.value for record in mq.read("invoices")]
        assert values == [b"1", b"2", b"4"]


def goes(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except GossipqError:
        return False
    return True


def test_tokens_stay_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("gq_" + "00" * 32)
    path.chmod(0o600)
    local, far = ["tcp://127.0.0.1:7700"], ["tcp://10.0.0.7:7700"]
    assert contexts.credentials_for((), local, path).token == bytes(32)
    with pytest.raises(ConfigError, match="in the clear"):
        contexts.credentials_for((), far, path)
    assert contexts.credentials_for((), far, path, insecure=True).at(far[0]) == bytes(32)
    assert contexts.credentials_for((), local, path).at(far[0]) == b""
    monkeypatch.setenv("GOSSIPQ_CREDENTIALS", str(path))
    assert contexts.credentials_for((), local, None).token == bytes(32)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="other users"):
        contexts.credentials_for((), local, None)
    monkeypatch.delenv("GOSSIPQ_CREDENTIALS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert contexts.credentials_for((), local, None).token == b""
    own = contexts.own_credentials()
    own.parent.mkdir(parents=True)
    path.chmod(0o600)
    path.rename(own)
    assert contexts.credentials_for((), local, None).token == bytes(32)
    assert contexts.credentials_for((), far, None).token == b"", "it is that of the nodes of this machine"
    own.write_text("something else")
    with pytest.raises(ConfigError, match="no token"):
        contexts.credentials_for((), local, None)


def test_a_context_may_name_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "shop.token"
    path.write_text("gq_" + "ab" * 32)
    path.chmod(0o600)
    kept = contexts.Contexts({"shop": ["tcp://127.0.0.1:1"]}, "shop", {"shop": str(path)})
    kept.save()
    assert contexts.load().credentials == {"shop": str(path)}
    for given in (("shop",), ()):
        assert contexts.credentials_for(given, ["tcp://127.0.0.1:1"], None).token
    assert not contexts.credentials_for(("127.0.0.1:1",), ["tcp://127.0.0.1:1"], None).token


def test_files_may_have_the_key_of_the_doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a token may leave this machine, because the connection is encrypted."""
    far, path = ["tcp://10.0.0.7:7700"], tmp_path / "token"
    path.write_text(file_text(b"t" * 32, b"d" * 32))
    path.chmod(0o600)
    shown = contexts.credentials_for((), far, path, act_for="ada")
    assert (shown.token, shown.door, shown.act_for) == (b"t" * 32, b"d" * 32, "ada")
    assert shown.at(far[0]) == b"t" * 32
    path.write_text(file_text(b"", b"d" * 32))
    assert contexts.credentials_for((), far, path).token == b""
    monkeypatch.setenv("GOSSIPQ_CREDENTIALS", str(path))
    assert contexts.credentials_for((), far, b"u" * 32) == Credentials(b"u" * 32, door=b"d" * 32)
    assert contexts.credentials_for((), far, b"").token == b""
    for text in ("", "door_12", "gq_" + "zz" * 32, file_text(b"t" * 32) + "door_xx"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="no token"):
            contexts.credentials_for((), far, path)


def test_who_has_a_door_key_hears_why_a_plain_node_may_not_answer(
    node: RunningNode, gossipq: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file makes the client use the encrypted port, which a plain node
    lacks: it "did not answer".
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own, other, server = contexts.own_credentials(), tmp_path / "other", node.endpoint
    own.parent.mkdir(parents=True)
    for path in (own, other):
        path.write_text(file_text(b"", b"d" * 32))
        path.chmod(0o600)
    code, _, told = gossipq("status")
    assert code == 69
    assert f"the door key (door_...) in {own}" in told
    assert f"mv {own} FILE" in told
    with pytest.raises(Unreachable) as raised:
        connect(server, wait=0.5).close()
    assert f"mv {own} FILE" in raised.value.hint
    told = gossipq("--credentials", str(other), "status")[2]
    assert f"the door key (door_...) in {other}" in told
    assert "name a file without one: --credentials FILE" in told
    own.rename(tmp_path / "FILE")
    assert gossipq("status")[0] == 0


def test_a_program_goes_on_by_the_token_that_it_finds_in_its_file(
    node: RunningNode, gossipq: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old token and its session end at once. A wrong file changes nothing."""
    admin, ada = str(tmp_path / "admin.token"), tmp_path / "ada.token"
    assert gossipq("cluster", "close", "--save", admin, "--secret-file", str(node.data / "secret"))[0] == 0
    by = ("--credentials", admin)
    for line in (
        ("user", "role", "add", "writes"),
        ("user", "role", "grant", "writes", "orders", "create", "publish", "read"),
        ("user", "add", "ada", "--role", "writes", "--save", str(ada)),
    ):
        assert gossipq(*by, *line)[0] == 0, line
    with connect(node.endpoint, credentials=ada) as mq:
        mq.publish("orders", b"before")
        token = ada.read_text()
        ada.write_text("half of a tok")
        time.sleep(1.2)  # it is looked at once a second
        mq.publish("orders", b"meanwhile")
        ada.write_text(token)
        assert gossipq(*by, "user", "rotate", "ada", "--now", "--save", str(ada))[0] == 0
        assert ada.read_text() != token
        assert mq.publish("orders", b"after", timeout=PATIENCE_S)
        assert mq.admin.whoami().user == "ada"
    # like a full disk: the command fails before the cluster learns a token that could not be saved
    nowhere = str(ada / "file")
    assert gossipq(*by, "user", "rotate", "admin", "--now", "--save", nowhere)[0] == 1
    assert gossipq(*by, "user", "add", "bob", "--save", nowhere)[0] == 1
    assert gossipq(*by, "user", "ls", "-o", "names")[:2] == (0, "ada\nadmin\n")
    (tmp_path / "old").write_text(token)
    (tmp_path / "old").chmod(0o600)
    assert gossipq("--credentials", str(tmp_path / "old"), "topic", "ls")[0] != 0

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(access, "time", SimpleNamespace(sleep=interrupt, time=time.time))
        assert gossipq(*by, "user", "rotate", "admin", "--now", "--save", admin)[0] == 0
    until(lambda: gossipq(*by, "user", "ls")[0] == 0, what="no file had the only token that is good")


def test_a_refused_close_leaves_the_credentials_as_they_were(
    node: RunningNode, gossipq: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    wrong, own = tmp_path / "wrong", contexts.own_credentials()
    wrong.write_text("not the secret of this cluster\n")
    wrong.chmod(0o600)
    chosen = tmp_path / "admin.token"
    chosen.write_text("what was there")
    for saved in ((), ("--save", str(chosen))):
        assert gossipq("cluster", "close", "--secret-file", str(wrong), *saved)[0] != 0
    assert not own.exists()
    assert chosen.read_text() == "what was there"
    assert sorted(own.parent.glob("*")) == []
    assert gossipq("cluster", "close", "--secret-file", str(node.data / "secret"))[0] == 0
    assert own.exists()
    until(lambda: gossipq("topic", "ls")[0] == 0)
