"""A node on a network with a secret and no users. It tells how clients of other hosts are answered.
A client without the key of its encrypted ports learns what it lacks.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.closed import of_the_network
from gossipq.errors import Unreachable
from gossipq_cli.main import main
from gossipq_client import connect
from hosts import HOME, Host

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
            pytest.raises(Unreachable, match="no key of an encrypted port is given") as caught,
            connect(node.endpoint, timeout=2, wait=2) as mq,
        ):
            mq.topics()
        assert "gossipq cluster door --save FILE" in caught.value.hint
        assert main(["-s", node.endpoint, "topic", "ls"]) != 0
        told = capfd.readouterr().err
        assert (
            f"answers encrypted only, at tcp://{address}:{node.port + 100}, and no key of it is given" in told
        )
        assert "gossipq cluster door --save FILE; then here: --credentials FILE" in told
        assert main(["-s", f"127.0.0.1:{node.port}", "cluster", "door", "--save", str(file)]) == 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert main(["-s", node.endpoint, "--credentials", str(file), "topic", "ls"]) == 0
        with connect(node.endpoint, credentials=file) as mq:
            mq.publish("orders", b"from another host")
    finally:
        node.kill()


@pytest.mark.slow
def test_a_pod_that_stops_asks_as_the_user_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the script of kubernetes.yaml, in a cluster that encrypts, and then is closed as well."""
    # the user who closes a cluster is its admin afterwards
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    address = of_the_network()
    if not address:
        pytest.skip("this machine has no address but loopback")
    text = (HOME / "nodes/gossipq_node/deploy/kubernetes.yaml").read_text("utf-8")
    (pods,) = (each["spec"] for each in yaml.safe_load_all(text) if each["kind"] == "StatefulSet")
    *shell, script = pods["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    given, secret = tmp_path / "observer/credentials", tmp_path / "secret"
    script = script.replace("/etc/gossipq-observer/credentials", str(given)).replace("90s", "5s")
    script = script.replace("/tmp/credentials", str(tmp_path / "shown"))
    secret.write_text("what the nodes of this test know")
    secret.chmod(0o600)
    node = Host(tmp_path, "ada")
    node.endpoint = f"tcp://{address}:{node.port}"
    here = f"127.0.0.1:{node.port}"
    env = {**os.environ, "GOSSIPQ_SERVER": here, "PYTHONPATH": os.pathsep.join(sys.path)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def stops() -> bool:
        return subprocess.run([*shell, script], env=env, capture_output=True, timeout=60).returncode == 0

    def ask(*words: str) -> None:
        assert main(["-s", here, *words, "--secret-file", str(secret)]) == 0

    node.start("--secret-file", str(secret), "--mode", "standalone")
    try:
        node.ready()
        assert stops()
        ask("user", "role", "add", "observer")
        ask("user", "role", "grant", "observer", "*", "observe")
        ask("user", "add", "observer", "--role", "observer", "--save", str(tmp_path / "made"))
        ask("cluster", "close", "--yes")
        assert main(["-s", here, "topic", "ls"]) == 0
        assert not stops()
        given.parent.mkdir()
        given.write_text((tmp_path / "made").read_text())
        given.chmod(0o440)
        assert stops()
    finally:
        node.kill()
