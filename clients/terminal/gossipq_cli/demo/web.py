"""`gossipq demo --web`: nodes, a shop with traffic, and the console of a gateway."""

import os
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

from gossipq_cli.demo import stage
from gossipq_cli.demo.nodes import nodes
from gossipq_cli.demo.shop import Shop
from gossipq_cli.failures import DONE, Failure
from gossipq_cli.output import Output

STOP_S = 10.0


@contextmanager
def gateway(servers: list[str]) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run a gateway in a process of its own. Yields the address of its console. Raises Failure."""
    line = [sys.executable, "-m", "gossipq_cli"]
    line += [flag for server in servers for flag in ("-s", server)]
    process = subprocess.Popen(
        [*line, "gateway", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        if not said.startswith("ready"):
            raise Failure("failed", "the gateway did not start", 'pip install "gossipq[gateway]"')
        yield f"{said.split()[-1]}/console/", process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def show(count: int, out: Output) -> int:
    """Run until Ctrl-C or SIGTERM."""
    out.say(f"starting {count} node{'s' * (count > 1)}, a shop, and a gateway")
    with (
        stage.terminable(),
        nodes(count) as cluster,
        Shop(cluster.servers),
        gateway(cluster.servers) as found,
    ):
        url, process = found
        out.one({"url": url, "servers": cluster.servers}, f"console at {url}\nCtrl-C ends it", url)
        if out.for_machines is False and (os.environ.get("DISPLAY") or sys.platform == "darwin"):
            webbrowser.open(url)
        sys.stdout.flush()
        try:
            process.wait()
        except KeyboardInterrupt:
            return DONE
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rest must end in order
    return DONE
