"""`make docs`: the reference of the client contains every public name with its docstring."""

import subprocess
from pathlib import Path

import pytest

import gossipq_client
from conftest import HOME

pytest.importorskip("pdoc")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_public_name_is_in_the_reference(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "-s", "docs", f"BUILD={tmp_path}"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "gossipq_client.html").read_text()
    for name in gossipq_client.__all__:
        assert f'id="{name}"' in page, name
    for page, names in {
        "consumer": ["Consumers.consume", "Consumers.fetch", "Message.ack"],
        "producer": ["Producers.publish_many"],
        "admin": ["Admin.alarms"],
    }.items():
        text = (tmp_path / "gossipq_client" / "api" / "sync" / f"{page}.html").read_text()
        for name in names:
            assert f'id="{name}"' in text, name
    assert "api/sync/consumer.html#Consumers.consume" in (tmp_path / "gossipq_client.html").read_text()
