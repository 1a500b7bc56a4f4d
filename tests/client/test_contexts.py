"""How to find a cluster: one rule for programs, the command line and Spark."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import gossipq_client
from gossipq.errors import ConfigError
from gossipq_client import aio, testing
from gossipq_client.io import contexts
from gossipq_client.io.contexts import Contexts, UnknownContext, addresses_of
from gossipq_client.values import NO_CREDENTIALS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GOSSIPQ_SERVER", raising=False)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses_of(()) == ["tcp://127.0.0.1:7700"]
    monkeypatch.setenv("GOSSIPQ_SERVER", "tcp://a:1, b:2")
    assert addresses_of(()) == ["tcp://a:1", "tcp://b:2"]
    assert addresses_of(("c:3", ["d:4", "ipc:///e"])) == ["tcp://c:3", "tcp://d:4", "ipc:///e"]
    assert addresses_of(("[::1]:7700",)) == ["tcp://[::1]:7700"]


@pytest.mark.parametrize("name", ["a:0", "a:65536", "tcp://a:99999", "a:" + "9" * 5_000])
def test_a_port_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no port"):
        addresses_of((name,))


def test_contexts_are_known_wherever_an_address_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Contexts({"shop": ["tcp://a:1", "tcp://b:1"], "lab": ["tcp://c:1"]}, "").save()
    assert addresses_of(("shop",)) == ["tcp://a:1", "tcp://b:1"]
    assert addresses_of((["lab", "d:4"],)) == ["tcp://c:1", "tcp://d:4"]
    monkeypatch.setenv("GOSSIPQ_SERVER", "lab")
    assert addresses_of(()) == ["tcp://c:1"]
    Contexts({"shop": ["tcp://a:1"]}, "shop").save()
    monkeypatch.delenv("GOSSIPQ_SERVER")
    assert addresses_of(()) == ["tcp://a:1"], "the one in use"


@pytest.mark.parametrize("name", ["shpo", "localhost", "shop:", "a:b"])
def test_what_is_neither_is_named(name: str) -> None:
    Contexts({"shop": ["tcp://a:1"]}, "").save()
    with pytest.raises(UnknownContext, match=f"no context {name}"):
        addresses_of((name,))


def test_the_nearest_name_is_told() -> None:
    Contexts({"shop": ["tcp://a:1"]}, "").save()
    with pytest.raises(UnknownContext, match="did you mean `shop`"):
        gossipq_client.connect("shpo")
    with pytest.raises(UnknownContext):
        aio.connect("shpo")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]"])
def test_a_file_that_cannot_be_read_is_named(text: str) -> None:
    contexts.place().parent.mkdir(parents=True)
    contexts.place().write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        addresses_of(())


@pytest.mark.e2e
def test_a_program_connects_by_the_name_of_a_context() -> None:
    with testing.Broker() as broker:
        Contexts({"shop": [broker.endpoint]}, "").save()
        with gossipq_client.connect("shop") as mq:
            assert mq.publish("orders", b"x", timeout=20).offset == 0


def test_who_has_no_home_has_no_contexts_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the user of a container that no list of users knows."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "GOSSIPQ_SERVER", "GOSSIPQ_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert contexts.addresses_of([]) == [contexts.DEFAULT_ADDRESS]
    assert contexts.credentials_for([], [contexts.DEFAULT_ADDRESS], None) == NO_CREDENTIALS
    with pytest.raises(contexts.UnknownContext):
        contexts.addresses_of(["shop"])


def test_a_process_that_eventlet_has_patched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first publishes failed with "Second simultaneous read on fileno 14"."""
    patched = {"select"}
    patcher = SimpleNamespace(is_monkey_patched=patched.__contains__)
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="eventlet has patched this process"):
        gossipq_client.connect()
    patched.clear()
    gossipq_client.connect()
