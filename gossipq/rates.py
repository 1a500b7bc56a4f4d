"""Limits by address and by user: what it owns, and rates as buckets that refill with time.

An address means a host: all programs on a node's own machine share one. Nothing is stored.
"""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_network
from typing import Literal, NamedTuple

from gossipq.errors import BadRequest, Busy
from gossipq.limits import SECOND_MS
from gossipq.values import Quota

ADDRESSES_MAX = 1_024  #: payers remembered; above this, those with full buckets are forgotten
HINT = "send less at a time, or raise it in cluster.toml"


PayerKind = Literal["address", "user"]


class Payer(NamedTuple):
    """An account that a request is charged to: an address and, in a closed cluster, a user."""

    kind: PayerKind
    name: str

    def most(self, quota: Quota, what: str) -> int:
        return int(getattr(quota, self.quota(what)))

    def quota(self, what: str) -> str:
        """Return the name of the quota for this kind of payer."""
        return f"{self.kind}_{what}"

    @property
    def text(self) -> str:
        return f"user {self.name}" if self.kind == "user" else "this address"


@lru_cache(ADDRESSES_MAX)
def host_of(address: str) -> str:
    """Return the host under which an address is limited.

    IPv4: the address itself. IPv6: its /64 network, because one host can have all addresses of it.
    """
    if ":" not in address or "." in address:  # IPv4 in the form of IPv6: ::ffff:192.0.2.1
        return address
    return str(ip_network((address.partition("%")[0], 64), strict=False))


def payers(address: str, user: str) -> tuple[Payer, ...]:
    """Return the accounts of a request. An empty address or user is left out."""
    of_address = (Payer("address", host_of(address)),) if address else ()
    return (*of_address, Payer("user", user)) if user else of_address


def check_owned(quota: Quota, payer: Payer, what: str, *, owned: int, count: int) -> None:
    """Raise BadRequest if a payer that owns `owned` things cannot have `count` more.

    `what`: "topics", "partitions" or "groups".
    """
    most = payer.most(quota, what)
    if count and owned + count > most:
        raise BadRequest(
            f"{payer.text} would own {owned + count} {what}, and the quota "
            f"cluster.quota.{payer.quota(what)} is {most}",
            hint="delete what is not needed, or raise it in cluster.toml",
        )


class _Account:
    """The rest of one payer's allowance for this second, in thousandths; negative if it took too much.

    Thousandths, because the refill of one millisecond can be less than one request.
    """

    __slots__ = ("at_ms", "bytes", "requests")

    def __init__(self, requests: int, size: int, now_ms: int) -> None:
        self.requests = requests
        self.bytes = size
        self.at_ms = now_ms


class Rates:
    """Limits of requests and bytes a second, for each address or each user.

    `refused` counts the requests above the limit.
    """

    def __init__(self, quota: Quota, kind: PayerKind = "address") -> None:
        some = Payer(kind, "")
        self._kind: PayerKind = kind
        self._counted: Callable[[str], str] = host_of if kind == "address" else str
        self._requests, self._bytes = some.most(quota, "requests_per_s"), some.most(quota, "bytes_per_s")
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
                quota = f"cluster.quota.{self._kind}_{what}"
                text = f"this {self._kind} sends more than the quota {quota}, {most}"
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
