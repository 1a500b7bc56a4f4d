"""Dialects are found by their entry points: the five that come along, and one of forty lines."""

import importlib
import shutil
import socket
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from conftest import HOME
from dialects.harness import gateway_of
from gossipq.errors import ConfigError
from gossipq_dialects.kapokmq import KapokMq
from gossipq_gateway import plugins
from gossipq_gateway.dialect import Place, Wanted
from gossipq_gateway.settings import Settings

EXAMPLE = HOME / "clients" / "gateway" / "examples" / "lines.py"
COMING_FROM = HOME / "docs" / "migrate" / "coming-from.md"
SHIPPED = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"][
    plugins.GROUP
]


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation, also where an older one is installed."""
    found = {name: EntryPoint(name, value, plugins.GROUP) for name, value in SHIPPED.items()}
    monkeypatch.setattr(plugins, "installed", lambda: found)


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, installed as a package of its own."""
    shutil.copy(EXAMPLE, tmp_path / "lines_dialect.py")
    metadata = tmp_path / "lines_dialect-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: lines-dialect\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text(f"[{plugins.GROUP}]\nlines = lines_dialect:Lines\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("shipped")
def test_each_shipped_dialect_is_made_by_its_entry_point() -> None:
    texts = [f"{name.replace('_', '-')}=127.0.0.1:0,127.0.0.1:0" for name in SHIPPED]
    asked = plugins.wanted(texts)
    assert [plugins.dialect_of(each).name for each in asked] == list(SHIPPED)


@pytest.mark.usefixtures("shipped")
def test_options_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "dialects.toml"
    file.write_text('[kapokmq]\nsecret_key = "s"\npush_type = 2\n[queue_server]\nnode_id = 4\n')
    (asked,) = plugins.wanted(["kapokmq=127.0.0.1:8011"], str(file))
    assert (asked.at, asked.options) == (Place("127.0.0.1", 8011), {"secret_key": "s", "push_type": 2})
    assert isinstance(plugins.dialect_of(asked), KapokMq)
    wrong = ("[kapokmq]\npush_type = 3", "[kapok]\n", "[kapokmq]\nfoo = 1", "x", "[kapokmq]\nin_hand_max = 0")
    for text in wrong:
        file.write_text(text)
        with pytest.raises(ConfigError) as refused:
            plugins.dialect_of(*plugins.wanted(["kapokmq=127.0.0.1:8011"], str(file)))
        assert str(file) in refused.value.message


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("carrots=127.0.0.1:1", "no dialect carrots is installed"),
        ("kapokmq", "--dialect kapokmq needs an address"),
        ("moonmq", "--dialect moonmq needs an address"),
        ("kapokmq=8011", "--dialect kapokmq 8011 is not an address"),
    ],
)
def test_a_wrong_dialect_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plugins.dialect_of(*plugins.wanted([text]))
    assert says in refused.value.message
    assert refused.value.hint


def test_a_dialect_listens_to_a_network_only_if_told_so() -> None:
    everywhere = (Wanted("lines", Place("127.0.0.1", 1), Place("0.0.0.0", 2)),)
    with pytest.raises(ConfigError, match=r"--dialect lines 0\.0\.0\.0:2: others may read"):
        Settings(dialects=everywhere).check()
    Settings(dialects=everywhere, insecure=True).check()


@pytest.mark.e2e
@pytest.mark.usefixtures("lines")
def test_a_sixth_dialect_is_a_package_of_forty_lines(shared_node) -> None:
    dialect = plugins.dialect_of(*plugins.wanted(["lines=127.0.0.1:0"]))
    with gateway_of(shared_node.endpoint, dialect) as gateway, socket.create_connection(dialect.at) as line:
        said = line.makefile("rwb")

        def ask(text: str) -> str:
            said.write(f"{text}\n".encode())
            said.flush()
            return said.readline().decode().rstrip("\n")

        assert ask("PUT sixth 17 apples") == "sixth/0/0"
        assert ask("GET sixth") == "17 apples"
        assert ask("GET").startswith("ERROR ")
        assert gateway.count("errors", "lines") == 1
        said.close()
    code = EXAMPLE.read_text("utf-8").split('"""', 2)[2].splitlines()
    assert len([text for text in code if text.strip() and not text.startswith(("from", "import"))]) <= 38


def test_the_document_shows_the_example() -> None:
    assert EXAMPLE.read_text("utf-8").strip() in COMING_FROM.read_text("utf-8")
