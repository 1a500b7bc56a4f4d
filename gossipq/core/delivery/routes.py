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
    known: dict[bytes, bool] = {}  # routes are few, records many

    def matches(route: bytes) -> bool:
        found = known.get(route)
        if found is None:
            if len(known) > 1_024:
                known.clear()
            words = route.split(b".") if route else []
            found = known[route] = route in plain or any(_fits(pattern, words) for pattern in wild)
        return found

    return matches


def _fits(pattern: list[bytes], words: list[bytes]) -> bool:
    """Linear in patterns times words, whatever they are: `reach` are the positions in the pattern that fit so
    far."""
    reach = _past_hashes(pattern, {0})
    for word in words:
        step = {at + 1 for at in reach if at < len(pattern) and pattern[at] in (word, b"*")}
        step |= {at for at in reach if at < len(pattern) and pattern[at] == b"#"}
        reach = _past_hashes(pattern, step)
    return len(pattern) in reach


def _past_hashes(pattern: list[bytes], reach: set[int]) -> set[int]:
    """`#` also stands for no word at all."""
    found = set(reach)
    for at in range(len(pattern)):
        if at in found and pattern[at] == b"#":
            found.add(at + 1)
    return found
