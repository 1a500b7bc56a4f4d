"""Makes the answers that applications get of the structs that nodes send.

A struct has unix milliseconds and keys of partitions, and later versions append fields to it. An answer is a
frozen dataclass with aware datetimes, timedeltas and numbers of partitions. `value_of` goes by the names and
types of the answer's fields, so that each field is declared once.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gossipq.texts import typed
from gossipq.times import known_time, time_of, unix_ms_of
from gossipq.types import partition_of
from gossipq.values import Rate
from gossipq_client.values import inputs

Value = TypeVar("Value")
Readers = list[tuple[str, str, Callable[[Any], Any]]]


def rate_text(rate: Rate) -> str:
    """Return a rate as `configure` takes it: "10/1s burst 20", or "none"."""
    if not rate.records:
        return "none"
    per, burst = typed(rate.per_ms), f" burst {rate.burst}" if rate.burst else ""
    exact = inputs.duration_ms(per) == rate.per_ms
    return f"{rate.records}/{per if exact else f'{rate.per_ms}ms'}{burst}"


def value_of(kind: type[Value], row: Any, **more: Any) -> Value:
    """Return a struct of the wire as `kind`: its fields of the same names, and `more` fields.

    A field with a time or a duration is made of the struct's field whose name ends in `_ms`. A partition is
    made of the key.
    """
    made = {
        name: convert(getattr(row, source)) for name, source, convert in _readers(kind) if name not in more
    }
    return kind(**made, **more)


def plain_of(value: Any) -> dict[str, Any]:
    """Return an answer as JSON can say it: times become unix milliseconds, and durations milliseconds, under
    names that end in `_ms`. A time that is not known becomes 0."""
    return {
        source: unix_ms_of(getattr(value, name)) if convert is known_time else _plain(getattr(value, name))
        for name, source, convert in _readers(type(value))
    }


def _plain(found: Any) -> Any:
    if isinstance(found, datetime):
        return unix_ms_of(found)
    if isinstance(found, timedelta):
        return found // timedelta(milliseconds=1)
    if isinstance(found, tuple):
        return list(map(_plain, found))
    return plain_of(found) if is_dataclass(found) else found


def _readers(kind: type) -> Readers:
    """Return for each field of a value its name, the name of the struct's field, and what converts that."""
    if kind in _KNOWN:
        return _KNOWN[kind]
    hints, found = get_type_hints(kind), Readers()
    for each in fields(kind):
        suffix, convert = ("", _BY_NAME[each.name]) if each.name in _BY_NAME else _converter(hints[each.name])
        found.append((each.name, each.name + suffix, convert))
    return _KNOWN.setdefault(kind, found)


def _converter(hint: Any) -> tuple[str, Callable[[Any], Any]]:
    """Return the end of the struct's field name for a value of this type, and what converts it."""
    if isinstance(hint, UnionType):
        (kind,) = (each for each in get_args(hint) if each is not NoneType)
        if kind is datetime:
            return "_ms", known_time
        suffix, convert = _converter(kind)
        return suffix, lambda found: None if found is None else convert(found)
    if hint is datetime:
        return "_ms", time_of
    if hint is timedelta:
        return "_ms", lambda duration_ms: timedelta(milliseconds=duration_ms)
    if get_origin(hint) is tuple:
        suffix, convert = _converter(get_args(hint)[0])
        return suffix, lambda rows: tuple(map(convert, rows))
    if is_dataclass(hint) and isinstance(hint, type):
        return "", lambda row: value_of(hint, row)
    return "", lambda found: found


#: fields that are made otherwise than their type says
_BY_NAME: dict[str, Callable[[Any], Any]] = {
    "partition": partition_of,
    "rate": rate_text,
    "flow_rate": rate_text,
}
_KNOWN: dict[type, Readers] = {}
