"""Values that are neither bytes nor text, as JSON."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from gossipq.errors import BadRequest

_HINT = "publish bytes, text, or what JSON can express: dict, list, a dataclass, a msgspec.Struct, a model"


def json_bytes(value: Any) -> bytes:
    """Encode a dict, list, dataclass, msgspec.Struct, model of pydantic ... as JSON.

    Raises BadRequest for a type that JSON cannot express, and for NaN and infinity: the encoder would write
    null, and the consumer could not tell that from None.
    """
    try:
        raw = encode_json(value)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest("the value contains itself, or is nested too deeply", hint=_HINT) from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BadRequest(f"the value cannot be written as JSON: {error}", hint=_HINT) from None
    if b"null" in raw:  # the walk costs more than the encoding, and few values need it
        for path, number in _not_finite(msgspec.to_builtins(value, enc_hook=_shown), "$"):
            raise BadRequest(
                f"the value has {number} at {path}, and JSON has no such number",
                hint="publish None there, or leave the field out",
            )
    return raw


def is_model(kind: Any) -> bool:
    """True for a class that validates and dumps as those of pydantic do."""
    return callable(getattr(kind, "model_validate", None)) and callable(getattr(kind, "model_dump", None))


def _plain(value: Any) -> Any:
    """Return the fields of a model. The encoder calls this for each object of an unknown type."""
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise BadRequest(f"JSON cannot express a value of type {type(value).__qualname__}", hint=_HINT)


encode_json = msgspec.json.Encoder(enc_hook=_plain).encode


def _shown(value: Any) -> Any:
    """Replaces an object that was encoded: a model by its fields, a msgspec.Raw, which is JSON already, by
    nothing."""
    return value.model_dump(mode="json") if is_model(type(value)) else None


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
