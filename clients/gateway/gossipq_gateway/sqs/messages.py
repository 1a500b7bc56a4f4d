"""Messages of SQS: body, attributes and digests, and conversion to records. Pure."""

import re
from base64 import b64decode
from collections.abc import Mapping
from hashlib import md5, sha256
from typing import Any

import msgspec

from gossipq.limits import FLOW_BYTES_MAX
from gossipq_gateway.sqs.faults import SqsFault, bad_value

BODY_BYTES_MAX = 1 << 20  #: with its attributes
ATTRIBUTES_MAX = 10
_ID, _ATTRIBUTES, _SYSTEM = "sqs.id", "sqs.attributes", "sqs.system"
_TYPE = re.compile(r"(String|Number|Binary)(\.[A-Za-z0-9_.-]{1,240})?\Z")
_TRACE = "AWSTraceHeader"
_NAME = re.compile("[!-~]{1,128}")  #: of a group, or for deduplication
#: characters that SQS refuses: not in XML 1.0
_BAD_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Attribute(msgspec.Struct, rename="pascal", omit_defaults=True):
    """An attribute of a message. Binary values are base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None

    def raw(self) -> bytes:
        """Return the bytes of the value. Raises SqsFault."""
        if self.data_type.startswith("Binary"):
            try:
                return b64decode(self.binary_value or "", validate=True)
            except ValueError:
                raise bad_value("BinaryValue is no base64.") from None
        return (self.string_value or "").encode()


def message_id(random: bytes) -> str:
    """Return a UUID made of 16 random bytes."""
    text = random.hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:32]}"


def digest(body: str) -> str:
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def digest_of(attributes: Mapping[str, Attribute]) -> str:
    """Return the MD5 that client libraries check. Raises SqsFault."""
    found = md5(usedforsecurity=False)
    for name in sorted(attributes):
        each = attributes[name]
        binary = each.data_type.startswith("Binary")
        for part in (name.encode(), each.data_type.encode()):
            found.update(len(part).to_bytes(4, "big") + part)
        raw = each.raw()
        found.update((b"\x02" if binary else b"\x01") + len(raw).to_bytes(4, "big") + raw)
    return found.hexdigest()


def check(body: str, attributes: Mapping[str, Attribute], bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise SqsFault for a message that SQS would refuse. `bytes_max` is the limit of its queue."""
    if not body:
        raise SqsFault("MissingParameter", "The request must contain the parameter MessageBody.")
    if _BAD_TEXT.search(body):
        raise SqsFault("InvalidMessageContents", "Invalid characters were found in MessageBody.")
    if len(attributes) > ATTRIBUTES_MAX:
        raise bad_value(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10].")
    size = len(body.encode())
    for name, each in attributes.items():
        if not name or len(name) > 256 or not _TYPE.match(each.data_type):
            raise bad_value(f"The message attribute '{name}' has an invalid name or type.")
        raw = each.raw()
        if not raw:
            raise bad_value(f"The message attribute '{name}' must contain a non-empty value.")
        size += len(name.encode()) + len(each.data_type) + len(raw)
    if size > bytes_max:
        raise bad_value(
            f"One or more parameters are invalid. Message must be shorter than {bytes_max} bytes."
        )


def check_system(attributes: Mapping[str, Attribute]) -> None:
    """Raise SqsFault for a system attribute without effect."""
    for name, each in attributes.items():
        if name != _TRACE or each.data_type != "String":
            raise bad_value(f"The message system attribute '{name}' is not supported: {_TRACE} (String) is.")


def check_names(**named: str) -> None:
    """Raise SqsFault for an invalid id of a group, or for deduplication."""
    for name, value in named.items():
        if not _NAME.fullmatch(value):
            raise bad_value(f"{name} must have 1 to 128 letters, digits and punctuation characters.")


def flow_of(group: str) -> str:
    """Return the flow of a message in a standard queue: its group, or the digest of a long one."""
    return group if len(group.encode()) <= FLOW_BYTES_MAX else sha256(group.encode()).hexdigest()


def record_id(group: str, deduplication: str) -> str:
    """Return the id of a record whose deduplication id is valid in its group only.

    Neither part contains a blank.
    """
    return f"{group} {deduplication}"


def deduplication_of(record_id: str) -> str:
    """Return the deduplication id in the id of a record."""
    return record_id.rpartition(" ")[2]


def headers(
    made: str, attributes: Mapping[str, Attribute], system: Mapping[str, Attribute]
) -> dict[str, str | bytes]:
    """Return the headers of the record."""
    found: dict[str, str | bytes] = {_ID: made}
    if attributes:
        found[_ATTRIBUTES] = msgspec.json.encode(attributes)
    if system:
        found[_SYSTEM] = msgspec.json.encode(system)
    return found


def id_of(found: Mapping[str, str | bytes], ref: str) -> str:
    """Return the message id of a record. For records published
    otherwise it is made from the ref.
    """
    named = found.get(_ID)
    if isinstance(named, str):
        return named
    return message_id(md5(ref.encode(), usedforsecurity=False).digest())


def attributes_of(found: Mapping[str, str | bytes], system: bool = False) -> dict[str, Attribute]:
    raw = found.get(_SYSTEM if system else _ATTRIBUTES)
    try:
        attributes = msgspec.json.decode(raw, type=dict[str, Attribute]) if raw else {}
        for each in attributes.values():
            each.raw()
    except (msgspec.DecodeError, UnicodeError, RecursionError, SqsFault):
        # it was published otherwise
        return {}
    return attributes


def wanted(names: list[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a receive asks for by names, `All`, `.*` or a prefix with `.*`."""
    if "All" in names or ".*" in names:
        return dict(known)
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: value
        for name, value in known.items()
        if name in names or (prefixes and name.startswith(prefixes))
    }
