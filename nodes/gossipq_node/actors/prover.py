"""Who knows the secret: nonces for those that ask, and a look at what they made of them. Nothing is kept of
who has asked."""

import os
from collections.abc import Callable

from gossipq.messages import Challenge, Join, SetAccess, SetMember, SetOptions
from gossipq.peer_messages import Waiting
from gossipq.types import Origin
from gossipq.wire import proofs

KEY_BYTES = 32

Random = Callable[[int], bytes]  #: so many bytes that nobody guesses


class Prover:
    """One process, as it is asked. `token` is what the secret gives for its cluster; b"": there is no
    secret."""

    def __init__(self, me: str, token: bytes, random: Random = os.urandom) -> None:
        self._me, self._token, self._key = me, token, random(KEY_BYTES)

    def nonce(self, origin: Origin, *parts: bytes | str) -> bytes:
        """For one connection, and for what was said there: the same each time, so that it need not be
        remembered."""
        return proofs.proof(self._key, "nonce", *origin, *parts)[: proofs.NONCE_BYTES]

    def challenge(self, origin: Origin, asker: str, nonce: bytes) -> Challenge:
        """The answer to somebody who has to prove that it knows the secret; it shows that this process
        does."""
        mine = self.nonce(origin, asker, nonce)
        return Challenge(
            mine, self._me, proofs.proof(self._token, proofs.CHALLENGE, nonce, mine, asker, self._me)
        )

    def knows(self, origin: Origin, asker: str, nonce: bytes, proof: bytes) -> bool:
        """Whether who was challenged on this connection has the token."""
        mine = self.nonce(origin, asker, nonce)
        return proofs.holds(self._token, proof, proofs.PROVE, nonce, mine, asker, self._me)

    def asked(
        self,
        origin: Origin,
        request: Join | SetMember | SetOptions | SetAccess | Waiting,
        asker: str = "",
        nonce: bytes = b"",
    ) -> Challenge | None:
        """None when the request comes from somebody who knows the secret, or there is none; else what to
        answer."""
        mine = self.nonce(origin, asker, nonce)
        if not self._token or proofs.proves(self._token, mine, request):
            return None
        return self.challenge(origin, asker, nonce)
