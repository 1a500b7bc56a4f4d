"""`celery worker` as a process, and the tasks that it runs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from celery import Celery

import gossipq_celery  # noqa: F401 - makes gossipq:// known
from conftest import HOME, ROOTS

SECONDS = 60
TASKS = '''
"""Tasks that write a line for each run."""
import os
import time

from celery import Celery

import gossipq_celery

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ.get("RESULTS"))
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)


def note(line):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{line}\\n")


@app.task
def say(word):
    note(word)
    return word


@app.task
def tell_time():
    note(time.time())


@app.task
def wait(word, seconds):
    note(f"begins {word}")
    time.sleep(seconds)
    note(f"ends {word}")


@app.task(bind=True, max_retries=5)
def stumble(self, word):
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)
    note(f"{word} {self.request.retries}")
'''


class Worker:
    """A worker of Celery with two children."""

    def __init__(self, home: Path, broker: str, *flags: str) -> None:
        (home / "tasks.py").write_text(TASKS)
        self._home, self._flags = home, flags
        self.notes = home / "notes"
        self.notes.touch()
        paths = [str(home), *(str(HOME / root) for root in ROOTS)]
        self.environment = {
            **os.environ,
            "BROKER": broker,
            "NOTES": str(self.notes),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.app = Celery("tasks", broker=broker)

    def start(self) -> Self:
        line = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tasks",
            "worker",
            "-c",
            "2",
            "-l",
            "info",
            *self._flags,
        ]
        with (self._home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                line, env=self.environment, cwd=self._home, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    @property
    def log(self) -> str:
        return (self._home / "log").read_text()

    @property
    def lines(self) -> list[str]:
        return self.notes.read_text().splitlines()

    def send(self, task: str, *args: Any, **options: Any) -> None:
        self.app.send_task(f"tasks.{task}", args, **options)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.lines[-20:], self.log[-3_000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM, the warm shutdown."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0, self.log[-3_000:]
        self.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.app.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)
