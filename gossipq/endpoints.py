"""Addresses of nodes. The ports of workers are counted from the port of the frontdoor."""

from typing import NamedTuple

from gossipq import limits
from gossipq.errors import ConfigError

KEY_BYTES = 32


class Endpoint(NamedTuple):
    """An address at which a node listens: tcp with host and port, or ipc with a path."""

    transport: str
    host: str  #: for ipc the path
    port: int  #: 0 for ipc

    @property
    def is_loopback(self) -> bool:
        return self.transport == "ipc" or self.host in ("localhost", "[::1]") or self.host.startswith("127.")

    @property
    def is_wildcard(self) -> bool:
        return self.host in ("*", "0.0.0.0", "[::]")

    def step(self, step: int, host: str = "") -> str:
        """Return the endpoint `step` ports above this one, at `host` if given."""
        if self.transport == "ipc":
            return f"ipc://{self.host}.{step}" if step else f"ipc://{self.host}"
        return f"tcp://{host_port(host or self.host, self.port + step)}"


def endpoint(text: str, key: str = "node.bind", above: int = limits.PORTS_ABOVE) -> Endpoint:
    """Parse tcp://HOST:PORT or ipc://PATH.

    Raises ConfigError, which names the option `key`, if the text is neither, or if fewer than
    `above` ports exist above the given one.
    """
    transport, _, rest = text.partition("://")
    if transport == "ipc" and rest:
        return Endpoint("ipc", rest, 0)
    host, _, port = rest.rpartition(":")
    if transport != "tcp" or not host or not port.isdecimal():
        raise ConfigError(
            f"{key} = {text!r} is not an address", f"write tcp://HOST:PORT, as tcp://127.0.0.1:{limits.PORT}"
        )
    if not 0 < int(port) <= 65_535 - above:
        raise ConfigError(
            f"{key} = {text!r}: the port must lie between 1 and {65_535 - above}",
            f"the {above} ports above it are used too",
        )
    if ":" in host and not host.startswith("["):
        raise ConfigError(f"{key} = {text!r} is not an address", f"write tcp://{host_port(host, int(port))}")
    return Endpoint("tcp", host, int(port))


def host_port(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_ipv6(address: str) -> bool:
    """True if the host of tcp://HOST:PORT is an IPv6 address. Host names are resolved to IPv4
    only.
    """
    return "[" in address


def door_of(address: str) -> str:
    """Return the encrypted address of the process that answers clients at `address`."""
    transport, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if transport != "tcp" or not port.isdecimal():
        return address
    return f"{transport}://{host}:{int(port) + limits.DOOR_PORT_STEP}"


class Invitation(NamedTuple):
    """The text by which a new node joins a cluster.

    It has the address of a node, the public key of the encrypted ports of the cluster, and a token
    that admits one node.
    """

    address: str  #: HOST:PORT of a frontdoor
    #: while the secret is being replaced: several keys in a row, of which the first is used
    door: bytes
    token: bytes

    @property
    def text(self) -> str:
        return f"{self.address}/{self.door[:KEY_BYTES].hex()}/{self.token.hex()}"

    @property
    def command(self) -> str:
        """The command that starts the new node.

        On loopback a node encrypts only with `--encrypt always`, so the command contains it.
        """
        local = endpoint(f"tcp://{self.address}").is_loopback
        return f"gossipq node --join {self.text}" + (" --encrypt always" if local else "")


def invitation(text: str) -> Invitation | None:
    """Parse an invitation. Returns None if the text is the address HOST[:PORT] of a Serf agent."""
    address, *parts = text.strip().split("/")
    host, _, port = address.rpartition(":")
    try:
        door, token = map(bytes.fromhex, parts)
    except ValueError:
        return None
    good = host and port.isdecimal() and len(door) == len(token) == KEY_BYTES
    return Invitation(address, door, token) if good else None


def gossip_address(text: str, key: str) -> str:
    """Return HOST[:PORT] of the Serf agent that a text names: an address or an invitation.

    Raises ConfigError, which names the option `key`.
    """
    if invited := invitation(text):
        return endpoint(f"tcp://{invited.address}", key).step(limits.GOSSIP_PORT_STEP).removeprefix("tcp://")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(limits.PORT + limits.GOSSIP_PORT_STEP)
    if "/" in text or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f"{key} = {text!r} is not where an agent gossips",
            f"write HOST or HOST:PORT, as ada:{limits.PORT + limits.GOSSIP_PORT_STEP}",
        )
    return f"{host}:{port}"
