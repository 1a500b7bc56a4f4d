"""Signatures of Standard Webhooks (https://www.standardwebhooks.com), version v1: HMAC-SHA256."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import blake2b
from hmac import digest

from gossipq.errors import ConfigError

PREFIX = "whsec_"
KEY_BYTES = range(24, 65)  #: of the specification


def secret_of(text: str) -> bytes:
    """Return the key of "whsec_" and base64, or of base64 alone. Raises ConfigError."""
    try:
        key = b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in KEY_BYTES:
        raise ConfigError(
            "a secret of a webhook is no base64 of 24 to 64 bytes",
            hint="make one: echo whsec_$(head -c 32 /dev/urandom | base64)",
        )
    return key


def message_id(ref: str) -> str:
    """Return the id of a record for its receivers: the same at each attempt, without the dots of the ref."""
    return f"msg_{blake2b(ref.encode(), digest_size=16).hexdigest()}"


def headers(keys: Sequence[bytes], name: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message that is sent at `seconds`, unix time. Several keys make several
    signatures, so that a receiver can change to a new secret."""
    signed = f"{name}.{seconds}.".encode() + body
    signatures = [f"v1,{b64encode(digest(key, signed, 'sha256')).decode()}" for key in keys]
    return {
        "webhook-id": name,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(signatures),
    }
