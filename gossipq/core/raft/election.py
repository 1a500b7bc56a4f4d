"""Timing of elections, and the votes of one campaign.

Randomness is passed in: the same dice give the same election.
"""

from collections.abc import Callable
from hashlib import blake2b
from itertools import count

from gossipq import limits

Dice = Callable[[int], int]  #: returns a number from 0 to below its argument


def dice_of(name: str) -> Dice:
    """Return dice that look random and differ for each name."""
    throws = count()

    def throw(sides: int) -> int:
        seed = blake2b(b"%d %s" % (next(throws), name.encode("utf-8", "replace")), digest_size=8).digest()
        return int.from_bytes(seed, "little") % sides

    return throw


class Election:
    __slots__ = ("_dice", "again_ms", "due_ms", "heard_ms", "votes")

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        #: boot time of the leader's last message, or of the start of this copy
        self.heard_ms: int | None = None
        self.due_ms: int | None = None  #: time of the next campaign if no leader is heard
        self.again_ms = limits.CAMPAIGN_AGAIN_MS
        self.votes: set[str] = set()

    def heard(self, now_ms: int, first: bool) -> None:
        """A leader was heard, or this copy has just started. `first`: it is the first voter in
        order.

        After a start the copy waits as if it had heard a leader, because it forgot when it did.
        """
        self.heard_ms, self.again_ms = now_ms, limits.CAMPAIGN_AGAIN_MS
        self.due_ms = now_ms + limits.ELECTION_MS + self._spread(first)

    def _spread(self, first: bool) -> int:
        if first:
            return self._dice(limits.ELECTION_FIRST_MS)
        return limits.ELECTION_FIRST_MS + self._dice(limits.ELECTION_REST_MS)

    def voted(self, now_ms: int) -> None:
        """This copy voted for another: give that one time to win."""
        self.due_ms = now_ms + limits.CAMPAIGN_AGAIN_MS + self._dice(limits.ELECTION_REST_MS)

    def asked_by_less(self, now_ms: int) -> None:
        """A candidate has less than this copy, and the leader is silent here too: stand soon."""
        if self.due_ms is not None:
            self.due_ms = min(self.due_ms, now_ms + self._dice(limits.ELECTION_FIRST_MS))

    def stood(self, now_ms: int, me: str) -> None:
        """A campaign begins. If it fails, the next one follows after a pause that doubles."""
        self.votes = {me}
        self.due_ms = now_ms + self.again_ms + self._dice(self.again_ms)
        self.again_ms = min(2 * self.again_ms, limits.CAMPAIGN_AGAIN_MS_MAX)

    def hears(self, now_ms: int) -> bool:
        """True while a leader may hold its lease, as far as this copy knows."""
        return self.heard_ms is None or now_ms < self.heard_ms + limits.ELECTION_MS
