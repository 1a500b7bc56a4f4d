"""How much the programs of one address may ask for: buckets that fill with time.

An address is a host, not a user: all programs of a node's own machine have one. Nothing of this is stored.
"""

from gossipq.errors import BadRequest, Busy
from gossipq.limits import HOUR_MS, SECOND_MS
from gossipq.messages import Ack, Bye, Credit, Extend, Nack, Ping, Recall, Started, Unsubscribe
from gossipq.values import Message, Quota

ADDRESSES_MAX = 1_024  #: that are remembered; more are looked through for those whose buckets are full again
#: they give back what a node keeps for its client, or show that it is there: heard up to twice the rates
SETTLES: frozenset[type[Message]] = frozenset(
    (Ack, Nack, Extend, Credit, Recall, Started, Unsubscribe, Ping, Bye)
)
HINT = "send less at a time, or raise it in cluster.toml"


class Buckets:
    """What each address makes within an hour, by the name of that quota: `most` at once, and as much again
    in the next hour."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._taken: dict[str, tuple[int, int]] = {}  #: what has been taken, and when that was so

    def take(self, address: str, count: int, now_ms: int) -> None:
        """`count` more are made. Raises BadRequest, and takes nothing, when that is too much for now."""
        taken = self._now(address, now_ms)
        if taken + count > self._most:
            text = f"this address has made as many as the quota cluster.quota.{self._name} allows in an hour"
            raise BadRequest(f"{text}, {self._most}", hint="wait, or raise it in cluster.toml")
        if len(self._taken) >= ADDRESSES_MAX:
            self._taken = {each: (left, now_ms) for each in self._taken if (left := self._now(each, now_ms))}
        if count:
            self._taken[address] = taken + count, now_ms

    def _now(self, address: str, now_ms: int) -> int:
        taken, at_ms = self._taken.get(address, (0, now_ms))
        return max(0, taken - self._most * (now_ms - at_ms) // HOUR_MS)


class _Account:
    """Of one address: what is left of this second; below zero, what it took beyond that."""

    __slots__ = ("at_ms", "bytes", "requests")

    def __init__(self, quota: Quota, now_ms: int) -> None:
        self.requests, self.bytes, self.at_ms = (
            quota.address_requests_per_s,
            quota.address_bytes_per_s,
            now_ms,
        )


class Rates:
    """Requests and bytes of each address, by the second. `refused` counts those that were too many."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._accounts: dict[str, _Account] = {}
        self.refused = 0

    def check(self, address: str, size: int, now_ms: int, settles: bool = False) -> None:
        """A request of `size` bytes has come; `settles`: it is one of SETTLES. Raises Busy."""
        account = self._accounts.get(address)
        if account is None:
            account = self._open(address, now_ms)
        elif now_ms > account.at_ms:
            self._fill(account, now_ms)
        account.requests -= 1
        account.bytes -= size
        if account.requests < 0 or account.bytes < 0:
            self._over(account, size, settles)

    def _over(self, account: _Account, size: int, settles: bool) -> None:
        """Raises Busy, and takes nothing, unless it may pass all the same."""
        quota = self._quota
        for what, left, most in (
            ("requests_per_s", account.requests, quota.address_requests_per_s),
            ("bytes_per_s", account.bytes, quota.address_bytes_per_s),
        ):
            if left < (-most if settles else 0):
                account.requests += 1
                account.bytes += size
                self.refused += 1
                after_ms = max(1, -left * SECOND_MS // most)
                text = f"this address sends more than the quota cluster.quota.address_{what}, {most}"
                raise Busy(text, hint=HINT, retry_after_ms=min(SECOND_MS, after_ms))

    def _fill(self, account: _Account, now_ms: int) -> None:
        quota, passed_ms = self._quota, now_ms - account.at_ms
        requests, size = quota.address_requests_per_s, quota.address_bytes_per_s
        account.requests = min(requests, account.requests + requests * passed_ms // SECOND_MS)
        account.bytes = min(size, account.bytes + size * passed_ms // SECOND_MS)
        account.at_ms = now_ms

    def _open(self, address: str, now_ms: int) -> _Account:
        if len(self._accounts) >= ADDRESSES_MAX:
            self._accounts = {
                each: account
                for each, account in self._accounts.items()
                if now_ms - account.at_ms < 2 * SECOND_MS
            }
        found = self._accounts[address] = _Account(self._quota, now_ms)
        return found
