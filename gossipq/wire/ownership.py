"""Ownership of sessions and producers: their names are derived from a key that only the client
knows.

Each node can check ownership without stored state: the client sends its key again after a
reconnect, a restart or a takeover. The key cannot be computed from the names.
"""

import hmac

from gossipq.errors import BadRequest

KEY_BYTES = 32
SESSION_BYTES = 16
NONCE_BYTES = 16
NUMBER_BYTES = 4  #: of a producer's number among those of one key
TOKEN_BYTES = 32
OWNED = 0x80  #: bit in the first byte of a session that has a key


def session_of(key: bytes) -> bytes:
    """Return the session of a key, 16 bytes."""
    name = hmac.digest(key, b"session", "sha256")[:SESSION_BYTES]
    return bytes((name[0] | OWNED,)) + name[1:]


def producer_of(key: bytes, number: int) -> bytes:
    """Return producer `number` of a key, 16 bytes."""
    return _producer(key, number.to_bytes(NUMBER_BYTES))


def _producer(key: bytes, number: bytes) -> bytes:
    return number + hmac.digest(key, b"producer" + number, "sha256")[: 16 - NUMBER_BYTES]


def unowned(session: bytes) -> bytes:
    """Return a session without a key, from 16 random bytes. It gives no exclusive rights."""
    return bytes((session[0] & ~OWNED & 0xFF,)) + session[1:]


def is_owned(session: bytes) -> bool:
    """True if only the owner of the key can greet as this session."""
    return bool(session[0] & OWNED)


def tokens_of(token: bytes) -> list[bytes]:
    """Return the tokens in `token`, one for each secret that the node knows.

    The first one proves the node's identity. The others are accepted while the secret is replaced.
    """
    return [token[at : at + TOKEN_BYTES] for at in range(0, len(token), TOKEN_BYTES)] or [b""]


def key_of_node(token: bytes, nonce: bytes) -> bytes:
    """Return the key of a client that is a node of the cluster. `nonce` is 16 random bytes."""
    digest = hmac.digest(tokens_of(token)[0], b"node" + nonce, "sha256")
    return nonce + digest[: KEY_BYTES - len(nonce)]


def is_of_node(token: bytes, key: bytes) -> bool:
    """True if the owner of this key knows the cluster's token.

    In a cluster without a secret (empty token) every client counts as a node.
    """
    nonce = key[:NONCE_BYTES]
    return not token or any(hmac.compare_digest(key_of_node(each, nonce), key) for each in tokens_of(token))


def check_session(session: bytes, key: bytes) -> None:
    """Raise BadRequest if the sender of HELLO does not own the session that it names."""
    if len(session) != SESSION_BYTES:
        raise BadRequest(f"a session is {SESSION_BYTES} bytes, not {len(session)}")
    if len(key) not in (0, KEY_BYTES):
        raise BadRequest(
            f"the key of a session is {KEY_BYTES} bytes, not {len(key)}",
            hint="PROTOCOL.md section 7 says how it is made",
        )
    if key and not hmac.compare_digest(session_of(key), session):
        raise BadRequest(
            "this is not the session of that key", hint="PROTOCOL.md section 7 says how it is made"
        )
    if not key and session[0] & OWNED:
        raise BadRequest(
            "this session belongs to the client that has its key",
            hint="say HELLO with the key, or with a session of your own",
        )


def check_producer(producer: bytes, key: bytes) -> None:
    """Raise BadRequest if the producer of a batch does not belong to the sender."""
    if not key or not hmac.compare_digest(_producer(key, producer[:NUMBER_BYTES]), producer):
        raise BadRequest(
            "the producer of this batch does not belong to this session",
            hint="name one made of the key that HELLO told, or 16 zeros for none",
        )
