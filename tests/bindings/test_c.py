"""The C client: all of its API under valgrind, its examples, and somebody who answers nonsense."""

import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

from bindings.languages import C, c_misses
from conftest import RunningNode
from gossipq.wire.frames import HEADER, encode
from gossipq_client import connect
from vectors.make import samples
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(c_misses()), reason=c_misses())]
LEAKS = ("--leak-check=full", "--errors-for-leak-kinds=definite,possible", "--error-exitcode=9")
VALGRIND = ("valgrind", "-q", *LEAKS)
needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None, reason="no valgrind here: make bindings"
)
FRAMES = (b"", b"\x90", b"\xdd\xff\xff\xff\xff", b"\x91" * 100)


def run(server: str, *line: str) -> str:
    done = subprocess.run(
        [*line[:-1], str(C / "build" / line[-1])],
        env=os.environ | {"GOSSIPQ_SERVER": server},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("edited", sorted(str(each.relative_to(C)) for each in C.glob("**/*.[ch]")))
def test_make_renews_what_says_that_all_is_built(edited: str) -> None:
    """Whichever source is edited: tests are skipped while `built` is older than one."""
    does = subprocess.run(["make", "-n", "-C", str(C), "-W", edited], capture_output=True, text=True)
    assert "touch build/built" in does.stdout, does.stderr


@pytest.mark.slow
def test_examples(node: RunningNode) -> None:
    assert run(node.endpoint, "publish") == "stored at offset 0\n"
    assert run(node.endpoint, "consume") == "ada: one coffee\n"


@pytest.mark.slow
def test_a_program_is_built_with_what_was_installed(node: RunningNode, tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "-C", str(C), "install", f"PREFIX={tmp_path}"], check=True)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "gossipq"],
        env=os.environ | {"PKG_CONFIG_PATH": str(tmp_path / "lib" / "pkgconfig")},
        capture_output=True,
        text=True,
        check=True,
    )
    program = tmp_path / "publish"
    line = ["cc", str(C / "examples" / "publish.c"), *flags.stdout.split(), "-lzmq", "-o", str(program)]
    subprocess.run(line, check=True)
    environment = {"GOSSIPQ_SERVER": node.endpoint, "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    said = subprocess.run([str(program)], env=environment, capture_output=True, text=True)
    assert (said.returncode, said.stdout[:16]) == (0, "stored at offset")


POSTS = """
import ctypes as c, sys
from driver import LIBRARY, Client, How, Place, Record, record
mq = Client()
mq.connect([sys.argv[1]])
places = (Place * 10)()
for number, place in enumerate(places):
    row = (Record * 1)(record({"value": "eA==", "key": "eA=="}))
    how = How(b"", 0, 200 if number % 2 else 0)
    mq._check(LIBRARY.gq_post(mq._client, b"lives", row, c.c_size_t(1), c.byref(how), c.byref(place), 30_000))
mq._check(LIBRARY.gq_confirm(mq._client, 30_000))
"""


def test_records_of_one_batch_live_as_long_as_each_of_them_says(shared_node: RunningNode) -> None:
    """They are posted one by one, each with a ttl of its own."""
    with connect(shared_node.endpoint) as mq:
        mq.create_topic("lives", 1)
        mq.fetch("lives", "g", n=1, wait=0.0)
        program = [sys.executable, "-c", POSTS, shared_node.endpoint]
        subprocess.run(program, env=os.environ | {"PYTHONPATH": str(C)}, check=True)
        until(lambda: mq.topic("lives").groups()[0].dead == 5)
        batch = mq.fetch("lives", "g", n=10, wait=30)
        assert sorted(msg.offset for msg in batch) == [0, 2, 4, 6, 8]
        mq.ack(batch)
        letters = mq.dead("lives", "g").letters()
        assert sorted(letter.offset for letter in letters) == [1, 3, 5, 7, 9]


@pytest.mark.slow
@needs_valgrind
def test_all_of_it_without_a_leak(node: RunningNode) -> None:
    run(node.endpoint, *VALGRIND, "work")


@pytest.mark.slow
@needs_valgrind
def test_changed_batches_are_walked_without_leaving_them() -> None:
    assert "changed ones opened" in run("", *VALGRIND, "batch")


class Nonsense(threading.Thread):
    """Answers of every kind, whole and mutilated, under the request's own number."""

    def __init__(self, router: "zmq.Socket[bytes]") -> None:
        super().__init__()
        self._router, self._dice, self.over = router, random.Random(7), threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            if self._router.poll(50):
                name, control, *_ = self._router.recv_multipart()
                for message in self._dice.sample(samples(), 12):
                    head = bytearray(control[: HEADER.size])
                    head[3] = message.verb
                    body = self._mutilated(bytearray(encode(message)[HEADER.size :]))
                    extra = [self._dice.choice(FRAMES)] * self._dice.randrange(3)
                    self._router.send_multipart([name, bytes(head + body), *extra])

    def _mutilated(self, body: bytearray) -> bytearray:
        dice = self._dice
        if dice.random() < 0.5:
            del body[dice.randrange(len(body)) :]
        if body and dice.random() < 0.5:
            body[dice.randrange(len(body))] = dice.randrange(256)
        return body


@pytest.mark.slow
@needs_valgrind
def test_nonsense_breaks_nothing() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        thread = Nonsense(router)
        thread.start()
        try:
            run(f"tcp://127.0.0.1:{port}", *VALGRIND, "garbage")
        finally:
            thread.over.set()
            thread.join()


def test_the_header_is_one_for_cpp_too(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    source = tmp_path / "x.cpp"
    source.write_text("#include <gossipq.h>\nint main() { return GQ_OK; }\n")
    subprocess.run([compiler, "-fsyntax-only", "-Wall", "-Werror", f"-I{C}", str(source)], check=True)
