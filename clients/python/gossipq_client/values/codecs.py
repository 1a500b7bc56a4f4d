"""How values become bytes and bytes become values: JSON, or a codec of the application."""

from collections.abc import Callable, Iterable
from typing import Any

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError
from gossipq_client.values import inputs, payloads
from gossipq_client.values.json_values import json_bytes
from gossipq_client.values.outcomes import Undecodable

_SENT_AS_THEY_ARE = (bytes, str, bytearray, memoryview)


class Codec:
    """Turns values into bytes and back, by JSON. Derive from it for another format, and pass an instance to
    `connect(codec=)`.

        class Packed(gossipq.Codec):
            def encode(self, value):
                return msgspec.msgpack.encode(value)

            def decoder(self, kind):
                return msgspec.msgpack.Decoder(kind).decode

        mq = gossipq.connect(codec=Packed())

    Bytes and text are sent as they are: a codec is not asked for them. Results that a job keeps are JSON with
    any codec.
    """

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value. An error that it raises refuses the publish as BadRequest."""
        return json_bytes(value)

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        """Return a function that makes values of the type `kind` from their bytes.

        An error that this raises refuses the handler or the subscription as BadRequest. A record for which
        the function raises an error becomes a dead letter.
        """
        return payloads.decoder(kind)


class CheckedCodec:
    """A codec whose errors name the type and the topic."""

    def __init__(self, codec: Codec | None = None) -> None:
        """Raises BadRequest for an object that cannot encode and decode."""
        self.is_default = codec is None
        self._codec = Codec() if codec is None else codec
        verbs = [getattr(self._codec, each, None) for each in ("encode", "decoder")]
        if isinstance(codec, type) or not all(map(callable, verbs)):
            raise BadRequest(
                f"codec={codec!r} is not an object with encode() and decoder()",
                hint="derive a class from gossipq.Codec, and pass an instance of it",
            )
        self._name = type(self._codec).__qualname__

    def encoded(self, value: Any, topic: str) -> bytes:
        """Return the bytes of a value that is published to `topic`. Raises BadRequest."""
        if value is None or isinstance(value, _SENT_AS_THEY_ARE):
            return inputs.value_bytes(value)
        kind = type(value).__qualname__
        try:
            raw = self._codec.encode(value)
        except GossipqError as error:
            text = f"a value of type {kind} for topic {topic!r}: {error.message}"
            raise BadRequest(text, hint=error.hint) from None
        except Exception as error:
            raise BadRequest(
                f"{self._name} cannot encode a value of type {kind} for topic {topic!r}: {error}",
                hint="publish another type, or bytes",
            ) from error
        if not isinstance(raw, bytes):
            made = type(raw).__qualname__
            raise BadRequest(
                f"{self._name} encoded a value of type {kind} for topic {topic!r} as {made}",
                hint="let encode() return bytes",
            )
        if len(raw) > limits.VALUE_BYTES_MAX:
            raise inputs.too_large("value", len(raw), limits.VALUE_BYTES_MAX)
        return raw

    def encoded_list(self, values: Iterable[Any], topic: str) -> list[bytes]:
        """Encode a list of values. A list of bytes is taken as it is, without a cost per value."""
        found = list(values)
        return found if inputs.are_plain(found) else [self.encoded(value, topic) for value in found]

    def decoder(self, kind: Any, topics: Iterable[str]) -> payloads.Decode:
        """Return a decoder for the values of records of these topics; it raises Undecodable. Raises
        BadRequest for a type that they cannot be decoded to.
        """
        if kind in (bytes, str, bytes | None, str | None):
            return payloads.decoder(kind)
        where = ", ".join(topics)
        try:
            decode = self._codec.decoder(kind)
        except GossipqError as error:
            raise BadRequest(f"records of {where}: {error.message}", hint=error.hint) from None
        except Exception as error:
            name = getattr(kind, "__qualname__", repr(kind))
            raise BadRequest(
                f"{self._name} cannot decode records of {where} to {name}: {error}",
                hint="name another type, or bytes",
            ) from error
        return decode if self.is_default else _guarded(decode)


def _guarded(decode: Callable[[bytes], Any]) -> payloads.Decode:
    """Let a decoder of the application raise Undecodable, so that its record becomes a dead letter."""

    def decoded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"{type(error).__name__}: {error}") from error

    return decoded
