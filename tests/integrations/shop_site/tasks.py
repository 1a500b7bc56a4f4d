"""Tasks. What they did is in `DONE`."""

import os
import threading
from typing import Any

from django.db import connection

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

DONE: list[Any] = []
GO_ON = threading.Event()  #: lets `wait` return


@task
def add(a: int, b: int) -> int:
    return a + b


@task(queue_name="mail")
async def send(to: str) -> dict[str, str]:
    return {"to": to}


@task
def fail(text: str) -> None:
    raise LookupError(text)


@task(backend="patient", queue_name="patient", takes_context=True)
def fail_once(context: Any) -> int:
    if context.attempt == 1:
        raise ValueError("for the first time")
    return int(context.attempt)


@task(backend="outbox", queue_name="orders")
def pack(item: str) -> str:
    return f"{item} packed"


@task(backend="outbox", queue_name="orders")
def ship(number: int) -> None:
    with open(os.environ["SHOP_NOTES"], "a") as notes:
        notes.write(f"{number}\n")


@task
def not_json() -> object:
    return object()


@task
def note(what: Any) -> None:
    DONE.append(what)


@task
def wait() -> None:
    DONE.append("started")
    assert GO_ON.wait(60)


@task
def use_database() -> bool:
    """True if no connection of an earlier task is open."""
    is_closed = connection.connection is None
    with connection.cursor() as cursor:
        cursor.execute("select 1")
    return is_closed
