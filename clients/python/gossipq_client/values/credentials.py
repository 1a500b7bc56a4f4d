"""Who a client is: the token that it shows, and where."""

from typing import NamedTuple

from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError

PREFIX = "gq_"  #: so that a token is recognised where it should not be
TOKEN_BYTES = 32


class Credentials(NamedTuple):
    """`token` is b"" for who shows none. It is shown on this machine only, unless `insecure` says that
    nobody listens to the network."""

    token: bytes = b""
    insecure: bool = False

    def at(self, address: str) -> bytes:
        """What is shown there."""
        return self.token if self.insecure or endpoint(address).is_loopback else b""


NO_CREDENTIALS = Credentials()


def text_of(token: bytes) -> str:
    """A token as files have it."""
    return PREFIX + token.hex()


def token_of(text: str, where: str) -> bytes:
    """Raises ConfigError, which names the place and not the token."""
    try:
        token = bytes.fromhex(text.strip().removeprefix(PREFIX))
    except ValueError:
        token = b""
    if len(token) != TOKEN_BYTES:
        raise ConfigError(
            f"{where} holds no token", "one begins with gq_: gossipq user rotate NAME --save FILE"
        )
    return token
