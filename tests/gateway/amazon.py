"""boto3 and a Celery worker, as they are, for a gateway that serves SQS."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from gateway.conftest import RunningGateway

KEY, SECRET = "AKIAGOSSIPQ", "not/so+secret"


def flags(home: Path) -> tuple[str, ...]:
    """Of a gateway whose one access key is KEY."""
    keys = home / "keys"
    keys.write_text(json.dumps({KEY: {"secret": SECRET}}))
    keys.chmod(0o600)
    return "--sqs", "--sqs-keys", str(keys)


def client(gateway: RunningGateway, secret: str = SECRET, path: str = "/sqs", key: str = KEY) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=gateway.url + path,
        region_name="eu-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}),
    )


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in answer.get("Messages", [])]


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]


TASKS = """
import os, time
from celery import Celery
from kombu.transport.SQS import Channel
app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={"region": "eu-1", "is_secure": False, "visibility_timeout": 25,
                              "wait_time_seconds": 1, "polling_interval": 0.1, "queue_name_prefix": ""},
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1,
    task_default_queue="celery-tasks", worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)
def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")
acked = Channel.basic_ack
def basic_ack(channel, tag, multiple=False):
    known = channel.qos.get(tag)
    acked(channel, tag, multiple)
    note(f"acked {known.headers['task']} {known.headers['argsrepr']}")
Channel.basic_ack = basic_ack
@app.task
def add(a, b):
    note(f"add {a + b}")
@app.task(bind=True, max_retries=3)
def flaky(self):
    note(f"flaky {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=1)
@app.task
def job(number):
    note(f"job {number} begins")
    time.sleep(1)
    note(f"job {number} ends")
@app.task
def slow(seconds):
    note("slow begins")
    time.sleep(seconds)
    note("slow ends")
"""


class Worker:
    """`celery worker`; one process of it, or one beside two `children`."""

    def __init__(self, home: Path, gateway: RunningGateway, *, children: bool = False) -> None:
        self._pool = ["prefork", "--concurrency", "2", "--prefetch-multiplier", "4"] if children else ["solo"]
        (home / "tasks.py").write_text(TASKS)
        place = gateway.url.removeprefix("http://")
        self.notes = home / "notes"
        self.notes.touch()
        self.environment = {
            **os.environ,
            "BROKER": f"sqs://{KEY}:{SECRET.replace('/', '%2F').replace('+', '%2B')}@{place}//",
            "NOTES": str(self.notes),
            "PYTHONPATH": str(home),
        }
        self._home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Worker":
        line = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", *self._pool]
        line += ["--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "info"]
        with open(self._home / "log", "ab") as log:
            self.process = subprocess.Popen(
                line, env=self.environment, cwd=self._home, stdout=log, stderr=log
            )
        return self

    def call(self, expression: str) -> None:
        code = f"from tasks import *; {expression}"
        subprocess.run(
            [sys.executable, "-c", code], env=self.environment, cwd=self._home, check=True, timeout=60
        )

    def until(self, line: str, times: int = 1) -> None:
        end = time.monotonic() + 60
        while self.notes.read_text().splitlines().count(line) < times:
            assert time.monotonic() < end, (self._home / "log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
