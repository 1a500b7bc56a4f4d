"""Checks proofs of the cluster's secret: makes nonces for the other side and checks its answers.
Stores nothing about the askers.
"""

import os
from collections.abc import Callable

from gossipq.messages import Challenge, Join, SetAccess, SetMember, SetOptions
from gossipq.peer_messages import Waiting
from gossipq.types import Origin
from gossipq.wire import proofs

KEY_BYTES = 32

Random = Callable[[int], bytes]  #: returns as many random bytes as asked


class Prover:
    """The answering side in one process. `token` is derived from the secret for this
    cluster; b"" without a secret.
    """

    def __init__(self, me: str, token: bytes, random: Random = os.urandom) -> None:
        self._me = me
        self._token = token
        self._key = random(KEY_BYTES)

    def nonce(self, origin: Origin, *parts: bytes | str) -> bytes:
        """A nonce for one connection and the given parts. Equal arguments give the same nonce,
        so it need not be stored.
        """
        return proofs.proof(self._key, "nonce", *origin, *parts)[: proofs.NONCE_BYTES]

    def challenge(self, origin: Origin, asker: str, nonce: bytes) -> Challenge:
        """Asks the other side to prove that it knows the secret, and
        proves that this process does.
        """
        mine = self.nonce(origin, asker, nonce)
        return Challenge(
            mine, self._me, proofs.proof(self._token, proofs.CHALLENGE, nonce, mine, asker, self._me)
        )

    def knows(self, origin: Origin, asker: str, nonce: bytes, proof: bytes) -> bool:
        """True if the challenged sender on this connection has the token."""
        mine = self.nonce(origin, asker, nonce)
        return proofs.holds(self._token, proof, proofs.PROVE, nonce, mine, asker, self._me)

    def asked(
        self,
        origin: Origin,
        request: Join | SetMember | SetOptions | SetAccess | Waiting,
        asker: str = "",
        nonce: bytes = b"",
    ) -> Challenge | None:
        """The challenge to send. None if the request proves the secret, or
        in a cluster without one.
        """
        mine = self.nonce(origin, asker, nonce)
        if not self._token or proofs.proves(self._token, mine, request):
            return None
        return self.challenge(origin, asker, nonce)
