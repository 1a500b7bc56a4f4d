"""Measures the web console: the time to its first page, and the node's processor time for live pages, beside
`gossipq top` in the same run.

    python perf/console.py [--seconds 20] [--topics 50]
"""

import argparse
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from stage import GOSSIPQ, cpu_s, node

from gossipq_client import connect

FIRSTS = 5


def page_ms(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1_000


def percent(pid: int, seconds: float) -> float:
    """Of a core, by a node."""
    before, began = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.perf_counter() - began)


def look(url: str, over: threading.Event) -> None:
    """Keeps a page open, as a browser does."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        while not over.is_set():
            answer.readline()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--topics", type=int, default=50)
    given = parser.parse_args()
    with node() as at:
        with connect(at.server) as mq:
            for number in range(given.topics):
                mq.create_topic(f"t{number:04}")
                mq.fetch(f"t{number:04}", "g", n=1, wait=0.0)
        firsts = []
        for _ in range(FIRSTS):  # each by a gateway of its own: the first page of all
            line = [*GOSSIPQ, "-s", at.server, "gateway", "--http", "127.0.0.1:0"]
            gateway = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
            assert gateway.stdout is not None
            url = f"{gateway.stdout.readline().split()[-1]}/console/"
            firsts.append(page_ms(url))
            if len(firsts) < FIRSTS:
                gateway.terminate()
                gateway.wait()
        again = sorted(page_ms(url) for _ in range(20))[10]
        time.sleep(25)  # until all pages are closed
        nobody = percent(at.pid, given.seconds)
        over = threading.Event()
        for _ in range(3):
            threading.Thread(target=look, args=(f"{url}live?page=topics", over), daemon=True).start()
        time.sleep(5)
        console = percent(at.pid, given.seconds)
        over.set()
        gateway.terminate()
        gateway.wait()
        with tempfile.TemporaryDirectory() as place:
            line = [*GOSSIPQ, "-s", at.server, "top", "--record", str(Path(place) / "r.gqtop")]
            top = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            time.sleep(5)
            beside = percent(at.pid, given.seconds)
            top.terminate()
            top.wait()
    first = sorted(firsts)[FIRSTS // 2]
    print(f"first page {first:.0f} ms (largest {max(firsts):.0f}), later {again:.0f} ms")
    told = f"{nobody:.1f} % alone, {console:.1f} % with three pages, {beside:.1f} % with top"
    print(f"the node, of a core: {told}")


if __name__ == "__main__":
    main()
