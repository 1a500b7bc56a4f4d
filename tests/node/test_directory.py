"""The data directory: who may use it, and the error for others."""

import json
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from gossipq.errors import StoreError
from gossipq_node import directory as rooms
from gossipq_node import trust
from gossipq_node.adapters.lmdb_store import DATA_FILE
from gossipq_node.directory import FORMAT, MANIFEST, NEW_MANIFEST, STORES, DataDirectory


def found(path: Path, workers: int = 2, shards: int = 8) -> rooms.DirectoryManifest:
    with closing(DataDirectory(path)) as directory:
        return directory.found("shop", workers, shards)


def test_an_empty_directory_is_founded_once(tmp_path: Path) -> None:
    first = found(tmp_path / "new" / "data")
    assert (first.workers, first.shards, first.cluster_name, first.format) == (2, 8, "shop", FORMAT)
    assert len({first.cluster_uuid, first.node_id, first.dir_uuid}) == 3
    assert found(tmp_path / "new" / "data", workers=7) == first


def test_a_founding_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / NEW_MANIFEST).write_text("{")
    assert found(tmp_path).workers == 2


def test_whoever_is_killed_while_it_writes_a_secret_leaves_what_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next start would call the directory a stranger's."""
    seen: list[set[str]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(set(os.listdir(tmp_path))))
    trust.entrust(tmp_path, b"\xff not even text")
    assert (tmp_path / rooms.SECRET).read_bytes() == b"\xff not even text\n"
    assert seen[0] == {rooms.NEW_SECRET}
    assert set(os.listdir(tmp_path)) == {rooms.SECRET}
    (tmp_path / rooms.SECRET).rename(tmp_path / rooms.NEW_SECRET)
    assert found(tmp_path).workers == 2


def test_a_directory_in_use_names_the_holder(tmp_path: Path) -> None:
    with (
        closing(DataDirectory(tmp_path)),
        pytest.raises(StoreError, match=f"in use by process {os.getpid()}"),
    ):
        DataDirectory(tmp_path)


def test_a_stranger_s_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(StoreError, match=r"not a gossipq directory: it has holiday\.jpg"):
        DataDirectory(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used: File exists"):
        DataDirectory(tmp_path / "file")


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "data").mkdir(mode=mode)
    os.chmod(tmp_path, 0o755)
    before = os.geteuid()
    if before == 0:  # root may write everywhere
        os.seteuid(65_534)
    try:
        with pytest.raises(StoreError, match="cannot be used: Permission denied") as refused:
            found(tmp_path / "data")
    finally:
        os.seteuid(before)
    assert "--data" in refused.value.hint


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"format": FORMAT + 1, "new": "thing"},
            f"has format {FORMAT + 1}; this version of gossipq reads up to {FORMAT}",
        ),
        ({"engine": "lmdb-1.0"}, "was made with lmdb-1.0"),
        ({"machine": "another"}, "is a copy of another node's directory"),
        ({"inode": 1}, "is a copy of another node's directory"),
        ({"workers": "two"}, "is damaged"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, change: dict, says: str) -> None:
    found(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | change))
    with pytest.raises(StoreError) as refused:
        found(tmp_path)
    assert says in refused.value.message
    assert refused.value.hint


def test_a_copied_directory_is_refused(tmp_path: Path) -> None:
    found(tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with pytest.raises(StoreError, match="is a copy") as refused:
        found(tmp_path / "copy")
    assert refused.value.hint.endswith(f"gossipq store adopt --data {tmp_path / 'copy'}")
    found(tmp_path / "original")


def test_a_manifest_that_cannot_be_stored_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = found(tmp_path)

    def no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with closing(DataDirectory(tmp_path)) as directory, pytest.raises(StoreError, match="No space left"):
        directory.write(manifest)
    assert sorted(os.listdir(tmp_path)) == ["lock", MANIFEST, STORES]


def test_a_new_volume_is_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert found(tmp_path).workers == 2


def test_the_stores_are_on_the_disk_before_the_directory_belongs_to_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []

    def note(fd: int) -> None:
        member = (tmp_path / MANIFEST).exists() and b'"cluster_uuid": ""' not in (
            tmp_path / MANIFEST
        ).read_bytes()
        synced.append((os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path), member))

    with closing(DataDirectory(tmp_path)) as directory:
        manifest = directory.prepare("shop", 2, 8)
        monkeypatch.setattr(os, "fsync", note)
        directory.found("shop", 2, 8)
        stores = [directory.store(manifest, worker) for worker in range(2)]
    assert all((store / DATA_FILE).stat().st_size for store in stores)
    before = {path for path, member in synced if not member}
    assert {"stores/0/worker-0", "stores/0/worker-1", "stores/0", "stores", "."} <= before


def test_a_disk_that_refuses_the_stores_leaves_a_directory_without_a_cluster(tmp_path: Path) -> None:
    with closing(DataDirectory(tmp_path)) as directory:
        directory.prepare("shop", 2, 8)
        (tmp_path / STORES).touch()
        with pytest.raises(StoreError, match="cannot be made: Not a directory"):
            directory.found("shop", 2, 8)
        assert not directory.prepare("shop", 2, 8).cluster_uuid
        (tmp_path / STORES).unlink()
        assert directory.found("shop", 2, 8).cluster_uuid
