"""Results and rate limiters of dramatiq, as values by key in topics."""

import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.results import Missing, ResultBackend

from gossipq_client import Client
from gossipq_keyed import KeyedTopic

RESULTS, LIMITS = "dramatiq-results", "dramatiq-limits"
LIFETIME_S = 7 * 86_400.0  #: the longest time to live
PERIOD_MS = 86_400_000  #: the newest value of a key moves to another name each day, see `KeyedTopic`


class Timed(msgspec.Struct, array_like=True):
    """A value and its end, in unix ms."""

    ends_ms: int
    value: bytes

    @property
    def is_over(self) -> bool:
        return self.ends_ms <= _now_ms()


def _now_ms() -> int:
    return int(time.time() * 1000)


def _packed(value: bytes, ttl_ms: int) -> bytes:
    return msgspec.msgpack.encode(Timed(_now_ms() + ttl_ms, value))


def _opened(raw: bytes | None) -> bytes | None:
    """Return a value that has not ended."""
    timed = msgspec.msgpack.decode(raw, type=Timed) if raw else None
    return None if timed is None or timed.is_over else timed.value


class GossipqResultBackend(ResultBackend):
    """Results in a topic: `Results(backend=GossipqResultBackend(broker.client))`. They are kept for at most
    7 days."""

    def __init__(self, client: Client, *, topic: str = RESULTS, **options: Any) -> None:
        super().__init__(**options)
        self._keyed = KeyedTopic(lambda: client, topic, LIFETIME_S)

    def _get(self, message_key: str) -> Any:
        raw = _opened(self._keyed.get(message_key))
        return Missing if raw is None else self.encoder.decode(raw)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        self._keyed.set(message_key, _packed(self.encoder.encode(result), ttl))


class GossipqRateLimiterBackend(RateLimiterBackend):
    """Counters of rate limiters, and barriers, in a topic. Each change is one step over all processes."""

    def __init__(self, client: Client, *, topic: str = LIMITS) -> None:
        self._client, self._keyed = client, KeyedTopic(lambda: client, topic, LIFETIME_S)

    def add(self, key: str, value: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda old: value if old is None else None)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        def raised(old: int | None) -> int | None:
            new = (old or 0) + amount
            return new if new <= maximum else None

        return self._change(key, ttl, raised)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        def lowered(old: int | None) -> int | None:
            new = (old or 0) - amount
            return new if new >= minimum else None

        return self._change(key, ttl, lowered)

    def incr_and_sum(
        self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int
    ) -> bool:
        """As `incr`, unless the sum of `keys` would exceed `maximum`. They are read one after the other."""
        self.add(key, 0, ttl)

        def raised(old: int | None) -> int | None:
            new = (old or 0) + amount
            total = amount + sum(self._number(each) or 0 for each in keys())
            return new if new <= maximum and total <= maximum else None

        return self._change(key, ttl, raised)

    def wait(self, key: str, timeout: int) -> bool:
        """Wait for `wait_notify` of this key, for `timeout` ms."""
        self._keyed.make()
        route = _route(key)
        arriving = self._client.fetcher(self._keyed.topic, None, start="new", route=route, ahead=False)
        try:
            arriving.fetch(n=1, wait=0)  # from here on nothing is missed
            is_open = self._value(_event(key)) is not None
            return is_open or len(arriving.fetch(n=1, wait=timeout / 1000)) > 0
        finally:
            arriving.close()

    def wait_notify(self, key: str, ttl: int) -> None:
        self._keyed.set(_names(_event(key))[0], _packed(b"1", ttl), _route(key))

    def _value(self, key: str) -> bytes | None:
        for name in _names(key):
            raw = self._keyed.get(name)
            if raw is not None:
                return _opened(raw)
        return None

    def _number(self, key: str) -> int | None:
        value = self._value(key)
        return None if value is None else int(value)

    def _change(self, key: str, ttl_ms: int, decide: Callable[[int | None], int | None]) -> bool:
        name, before = _names(key)

        def step(raw: bytes | None) -> bytes | None:
            old = _opened(self._keyed.get(before) if raw is None else raw)
            new = decide(None if old is None else int(old))
            return None if new is None else _packed(str(new).encode(), ttl_ms)

        return self._keyed.change(name, step)


def _names(key: str) -> tuple[str, str]:
    """Return the name of a key in this period, and that in the period before."""
    period = _now_ms() // PERIOD_MS
    return f"{key}@{period}", f"{key}@{period - 1}"


def _event(key: str) -> str:
    return f"{key}/event"


def _route(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
