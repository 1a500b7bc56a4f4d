"""What belongs to a client: its session and its producers are named after a key that it alone knows.

So every node can tell whether who names one of them may, without keeping anything: after a reconnect, a
restart or a takeover the owner shows its key again. Neither name gives the key away.
"""

import hmac

from gossipq.errors import BadRequest

KEY_BYTES = 32
SESSION_BYTES = 16
NONCE_BYTES = 16
NUMBER_BYTES = 4  #: of a producer among those of one key
TOKEN_BYTES = 32
OWNED = 0x80  #: in the first byte of a session that has a key


def session_of(key: bytes) -> bytes:
    """The session of a key, 16 bytes."""
    name = hmac.digest(key, b"session", "sha256")[:SESSION_BYTES]
    return bytes((name[0] | OWNED,)) + name[1:]


def producer_of(key: bytes, number: int) -> bytes:
    """One of the producers of a key, 16 bytes."""
    return _producer(key, number.to_bytes(NUMBER_BYTES))


def _producer(key: bytes, number: bytes) -> bytes:
    return number + hmac.digest(key, b"producer" + number, "sha256")[: 16 - NUMBER_BYTES]


def unowned(session: bytes) -> bytes:
    """A session without a key, of 16 random bytes: of who holds nothing that others may not have."""
    return bytes((session[0] & ~OWNED & 0xFF,)) + session[1:]


def is_owned(session: bytes) -> bool:
    """Whether only who has its key can greet as it."""
    return bool(session[0] & OWNED)


def tokens_of(token: bytes) -> list[bytes]:
    """Of each secret that a node knows its token, 32 bytes: the one by which it proves who it is, then those
    that it believes, too, while the secret is replaced."""
    return [token[at : at + TOKEN_BYTES] for at in range(0, len(token), TOKEN_BYTES)] or [b""]


def key_of_node(token: bytes, nonce: bytes) -> bytes:
    """The key of a client that is a node of the cluster with that token; `nonce`: 16 random bytes."""
    digest = hmac.digest(tokens_of(token)[0], b"node" + nonce, "sha256")
    return nonce + digest[: KEY_BYTES - len(nonce)]


def is_of_node(token: bytes, key: bytes) -> bool:
    """Whether who has that key knows the token. Where there is none, nobody can be told from a node."""
    nonce = key[:NONCE_BYTES]
    return not token or any(hmac.compare_digest(key_of_node(each, nonce), key) for each in tokens_of(token))


def check_session(session: bytes, key: bytes) -> None:
    """Raises BadRequest when who says HELLO does not own the session that it names."""
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
            "this session belongs to who has its key",
            hint="say HELLO with the key, or with a session of your own",
        )


def check_producer(producer: bytes, key: bytes) -> None:
    """Raises BadRequest when a batch names a producer that does not belong to who sends it."""
    if not key or not hmac.compare_digest(_producer(key, producer[:NUMBER_BYTES]), producer):
        raise BadRequest(
            "the producer of this batch does not belong to this session",
            hint="name one made of the key that HELLO told, or 16 zeros for none",
        )
