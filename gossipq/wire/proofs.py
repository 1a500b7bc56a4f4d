"""Proofs that somebody knows the secret of a cluster. The secret, and what is derived from it, never travel.

A proof is an HMAC-SHA256 over its purpose, a nonce of each side and both names, so that it is good for one
connection, in one direction, for one pair of nodes. PROTOCOL.md section "Peers" has the parts of each.
"""

import hmac
from hashlib import blake2b
from typing import TypeVar

import msgspec

from gossipq.messages import Challenge, Join, SetAccess, SetMember, SetOptions
from gossipq.peer_messages import Waiting
from gossipq.wire.frames import encode

FOUNDING = b"founding"  #: purpose of a token while no cluster is known
NONCE_BYTES = 16
CHALLENGE, PROVE, REQUEST = "challenge", "prove", "request"  #: what a proof is for

#: requests that carry a proof
Proven = TypeVar("Proven", bound=Join | SetMember | SetOptions | SetAccess | Waiting)

_encode = msgspec.msgpack.Encoder().encode


def token(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes that only who knows the secret can make, b"" without one. `purpose`: the cluster's uuid, or
    FOUNDING."""
    return (
        blake2b(purpose, key=blake2b(secret).digest(), digest_size=32, person=b"gossipq").digest()
        if secret
        else b""
    )


def proof(token: bytes, purpose: str, *parts: bytes | str) -> bytes:
    """32 bytes that only who has the token can make of these parts."""
    return hmac.digest(token, _encode((purpose, *parts)), "sha256")


def holds(token: bytes, given: bytes, purpose: str, *parts: bytes | str) -> bool:
    return hmac.compare_digest(given, proof(token, purpose, *parts))


def answered(token: bytes, nonce: bytes, asker: str, said: Challenge) -> bool:
    """Whether who challenges `asker`, which said `nonce`, knows the secret itself."""
    return holds(token, said.proof, CHALLENGE, nonce, said.nonce, asker, said.sender)


def of_request(token: bytes, nonce: bytes, request: Proven) -> bytes:
    """The proof that belongs into a request, for the nonce of who is asked: of all else that the request
    says."""
    return proof(token, REQUEST, nonce, encode(msgspec.structs.replace(request, proof=b"")))


def proven(token: bytes, nonce: bytes, request: Proven) -> Proven:
    """The request with its proof."""
    return msgspec.structs.replace(request, proof=of_request(token, nonce, request))
