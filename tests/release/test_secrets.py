"""No secret, token or key is in a log, an error message, a bundle, or the arguments of a process.

Three closed and encrypted nodes and a gateway are used and attacked; then all that they said is searched.
"""

import base64
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from botocore.exceptions import ClientError

from e2e.closed import TOPIC, Roll, running
from gateway import amazon
from gateway.conftest import RunningGateway
from gossipq.errors import GossipqError
from gossipq_cli.main import main
from gossipq_client import connect
from gossipq_node import trust
from hosts import Host

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

BODY, KEY = "a body that nobody may read", "a key that nobody may read"
TOKEN = re.compile(r"\bgq_\w+|\btoken_\w+")


def forms(secret: bytes) -> set[bytes]:
    """Every way in which a careless line would show it."""
    encoded = {secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret)}
    return {each.rstrip(b"=") for each in encoded} | {repr(secret)[2:-1].encode()}


def leaks(secrets: dict[str, bytes], said: dict[str, bytes]) -> list[str]:
    return [
        f"{secret} in {place}"
        for secret, value in secrets.items()
        for place, text in said.items()
        if any(form in text for form in forms(value))
    ]


def arguments(host: Host) -> Iterator[bytes]:
    """The command lines of a node and of its processes, which every user of the machine can read."""
    assert host.process is not None
    pids = [host.process.pid, *host.children()]
    for pid in pids:
        yield Path(f"/proc/{pid}/cmdline").read_bytes()


def unpacked(bundle: Path) -> bytes:
    with tarfile.open(bundle) as archive:
        return b"".join(
            file.read() for each in archive.getmembers() if (file := archive.extractfile(each)) is not None
        )


def test_nothing_says_a_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = Host(tmp_path, "wrong")
    with running(Roll(tmp_path)) as roll:
        try:
            _test(roll, wrong, tmp_path, capfd)
        finally:
            wrong.kill()


def _test(roll: Roll, wrong: Host, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ada, bob, _ = roll.hosts
    admin, user, forged = (tmp_path / f"{name}.credentials" for name in ("admin", "user", "forged"))
    stranger = tmp_path / "stranger"
    stranger.write_text("a secret of another cluster, by mistake")
    stranger.chmod(0o600)
    said: dict[str, bytes] = {}

    def types(*line: str, credentials: Path = admin, fails: bool = False) -> str:
        code = main(["-s", ada.endpoint, "--debug", "-v", "--credentials", str(credentials), "--yes", *line])
        shown = capfd.readouterr()
        said[" ".join(line)] = (shown.out + shown.err).encode()
        assert (code != 0) == fails, shown
        return shown.out

    secret = ("--secret-file", str(roll.secret))
    assert main(["-s", ada.endpoint, "cluster", "close", "--save", str(admin), *secret]) == 0
    types("user", "role", "add", "writes")
    types("user", "role", "grant", "writes", TOPIC, "publish", "read")
    types("user", "add", "ada", "--role", "writes", "--save", str(user))
    types("user", "rotate", "ada", "--save", str(user))
    invitation = types("cluster", "invite", *secret)
    said.popitem()  # it is printed for the one who asked
    token = TOKEN.findall(user.read_text())[0]
    forged.write_text(user.read_text().replace(token, token[:-8] + "0" * 8))
    forged.chmod(0o600)

    # --- what is refused
    types("topic", "ls", credentials=forged, fails=True)
    types("cluster", "drain", "bob", "--secret-file", str(stranger), fails=True)
    types("cluster", "config", "set", "replace_ms=60000", credentials=user, fails=True)
    wrong.start(
        "--secret-file", str(stranger), "--mode", "static", "--peer", ada.endpoint, "--encrypt", "always"
    )
    mq = connect(ada.endpoint, credentials=forged, timeout=5)
    said["the client, shown"] = repr(mq).encode()
    with pytest.raises(GossipqError) as refused:
        mq.topics()
    mq.close()
    said["the refusal"] = f"{refused.value!r} {refused.value} {refused.value.hint}".encode()

    # --- what is used
    with connect(*roll.servers, credentials=user, timeout=30) as mq:
        mq.publish(TOPIC, BODY.encode(), key=KEY)
        for line in (
            ("user", "ls"),
            ("client", "ls"),
            ("status",),
            ("config", "show"),
            ("cluster", "events"),
        ):
            types(*line, "-o", "json")
    keys = tmp_path / "keys.json"
    keys.write_text(f'{{"{amazon.KEY}": {{"secret": "{amazon.SECRET}", "token": "{token}"}}}}')
    keys.chmod(0o600)
    flags = ("--credentials", str(user), "--sqs", "--sqs-keys", str(keys))
    with RunningGateway(ada.endpoint, *flags, home=tmp_path) as gateway:
        for shown in (token, token[:-8] + "0" * 8):
            head = {"Authorization": f"Bearer {shown}"}
            answer = httpx.get(f"{gateway.url}/v1/whoami?token={shown}", headers=head, timeout=30)
            said[f"answer {answer.status_code}"] = answer.content
        for key in (amazon.SECRET, amazon.SECRET[:-8] + "0" * 8):
            with pytest.raises(ClientError) as failed:
                amazon.client(gateway, key).get_queue_url(QueueName="none")
            said[f"SQS {failed.value.response['Error']['Code']}"] = str(failed.value).encode()
        gateway.stop()
        said["the gateway"] = gateway.said.encode()

    # --- what goes wrong: a node is killed, and a client that is known is ended
    bob.kill()
    roll.start(bob)
    bob.ready()
    bundle = tmp_path / "fault.tar.gz"
    logs = [word for host in roll.hosts for word in ("--log", str(host.log))]
    types("doctor", "--bundle", str(bundle), *logs)
    said["the bundle"] = unpacked(bundle)
    said["the arguments"] = b"\n".join(line for host in roll.hosts for line in arguments(host))
    for host in (*roll.hosts, wrong):
        said[f"the log of {host.name}"] = host.log.read_bytes()

    shared = roll.secret.read_bytes()
    secrets = {
        "the secret": shared,
        "the secret of the stranger": stranger.read_bytes(),
        "the key of the doors": trust.door_secret(shared),
        "the token of the admin": TOKEN.findall(admin.read_text())[0].encode(),
        "the token of the user": token.encode(),
        "the forged token": TOKEN.findall(forged.read_text())[0].encode(),
        "the invitation": max(invitation.split(), key=len).encode(),
        "the key of SQS": amazon.SECRET.encode(),
        "the body": BODY.encode(),
        "the key": KEY.encode(),
    }
    for host in roll.hosts:
        for number, line in enumerate((host.data / "node.keys").read_text().split()):
            secrets[f"key {number} of {host.name}"] = bytes.fromhex(line)
    secrets |= {
        f"{name}, as bytes": bytes.fromhex(found[1].decode())
        for name, value in secrets.items()
        if (found := re.search(rb"_([0-9a-f]{64})$", value))
    }
    assert [name for name, value in secrets.items() if len(value) <= 8] == []
    assert {text for place, text in said.items() if place.startswith("the log")}.isdisjoint({b""})
    assert leaks(secrets, said) == []
    assert leaks({"a": b"\x01" * 32}, {"b": b"key=" + b"01" * 32}) == ["a in b"]
