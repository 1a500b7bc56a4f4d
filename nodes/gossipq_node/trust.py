"""The secret that the nodes of a cluster share, and what is made of it. Nothing else knows the secret
itself."""

import base64
import os
import stat
from contextlib import suppress
from pathlib import Path

from gossipq.config import Node
from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError
from gossipq.wire.proofs import token

SECRET = "secret"  #: name of its file
SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4_096
MAKE_ONE = "make one: head -c 32 /dev/urandom | base64 > FILE && chmod 600 FILE, and give every node the same"
GOSSIP = b"gossip"


def read(path: str, option: str = "node.secret_file") -> bytes:
    """The secret in the file, without blanks around it; b"" without a file. Raises ConfigError."""
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{option} = {path!r} cannot be read: {error.strerror}", MAKE_ONE) from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"{option} = {path!r} holds {len(secret)} bytes; {SECRET_BYTES_MIN} to "
            f"{SECRET_BYTES_MAX} are good",
            MAKE_ONE,
        )
    return secret


def exposed(path: str) -> bool:
    """Whether other users of this machine may read the file."""
    return bool(path) and bool(stat.S_IMODE(os.stat(path).st_mode) & 0o044)


def secret_of(node: Node, directory: Path) -> bytes:
    """What the nodes of a cluster share. Without a given file, a cluster that only this machine reaches has
    the secret that lies in the directories of its nodes; b"" when the node listens to a network and has none.
    Raises ConfigError."""
    if node.secret_file:
        return read(node.secret_file)
    if not endpoint(node.bind).is_loopback:
        return b""
    path = directory / SECRET
    if not path.exists():
        _write_new(path, _of_this_user())
    return read(str(path))


def known(path: str) -> bytes:
    """For who operates a cluster: the secret in that file, else that of this user's own nodes, b"" if there
    is none. Raises ConfigError."""
    own = file_of_this_user()
    return read(path or (str(own) if own.exists() else ""))


def file_of_this_user() -> Path:
    """What all directories of this user on this machine begin with: nodes of one host meet without being told
    a file."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "gossipq" / SECRET


def _of_this_user() -> bytes:
    """Its secret, made now if it has none. Random where there is no home: other nodes are then told by
    --secret-file."""
    fresh, path = base64.b64encode(os.urandom(SECRET_BYTES)), file_of_this_user()
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_new(path, fresh)
        about = os.stat(path)
        if about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077:
            return read(str(path))
    except (OSError, ConfigError):
        pass
    return fresh


def _write_new(path: Path, secret: bytes) -> None:
    """In one step, for this user alone; what is there stays. Raises ConfigError."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(secret + b"\n")
                file.flush()
                os.fsync(fd)
            with suppress(FileExistsError):  # another node was first
                os.link(new, path)
        finally:
            os.unlink(new)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", "free some space or give another --data"
        ) from None


def gossip_key(secret: bytes) -> str:
    """What encrypts the gossip: 32 bytes as base64, "" without a secret."""
    return base64.b64encode(token(secret, GOSSIP)).decode()
