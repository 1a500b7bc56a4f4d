"""`manage.py gossipq_worker`."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gossipq_django.backend import TasksBackend
from gossipq_django.versions import task_backends
from gossipq_django.worker import Worker


class Command(BaseCommand):
    """Runs tasks of the backend for TASKS."""

    help = "Run tasks until SIGTERM or Ctrl-C. Tasks that run finish; a second signal stops at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="name in TASKS (default)")
        parser.add_argument(
            "--queues", default="", help="names with commas between them; default: all in QUEUES"
        )
        parser.add_argument("--threads", type=int, default=1, help="tasks of each queue at a time (1)")
        parser.add_argument("--until-empty", action="store_true", help="end when no task waits")

    def handle(self, *, backend: str, queues: str, threads: int, until_empty: bool, **_: Any) -> None:
        found = task_backends[backend]
        if not isinstance(found, TasksBackend):
            raise CommandError(f"TASKS[{backend!r}] is a {type(found).__name__}, not {TasksBackend.__name__}")
        names = [name for name in queues.split(",") if name] or sorted(found.queues)
        if not names:
            raise CommandError("TASKS names no QUEUES: pass --queues")
        self.stdout.write(f"runs tasks of {', '.join(names)}")
        Worker(found, names, threads=threads).run(until_empty=until_empty)
