"""Servers that are kept under a name: the client's rules, with failures as the command line tells them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gossipq.errors import ConfigError
from gossipq_cli import failures

if TYPE_CHECKING:
    from gossipq_client.io import Contexts


def load() -> "Contexts":
    """What is kept; nothing when there is no file. Raises Failure for one that cannot be read."""
    from gossipq_client.io import contexts

    with told():
        return contexts.load()


def servers_of(given: list[str]) -> list[str]:
    """Addresses for what -s says: URLs, HOST:PORT or names of contexts; without it those of $GOSSIPQ_SERVER,
    else of the context in use. Raises Failure."""
    from gossipq_client.io import contexts

    with told():
        return contexts.chosen(given)


@contextmanager
def told() -> Iterator[None]:
    """A name that nobody has is not found; everything else is a bad configuration."""
    from gossipq_client.io import UnknownContext

    try:
        yield
    except UnknownContext as error:
        raise failures.Failure("unknown_context", error.message, error.hint, failures.NOT_FOUND) from None
    except ConfigError as error:
        raise failures.Failure("config", error.message, error.hint, failures.BAD_CONFIG) from None
