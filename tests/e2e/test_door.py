"""A node on a network with a secret and no users: it says how clients of other hosts are answered, and who
comes without the key of its doors hears what is missing."""

from pathlib import Path

import pytest

from e2e.closed import of_the_network
from gossipq.errors import Unreachable
from gossipq_cli.main import main
from gossipq_client import connect
from hosts import Host

pytestmark = pytest.mark.e2e


def test_one_command_lets_other_hosts_in(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    address = of_the_network()
    if not address:
        pytest.skip("this machine has no address but loopback")
    secret, file = tmp_path / "secret", tmp_path / "door"
    secret.write_text("what the nodes of this test know")
    secret.chmod(0o600)
    node = Host(tmp_path, "ada")
    node.endpoint = f"tcp://{address}:{node.port}"
    node.start("--secret-file", str(secret), "--mode", "standalone")
    try:
        node.ready()
        node.says(f"encrypted at tcp://{address}:{node.port + 100}")
        assert "gossipq cluster door --save FILE" in node.said
        with (
            pytest.raises(Unreachable, match="no node answers") as caught,
            connect(node.endpoint, timeout=2, wait=2) as mq,
        ):
            mq.topics()
        assert "gossipq cluster door --save FILE" in caught.value.hint
        assert main(["-s", node.endpoint, "topic", "ls"]) != 0
        assert "gossipq cluster door --save FILE" in capfd.readouterr().err
        assert main(["-s", f"127.0.0.1:{node.port}", "cluster", "door", "--save", str(file)]) == 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert main(["-s", node.endpoint, "--credentials", str(file), "topic", "ls"]) == 0
        with connect(node.endpoint, credentials=file) as mq:
            mq.publish_and_wait("orders", b"from another host")
    finally:
        node.kill()
