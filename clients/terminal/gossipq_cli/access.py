"""Shared by `user`, `role` and `cluster close`: changes of users, tokens, and rows of the table."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gossipq import permissions
from gossipq.errors import Busy, NotConfirmed, NotLeader, Unreachable
from gossipq.texts import iso, printable
from gossipq.values import AccessChange, AccessTable, Credential, Role, User
from gossipq_cli import ask, failures
from gossipq_cli.files import written
from gossipq_cli.options import Choices
from gossipq_cli.output import is_special
from gossipq_ops.hints import nearest

if TYPE_CHECKING:
    from gossipq_client import Client

SPREAD_S = 1.0  #: after this time every process of the cluster knows a change of users
secret_option = click.option(
    "--secret-file",
    metavar="FILE",
    default="",
    help="that of the cluster; without it that of your own nodes on this machine",
)


#: After these errors it is unknown whether the request had an effect.

#: Busy: a client repeated a request whose leader was gone before it answered,
#: and meets its own change.
UNSETTLED = (KeyboardInterrupt, Busy, NotConfirmed, NotLeader, Unreachable)


def change(choices: Choices, asked: AccessChange, secret_file: str) -> AccessTable:
    """Change the table, with the permission `cluster` or else with the secret."""
    with ask.connect(choices) as mq:
        return change_by(mq, asked, secret_file)


def change_by(mq: "Client", asked: AccessChange, secret_file: str) -> AccessTable:
    from gossipq_node import trust

    return mq.admin.raw.set_access(asked, trust.known(secret_file))


def spread(known: AccessTable) -> None:
    """Wait until every process of a closed cluster knows a new token.

    Until then a process could refuse it, so it is not printed. Ctrl-C only ends the wait: the token
    is printed anyway, because it may be the only valid one.
    """
    if known.closed:
        with suppress(KeyboardInterrupt):
            time.sleep(SPREAD_S)


def table(choices: Choices) -> AccessTable:
    with ask.connect(choices) as mq:
        return mq.admin.raw.access()


def user(known: AccessTable, name: str) -> User:
    """Return the user of this name. Raises Failure if it does not exist."""
    found = permissions.user_of(known, name)
    if found is None:
        near = nearest(name, [each.name for each in known.users])
        raise failures.Failure("unknown_user", f"no user {name}{near}", "gossipq user ls", failures.NOT_FOUND)
    return found


def role(known: AccessTable, name: str) -> Role:
    """Return the role of this name. Raises Failure if it does not exist."""
    found = permissions.role_of(known, name)
    if found is None:
        near = nearest(name, [each.name for each in known.roles])
        raise failures.Failure(
            "unknown_role", f"no role {name}{near}", "gossipq user role ls", failures.NOT_FOUND
        )
    return found


def made_token(expires_s: float | None) -> tuple[bytes, Credential]:
    """Return a new token, and its stored form."""
    token = os.urandom(permissions.TOKEN_BYTES)
    expires_ms = 0 if expires_s is None else int((time.time() + expires_s) * 1000)
    return token, Credential(permissions.digest(token), expires_ms)


def door(choices: Choices) -> bytes:
    """Return the public key of encrypted ports for credentials files; b"" without encryption."""
    with ask.connect(choices) as mq:
        return mq.admin.raw.status().door


@contextmanager
def saving(path: str | Path, token: bytes, door: bytes = b"") -> Iterator[None]:
    """Write the token to a file for its owner only, if the block makes the token valid.

    The data is written before the block, because a full disk would lose the only copy of the token.
    The rename follows after it. If it is unknown whether the block succeeded, the token stays
    beside the file, and a message says so.
    """
    from gossipq_client.values import file_text

    path, text = Path(path), file_text(token, door).encode()
    if is_special(path):
        yield
        path.write_bytes(text)
        return
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with written(str(path), "token") as stream:
        stream.write(text)
        stream.flush()
        try:
            yield
        except UNSETTLED:
            kept = f"{path}.unconfirmed"
            os.replace(stream.name, kept)
            told = f"the cluster may have taken the new token, or not: it is in {kept}"
            click.echo(printable(told, "\n"), err=True)
            raise


def save(path: str | Path, token: bytes, door: bytes = b"") -> None:
    """Write the token to a file, and replace an older one."""
    with saving(path, token, door):
        pass


def until(expires_ms: int) -> str:
    return (iso(expires_ms) or "") if expires_ms else "never"
