"""Exchanges and bindings as AMQP has them, and the queues that a message goes to. No I/O: see `exchanges`."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple


class Exchange(NamedTuple):
    """An exchange as it was declared."""

    type: str
    durable: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Binding(NamedTuple):
    """A queue gets what an exchange receives with a key that fits."""

    queue: str
    exchange: str
    key: str


class Bound(NamedTuple):
    """When a binding was last confirmed, and how long that holds."""

    confirmed_ms: int  #: unix time
    expires_ms: int  #: 0 = it holds until it is removed


class Table:
    """All exchanges and bindings of a virtual host, as the changes to it say, in their order."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: dict[Binding, Bound] = {}

    def apply(self, change: Mapping[str, Any]) -> None:
        """Apply a change. A kind that this version does not know changes nothing."""
        match change.get("do"):
            case "declare":
                self.exchanges[change["exchange"]] = Exchange(**change["as"])
            case "bind":
                self.bindings[binding_of(change)] = Bound(change["at_ms"], change["expires_ms"])
            case "unbind":
                self.bindings.pop(binding_of(change), None)
            case "delete_queue":
                self._drop(each for each in self.bindings if each.queue == change["queue"])
            case "delete_exchange":
                self.exchanges.pop(change["exchange"], None)
                self._drop(each for each in self.bindings if each.exchange == change["exchange"])

    def _drop(self, bindings: Iterable[Binding]) -> None:
        for each in list(bindings):
            del self.bindings[each]

    def queues(self, exchange: str, key: str) -> list[str]:
        """Return the queues that get a message with this routing key, each once."""
        kind = self.exchanges[exchange].type if exchange in self.exchanges else "direct"
        found = (
            each.queue for each in self.bindings if each.exchange == exchange and fits(kind, each.key, key)
        )
        return list(dict.fromkeys(found))

    def stale(self, exchange: str, now_ms: int) -> set[str]:
        """Return the queues of an exchange whose owner has not confirmed a binding in time."""
        return {
            binding.queue
            for binding, bound in self.bindings.items()
            if binding.exchange == exchange
            and bound.expires_ms
            and now_ms > bound.confirmed_ms + bound.expires_ms
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the table as one change, see `restore`."""
        return {
            "exchanges": {name: each._asdict() for name, each in self.exchanges.items()},
            "bindings": [[*binding, *bound] for binding, bound in self.bindings.items()],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Become what `snapshot` says."""
        self.exchanges = {name: Exchange(**each) for name, each in snapshot["exchanges"].items()}
        self.bindings = {Binding(*row[:3]): Bound(*row[3:]) for row in snapshot["bindings"]}


def binding_of(change: Mapping[str, Any]) -> Binding:
    return Binding(change["queue"], change["exchange"], change["key"])


def fits(kind: str, pattern: str, key: str) -> bool:
    """Return whether a binding of this kind of exchange takes a routing key."""
    if kind == "fanout":
        return True
    if kind == "topic":
        return _fits_words(tuple(pattern.split(".")), tuple(key.split(".")))
    return pattern == key


@lru_cache(maxsize=10_000)
def _fits_words(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """`*` stands for one word, `#` for any number of words, also none."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_fits_words(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _fits_words(pattern[1:], words[1:])
