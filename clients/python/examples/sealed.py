"""Encrypts values, so that only programs with the key read them, not the cluster: AES-256-GCM.

A key has an id, so that another key can follow it. Needs cryptography, and a node: gossipq node
"""

import os
from collections.abc import Mapping

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import gossipq

NONCE_BYTES = 12  #: random: encrypt at most 2**32 values by one key


class Sealer(gossipq.Middleware):
    """Encrypts values for one topic each. `keys`: id of one byte -> 32 bytes; `using` is the id for new
    values. Remove an old key when no value of it is kept any more."""

    def __init__(self, keys: Mapping[int, bytes], using: int) -> None:
        self._keys = {number: AESGCM(key) for number, key in keys.items()}
        self._using = using

    # -- in the guide
    def publish(self, record, call_next):
        return call_next(record.replace(value=self.seal(record.value, record.topic)))

    # --

    def receive(self, message):
        return message.replace(value=self.open(message.value, message.topic))

    def seal(self, value: bytes, topic: str) -> bytes:
        head = bytes((self._using,)) + os.urandom(NONCE_BYTES)
        return head + self._keys[self._using].encrypt(head[1:], value, head[:1] + topic.encode())

    def open(self, sealed: bytes, topic: str) -> bytes:
        """Raises KeyError for a missing key, cryptography's InvalidTag for a value that was changed."""
        head, body = sealed[: 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        return self._keys[head[0]].decrypt(head[1:], body, head[:1] + topic.encode())


def main() -> None:
    old, new = AESGCM.generate_key(256), AESGCM.generate_key(256)  # from where your secrets are
    with gossipq.connect() as before, gossipq.connect() as mq, gossipq.connect() as plain:
        before.add_middleware(Sealer({1: old}, using=1))
        mq.add_middleware(Sealer({1: old, 2: new}, using=2))
        before.publish("patients", b"ada: 37.2")
        mq.publish("patients", b"bob: 38.9")
        sealed = [record.value for record in plain.read("patients")]
        assert not any(b"ada" in value for value in sealed)
        for value, record in zip(sealed, mq.read("patients"), strict=True):
            print(value[0], record.value.decode())


if __name__ == "__main__":
    main()
