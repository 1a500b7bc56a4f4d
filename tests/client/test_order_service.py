"""The programs of docs/tutorials/order-service.md are shown as they are, and do what it says."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient

from conftest import HOME, ROOTS
from gossipq_client import testing

pytest.importorskip("fastapi")
FOLDER = HOME / "clients" / "python" / "examples" / "order_service"
PATIENCE_S = 60
ORDER = {"number": "o-1", "customer": "ada", "cents": 250}


def test_the_tutorial_shows_the_programs() -> None:
    text = (HOME / "docs" / "tutorials" / "order-service.md").read_text("utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert sorted(shown) == sorted(path.read_text("utf-8") for path in FOLDER.glob("*.py"))


def test_its_tests_pass(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    installed = any(point.name == "gossipq" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "gossipq_client.pytest_plugin"]
    roots = os.pathsep.join(str(HOME / root) for root in ROOTS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "test_bank.py"],
        env={**os.environ, "PYTHONPATH": roots},
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
        text=True,
        check=False,
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def test_an_order_is_placed_twice_and_paid_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.Broker() as broker, broker.connect() as mq:
        monkeypatch.setenv("GOSSIPQ_SERVER", broker.endpoint)
        monkeypatch.syspath_prepend(FOLDER)
        shop, bank = import_module("shop"), import_module("bank")

        async def main() -> list[str]:
            transport = ASGITransport(shop.app)
            async with (
                shop.lifespan(shop.app),
                AsyncClient(transport=transport, base_url="http://shop") as web,
            ):
                return [(await web.post("/orders", json=ORDER)).json()["ref"] for _ in range(2)]

        first, second = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
        assert first == second
        mq.include(bank.mq.handlers)
        mq.run(stop_at_end=True)
        receipts = [json.loads(msg.value) for msg in mq.read("receipts")]
        assert receipts == [{"number": "o-1", "paid": 250}]
