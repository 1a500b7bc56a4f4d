"""Decodes records: values by the annotation of a handler, and headers. Encodes a
handler's answers in the same way.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from gossipq.errors import BadRequest
from gossipq.wire.plain import UNREADABLE
from gossipq_client.values import inputs
from gossipq_client.values.json_values import is_model
from gossipq_client.values.outcomes import Undecodable

Decode = Callable[[bytes], Any]
_HINT = "bytes, str, dict, list, a dataclass, a msgspec.Struct or a model of pydantic will do"
_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


def decoder(annotation: Any) -> Decode:
    """Returns a decoder for values: bytes stay as they are, str comes from UTF-8, other types from
    JSON: dict, list, dataclass, msgspec.Struct, class of attrs, model of pydantic, TypedDict, int ...

    The decoder raises Undecodable. Raises BadRequest for a type that values cannot be decoded to.
    """
    if annotation in (bytes, bytes | None):
        return _as_it_is
    if annotation in (str, str | None):
        return _text
    name = getattr(annotation, "__name__", repr(annotation))
    try:
        decode = msgspec.json.Decoder(annotation, dec_hook=_validated).decode
        foreign = _foreign(msgspec.inspect.type_info(annotation))
    except Exception as error:  # for example NameError: a field has a type that only type checkers know
        raise BadRequest(
            f"no value can be decoded to {name}: {error}",
            hint=_HINT,
        ) from None
    if foreign is not None:
        inner = getattr(foreign, "__name__", repr(foreign))
        text = name if foreign is annotation else f"{annotation}, because of {inner} in it"
        raise BadRequest(f"no value can be decoded to {text}", hint=_HINT)
    if is_model(annotation) and callable(getattr(annotation, "model_validate_json", None)):
        return partial(_from_model, annotation.model_validate_json)

    def from_json(raw: bytes) -> Any:
        try:
            return decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Undecodable(str(error)) from None

    return from_json


def _validated(kind: Any, value: Any) -> Any:
    """Make a model of its fields. Raises ValueError, which the decoder turns into its own error."""
    return kind.model_validate(value)


def _from_model(validate: Decode, raw: bytes) -> Any:
    """Decode a whole value to a model, which knows JSON better than plain types, for example in strict mode.
    Raises Undecodable."""
    try:
        return validate(raw)
    except (ValueError, RecursionError) as error:
        raise Undecodable(str(error)) from None


def _foreign(info: Any) -> Any:
    """Finds a type inside a msgspec type, however deep, that JSON cannot be decoded to; None if all
    can. Every record would otherwise become a dead letter.
    """
    waiting, seen = [info], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, msgspec.inspect.CustomType):
            if is_model(found.cls):
                continue
            return found.cls
        if isinstance(found, list | tuple):
            waiting += found
        elif isinstance(found, msgspec.inspect.Type | msgspec.inspect.Field):
            waiting += [getattr(found, name) for name in found.__struct_fields__]
    return None


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(str(error)) from None


def encoded(value: Any) -> bytes:
    """Encode a result as `decoder` decodes it: see `inputs.value_bytes`. Raises BadRequest."""
    return inputs.value_bytes(value)


def headers_of(raw: bytes) -> dict[str, str | bytes]:
    """Decodes the headers that `inputs.header_bytes` encoded. Nodes do not check headers, and other
    clients may write anything. Raises Undecodable if they are not a map of text to text or bytes.
    """
    if not raw:
        return {}
    try:
        headers = _decode_headers(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"no map of text to text or bytes: {error}") from None
    if not all(isinstance(value, str | bytes) for value in headers.values()):
        raise Undecodable("no map of text to text or bytes")
    return headers


def headers_dict(headers: inputs.Headers | bytes | None) -> dict[str, str | bytes]:
    """The headers of a publish as a new dict, whatever form the caller used. Raises BadRequest."""
    if isinstance(headers, bytes):
        return headers_shown(headers)
    if headers is not None and not isinstance(headers, Mapping):
        inputs.header_bytes(headers)  # raises if they are wrong
    return dict(headers or {})


def headers_shown(raw: bytes) -> dict[str, str | bytes]:
    """Headers for display. Unreadable ones become one header, `gossipq-unreadable-headers`, with
    their bytes; nodes show them in the same way.
    """
    try:
        return headers_of(raw)
    except Undecodable:
        return {UNREADABLE: raw}
