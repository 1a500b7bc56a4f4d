"""Rate limits by address and by user: buckets that refill with time.

An address means a host: all programs on a node's own machine share one. Nothing is stored.
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from ipaddress import ip_network
from typing import Literal, NamedTuple

from gossipq.errors import BadRequest, Busy
from gossipq.limits import HOUR_MS, SECOND_MS
from gossipq.messages import Ack, Bye, Credit, Extend, Nack, Ping, Recall, Started, Unsubscribe
from gossipq.values import Message, Quota

ADDRESSES_MAX = 1_024  #: payers remembered; above this, those with full buckets are forgotten
#: messages that release what a node holds, or keep a session alive: allowed up to twice the rate
SETTLES: frozenset[type[Message]] = frozenset(
    (Ack, Nack, Extend, Credit, Recall, Started, Unsubscribe, Ping, Bye)
)
HINT = "send less at a time, or raise it in cluster.toml"


Kind = Literal["address", "user"]


class Payer(NamedTuple):
    """An account that a request is charged to: an address and, in a closed cluster, a user."""

    kind: Kind
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


class Buckets:
    """Number of things that each payer creates in an hour: "topics", "partitions" or "groups".

    The quota can be used at once; it refills over an hour.
    """

    def __init__(self, what: str, quota: Quota) -> None:
        self._what, self._quota = what, quota
        #: amount taken, and the time at which this was computed
        self._taken: dict[Payer, tuple[int, int]] = {}

    def take(self, all_of: Collection[Payer], count: int, now_ms: int) -> None:
        """Charge `count` new things to each payer.

        Raises BadRequest, and charges nothing, if a payer would exceed its quota.
        """
        taken = self.check(all_of, count, now_ms)
        if len(self._taken) >= ADDRESSES_MAX:
            self._taken = {each: (left, now_ms) for each in self._taken if (left := self._now(each, now_ms))}
        if count:
            self._taken |= {payer: (so_many + count, now_ms) for payer, so_many in taken.items()}

    def check(self, all_of: Collection[Payer], count: int, now_ms: int) -> dict[Payer, int]:
        """Return the amount taken by each payer. Raises BadRequest if `count` more exceed a
        quota.
        """
        taken = {payer: self._now(payer, now_ms) for payer in all_of}
        for payer, so_many in taken.items():
            name, most = payer.quota(self._what), payer.most(self._quota, self._what)
            if so_many + count > most:
                text = f"{payer.text} has made as many as the quota cluster.quota.{name} allows in an hour"
                raise BadRequest(f"{text}, {most}", hint="wait, or raise it in cluster.toml")
        return taken

    def _now(self, payer: Payer, now_ms: int) -> int:
        taken, at_ms = self._taken.get(payer, (0, now_ms))
        return max(0, taken - payer.most(self._quota, self._what) * (now_ms - at_ms) // HOUR_MS)


class _Account:
    """What one payer has left in this second, in thousandths; negative if it took too much.

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
        some = Payer(kind, "")
        self._kind: Kind = kind
        self._counted: Callable[[str], str] = host_of if kind == "address" else str
        self._requests, self._bytes = some.most(quota, "requests_per_s"), some.most(quota, "bytes_per_s")
        self._accounts: dict[str, _Account] = {}
        self.refused = 0

    def check(self, name: str, size: int, now_ms: int, settles: bool = False) -> None:
        """Charge a request of `size` bytes to this address or user. Raises Busy.

        `settles`: the request is one of SETTLES, which have twice the rate.
        """
        name = self._counted(name)
        account = self._accounts.get(name)
        if account is None:
            account = self._open(name, now_ms)
        elif now_ms > account.at_ms:
            self._fill(account, now_ms)
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

    def _fill(self, account: _Account, now_ms: int) -> None:
        requests, size, passed_ms = self._requests, self._bytes, now_ms - account.at_ms
        account.requests = min(requests * SECOND_MS, account.requests + requests * passed_ms)
        account.bytes = min(size * SECOND_MS, account.bytes + size * passed_ms)
        account.at_ms = now_ms

    def _open(self, name: str, now_ms: int) -> _Account:
        if len(self._accounts) >= ADDRESSES_MAX:
            self._accounts = {
                each: account
                for each, account in self._accounts.items()
                if now_ms - account.at_ms < 2 * SECOND_MS
            }
        found = self._accounts[name] = _Account(self._requests * SECOND_MS, self._bytes * SECOND_MS, now_ms)
        return found
