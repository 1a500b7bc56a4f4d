"""A cluster gets another secret, is closed and opened again by rolls: nodes restart one after the
other, under load. No confirmed record is lost, no permitted client is refused, and a revoked one is
served for at most a second.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.closed import (
    CUT_S,
    ENCRYPTED,
    LOOK_S,
    TOPIC,
    Load,
    Roll,
    healthy,
    of_the_network,
    running,
    stored,
)
from gossipq.errors import GossipqError
from gossipq_cli.main import main
from gossipq_client import connect
from gossipq_client.io.contexts import read_credentials
from gossipq_client.values import file_text

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(500)]
OLD, NEW = "what the nodes of this test know", "what they know from now on"


class Users:
    """An admin and a writer, and the admin's commands."""

    def __init__(self, roll: Roll, tmp_path: Path) -> None:
        self._roll = roll
        self.admin, self.writer = tmp_path / "admin.credentials", tmp_path / "writer.credentials"

    def types(self, *line: str) -> None:
        who = ["--credentials", str(self.admin)] if self.admin.exists() else []
        assert main(["-s", self._roll.hosts[0].endpoint, *who, "--yes", *line]) == 0, line

    def make(self, *secret: str) -> None:
        self.types("user", "role", "add", "writes", *secret)
        self.types("user", "role", "grant", "writes", TOPIC, "publish", "read", *secret)
        self.types("user", "add", "writer", "--role", "writes", "--save", str(self.writer), *secret)


def roll_over(roll: Roll, users: Users, flags: Sequence[str], *loads: Load) -> None:
    for host in reversed(roll.hosts):
        roll.again(host, flags)
        assert healthy(roll.hosts[0], users.admin)
        for load in loads:
            load.goes_on()


def test_the_secret_is_replaced(tmp_path: Path) -> None:
    roll = Roll(tmp_path, "serf")
    with running(roll):
        users = Users(roll, tmp_path)
        users.types("cluster", "close", "--save", str(users.admin), "--secret-file", str(roll.secret))
        users.make()
        before = tmp_path / "before.credentials"
        before.write_text(users.writer.read_text())
        before.chmod(0o600)
        load = Load("writer", roll.servers, users.writer)
        load.start()
        try:
            load.goes_on()
            for known in (f"{OLD}\n{NEW}", f"{NEW}\n{OLD}", NEW):
                roll.secret.write_text(known + "\n")
                roll_over(roll, users, ENCRYPTED, load)
                for name, file in (("admin", users.admin), ("writer", users.writer)):
                    users.types("user", "rotate", name, "--now", "--save", str(file))
                load.goes_on()
        finally:
            load.end()
        assert load.error is None, "it was allowed all the time"
        assert set(load.confirmed) <= set(stored(roll.hosts[0], users.writer)), "0 confirmed lost"
        assert len(read_credentials(users.writer).door) == 32
        assert read_credentials(users.writer).door != read_credentials(before).door
        with (
            pytest.raises(GossipqError, match="no node answers"),
            connect(*roll.servers, credentials=before, timeout=3, wait=3) as mq,
        ):
            mq.publish(TOPIC, b"by the key of doors that are not there any more")
        (tmp_path / "stolen").write_text(OLD)
        line = ("cluster", "open", "--secret-file", str(tmp_path / "stolen"))
        nobody = tmp_path / "nobody.credentials"
        nobody.write_text(file_text(b"", read_credentials(users.writer).door))
        nobody.chmod(0o600)
        assert main(["-s", roll.servers[0], "--credentials", str(nobody), "--yes", *line]) != 0


def test_closing_and_opening(tmp_path: Path) -> None:
    address = of_the_network()
    if not address:
        pytest.skip("this machine has no address but loopback: nodes make no keys there")
    roll = Roll(tmp_path, address=address)
    clear, both = ("--encrypt", "never", "--insecure"), ("--insecure",)
    with running(roll, clear):
        users, secret = Users(roll, tmp_path), ("--secret-file", str(roll.secret))
        users.make(*secret)
        assert "door_" not in users.writer.read_text(), "nothing is encrypted yet"
        anybody = Load("anybody", roll.servers, b"", stubborn=True)
        writer = Load("writer", roll.servers, users.writer, insecure=True)
        try:
            anybody.start()
            writer.start()
            roll_over(roll, users, both, anybody, writer)
            users.types("user", "rotate", "writer", "--save", str(users.writer), *secret)
            assert "door_" in users.writer.read_text()
            users.types("cluster", "close", "--save", str(users.admin), *secret)
            cut_s = time.monotonic() + CUT_S
            writer.goes_on()
            time.sleep(LOOK_S)
            assert anybody.last_s < cut_s, f"it was served {anybody.last_s - cut_s:.3f} s too long"
            roll_over(roll, users, (), writer)
            assert anybody.last_s < cut_s, "no node forgets that it is closed"

            users.types("cluster", "open")
            roll_over(roll, users, both, writer)
            anybody.goes_on()
            users.writer.write_text(file_text(read_credentials(users.writer).token))
            users.admin.unlink()
            roll_over(roll, users, clear, anybody, writer)
        finally:
            for load in (anybody, writer):
                load.end()
        assert writer.error is None, "it was allowed all the time"
        seen = stored(roll.hosts[0], None)
        assert {*writer.confirmed, *anybody.confirmed} <= set(seen), "0 confirmed lost"
        assert len(seen) == len(set(seen))
