"""The interpreters that `make test-pythons` runs, and what the package says of them."""

import ast
import re
import threading
import tomllib
from collections.abc import Iterator

from conftest import HOME

SOURCES = (
    "gossipq",
    "nodes",
    "clients/python",
    "clients/terminal",
    "clients/gateway",
    "clients/integrations",
    "spark",
)
NAMES = re.compile(r"3\.\d+")


def supported() -> list[str]:
    (line,) = re.findall(r"^supported=\((.*)\)$", (HOME / ".ci" / "pythons").read_text(), re.MULTILINE)
    return NAMES.findall(line)


def test_the_package_names_exactly_the_interpreters_that_are_tested() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert named == supported()
    assert project["requires-python"] == f">={named[0]}"
    first, last = named[0], named[-1]
    assert f"Python {first} to {last}" in (HOME / "README.md").read_text()


def hidden_types(source: str) -> list[str]:
    """Fields that have the name of a type which an annotation of the same class uses.

    Python 3.14 evaluates annotations when the class exists, and finds the field before the builtin.
    """
    found = []
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.ClassDef):
            fields = [part for part in each.body if isinstance(part, ast.AnnAssign)]
            names = {part.target.id for part in fields if isinstance(part.target, ast.Name)}
            used = [node for part in fields for node in ast.walk(part.annotation)]
            found += [node.id for node in used if isinstance(node, ast.Name) and node.id in names]
    return found


def test_no_field_hides_the_type_of_another_one() -> None:
    files = [path for source in SOURCES for path in (HOME / source).rglob("*.py")]
    assert {str(path): names for path in files if (names := hidden_types(path.read_text()))} == {}
    assert hidden_types("class A:\n    key: bytes\n    bytes: int\n") == ["bytes"]


#: of a thread in any Python that is supported: these are in 3.14 alone
OF_THREADS = {"_context", "_handle", "_os_thread_handle", *vars(threading.Thread), *vars(threading.Thread())}


def replaced_in_threads(source: str) -> Iterator[str]:
    """Attributes of a thread that a subclass sets for itself."""
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.ClassDef) and "Thread" in {ast.unparse(base)[-6:] for base in each.bases}:
            stored = (node for node in ast.walk(each) if isinstance(node, ast.Attribute))
            yield from (
                node.attr
                for node in stored
                if isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
                and node.attr in OF_THREADS
            )


def test_no_thread_replaces_an_attribute_of_its_own() -> None:
    """Python 3.14 calls `run` by `_context`, so a thread that kept a socket's context there never ran."""
    files = [path for source in (*SOURCES, "tests", "perf") for path in (HOME / source).rglob("*.py")]
    sources = {str(path): source for path in files if "Thread)" in (source := path.read_text())}
    assert {
        path: names for path, source in sources.items() if (names := list(replaced_in_threads(source)))
    } == {}
    assert list(replaced_in_threads("class A(Thread):\n    def f(self): self._context = 1\n")) == ["_context"]


def test_the_lowest_versions_of_each_framework_are_tested() -> None:
    """All extras are tested so but three: two are made of others, and Spark has one version."""
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = re.findall(r"--extra (\w+)", (HOME / ".ci" / "pythons").read_text())
    assert set(extras) - set(tested) == {"all", "dev", "spark"}
