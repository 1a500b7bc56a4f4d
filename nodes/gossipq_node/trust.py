"""The secret that the nodes of a cluster share, and the keys and tokens derived from it.

Only this module reads the secret. While it is being replaced, its file has further lines:
secrets that are accepted too.
"""

import base64
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from gossipq.config import SECRET_FILE as SECRET
from gossipq.config import Node
from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError
from gossipq.values import Member
from gossipq.wire.ownership import tokens_of
from gossipq.wire.proofs import secrets_of, token
from gossipq_node.files import replace_private

log = logging.getLogger(__name__)
NODE_KEYS = "node.keys"  #: keys of the node itself: the one in use, the next one
SECRET_BYTES = KEY_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4_096
FILE_BYTES_MAX = 1 << 16
MAKE_ONE = "make one: head -c 32 /dev/urandom | base64 > FILE && chmod 600 FILE, and give every node the same"
GOSSIP, DOOR = b"gossip", b"door"


def read(path: str, option: str = "node.secret_file") -> bytes:
    """Return the secret in a file, stripped; b"" without a file. Raises ConfigError."""
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            secret = file.read(FILE_BYTES_MAX).strip()  # bounded, because /dev/zero is endless
    except OSError as error:
        raise ConfigError(f"{option} = {path!r} cannot be read: {error.strerror}", MAKE_ONE) from None
    for each in secrets_of(secret) or [b""]:
        if not SECRET_BYTES_MIN <= len(each) <= SECRET_BYTES_MAX:
            raise ConfigError(
                f"{option} = {path!r} holds a secret of {len(each)} bytes; {SECRET_BYTES_MIN} to "
                f"{SECRET_BYTES_MAX} are good",
                MAKE_ONE,
            )
    return secret


def exposed(path: str) -> bool:
    """True if other users of this machine can read the file.

    A file of another user may be readable for its group, as in a pod of Kubernetes.
    """
    if not path:
        return False
    about = os.stat(path)
    mine = about.st_uid == os.geteuid()
    return bool(stat.S_IMODE(about.st_mode) & (0o044 if mine else 0o004))


def secret_of(node: Node, directory: Path, invited: bool = False) -> bytes:
    """Return the cluster's secret; b"" without one. Raises ConfigError.

    Without `secret_file` it is in the data directory. There it is created on loopback,
    by `gossipq init`, or by an invitation. A node that listens on a network and has
    none, or is `invited`, gets b"".
    """
    if node.secret_file:
        return read(node.secret_file)
    if invited:  # a secret of an earlier start is not that of the other nodes
        return b""
    path = directory / SECRET
    if not path.exists():
        if not endpoint(node.bind).is_loopback:
            return b""
        _write(path, _of_this_user())
    return read(str(path))


def known(path: str) -> bytes:
    """Return the secret for an operator's command. Raises ConfigError.

    It is the one in the given file, else that of this user's own nodes; b"" without either.
    """
    own = file_of_this_user()
    return read(path or (str(own) if own.exists() else ""))


def file_of_this_user() -> Path:
    """Return the file with the secret for all new directories of this user on this machine.

    So nodes of one host can meet without a configured file.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "gossipq" / SECRET


def _of_this_user() -> bytes:
    """Return this user's secret, and create it if needed.

    Without a home directory it is random; then other nodes need --secret-file.
    """
    fresh, path = base64.b64encode(os.urandom(SECRET_BYTES)), file_of_this_user()
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_new(path, fresh)
        about = os.stat(path)
        # a file that other users can read holds no secret: the node makes one of its own
        if about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077:
            return read(str(path))
    except (OSError, ConfigError):
        pass
    return fresh


def _write_new(path: Path, secret: bytes) -> None:
    """Write atomically, for this user only. An existing file stays. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(secret + b"\n")
            file.flush()
            os.fsync(fd)
        # a link fails if another node of this user was first: then both read its secret
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        os.unlink(new)


def _write(path: Path, secret: bytes) -> None:
    """Write atomically, for this user only, in a locked directory. Raises ConfigError."""
    try:
        replace_private(path, secret + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", "free some space or give another --data"
        ) from None


def gossip_keys(secret: bytes) -> tuple[str, ...]:
    """Return the keys of gossip as base64, () without a secret. The first encrypts, all decrypt."""
    return tuple(base64.b64encode(each).decode() for each in tokens_of(token(secret, GOSSIP)) if each)


def door_secrets(secret: bytes) -> list[bytes]:
    """Return the secret CURVE keys of the cluster's encrypted ports (any 32 bytes are a key).

    While the secret is being replaced, those of nodes with another secret follow.
    """
    return tokens_of(token(secret, DOOR))


def door_secret(secret: bytes) -> bytes:
    """Return the key in use."""
    return door_secrets(secret)[0]


def encrypts(node: Node, secret: bytes) -> bool:
    """True if the ports of a node are encrypted."""
    place = endpoint(node.bind)
    wanted = node.encrypt == "always" or (node.encrypt == "auto" and not place.is_loopback)
    return wanted and bool(secret) and place.transport == "tcp"


def node_keys(directory: Path, row: Member | None) -> tuple[bytes, bytes]:
    """Return the secret keys of a node: the one in use, and the next one. Raises ConfigError.

    They are created if missing. When the node's `row` in the roster contains the public key of the
    next one, that comes into use. So each start takes a new key that the cluster already knows.
    """
    from gossipq_node.adapters import curve  # imported late: nodes without a network do not need it

    path = directory / NODE_KEYS
    try:
        kept = [bytes.fromhex(line) for line in path.read_text("ascii").split()]
    except FileNotFoundError:
        kept = []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", f"rm {path}: the node gets other keys") from None
    if len(kept) == 2 and all(len(key) == KEY_BYTES for key in kept):
        using, following = kept
        if row is None or row.next_key != curve.public_of(following):
            return using, following
    else:
        using, following = b"", curve.new_secret()
    fresh = following, curve.new_secret()
    try:
        replace_private(path, b"".join(b"%s\n" % key.hex().encode() for key in fresh))
    except OSError as error:
        if using:  # a full disk must not prevent a start
            log.warning("%s cannot be written: the node keeps its keys until its next start: %s", path, error)
            return using, following
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", "free some space or give another --data"
        ) from None
    return fresh


def make(directory: Path) -> None:
    """Create a new random secret. Raises ConfigError."""
    _write(directory / SECRET, base64.b64encode(os.urandom(SECRET_BYTES)))


def entrust(directory: Path, secret: bytes) -> None:
    """Store a secret that came with an invitation. Raises ConfigError."""
    _write(directory / SECRET, secret)
