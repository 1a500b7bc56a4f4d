"""Names of queues, and their topics."""

import re

from gossipq import limits
from gossipq.errors import BadName

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_STRANGE = re.compile(rb"[^A-Za-z0-9._-]")
_ESCAPED = re.compile(r"-x([0-9A-F]{2})-")


def topic_of(name: str) -> str:
    """Return the topic of a queue: the same name if it is valid for a topic.

    Other bytes become `-xHH-`, so that two queues never share a topic. Raises BadName if the name
    is empty or the result is too long.
    """
    if _PLAIN.fullmatch(name) and "-x" not in name and name not in (".", ".."):
        found = name
    else:
        raw = name.encode("utf-8", "surrogatepass").replace(b"-x", b"-x2D-x")
        found = _STRANGE.sub(lambda byte: b"-x%02X-" % byte[0][0], raw).decode()
        if name in (".", ".."):
            found = "-x2E-" * len(name)
    if not 0 < len(found) <= limits.NAME_BYTES_MAX:
        raise BadName(
            f"a queue name of {len(found)} bytes as a topic; 1 to {limits.NAME_BYTES_MAX} are allowed",
            hint="letters, digits, dot, dash and underscore count one each, other bytes five",
        )
    return found


def name_of(topic: str) -> str:
    """Return the queue of a topic."""
    if "-x" not in topic:
        return topic
    raw = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), topic).encode("latin-1", "replace")
    return raw.decode("utf-8", "replace")
