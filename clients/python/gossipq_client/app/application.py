"""An application in this process: found by its name, and run until it is told to stop.

    mq = gossipq_client.connect()          or gossipq_client.aio.connect()

    @mq.consumer("orders", group="billing")
    def bill(order: Order) -> None: ...

A function that returns such a client will do as well, also an `async def` one.
"""

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from gossipq.errors import ConfigError, GossipqError
from gossipq_client import aio
from gossipq_client.api.sync import Client
from gossipq_client.handlers import RunEnd

HINT = "gossipq run MODULE:NAME, in the directory where MODULE.py is"


def parse(target: str) -> tuple[str, str]:
    """Module and name of "app:mq". Raises ConfigError."""
    module, _, name = target.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ConfigError(f"{target!r} names no application", hint=HINT)
    return module, name


def find(target: str) -> Any:
    """The object of that name in the application's module. Raises ConfigError, and the errors of a
    client at the module's top level.
    """
    module, name = parse(target)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = import_module(module)
    except GossipqError:
        raise
    except Exception as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and f"{module}.".startswith(f"{error.name}.")
        ):
            raise ConfigError(f"there is no module {error.name} in {os.getcwd()}", hint=HINT) from None
        traceback.print_exception(error)
        raise ConfigError(
            f"{module} cannot be imported: {type(error).__name__}: {error}", hint="see above"
        ) from None
    if not hasattr(loaded, name):
        raise ConfigError(f"{module} has no {name}", hint=HINT)
    return getattr(loaded, name)


def run(
    target: str, guarded: bool = False, max_records: int | None = None, max_memory: int | None = None
) -> RunEnd:
    """Run an application until SIGTERM or Ctrl-C, or until `max_records` or `max_memory` is reached.

    A guarded one ends when its standard input does. Returns why it ended.
    """
    limits: dict[str, Any] = {"max_records": max_records, "max_memory": max_memory}
    found = find(target)
    open_log()
    if guarded:
        threading.Thread(target=_end_with_parent, name="gossipq-guard", daemon=True).start()
    if callable(found):
        found = _made_by(found, target)
    if inspect.isawaitable(found):
        return asyncio.run(_run_awaited(found, limits))
    if isinstance(found, Client):
        with found:
            return found.run(**limits)
    raise ConfigError(f"{target} is a {type(found).__name__}, no client", hint="mq = gossipq.connect()")


def _made_by(function: Callable[[], Any], target: str) -> Any:
    """Calls or awaits the function and returns the result. Raises ConfigError if it takes
    arguments, as a handler does, and its own errors.
    """
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        raise ConfigError(
            f"{target} takes arguments, so it makes no client", hint="mq = gossipq_client.connect()"
        ) from None
    return function()


def open_log() -> None:
    """To stderr, unless the application has said where to."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


async def _run_awaited(awaitable: Any, limits: dict[str, Any]) -> RunEnd:
    client = await awaitable
    if not isinstance(client, aio.Client):
        raise ConfigError(
            f"awaiting gave a {type(client).__name__}, no client", hint="mq = gossipq_client.aio.connect()"
        )
    async with client:
        return await client.run(**limits)


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
