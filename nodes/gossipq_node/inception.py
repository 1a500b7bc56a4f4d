"""Prepares the first node of a closed cluster: its secret, an admin, and
invitations for other nodes.

All of it is written before the node listens.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gossipq import limits, permissions
from gossipq.config import SECRET_FILE
from gossipq.endpoints import Invitation, endpoint, host_port
from gossipq.errors import ConfigError
from gossipq.values import AccessTable, Credential, Invite, User
from gossipq_node import machine, trust
from gossipq_node.directory import DataDirectory
from gossipq_node.files import replace_file

CONFIG = "cluster.toml"
#: an address without a host, to find the local address towards other networks
ELSEWHERE = "192.0.2.1"


class Begun(NamedTuple):
    door: bytes  #: public key of the encrypted ports of all nodes
    invitations: list[Invitation]


def bind_of(bind: str) -> str:
    """Return the given address, or the one at which other hosts reach this host.

    Raises ConfigError.
    """
    if not bind:
        try:
            bind = f"tcp://{host_port(machine.address_towards(ELSEWHERE, 1), limits.PORT)}"
        except OSError:
            raise ConfigError("this host has no way to others", "say --bind tcp://HOST:7700") from None
    place = endpoint(bind)
    if place.transport != "tcp" or place.is_wildcard:
        raise ConfigError(
            f"other nodes cannot dial {bind}", "say --bind tcp://HOST:7700, as they reach this host"
        )
    return bind


@contextmanager
def begin(
    data: str, bind: str, admin: bytes, invites: Sequence[bytes], expires_ms: int, config: Path = Path(CONFIG)
) -> Iterator[Begun]:
    """Create the directory and a configuration file. If the caller fails, remove them again.

    `admin` is the token of user admin. `invites` are the tokens of nodes, valid until `expires_ms`
    (unix). Raises ConfigError if the directory or file exists, and StoreError.
    """
    if config.exists():
        raise ConfigError(
            f"{config} is there: a cluster begins with options of its own",
            "begin in a directory of its own: mkdir shop && cd shop",
        )
    from gossipq_node.adapters.curve import public_of

    os.umask(0o077)
    directory = DataDirectory(data)
    try:
        if directory.read() is not None or (directory.path / SECRET_FILE).exists():
            raise ConfigError(f"{data} belongs to a cluster, or is about to", "give an empty --data")
        made = (config, directory.path / SECRET_FILE, directory.access_file)
        try:
            role = permissions.ADMIN
            user = User(role.name, [role.name], [Credential(permissions.digest(admin))])
            rows = [Invite(permissions.digest(token), expires_ms) for token in invites]
            replace_file(directory.access_file, AccessTable(0, True, [user], [role], rows))
            trust.make(directory.path)
            door = public_of(trust.door_secret(trust.read(str(directory.path / SECRET_FILE))))
            said = f'[node]\ndata = "{data}"\nbind = "{bind}"\n'
            if not endpoint(bind).is_loopback:
                said += "# what listens there is encrypted, and lets in users only\n"
            else:
                said += 'encrypt = "always"\n'
            config.write_text(said, "utf-8")
            address = bind.removeprefix("tcp://")
            yield Begun(door, [Invitation(address, door, token) for token in invites])
        except BaseException:
            for path in made:  # otherwise the next attempt would be refused
                path.unlink(missing_ok=True)
            raise
    finally:
        directory.close()
