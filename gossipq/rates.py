"""Rates of each address and of each user: buckets that refill with time. Nothing is stored.

An address means a host: all programs on a node's own machine share one.
"""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_network
from typing import Literal

from gossipq.errors import Busy
from gossipq.limits import SECOND_MS
from gossipq.values import Quota

ADDRESSES_MAX = 1_024  #: addresses or users remembered; above this, those with full buckets are forgotten
HINT = "send less at a time, or raise it in cluster.toml"

Kind = Literal["address", "user"]


@lru_cache(ADDRESSES_MAX)
def host_of(address: str) -> str:
    """Return the host under which an address is limited.

    IPv4: the address itself. IPv6: its /64 network, because one host can have all addresses of it.
    """
    if ":" not in address or "." in address:  # IPv4 in the form of IPv6: ::ffff:192.0.2.1
        return address
    return str(ip_network((address.partition("%")[0], 64), strict=False))


class _Account:
    """What one address or user has left in this second, in thousandths; negative if it took too much.

    Thousandths, because the refill of one millisecond can be less than one request.
    """

    __slots__ = ("at_ms", "bytes", "requests")

    def __init__(self, requests: int, size: int, now_ms: int) -> None:
        self.requests, self.bytes, self.at_ms = requests, size, now_ms


class Rates:
    """Limits of requests and bytes a second, for each address or each user.

    `refused` counts the requests above the limit.
    """

    def __init__(self, quota: Quota, kind: Kind = "address") -> None:
        self._kind = kind
        self._counted: Callable[[str], str] = host_of if kind == "address" else str
        self._requests, self._bytes = quota.client_requests_per_s, quota.client_bytes_per_s
        self._accounts: dict[str, _Account] = {}
        self.refused = 0

    def check(self, name: str, size: int, now_ms: int, settles: bool = False) -> None:
        """Charge a request of `size` bytes to this address or user. Raises Busy.

        `settles`: the request is one of `verbs.SETTLES`, which have twice the rate.
        """
        name = self._counted(name)
        account = self._accounts.get(name)
        if account is None:
            account = self._open(name, now_ms)
        elif now_ms > account.at_ms:
            passed_ms, account.at_ms = now_ms - account.at_ms, now_ms
            account.requests = min(self._requests * SECOND_MS, account.requests + self._requests * passed_ms)
            account.bytes = min(self._bytes * SECOND_MS, account.bytes + self._bytes * passed_ms)
        account.requests -= SECOND_MS
        account.bytes -= size * SECOND_MS
        if account.requests < 0 or account.bytes < 0:
            self._over(account, size, settles)

    def _over(self, account: _Account, size: int, settles: bool) -> None:
        """Raise Busy, and undo the charge, unless the request settles and is within twice the
        rate.
        """
        for what, left, most in (
            ("requests_per_s", account.requests, self._requests),
            ("bytes_per_s", account.bytes, self._bytes),
        ):
            if left < (-most * SECOND_MS if settles else 0):
                account.requests += SECOND_MS
                account.bytes += size * SECOND_MS
                self.refused += 1
                after_ms = max(1, -left // most)
                text = f"this {self._kind} sends more than the quota cluster.quota.client_{what}, {most}"
                raise Busy(text, hint=HINT, retry_after_ms=min(SECOND_MS, after_ms))

    def _open(self, name: str, now_ms: int) -> _Account:
        if len(self._accounts) >= ADDRESSES_MAX:
            self._accounts = {
                each: account
                for each, account in self._accounts.items()
                if now_ms - account.at_ms < 2 * SECOND_MS
            }
        found = self._accounts[name] = _Account(self._requests * SECOND_MS, self._bytes * SECOND_MS, now_ms)
        return found
