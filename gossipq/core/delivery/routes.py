"""Routing keys and the patterns that match them: words between dots; `*` is one word, `#` any number of them,
also none."""

from collections.abc import Callable, Iterable

from gossipq.errors import BadRequest
from gossipq.limits import ROUTE_BYTES_MAX

PATTERNS_MAX = 64  #: of one subscription

Matcher = Callable[[bytes], bool]


def check_patterns(patterns: list[str]) -> None:
    """Raises BadRequest."""
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
    """Whether a route fits one of the patterns; None: no patterns, everything fits."""
    plain = {pattern.encode() for pattern in patterns if not {"*", "#"} & set(pattern.split("."))}
    wild = [pattern.encode().split(b".") for pattern in patterns if pattern.encode() not in plain]
    if not plain and not wild:
        return None
    fits = _automaton(wild)
    known: dict[bytes, bool] = {}  # routes are few, records many

    def matches(route: bytes) -> bool:
        found = known.get(route)
        if found is None:
            if len(known) > 1_024:
                known.clear()
            found = known[route] = route in plain or fits(route.split(b".") if route else [])
        return found

    return matches


def _automaton(patterns: list[list[bytes]]) -> Callable[[list[bytes]], bool]:
    """Whether words fit one of the patterns, some steps for each word, however many and long the patterns
    are. A bit of `reach` is a place in one of them: what lies before it fits the words so far."""
    exact: dict[bytes, int] = {}  # by word: the places that it leads on from,
    star = hashes = begins = ends = 0  # that any word leads on from, or stays at; the first, the last
    place = 1
    for pattern in patterns:
        begins |= place
        for at, word in enumerate(pattern):
            if word == b"#":
                if at and pattern[at - 1] == b"#":
                    continue  # two say no more than one
                hashes |= place
            elif word == b"*":
                star |= place
            else:
                exact[word] = exact.get(word, 0) | place
            place <<= 1
        ends |= place
        place <<= 1

    def fits(words: list[bytes]) -> bool:
        reach = begins | (begins & hashes) << 1  # `#` also stands for no word at all
        for word in words:
            reach = (reach & (exact.get(word, 0) | star)) << 1 | reach & hashes
            reach |= (reach & hashes) << 1
        return bool(reach & ends)

    return fits
