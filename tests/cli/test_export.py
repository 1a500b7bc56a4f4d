"""`gossipq export` where it cannot work; with a node it is tested in tests/export."""

import sys

import pytest

from gossipq_cli.main import main


def test_without_pyarrow_it_says_what_to_install_and_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", "--out", str(tmp_path / "lake")]) == 1
    told = capsys.readouterr().err
    assert "an export needs pyarrow, which is not installed" in told
    assert "pip install" in told
    assert not (tmp_path / "lake").exists()


def test_what_cannot_work_leaves_no_folder(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    lake = tmp_path / "lake"
    assert main(["export", "--out", str(lake), "--compact"]) == 1
    assert "has no export" in capsys.readouterr().err
    assert main(["-s", "tcp://127.0.0.1:1", "--timeout", "200ms", "export", "--out", str(lake)]) == 69
    assert not lake.exists()
