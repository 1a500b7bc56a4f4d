"""When a copy stands for election, and who voted for it. Dice are handed in: the same dice, the same
election."""

from collections.abc import Callable
from hashlib import blake2b
from itertools import count

from gossipq import limits

Dice = Callable[[int], int]  #: a number from 0 to below the one given


def dice_of(name: str) -> Dice:
    """Numbers that look random and are another row for each name."""
    throws = count()

    def throw(sides: int) -> int:
        seed = blake2b(b"%d %s" % (next(throws), name.encode("utf-8", "replace")), digest_size=8).digest()
        return int.from_bytes(seed, "little") % sides

    return throw


class Election:
    __slots__ = ("_dice", "again_ms", "due_ms", "heard_ms", "votes")

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.heard_ms: int | None = None  #: boot time of the leader's last sign of life, or of our own start
        self.due_ms: int | None = None  #: when to stand, if nothing is heard
        self.again_ms = limits.CAMPAIGN_AGAIN_MS
        self.votes: set[str] = set()

    def heard(self, now_ms: int, first: bool) -> None:
        """A leader lives, or this copy was just opened (R2: it forgot whom it heard). `first`: its turn comes
        first (R4)."""
        self.heard_ms, self.again_ms = now_ms, limits.CAMPAIGN_AGAIN_MS
        self.due_ms = now_ms + limits.ELECTION_MS + self._spread(first)

    def _spread(self, first: bool) -> int:
        if first:
            return self._dice(limits.ELECTION_FIRST_MS)
        return limits.ELECTION_FIRST_MS + self._dice(limits.ELECTION_REST_MS)

    def voted(self, now_ms: int) -> None:
        """Somebody else has our vote: it gets the time to use it."""
        self.due_ms = now_ms + limits.CAMPAIGN_AGAIN_MS + self._dice(limits.ELECTION_REST_MS)

    def asked_by_less(self, now_ms: int) -> None:
        """Who would lead has less than this copy, and its leader is silent here too: the turn of this copy
        comes now."""
        if self.due_ms is not None:
            self.due_ms = min(self.due_ms, now_ms + self._dice(limits.ELECTION_FIRST_MS))

    def stood(self, now_ms: int, me: str) -> None:
        """A campaign begins; if nobody wins, another one follows after a pause that doubles."""
        self.votes = {me}
        self.due_ms = now_ms + self.again_ms + self._dice(self.again_ms)
        self.again_ms = min(2 * self.again_ms, limits.CAMPAIGN_AGAIN_MS_MAX)

    def hears(self, now_ms: int) -> bool:
        """Whether a leader may still hold its lease, as far as this copy knows (R2)."""
        return self.heard_ms is None or now_ms < self.heard_ms + limits.ELECTION_MS
