"""A store of gossipq 0.1 is converted by dump and load: every record, group, schedule and dead letter of it
is there.

tests/data/store-0.1.gq is a dump that commit af76584 made, of one worker and four shards: topic "orders" with
two partitions (40 records with keys and headers, one with an id, one with a route and a time to live, one
that is due in 30 days; group "billing" has acked ten), topic "mails" (20 records; group "sender" has rejected
the first, gave the second a day's pause and acked the third), and topic "gone", which was removed.
"""

import io
import shutil
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gossipq.errors import StoreError
from gossipq_client import embedded
from gossipq_node import store_dump, store_tool
from gossipq_node.directory import FORMAT, DataDirectory

OLD = Path(__file__).parent.parent / "data" / "store-0.1.gq"
MADE_S = 1_795_370_400  #: when the dump was made, in seconds since 1970
SITE = """
import time

_now_ns, _behind_ns = time.time_ns, {behind_ns}
time.time_ns = lambda: _now_ns() - _behind_ns
"""
ACKED = {(0, offset) for offset in range(8)} | {(1, 0), (1, 1)}


def drain(messages):
    return {(message.partition, message.offset): message for message in messages}


@pytest.fixture
def in_those_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are started have the date at which the dump was made: what it says is due later is so for
    ever."""
    (tmp_path / "site").mkdir()
    behind_ns = time.time_ns() - MADE_S * 10**9
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE.format(behind_ns=behind_ns))
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.e2e
@pytest.mark.usefixtures("in_those_days")
def test_everything_of_an_older_store_is_there(tmp_path: Path) -> None:
    with OLD.open("rb") as stream:
        assert store_dump.load(tmp_path / "new", stream).manifest.format == FORMAT
    with embedded.open(tmp_path / "new") as mq:
        assert {topic.name for topic in mq.topics()} == {"orders", "mails"}
        orders = drain(mq.read("orders"))
        values = [message.value for message in orders.values()]
        assert sorted(values) == sorted([*(b"order %d" % n for n in range(40)), b"with an id", b"soon over"])
        assert all(
            message.headers["n"] == message.value[6:] for message in orders.values() if message.headers
        )
        assert {message.route for message in orders.values()} == {"", "eu.fr"}
        waiting = drain(mq.fetch("orders", group="billing", n=100, wait=5.0))
        assert waiting.keys() == orders.keys() - ACKED
        (letter,) = mq.dead("mails", "sender").letters()
        assert (letter.value, letter.error) == (b"mail 0", "no such address")
        assert {message.value for message in mq.fetch("mails", group="sender", n=100, wait=5.0)} == {
            b"mail %d" % n for n in range(3, 20)
        }
        assert [standing.state for standing in mq.record("mails", 0, 1).why().standings] == ["retrying"]
        assert sum(row.scheduled for row in mq.admin.stats(["orders"]).partitions) == 1


def test_an_older_directory_is_refused_with_the_way_to_convert_it_and_is_dumped(tmp_path: Path) -> None:
    with OLD.open("rb") as stream:
        made = store_dump.load(tmp_path / "node", stream).manifest
    with closing(DataDirectory(tmp_path / "node")) as directory:
        directory.write(msgspec.structs.replace(made, format=1))
    with (
        pytest.raises(StoreError, match="made by an older gossipq") as refused,
        store_tool.opened(tmp_path / "node"),
    ):
        pytest.fail("it was opened")
    assert "gossipq store dump" in refused.value.hint
    with (
        closing(DataDirectory(tmp_path / "node")) as directory,
        pytest.raises(StoreError, match="older gossipq"),
    ):
        directory.prepare("gossipq", 1, 4)
    stream = io.BytesIO()
    assert store_dump.dump(tmp_path / "node", stream).manifest.format == 1
    shutil.rmtree(tmp_path / "node")
    stream.seek(0)
    assert store_dump.load(tmp_path / "node", stream).manifest.format == FORMAT


def test_a_newer_directory_is_refused(tmp_path: Path) -> None:
    with OLD.open("rb") as stream:
        made = store_dump.load(tmp_path / "node", stream).manifest
    with closing(DataDirectory(tmp_path / "node")) as directory:
        directory.write(msgspec.structs.replace(made, format=FORMAT + 1))
        with pytest.raises(StoreError, match=f"has format {FORMAT + 1}"):
            directory.read()
