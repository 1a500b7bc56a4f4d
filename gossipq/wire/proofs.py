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
from gossipq.wire.ownership import TOKEN_BYTES, tokens_of

FOUNDING = b"founding"  #: purpose of a token while no cluster is known
NONCE_BYTES = 16
CHALLENGE, PROVE, REQUEST = "challenge", "prove", "request"  #: what a proof is for

#: requests that carry a proof
Proven = TypeVar("Proven", bound=Join | SetMember | SetOptions | SetAccess | Waiting)

_encode = msgspec.msgpack.Encoder().encode


def secrets_of(known: bytes) -> list[bytes]:
    """Each line of text is a secret: the one that is used, then those that are believed, too, while it is
    replaced. What is not text is one secret."""
    lines = known.split(b"\n") if known.isascii() else [known]
    return [line.strip() for line in lines if line.strip()]


def token(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for each secret that only who knows it can make, b"" without one. `purpose`: the cluster's
    uuid, or FOUNDING."""
    return b"".join(_token(each, purpose) for each in secrets_of(secret))


def _token(secret: bytes, purpose: bytes) -> bytes:
    key = blake2b(secret).digest()
    return blake2b(purpose, key=key, digest_size=TOKEN_BYTES, person=b"gossipq").digest()


def proof(token: bytes, purpose: str, *parts: bytes | str) -> bytes:
    """32 bytes that only who has the token can make of these parts."""
    return hmac.digest(tokens_of(token)[0], _encode((purpose, *parts)), "sha256")


def holds(token: bytes, given: bytes, purpose: str, *parts: bytes | str) -> bool:
    """Whether who gave that has one of these tokens."""
    return any(hmac.compare_digest(given, proof(each, purpose, *parts)) for each in tokens_of(token))


def answered(token: bytes, nonce: bytes, asker: str, said: Challenge) -> bool:
    """Whether who challenges `asker`, which said `nonce`, knows the secret itself."""
    return holds(token, said.proof, CHALLENGE, nonce, said.nonce, asker, said.sender)


def of_request(token: bytes, nonce: bytes, request: Proven) -> bytes:
    """The proof that belongs into a request, for the nonce of who is asked: of all else that the request
    says."""
    return proof(token, REQUEST, nonce, encode(msgspec.structs.replace(request, proof=b"")))


def proves(token: bytes, nonce: bytes, request: Proven) -> bool:
    """Whether the proof in a request is that of who has one of these tokens."""
    return any(
        hmac.compare_digest(request.proof, of_request(each, nonce, request)) for each in tokens_of(token)
    )


def proven(token: bytes, nonce: bytes, request: Proven) -> Proven:
    """The request with its proof."""
    return msgspec.structs.replace(request, proof=of_request(token, nonce, request))
