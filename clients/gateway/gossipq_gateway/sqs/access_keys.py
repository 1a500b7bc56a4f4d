"""Access keys of SQS: a file that maps each to the token of a user of the cluster.

    {"AKIAEXAMPLE": {"secret": "...", "token": "gq_..."}}

Only the gateway's user may read the file. Without `token` the key's owner is anonymous, which is
enough for an open cluster.
"""

import os
import stat
from pathlib import Path

import msgspec

from gossipq.errors import ConfigError
from gossipq_client.values import credentials_of
from gossipq_gateway.sqs.faults import unsigned

_HINT = '{"AKIAEXAMPLE": {"secret": "...", "token": "gq_..."}}'


class AccessKey(msgspec.Struct, forbid_unknown_fields=True):
    secret: str
    token: str = ""


class AccessKeys:
    """The keys. The file is read again when it has changed."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._path = Path(path)
        self._stamp = (0, 0)
        self._keys: dict[str, AccessKey] = {}
        self._read()

    def _read(self) -> None:
        try:
            about = os.stat(self._path)
            stamp = about.st_mtime_ns, about.st_ino
            if stamp == self._stamp:
                return
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise ConfigError(
                    f"other users of this machine may read {self._path}", f"chmod 600 {self._path}"
                )
            keys = msgspec.json.decode(self._path.read_bytes(), type=dict[str, AccessKey])
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}", _HINT) from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._path} holds no access keys: {error}", _HINT) from None
        for key_id, key in keys.items():
            if key.token:
                credentials_of(key.token, f"{key_id} in {self._path}")
        self._keys, self._stamp = keys, stamp

    def look(self) -> None:
        """Read a changed file. Raises ConfigError if it is invalid; then the old keys stay."""
        self._read()

    def find(self, key_id: str) -> tuple[str, bytes]:
        """Return the secret of a key, and the token of its user. Raises SqsFault."""
        key = self._keys.get(key_id)
        if key is None:
            raise unsigned("The security token included in the request is invalid.", "InvalidClientTokenId")
        return key.secret, credentials_of(key.token, key_id).token if key.token else b""
