"""The secret that the nodes of a cluster share, and what is made of it. Nothing else knows the secret itself."""

import base64
import os
import stat
from hashlib import blake2b
from pathlib import Path

from gossipq.errors import ConfigError

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4_096
MAKE_ONE = "make one: head -c 32 /dev/urandom | base64 > FILE && chmod 600 FILE, and give every node the same"
FOUNDING = b"founding"  #: purpose of a token while no cluster is known
GOSSIP = b"gossip"


def read(path: str) -> bytes:
    """The secret in the file, without blanks around it; b"" without a file. Raises ConfigError."""
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"node.secret_file = {path!r} cannot be read: {error.strerror}", MAKE_ONE) from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"node.secret_file = {path!r} holds {len(secret)} bytes; {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are good",
            MAKE_ONE,
        )
    return secret


def exposed(path: str) -> bool:
    """Whether other users of this machine may read the file."""
    return bool(path) and bool(stat.S_IMODE(os.stat(path).st_mode) & 0o044)


def token(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes that only who knows the secret can make, b"" without one. `purpose`: the cluster's uuid, or one of the above."""
    return blake2b(purpose, key=blake2b(secret).digest(), digest_size=32, person=b"gossipq").digest() if secret else b""


def gossip_key(secret: bytes) -> str:
    """What encrypts the gossip: 32 bytes as base64, "" without a secret."""
    return base64.b64encode(token(secret, GOSSIP)).decode()
