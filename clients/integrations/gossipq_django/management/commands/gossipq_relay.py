"""`manage.py gossipq_relay`."""

import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from gossipq_client import connect
from gossipq_django import outbox


class Command(BaseCommand):
    """Publishes the rows of the outbox."""

    help = "Publish the rows that transactions left in the outbox, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default="default", help="alias in DATABASES (default)")
        parser.add_argument("--server", action="append", default=[], help="address; default: $GOSSIPQ_SERVER")
        parser.add_argument("--until-empty", action="store_true", help="end when no row can be published")

    def handle(self, *, database: str, server: list[str], until_empty: bool, **_: Any) -> None:
        with connect(*server, name="django-relay") as mq:
            relay = outbox.relay(mq, using=database)
            numbers = (signal.SIGTERM, signal.SIGINT)
            before = [signal.signal(number, lambda *_: relay.stop()) for number in numbers]
            try:
                relay.run(until_empty=until_empty)
            finally:
                for number, handler in zip(numbers, before, strict=True):
                    signal.signal(number, handler)
        self.stdout.write(f"{relay.published} published, {relay.refused} refused")
