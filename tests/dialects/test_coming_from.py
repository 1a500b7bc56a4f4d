"""docs/migrate/coming-from.md: a test shows each promise, and each option exists."""

import re
import tomllib
from pathlib import Path

import msgspec

from conftest import HOME
from gossipq_dialects.names import topic_of
from gossipq_dialects.options import KapokMqOptions, MoonMqOptions, QueueServerOptions, XxlMqOptions

TEXT = (HOME / "docs" / "migrate" / "coming-from.md").read_text("utf-8")
ANCESTORS = {
    "KapokMQ": "kapokmq",
    "moonmq": "moonmq",
    "queue_server": "queue_server",
    "xxl-mq": "xxl_mq",
    "prettyQ": "prettyq",
}


#: test of a module -> the rows of the page that it shows
PROMISES = tomllib.loads(Path(__file__).with_name("promises.toml").read_text("utf-8"))
UNTESTED = {"prettyQ": {"replicas, leader by etcd"}}


def section(name: str) -> str:
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_what_is_kept_is_shown_by_a_test() -> None:
    for name, module in ANCESTORS.items():
        source = (HOME / "tests" / "dialects" / f"test_{module}.py").read_text("utf-8")
        there = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
        rows = {row.split(" | ")[0][2:] for row in section(name).splitlines() if row.startswith("| ")}
        assert PROMISES[module].keys() <= there, name
        assert rows - {row for told in PROMISES[module].values() for row in told} == {
            name,
            *UNTESTED.get(name, ()),
        }


def test_each_ancestor_has_a_table_and_says_what_is_not_there() -> None:
    for name in ANCESTORS:
        assert f"| {name} | here |" in section(name)
        assert "ot there" in section(name) or name == "prettyQ"


def test_the_options_are_those_that_there_are() -> None:
    block = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    kinds = (KapokMqOptions, MoonMqOptions, QueueServerOptions, XxlMqOptions)
    known = zip(("kapokmq", "moonmq", "queue_server", "xxl_mq"), kinds, strict=True)
    assert tomllib.loads(block[1]) == {name: msgspec.to_builtins(kind()) for name, kind in known}


def test_the_example_of_a_name_is_so() -> None:
    assert topic_of("order:new") == "order-x3A-new"
    assert "`order:new` is the topic `order-x3A-new`" in TEXT
