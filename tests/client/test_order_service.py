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

from conftest import HOME, ROOTS, RunningNode
from gossipq_client import testing

pytest.importorskip("fastapi")
FOLDER = HOME / "clients" / "python" / "examples" / "order_service"
PATIENCE_S = 60
ORDER = {"number": "o-1", "customer": "ada", "cents": 250}


def test_the_tutorial_shows_the_programs() -> None:
    text = (HOME / "docs" / "tutorials" / "order-service.md").read_text("utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert sorted(shown) == sorted(path.read_text("utf-8") for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", ["test_bank.py", "test_office.py"])
def test_its_tests_pass(tmp_path: Path, name: str) -> None:
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    installed = any(point.name == "gossipq" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "gossipq_client.pytest_plugin"]
    roots = os.pathsep.join(str(HOME / root) for root in ROOTS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, name],
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


def test_parcels_are_packed_cancelled_followed_and_billed(node: RunningNode) -> None:
    """The programs of the last step. The office begins when the shipper waits for it."""
    roots = os.pathsep.join(str(HOME / root) for root in ROOTS)
    env = {**os.environ, "PYTHONPATH": f"{FOLDER}{os.pathsep}{roots}", "GOSSIPQ_SERVER": node.endpoint}
    office = [sys.executable, "-m", "gossipq_cli", "run", "office:mq"]
    ship = [sys.executable, "-u", str(FOLDER / "ship.py")]
    with subprocess.Popen(ship, env=env, cwd=FOLDER, stdout=subprocess.PIPE, text=True) as shipper:
        assert shipper.stdout is not None
        lines = [shipper.stdout.readline() for _ in range(2)]
        assert lines == ["the same parcel: True\n", "cancelled parcels/0/2\n"]
        with subprocess.Popen(office, env=env, cwd=FOLDER, stdout=subprocess.DEVNULL) as packer:
            try:
                *followed, packed, billed = shipper.communicate(timeout=PATIENCE_S)[0].splitlines()
            finally:
                shipper.kill()
                packer.terminate()
        assert packer.returncode == 0
    assert followed, "the first parcel was followed"
    assert {line.partition(" ")[2] for line in followed} <= {f"box {box} of 4" for box in range(1, 5)}
    assert (packed, billed) == ("{'number': 'o-1', 'boxes': 4}", "ada: 2 of 3 parcels, 8 boxes")
