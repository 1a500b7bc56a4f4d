"""Contexts: servers saved under a name. Uses the client's rules, with
errors of the command line.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gossipq.errors import ConfigError
from gossipq_cli import failures

if TYPE_CHECKING:
    from gossipq_client.io import Contexts


def load() -> "Contexts":
    """Return the saved contexts. Raises Failure if the file cannot be read."""
    from gossipq_client.io import contexts

    with told():
        return contexts.load()


def servers_of(given: list[str]) -> list[str]:
    """Return addresses for -s: URLs, HOST:PORT or names of contexts. Raises Failure.

    Without -s they are those of $GOSSIPQ_SERVER, else of the context in use.
    """
    from gossipq_client.io import contexts

    with told():
        return contexts.chosen(given)


@contextmanager
def told() -> Iterator[None]:
    """Convert an unknown name to "not found", and other errors to "bad configuration"."""
    from gossipq_client.io import UnknownContext

    try:
        yield
    except UnknownContext as error:
        raise failures.Failure("unknown_context", error.message, error.hint, failures.NOT_FOUND) from None
    except ConfigError as error:
        raise failures.Failure("config", error.message, error.hint, failures.BAD_CONFIG) from None
