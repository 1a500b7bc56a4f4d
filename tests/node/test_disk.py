"""The folder in which exports and backups lie: whole files, one writer."""

import errno
import os
from pathlib import Path

import pytest

from gossipq.errors import StoreError
from gossipq_node import disk
from gossipq_node.disk import WRITING, Disk


def opened(root: Path, mode: int = 0o777) -> Disk:
    return Disk(root, StoreError, StoreError("somebody writes", "wait"), folders=("points",), mode=mode)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path / "a" / "b", mode=0o700)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    with pytest.raises(StoreError, match="somebody writes"):
        opened(tmp_path / "a" / "b")
    first.new().write_bytes(b"half")
    first.close()
    first.close()
    second = opened(tmp_path / "a" / "b")
    assert os.listdir(second.root / WRITING) == [], "what was left half written is gone"
    second.close()


def test_files_appear_whole_under_their_names(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    written = folder.new()
    written.write_bytes(b"rows")
    folder.put(written, "messages/orders/0.parquet")
    assert (tmp_path / "messages/orders/0.parquet").read_bytes() == b"rows"
    assert os.listdir(tmp_path / WRITING) == []
    folder.close()


@pytest.mark.parametrize("linked", [True, False], ids=["links", "no links"])
def test_a_name_is_created_once_also_where_a_disk_has_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not linked:
        monkeypatch.setattr(disk.os, "link", refuse)
    folder = opened(tmp_path)
    assert folder.create("points/1", b"first")
    assert not folder.create("points/1", b"second")
    assert (tmp_path / "points/1").read_bytes() == b"first"
    folder.close()


def test_a_disk_that_refuses_a_link_for_another_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "link", refuse)
    folder = opened(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        folder.create("points/1", b"first")
    assert os.listdir(tmp_path / "points") == []
    folder.close()


def test_a_lock_that_cannot_be_had_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(disk.fcntl, "flock", refuse)
        with pytest.raises(StoreError, match="cannot be locked: No locks"):
            opened(tmp_path)
    (tmp_path / WRITING).write_text("no folder")
    with pytest.raises(StoreError, match="cannot be used: Not a directory"):
        opened(tmp_path)
    (tmp_path / WRITING).unlink()
    opened(tmp_path).close()
