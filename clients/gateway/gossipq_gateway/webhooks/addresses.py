"""Checks the address of a webhook: it must not be in a private network, unless its hook allows that."""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

TRANSLATED = IPv6Network("64:ff9b::/96")  #: IPv4 behind NAT64, in the last four bytes


class PrivateAddress(Exception):
    """A name leads to an address that is not public."""


def is_public(text: str) -> bool:
    """True for an address of the public internet. An IPv4 address within an IPv6 one counts."""
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in TRANSLATED:
            inner.append(IPv4Address(address.packed[12:]))
        if any(each is not None and not is_public(str(each)) for each in inner):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not address.is_multicast


async def resolve(host: str, port: int, allow_private: bool) -> str:
    """Return an address of a host. The caller connects to this address and does not look the name up again,
    because a second look-up may give another answer. Raises PrivateAddress if any address of the host is not
    public, and OSError if it has none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(place[0]) for *_, place in found]
    if not allow_private:
        for address in addresses:
            if not is_public(address):
                raise PrivateAddress(f"{host} has the private address {address}")
    return addresses[0]
