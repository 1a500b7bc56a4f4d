"""The settings of a gateway."""

from ipaddress import ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from gossipq import limits
from gossipq.errors import ConfigError
from gossipq_gateway.dialect import Place, Wanted

PORT = limits.PORT + 81


class Settings(NamedTuple):
    """`hosts` are further names for browsers; pages of `origins` may read answers (CORS)."""

    http: Place = Place("127.0.0.1", PORT)
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    public_url: str = ""  #: address for callers behind a proxy, without a trailing /
    proxies: tuple[str, ...] = ()  #: addresses and networks whose X-Forwarded-Proto is trusted
    insecure: bool = False  #: tokens may be sent unencrypted over a network
    sqs: bool = False
    sqs_keys: str = ""  #: file of access keys
    dialects: tuple[Wanted, ...] = ()  #: of other packages
    webhooks: str = ""  #: file of groups that are pushed to URLs

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Names that a Host header can have."""
        name = urlsplit(self.public_url).hostname
        return (*self.hosts, name) if name else self.hosts

    @property
    def known_origins(self) -> tuple[str, ...]:
        """Origins whose pages may send requests, including its own,
        because a proxy may change Host.
        """
        scheme, address, *_ = urlsplit(self.public_url.lower())
        return (*self.origins, f"{scheme}://{address}") if address else self.origins

    def check(self) -> None:
        """Raise ConfigError for bad settings, or if secrets and records
        would be sent unencrypted.
        """
        self._check_proxy()
        named = [("--http", self.http)]
        for each in self.dialects:
            named += [(f"--dialect {each.name}", place) for place in (each.at, each.http) if place]
        for option, place in named:
            if not place.is_loopback and not self.insecure:
                raise ConfigError(
                    f"{option} {place}: others may read what crosses a network in the clear",
                    "listen on 127.0.0.1 behind a TLS proxy; or --insecure if that network is yours",
                )

    def _check_proxy(self) -> None:
        if self.public_url and not _is_base_url(self.public_url):
            raise ConfigError(
                f"--public-url {self.public_url} is not the address of a gateway",
                "write https://NAME, or https://NAME/PATH if the proxy removes /PATH",
            )
        for proxy in self.proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ConfigError(
                    f"--trust-proxy {proxy} is neither an address nor a network",
                    "write an address as 10.0.0.7, a network as 10.0.0.0/24",
                ) from None


def _is_base_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        has_port = url.port is None or url.port > 0
    except ValueError:
        return False
    is_whole = url.scheme in ("http", "https") and bool(url.hostname) and has_port
    return is_whole and "@" not in url.netloc and not (url.query or url.fragment or url.path.endswith("/"))
