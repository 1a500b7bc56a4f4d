"""Proofs of knowing a cluster's secret. Neither the secret nor a token of it is ever sent.

A proof is an HMAC-SHA256 over its purpose, a nonce of each side, and both names. So it is valid for
one connection, one direction and one pair of nodes. PROTOCOL.md section "Peers" lists the parts of
each proof.
"""

import hmac
from hashlib import blake2b
from typing import TypeVar

import msgspec

from gossipq.messages import Challenge, Join, SetAccess, SetMember, SetOptions
from gossipq.peer_messages import Waiting
from gossipq.wire.frames import encode
from gossipq.wire.ownership import TOKEN_BYTES, tokens_of

FOUNDING = b"founding"  #: purpose of a token while the cluster's uuid is unknown
NONCE_BYTES = 16
CHALLENGE, PROVE, REQUEST = "challenge", "prove", "request"  #: purposes of proofs

#: requests that contain a proof
Proven = TypeVar("Proven", bound=Join | SetMember | SetOptions | SetAccess | Waiting)

_encode = msgspec.msgpack.Encoder().encode


def secrets_of(known: bytes) -> list[bytes]:
    """Return the secrets in a secret file, one per line.

    The first one is used. The others are accepted while the secret is being replaced. A file that
    is not ASCII text is one secret.
    """
    lines = known.split(b"\n") if known.isascii() else [known]
    return [line.strip() for line in lines if line.strip()]


def token(secret: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes for each secret, b"" without one. Only owners of the secret can compute them.

    `purpose` is the cluster's uuid, or FOUNDING.
    """
    return b"".join(_token(each, purpose) for each in secrets_of(secret))


def _token(secret: bytes, purpose: bytes) -> bytes:
    key = blake2b(secret).digest()
    return blake2b(purpose, key=key, digest_size=TOKEN_BYTES, person=b"gossipq").digest()


def proof(token: bytes, purpose: str, *parts: bytes | str) -> bytes:
    """Return 32 bytes over these parts that only an owner of the token can compute."""
    return hmac.digest(tokens_of(token)[0], _encode((purpose, *parts)), "sha256")


def holds(token: bytes, given: bytes, purpose: str, *parts: bytes | str) -> bool:
    """True if the sender of `given` has one of these tokens."""
    return any(hmac.compare_digest(given, proof(each, purpose, *parts)) for each in tokens_of(token))


def answered(token: bytes, nonce: bytes, asker: str, said: Challenge) -> bool:
    """True if the sender of this CHALLENGE knows the secret. `asker` had sent it `nonce`."""
    return holds(token, said.proof, CHALLENGE, nonce, said.nonce, asker, said.sender)


def of_request(token: bytes, nonce: bytes, request: Proven) -> bytes:
    """Return the proof for a request: over the nonce of the receiver and all other fields."""
    return proof(token, REQUEST, nonce, encode(msgspec.structs.replace(request, proof=b"")))


def proves(token: bytes, nonce: bytes, request: Proven) -> bool:
    """True if the proof in a request was made with one of these tokens."""
    return any(
        hmac.compare_digest(request.proof, of_request(each, nonce, request)) for each in tokens_of(token)
    )


def proven(token: bytes, nonce: bytes, request: Proven) -> Proven:
    """Return the request with its proof set."""
    return msgspec.structs.replace(request, proof=of_request(token, nonce, request))
