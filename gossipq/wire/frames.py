"""The control frame: a fixed header of 24 bytes and one message as msgpack.

See PROTOCOL.md, section "Frames".

    offset  bytes  field (little endian)
    0       2      magic "GQ"
    2       1      protocol version, 2
    3       1      verb
    4       2      shard
    6       2      flags, 0
    8       8      request id: chosen by the sender of a request, copied into the answer
    16      8      term
    24      ..     control part: msgpack array
"""

from struct import Struct

import msgspec

from gossipq import limits
from gossipq.errors import ProtocolError, UnknownVerb, WrongVersion
from gossipq.messages import MESSAGES
from gossipq.values import Message

MAGIC = b"GQ"
VERSION = 2
HEADER = Struct("<2sBBHHQQ")

_pack, _unpack = HEADER.pack, HEADER.unpack_from
_encode = msgspec.msgpack.Encoder().encode
_decoders = {verb: msgspec.msgpack.Decoder(kind) for verb, kind in MESSAGES.items()}


# gc=False: a header refers to no container, so the collector need not look at each one
class Header(msgspec.Struct, frozen=True, gc=False):
    magic: bytes
    version: int
    verb: int
    shard: int
    flags: int
    request_id: int
    term: int


def encode(message: Message, shard: int = 0, request_id: int = 0, term: int = 0) -> bytes:
    """Return the control frame of a message."""
    return _pack(MAGIC, VERSION, message.verb, shard, 0, request_id, term) + _encode(message)


def peek(frame: bytes) -> Header:
    """Return the fixed header, which is enough to forward a frame. Raises ProtocolError,
    WrongVersion.
    """
    if len(frame) < HEADER.size:
        raise ProtocolError(f"control frame of {len(frame)} bytes; at least {HEADER.size} are needed")
    header = Header(*_unpack(frame))
    if header.magic != MAGIC or header.version != VERSION or header.term > limits.NUMBER_MAX:
        raise _unreadable(header)
    return header


def _unreadable(header: Header) -> ProtocolError:
    """The error for a header that `peek` and `decode` refuse."""
    if header.magic != MAGIC:
        return ProtocolError("control frame does not start with GQ")
    if header.term > limits.NUMBER_MAX:
        return ProtocolError(f"term {header.term}; at most {limits.NUMBER_MAX}")
    return WrongVersion(
        f"protocol version {header.version}; this side speaks {VERSION}",
        hint="take client and node of one release",
    )


def decode(frame: bytes) -> tuple[Header, Message]:
    """Return header and message. Raises ProtocolError, WrongVersion, UnknownVerb."""
    # the checks of `peek` once more: a call less for each frame
    if len(frame) < HEADER.size:
        raise ProtocolError(f"control frame of {len(frame)} bytes; at least {HEADER.size} are needed")
    header = Header(*_unpack(frame))
    if header.magic != MAGIC or header.version != VERSION or header.term > limits.NUMBER_MAX:
        raise _unreadable(header)
    decoder = _decoders.get(header.verb)
    if decoder is None:
        raise UnknownVerb(f"verb {header.verb} is not known here")
    if len(frame) > limits.CONTROL_BYTES_MAX:
        raise ProtocolError(f"control frame of {len(frame)} bytes; at most {limits.CONTROL_BYTES_MAX}")
    try:
        # a view, so that the message is not copied to be decoded
        return header, decoder.decode(memoryview(frame)[HEADER.size :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"control part of verb {header.verb}: {error}") from None
