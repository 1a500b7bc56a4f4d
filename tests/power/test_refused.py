"""A write or a sync that failed may or may not be on the disk. Everything that the store confirmed
after it survives a power cut.
"""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from gossipq import limits
from gossipq_node.adapters.lmdb_store import LmdbStore
from power.images import Disk, restore
from power.journal import Journal, Kind, build, compiler
from power.refused import JOURNAL_BYTES, MAP_BYTES, SHARDS

IMAGES = min(8, 1 + int(os.environ.get("GOSSIPQ_IMAGES", "30")) // 30)  #: for each turn
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.skipif(compiler() is None, reason="the shim that refuses needs a C compiler")
def test_what_is_confirmed_after_a_refusal_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_BYTES", JOURNAL_BYTES)
    place, again = tmp_path / "store", tmp_path / "again"
    place.mkdir()
    again.mkdir()
    with closing(Journal(tmp_path / "journal")) as journal:
        environment = os.environ | journal.environment(build(tmp_path), place, 0)
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        program = Path(__file__).with_name("refused.py")
        subprocess.run([sys.executable, str(program), str(place)], env=environment, check=True)
        entries = journal.read()
    lost = []
    for seed in range(IMAGES):
        random = Random(seed)
        disk = Disk(str(place), place.stat().st_ino, random=random)
        for at, entry in enumerate(entries):
            disk.take(entry)
            if entry.kind == Kind.MARK:
                restore(again, disk.cut(random), random)
                with closing(LmdbStore(again, MAP_BYTES, SHARDS)) as store:
                    found = int((store.tables(0).state.get(b"turns") or b"0").rstrip(b"\0"))
                if found < int(entry.data):
                    lost.append(f"image {seed} at {at}: {found} turns of {int(entry.data)}")
    assert not lost, lost
