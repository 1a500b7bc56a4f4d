"""Routing keys and the patterns that match them. Both are words between dots; in a pattern `*`
stands for one word and `#` for any number of words, even none.
"""

from collections.abc import Callable, Iterable

from gossipq.errors import BadRequest
from gossipq.limits import ROUTE_BYTES_MAX

PATTERNS_MAX = 64  #: patterns of one subscription

Matcher = Callable[[bytes], bool]


def check_patterns(patterns: list[str]) -> None:
    """Raises BadRequest for a pattern that is not allowed."""
    if len(patterns) > PATTERNS_MAX:
        raise BadRequest(f"{len(patterns)} route patterns; at most {PATTERNS_MAX} are allowed")
    for pattern in patterns:
        if set(pattern.split(".")) == {"#"}:
            raise BadRequest(
                f"the route pattern {pattern!r} matches everything", hint="leave the routes out instead"
            )
        if not 0 < len(pattern.encode("utf-8", "replace")) <= ROUTE_BYTES_MAX:
            raise BadRequest(f"route pattern {pattern!r}", hint=f"1 to {ROUTE_BYTES_MAX} bytes are allowed")
        for word in pattern.split("."):
            if word not in ("*", "#") and ("*" in word or "#" in word):
                raise BadRequest(
                    f"route pattern {pattern!r}", hint="* and # stand for whole words: eu.* or eu.#"
                )


def matcher(patterns: Iterable[str]) -> Matcher | None:
    """A test for whether a route matches one of the patterns; None if there are no
    patterns and all routes match.
    """
    plain = {pattern.encode() for pattern in patterns if not {"*", "#"} & set(pattern.split("."))}
    wild = [pattern.encode().split(b".") for pattern in patterns if pattern.encode() not in plain]
    if not plain and not wild:
        return None
    fits = _automaton(wild)
    known: dict[bytes, bool] = {}  # a few routes occur in many records

    def matches(route: bytes) -> bool:
        found = known.get(route)
        if found is None:
            if len(known) > 1_024:
                known.clear()
            found = known[route] = route in plain or fits(route.split(b".") if route else [])
        return found

    return matches


def _automaton(patterns: list[list[bytes]]) -> Callable[[list[bytes]], bool]:
    """A test for whether words match one of the patterns. It takes a few steps per word, however
    many and long the patterns are.

    A bit of `reach` is a position in a pattern; it is set if the words that
    were read match the part of the pattern before it.
    """
    exact: dict[bytes, int] = {}  # word -> positions from which it leads one further
    star = hashes = begins = ends = 0  # positions of `*` and `#`, first and last positions
    place = 1
    for pattern in patterns:
        begins |= place
        for at, word in enumerate(pattern):
            if word == b"#":
                if at and pattern[at - 1] == b"#":
                    continue  # a second `#` adds no meaning
                hashes |= place
            elif word == b"*":
                star |= place
            else:
                exact[word] = exact.get(word, 0) | place
            place <<= 1
        ends |= place
        place <<= 1

    def fits(words: list[bytes]) -> bool:
        reach = begins | (begins & hashes) << 1  # `#` also matches an empty list of words
        for word in words:
            reach = (reach & (exact.get(word, 0) | star)) << 1 | reach & hashes
            reach |= (reach & hashes) << 1
        return bool(reach & ends)

    return fits
