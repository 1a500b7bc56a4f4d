"""Who a client is: the token that it shows, and to whom."""

from typing import NamedTuple

from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError

PREFIX = "gq_"  #: so that a token is recognised where it should not be
DOOR_PREFIX = "door_"
TOKEN_BYTES = DOOR_BYTES = 32


class Credentials(NamedTuple):
    """`token` is b"" for who shows none. It is shown on this machine, where `door` encrypts what is said,
    and, if `insecure` says that nobody listens to the network, everywhere."""

    token: bytes = b""
    insecure: bool = False
    #: public CURVE key of the cluster's doors: they are used then, and who has not the secret one of it is
    #: not spoken to; one behind the other while the cluster gets another secret. b"": nothing is encrypted
    door: bytes = b""
    act_for: str = ""  #: the user for whom this one acts; "" = for itself
    file: str = ""  #: where they were read, and are looked for again when it has changed; "" = nowhere

    def at(self, address: str) -> bytes:
        """What is shown there."""
        return self.token if self.insecure or self.door or endpoint(address).is_loopback else b""


NO_CREDENTIALS = Credentials()


def text_of(token: bytes) -> str:
    """A token as files have it."""
    return PREFIX + token.hex()


def file_text(token: bytes, door: bytes = b"") -> str:
    """What a file of credentials holds."""
    doors = [DOOR_PREFIX + door[at : at + DOOR_BYTES].hex() for at in range(0, len(door), DOOR_BYTES)]
    return "\n".join([*([text_of(token)] if token else []), *doors]) + "\n"


def token_of(text: str, where: str) -> bytes:
    """Raises ConfigError, which names the place and not the token."""
    return _bytes_of(text.strip(), PREFIX, TOKEN_BYTES) or _no_token(where)


def credentials_of(text: str, where: str) -> Credentials:
    """Of a file: a line with a token, lines with keys of the doors, or both. Raises ConfigError, which names
    the place and not what is there."""
    token = door = b""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith(DOOR_PREFIX):
            door += _bytes_of(line, DOOR_PREFIX, DOOR_BYTES) or _no_token(where)
        else:
            token = token_of(line, where)
    return Credentials(token, door=door) if token or door else Credentials(_no_token(where))


def _bytes_of(text: str, prefix: str, size: int) -> bytes:
    """b"" for what is none."""
    try:
        found = bytes.fromhex(text.removeprefix(prefix))
    except ValueError:
        return b""
    return found if len(found) == size else b""


def _no_token(where: str) -> bytes:
    raise ConfigError(f"{where} holds no token", "one begins with gq_: gossipq user rotate NAME --save FILE")
