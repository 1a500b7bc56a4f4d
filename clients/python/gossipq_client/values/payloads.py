"""What records carry, decoded: values by what a handler's annotation says, which its answers are encoded for,
and headers."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gossipq.errors import BadRequest
from gossipq.wire.plain import UNREADABLE
from gossipq_client.values import inputs
from gossipq_client.values.outcomes import Undecodable

Decode = Callable[[bytes], Any]
_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


def decoder(annotation: Any) -> Decode:
    """bytes as they are, str from UTF-8, all else from JSON: dict, list, dataclass, msgspec.Struct,
    TypedDict, int ...

    What it returns raises Undecodable. Raises BadRequest for a type that no record can be decoded to.
    """
    if annotation in (bytes, bytes | None):
        return _as_it_is
    if annotation in (str, str | None):
        return _text
    name = getattr(annotation, "__name__", repr(annotation))
    try:
        decode = msgspec.json.Decoder(annotation).decode
        foreign = _foreign(msgspec.inspect.type_info(annotation))
    except Exception as error:  # as a NameError: a field has a type that is only known to type checkers
        raise BadRequest(
            f"no value can be decoded to {name}: {error}",
            hint="bytes, str, dict, list, a dataclass or a msgspec.Struct will do",
        ) from None
    if foreign is not None:
        inner = getattr(foreign, "__name__", repr(foreign))
        text = name if foreign is annotation else f"{annotation}, because of {inner} in it"
        hint = "bytes, str, dict, list, a dataclass or a msgspec.Struct will do"
        if hasattr(foreign, "model_validate"):  # of pydantic
            hint = f"take a dict, and call {inner}.model_validate with it"
        raise BadRequest(f"no value can be decoded to {text}", hint=hint)

    def from_json(raw: bytes) -> Any:
        try:
            return decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Undecodable(str(error)) from None

    return from_json


def _foreign(info: Any) -> Any:
    """A type that JSON cannot be decoded to, in a type as msgspec sees it, however deep; None: there is none.

    A record that has such a type would become a dead letter.
    """
    waiting, seen = [info], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, msgspec.inspect.CustomType):
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
    """Encode a result as `decoder` decodes it: see `inputs.value_bytes`. Raises BadRequest, TooLarge."""
    return inputs.value_bytes(value)


def headers_of(raw: bytes) -> dict[str, str | bytes]:
    """What `inputs.header_bytes` made of them. Nodes do not look into headers, and other clients may write
    anything: raises Undecodable for what is no map of text to text or bytes."""
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
    """The headers of a publish as a new dict, whatever form the caller chose. Raises BadRequest."""
    if isinstance(headers, bytes):
        return headers_shown(headers)
    if headers is not None and not isinstance(headers, Mapping):
        inputs.header_bytes(headers)  # raises
    return dict(headers or {})


def headers_shown(raw: bytes) -> dict[str, str | bytes]:
    """For who takes records of any making: what is no such map is one header, `gossipq-unreadable-headers`,
    with its bytes, as nodes show it to who does not open batches."""
    try:
        return headers_of(raw)
    except Undecodable:
        return {UNREADABLE: raw}
