"""The client needs little of Python and of the system, so that it runs wherever they do."""

import subprocess
import sys

import pytest

import gossipq
import gossipq_client
import gossipq_client.aio
from gossipq_client import testing

MODULES_MAX = 260  #: that `gossipq.connect` imports

ALLOWED = ("gossipq", "gossipq_client", "msgspec", "zmq")
#: hides every module that does not come with Python, but these
HIDE = f"""
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {ALLOWED!r}:
            raise ModuleNotFoundError(f"{{name}} is hidden")

sys.meta_path.insert(0, Hide())
"""
#: removes what only Linux has, and what Windows lacks
BARE = """
import asyncio, os, select, signal, sys, time

def not_implemented(*arguments):
    raise NotImplementedError

# as in the event loop that Windows has by default
asyncio.SelectorEventLoop.add_reader = asyncio.SelectorEventLoop.remove_reader = not_implemented
for module, names in (
    (time, ("clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME")),
    (os, ("eventfd", "pidfd_open", "register_at_fork", "fork", "getuid", "sendfile")),
    (select, ("poll", "epoll", "kqueue")),
    (signal, ("SIGKILL", "SIGUSR1", "SIGHUP", "pthread_sigmask", "set_wakeup_fd")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "msvcrt"):
    sys.modules[name] = None
"""
SYNC = """
import gossipq

with gossipq.connect(sys.argv[1]) as mq:
    mq.publish_many("orders", [b"1", b"2"], timeout=10)
    for msg in mq.consume("orders", group="billing", stop_at_end=True):
        with msg:
            print(msg.value.decode())
"""
TWIN = """
import asyncio
import gossipq

async def main():
    async with gossipq.aio.connect(sys.argv[1]) as mq:
        await mq.publish_many("letters", [b"1", b"2"])
        async for msg in mq.consume("letters", group="books", stop_at_end=True):
            async with msg:
                print(msg.value.decode())

asyncio.run(main())
"""


def run(*code: str, endpoint: str = "") -> str:
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(code), endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_client_needs_pyzmq_and_msgspec_only() -> None:
    run(HIDE, "import gossipq, gossipq.aio, gossipq.embedded, gossipq.lake", "gossipq.connect")


def test_the_first_name_imports_the_client_and_little_else() -> None:
    """An import is quick if few modules are imported: at most 1.5 times as long as that of redis-py."""
    slow = ("asyncio", "concurrent.futures", "multiprocessing", "subprocess", "tempfile", "tomllib")
    told = run(
        "import sys",
        "before = set(sys.modules)",
        "import gossipq",
        "from gossipq import limits",
        "print([name for name in sys.modules if name.startswith(('gossipq_', 'zmq'))])",
        "gossipq.connect",
        f"print([name for name in {slow!r} if name in sys.modules])",
        "print(len(set(sys.modules) - before))",
    )
    alone, late, count = told.splitlines()
    assert (alone, late) == ("[]", "[]")
    assert int(count) <= MODULES_MAX


def test_every_name_of_the_client_is_one_of_the_package() -> None:
    assert {*gossipq_client.__all__} <= {*dir(gossipq)}
    for name in gossipq_client.__all__:
        assert getattr(gossipq, name) is getattr(gossipq_client, name)
    assert gossipq.aio.connect is gossipq_client.aio.connect
    for name in ("Orders", "_private"):
        with pytest.raises(AttributeError, match=f"'gossipq' has no attribute '{name}'"):
            getattr(gossipq, name)


def test_it_works_without_what_only_some_systems_have() -> None:
    with testing.Broker() as broker:
        assert run(BARE, SYNC, endpoint=broker.endpoint).split() == ["1", "2"]
        assert run(BARE, TWIN, endpoint=broker.endpoint).split() == ["1", "2"]


def test_a_private_node_says_what_it_needs() -> None:
    code = "from gossipq_client import embedded\nembedded.open('x')"
    with pytest.raises(AssertionError, match="a private node needs a POSIX system"):
        run(BARE, code)
