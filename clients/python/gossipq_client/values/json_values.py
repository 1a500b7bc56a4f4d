"""Values that are neither bytes nor text, as JSON."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from gossipq.errors import BadRequest

_HINT = "publish bytes, text, or what JSON can express: dict, list, a dataclass, a msgspec.Struct"


def json_bytes(value: Any) -> bytes:
    """Encode a dict, list, dataclass, msgspec.Struct ... as JSON.

    Raises BadRequest for a type that JSON cannot express, and for NaN and infinity: the encoder would write
    null, and the consumer could not tell that from None.
    """
    try:
        raw = _encode(value)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest("the value contains itself, or is nested too deeply", hint=_HINT) from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BadRequest(f"the value cannot be written as JSON: {error}", hint=_HINT) from None
    if b"null" in raw:  # the walk costs more than the encoding, and few values need it
        for path, number in _not_finite(msgspec.to_builtins(value, enc_hook=_nothing), "$"):
            raise BadRequest(
                f"the value has {number} at {path}, and JSON has no such number",
                hint="publish None there, or leave the field out",
            )
    return raw


def _refuse(value: Any) -> Any:
    """The encoder calls this for each object of an unknown type."""
    kind = type(value).__qualname__
    is_model = callable(getattr(value, "model_dump", None))  # a model of pydantic, for example
    hint = 'publish its fields: value.model_dump(mode="json")' if is_model else _HINT
    raise BadRequest(f"JSON cannot express a value of type {kind}", hint=hint)


_encode = msgspec.json.Encoder(enc_hook=_refuse).encode


def _nothing(value: Any) -> None:
    """Replaces a msgspec.Raw, which is JSON already."""


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Each NaN and infinity in a value of plain types, with its path such as `$.points[0].x`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{path}[{index}]")
