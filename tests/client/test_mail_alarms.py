"""The example that mails alarms, against a mail server of the test's own."""

import json
import runpy
import smtplib
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from gossipq_client import testing

EXAMPLE = Path(__file__).resolve().parents[2] / "clients" / "python" / "examples" / "mail_alarms.py"


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks just enough SMTP to take a mail; `broken` refuses to take any."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.broken = False
        super().__init__(("127.0.0.1", 0), Talk)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Talk(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.wfile.write(b"220 test\r\n")
        for line in self.rfile:
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA" and self.server.broken:
                self.wfile.write(b"452 no space\r\n")
            elif word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                body = b""
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    body += part
                self.server.mails.append(message_from_bytes(body))
                self.wfile.write(b"250 taken\r\n")
            else:
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
                if word == b"QUIT":
                    return


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def ring(mq: testing.Client, event: str, subject: str) -> None:
    text = f"group {subject} is 12,000 records behind"
    said = {
        "event": event,
        "name": "lag",
        "severity": "warning",
        "node": "n1",
        "subject": subject,
        "text": text,
    }
    mq.publish(
        "_alarms", json.dumps(said | {"command": "gossipq why", "since_ms": 1, "time_ms": 2}), timeout=10
    )


def mailed(example: dict[str, Any], mq: testing.Client, server: MailServer) -> int:
    """How many events went into a mail. On a busy machine a client may need longer to begin than the example
    waits for one: then the example finds nothing, and its next turn does."""
    for _ in range(10):
        if count := example["send"](mq, server.place, "gossipq@example.org", "ops@example.org"):
            return int(count)
    return 0


def test_one_mail_says_what_is_raised_and_what_is_over(
    mq: testing.Client, server: MailServer, example: dict[str, Any]
) -> None:
    for event, subject in (("raised", "a/x"), ("raised", "b/y"), ("cleared", "a/x")):
        ring(mq, event, subject)
    assert mailed(example, mq, server) == 3
    (mail,) = server.mails
    assert (mail["Subject"], mail["To"]) == ("gossipq: 1 raised, 1 cleared", "ops@example.org")
    assert mail.get_payload().splitlines() == [
        "WARNING on n1: group b/y is 12,000 records behind",
        "  gossipq why",
        "",
        "cleared on n1: lag a/x",
    ]
    assert example["send"](mq, server.place, "gossipq@example.org", "ops@example.org") == 0
    assert len(server.mails) == 1, "no news, no mail"


def test_what_the_mail_server_did_not_take_is_mailed_by_the_next(
    mq: testing.Client, broker: testing.Broker, server: MailServer, example: dict[str, Any]
) -> None:
    ring(mq, "raised", "a/x")
    server.broken = True
    with broker.connect() as other, pytest.raises(smtplib.SMTPException):
        mailed(example, other, server)
    server.broken = False
    assert mailed(example, mq, server) == 1
    assert [mail["Subject"] for mail in server.mails] == ["gossipq: 1 raised, 0 cleared"]


def test_without_arguments_it_says_how_it_is_called() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "python mail_alarms.py SMTPHOST:PORT FROM TO" in ran.stderr
    assert "Traceback" not in ran.stderr
