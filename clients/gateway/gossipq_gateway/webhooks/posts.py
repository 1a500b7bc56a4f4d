"""One POST over a connection of its own, to an address that was checked."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from gossipq_gateway.webhooks.addresses import resolve

HEAD_BYTES_MAX = 16 * 1024
PORTS = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """The head of a response. Its body is not read."""

    status: int
    headers: dict[str, str]  #: by names in small letters

    @property
    def retry_after_s(self) -> int | None:
        """Seconds after which the receiver wants the next attempt; None: it names none, or a date."""
        text = self.headers.get("retry-after", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


async def post(url: str, headers: Mapping[str, str], body: bytes, *, allow_private: bool) -> Answer:
    """Send a request and return the head of the response. Redirects are not followed: they would lead to
    another address.

    Raises PrivateAddress, OSError if it cannot connect, and ValueError for an answer that is no HTTP.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    address = await resolve(host, port, allow_private)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(
        address,
        port,
        ssl=context,
        server_hostname=host if context is not None else None,
        limit=HEAD_BYTES_MAX,
    )
    try:
        writer.write(_request(parts.netloc, parts.path, parts.query, headers, len(body)) + body)
        await writer.drain()
        return _parsed(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.IncompleteReadError as error:
        raise ConnectionError(f"the connection ended after {len(error.partial)} bytes") from None
    except asyncio.LimitOverrunError:
        raise ValueError(f"a head of more than {HEAD_BYTES_MAX} bytes") from None
    finally:
        writer.transport.abort()  # what else the receiver sends is not wanted


def _request(host: str, path: str, query: str, headers: Mapping[str, str], length: int) -> bytes:
    target = f"{path or '/'}?{query}" if query else path or "/"
    lines = [f"POST {target} HTTP/1.1", f"host: {host}", f"content-length: {length}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _parsed(head: bytes) -> Answer:
    """Raises ValueError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"no HTTP: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return Answer(int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs})
