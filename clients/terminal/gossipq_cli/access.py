"""What `user`, `role` and `cluster close` share: who changes users, tokens, and rows of the table."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gossipq import permissions
from gossipq.errors import Busy, NotConfirmed, NotLeader, Unreachable
from gossipq.texts import printable
from gossipq.values import AccessChange, AccessTable, Credential, Role, User
from gossipq_cli import ask, failures
from gossipq_cli.files import written
from gossipq_cli.options import Choices, nearest
from gossipq_cli.output import is_special, iso

if TYPE_CHECKING:
    from gossipq_client import Client

SPREAD_S = 1.0  #: every process goes by a change of users after so long
secret_option = click.option(
    "--secret-file",
    metavar="FILE",
    default="",
    help="that of the cluster; without it that of your own nodes on this machine",
)


#: what ends a request of which nobody knows whether it was done; Busy: one that a client sent again, because
#: a leader was gone before it answered, meets the change that it made itself
UNSETTLED = (KeyboardInterrupt, Busy, NotConfirmed, NotLeader, Unreachable)


def change(choices: Choices, asked: AccessChange, secret_file: str) -> AccessTable:
    """Changes the table: by the permission `cluster`, else by the secret."""
    with ask.connect(choices) as mq:
        return change_by(mq, asked, secret_file)


def change_by(mq: "Client", asked: AccessChange, secret_file: str) -> AccessTable:
    from gossipq_node import trust

    return mq.admin.set_access(asked, trust.known(secret_file))


def spread(known: AccessTable) -> None:
    """A token that was just made is known to every process of a closed cluster within this time. Till then
    nobody hears of it: one of them could refuse it. Whoever breaks that wait off gets it all the same: there
    may be no other one that is good."""
    if known.closed:
        with suppress(KeyboardInterrupt):
            time.sleep(SPREAD_S)


def table(choices: Choices) -> AccessTable:
    with ask.connect(choices) as mq:
        return mq.admin.access()


def user(known: AccessTable, name: str) -> User:
    """Raises Failure when there is none of that name."""
    found = permissions.user_of(known, name)
    if found is None:
        near = nearest(name, [each.name for each in known.users])
        raise failures.Failure("unknown_user", f"no user {name}{near}", "gossipq user ls", failures.NOT_FOUND)
    return found


def role(known: AccessTable, name: str) -> Role:
    """Raises Failure when there is none of that name."""
    found = permissions.role_of(known, name)
    if found is None:
        near = nearest(name, [each.name for each in known.roles])
        raise failures.Failure("unknown_role", f"no role {name}{near}", "gossipq role ls", failures.NOT_FOUND)
    return found


def made_token(expires_s: float | None) -> tuple[bytes, Credential]:
    """A new one, and what the cluster keeps of it."""
    token = os.urandom(permissions.TOKEN_BYTES)
    expires_ms = 0 if expires_s is None else int((time.time() + expires_s) * 1000)
    return token, Credential(permissions.digest(token), expires_ms)


def door(choices: Choices) -> bytes:
    """The public key of the cluster's doors, for files of credentials; b"" where nothing is encrypted."""
    with ask.connect(choices) as mq:
        return mq.admin.status().door


@contextmanager
def saving(path: str | Path, token: bytes, door: bytes = b"") -> Iterator[None]:
    """The file gets its name, for its owner alone, when what makes the token good has succeeded: a disk that
    refuses it is met before, or the only copy of the token would be lost. Where nobody knows whether it has
    succeeded, the token is kept beside the file, and that is said."""
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
    """In place of what was there."""
    with saving(path, token, door):
        pass


def until(expires_ms: int) -> str:
    return (iso(expires_ms) or "") if expires_ms else "never"
