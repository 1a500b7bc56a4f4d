"""Addresses of nodes: where a frontdoor listens, and the ports of its workers counted from there."""

from typing import NamedTuple

from gossipq import limits
from gossipq.errors import ConfigError

KEY_BYTES = 32


class Endpoint(NamedTuple):
    """Where a node listens: tcp with host and port, or ipc with a path."""

    transport: str
    host: str  #: the path, for ipc
    port: int  #: 0 for ipc

    @property
    def is_loopback(self) -> bool:
        return self.transport == "ipc" or self.host in ("localhost", "[::1]") or self.host.startswith("127.")

    @property
    def is_wildcard(self) -> bool:
        return self.host in ("*", "0.0.0.0", "[::]")

    def step(self, step: int, host: str = "") -> str:
        """The endpoint `step` ports further, at `host` when given."""
        if self.transport == "ipc":
            return f"ipc://{self.host}.{step}" if step else f"ipc://{self.host}"
        return f"tcp://{host_port(host or self.host, self.port + step)}"


def endpoint(text: str, key: str = "node.bind", above: int = limits.PORTS_ABOVE) -> Endpoint:
    """Raises ConfigError, naming the option `key`, when `text` is neither tcp://HOST:PORT nor ipc://PATH, or
    when there are not `above` ports above it."""
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
    """HOST:PORT; an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_ipv6(address: str) -> bool:
    """Whether tcp://HOST:PORT has an address of IPv6. A name is dialled by its address of IPv4."""
    return "[" in address


def door_of(address: str) -> str:
    """Where a process of a node that answers clients at `address` does so encrypted."""
    transport, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if transport != "tcp" or not port.isdecimal():
        return address
    return f"{transport}://{host}:{int(port) + limits.DOOR_PORT_STEP}"


class Invitation(NamedTuple):
    """What lets a node into a cluster: where one of its nodes is, the public key of its doors, and a token
    that is good once."""

    address: str  #: HOST:PORT of a frontdoor
    door: bytes  #: of several one behind the other it is the first
    token: bytes

    @property
    def text(self) -> str:
        return f"{self.address}/{self.door[:KEY_BYTES].hex()}/{self.token.hex()}"

    @property
    def command(self) -> str:
        """What starts the node. Where only this machine reaches it, a node encrypts if it is told to."""
        local = endpoint(f"tcp://{self.address}").is_loopback
        return f"gossipq node --join {self.text}" + (" --encrypt always" if local else "")


def invitation(text: str) -> Invitation | None:
    """None for what is none: HOST[:PORT] of an agent."""
    address, *parts = text.strip().split("/")
    host, _, port = address.rpartition(":")
    try:
        door, token = map(bytes.fromhex, parts)
    except ValueError:
        return None
    good = host and port.isdecimal() and len(door) == len(token) == KEY_BYTES
    return Invitation(address, door, token) if good else None


def gossip_address(text: str, key: str) -> str:
    """HOST[:PORT] of an agent, or an invitation, as where that agent is. Raises ConfigError naming the option
    `key`."""
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
