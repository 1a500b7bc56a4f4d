"""Random messages: every field of every kind, with extreme numbers and texts."""

import types
import typing
from random import Random
from typing import Any

import msgspec

NUMBERS = (
    0,
    1,
    2,
    3,
    5,
    255,
    1_000,
    2**16,
    2**31,
    2**32,
    2**40,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -2,
    -(2**63),
)
TEXTS = (
    "",
    "orders",
    "g",
    "*",
    "a.b.#",
    "_alarms",
    "first",
    "time",
    "offset",
    "policy",
    "forever",
    "gone",
    "\0",
    "x" * 300,
    "é" * 70,
)
BYTES = (b"", b"x", b"s" * 16, bytes(16), b"\xff" * 40)


class Fuzz:
    """`known`: by a part of a field's name, the values that mean something; they are taken two times of
    three."""

    def __init__(self, seed: int, known: dict[str, tuple[Any, ...]]) -> None:
        self.random, self._known = Random(seed), known

    def message(self, kind: type[msgspec.Struct]) -> Any:
        """One that may be encoded, or not: a field with a default is left out now and then."""
        hints, said = typing.get_type_hints(kind), {}
        for field in msgspec.structs.fields(kind):
            if field.required or self.random.random() < 0.75:
                said[field.name] = self._value(hints[field.name], field.name)
        return kind(**said)

    def _value(self, kind: Any, name: str) -> Any:
        pick, origin, parts = self.random.choice, typing.get_origin(kind), typing.get_args(kind)
        known = next((values for part, values in self._known.items() if part in name), None)
        if (
            known is not None
            and isinstance(known[0], kind if isinstance(kind, type) else ())
            and self.random.random() < 2 / 3
        ):
            return pick(known)
        if origin is typing.Annotated:
            return self._value(parts[0], name)
        if origin in (types.UnionType, typing.Union):
            return self._value(pick(parts), name)
        if origin is list:
            return [self._value(parts[0], name) for _ in range(pick((0, 1, 1, 2, 3)))]
        if origin is tuple:
            return tuple(self._value(part, name) for part in parts if part is not Ellipsis)
        if origin is dict:
            return {self._value(parts[0], name): self._value(parts[1], name) for _ in range(pick((0, 1, 2)))}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.message(kind)
        return {
            int: lambda: pick(NUMBERS),
            str: lambda: pick(TEXTS),
            bytes: lambda: pick(BYTES),
            bool: lambda: pick((True, False)),
        }.get(kind, lambda: None)()
