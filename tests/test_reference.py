"""The documentation site: every link leads to a file, and the reference has every public name."""

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gossipq_client
from conftest import HOME


@pytest.fixture(scope="module")
def made() -> Any:
    """The names of docs/pages.py."""
    return runpy.run_path(str(HOME / "docs" / "pages.py"))


@pytest.fixture(scope="module")
def site(made: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of the assembled pages, and their `Site`."""
    out = tmp_path_factory.mktemp("pages")
    built = made["Site"](out)
    built.write()
    return out, built


def test_every_link_leads_to_a_file(site: tuple[Path, Any]) -> None:
    assert site[1].broken == []


def test_every_public_name_of_the_client_is_in_the_reference(site: tuple[Path, Any]) -> None:
    text = "\n".join(path.read_text("utf-8") for path in (site[0] / "reference" / "python").glob("*.md"))
    for name in ("connect", "Facade.publish_many", "Facade.consume", "Message.ack", "Admin.alarms"):
        assert f" {name}\n" in text, name
    told = text + (site[0] / "reference" / "errors.md").read_text("utf-8")
    assert [name for name in gossipq_client.__all__ if name not in told] == []


def test_every_option_is_in_the_reference(site: tuple[Path, Any]) -> None:
    text = (site[0] / "reference" / "configuration.md").read_text("utf-8")
    options = [line.split(" = ")[0] for line in (HOME / "cluster.toml").read_text("utf-8").splitlines()]
    assert [name for name in options if name.isidentifier() and f"| `{name}` |" not in text] == []


def test_every_written_page_is_in_the_navigation(site: tuple[Path, Any]) -> None:
    navigation = (HOME / "mkdocs.yml").read_text("utf-8")
    pages = [*site[1].pages.values(), *site[1].made]
    assert [page for page in pages if f" {page}\n" not in navigation] == []


def test_each_example_is_whole_on_a_page(site: tuple[Path, Any], made: Any) -> None:
    pages = "".join(path.read_text("utf-8") for path in site[0].rglob("*.md"))
    text = "".join(line.strip() for line in pages.splitlines())
    programs = {path.name: path.read_text("utf-8") for path in made["EXAMPLES"].glob("*.py")}
    assert programs
    whole = {name: "".join(line.strip() for line in source.splitlines()) for name, source in programs.items()}
    assert sorted(name for name, source in whole.items() if source not in text) == []


def test_pages_that_are_kept_are_those_made_from_code(made: Any) -> None:
    differ = [path.name for path, text in made["kept"]().items() if path.read_text("utf-8") != text]
    assert differ == [], "python docs/pages.py --keep writes them again"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_is_built_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    made = subprocess.run(
        ["make", "-s", "docs", f"BUILD={tmp_path / 'site'}"],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:')
    assert [page.name for page in pages if loaded.search(page.read_text("utf-8"))] == []
    assert "quorum" in (tmp_path / "site" / "search" / "search_index.js").read_text("utf-8")
