"""A command that fails leaves nothing behind that would refuse the next attempt."""

from pathlib import Path

import pytest

from gossipq_cli.main import main


def test_an_init_whose_token_cannot_be_saved_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    home.write_text("in the way of the directory of that name")
    line = ["init", "--bind", "tcp://127.0.0.1:7700", "--data", str(tmp_path / "data")]
    assert main(line) == 1
    assert not (tmp_path / "cluster.toml").exists()
    home.unlink()
    assert main(line) == 0, capsys.readouterr().err
    assert (tmp_path / "cluster.toml").exists()
    assert len(list(home.glob("gossipq/*.credentials"))) == 1
