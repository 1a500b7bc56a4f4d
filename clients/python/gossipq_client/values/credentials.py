"""Credentials of a client: its token, and where it may send the token."""

from typing import NamedTuple

from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError

PREFIX = "gq_"  #: makes tokens easy to recognize in places where they should not be
DOOR_PREFIX = "door_"
TOKEN_BYTES = DOOR_BYTES = 32


class Credentials(NamedTuple):
    """A client's credentials. `token` is b"" for a client without one. The token is sent only to
    nodes of this machine or over connections encrypted with `door`. With `insecure` it is sent
    everywhere: the user says that the network is safe.
    """

    token: bytes = b""
    insecure: bool = False
    #: public CURVE key of the cluster's encrypted ports. If set, the client uses these ports and
    #: talks only to owners of the secret key. While the cluster's secret is replaced, it holds
    #: several keys in a row. b"": no encryption
    door: bytes = b""
    act_for: str = ""  #: the user for whom this client acts; "" = for itself
    file: str = ""  #: the file they came from, read again when it changes; "" = no file

    def at(self, address: str) -> bytes:
        """The token to send to this address, or b""."""
        return self.token if self.insecure or self.door or endpoint(address).is_loopback else b""


NO_CREDENTIALS = Credentials()


def text_of(token: bytes) -> str:
    """A token in the form that files have."""
    return PREFIX + token.hex()


def file_text(token: bytes, door: bytes = b"") -> str:
    """The text of a file of credentials."""
    doors = [DOOR_PREFIX + door[at : at + DOOR_BYTES].hex() for at in range(0, len(door), DOOR_BYTES)]
    return "\n".join([*([text_of(token)] if token else []), *doors]) + "\n"


def token_of(text: str, where: str) -> bytes:
    """Reads a token. Raises ConfigError, which names the place but not the token."""
    return _bytes_of(text.strip(), PREFIX, TOKEN_BYTES) or _no_token(where)


def credentials_of(text: str, where: str) -> Credentials:
    """Reads a file: a line with a token, lines with keys of encrypted ports, or both. Raises
    ConfigError, which names the place but not the contents.
    """
    token = door = b""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith(DOOR_PREFIX):
            door += _bytes_of(line, DOOR_PREFIX, DOOR_BYTES) or _no_token(where)
        else:
            token = token_of(line, where)
    return Credentials(token, door=door) if token or door else Credentials(_no_token(where))


def _bytes_of(text: str, prefix: str, size: int) -> bytes:
    """Returns b"" for malformed text."""
    try:
        found = bytes.fromhex(text.removeprefix(prefix))
    except ValueError:
        return b""
    return found if len(found) == size else b""


def _no_token(where: str) -> bytes:
    raise ConfigError(f"{where} holds no token", "one begins with gq_: gossipq user rotate NAME --save FILE")
