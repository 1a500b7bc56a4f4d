"""Names of kombu as names of gossipq: a topic for each queue."""

import string

ALLOWED = frozenset(string.ascii_letters + string.digits + ".-_")


def topic_of(virtual_host: str, queue: str) -> str:
    """Return the topic of a queue. A virtual host other than "/" is a prefix.

    A character that topics cannot have becomes its UTF-8 bytes in hex: `celery@host` is
    `celery_40_host`.
    """
    return _plain(f"{prefix_of(virtual_host)}{queue}")


def prefix_of(virtual_host: str) -> str:
    """Return what the topics of a virtual host begin with: "" for "/"."""
    host = virtual_host.strip("/")
    return f"{host}." if host else ""


def _plain(name: str) -> str:
    return "".join(
        char if char in ALLOWED else "".join(f"_{byte:02x}_" for byte in char.encode("utf-8", "replace"))
        for char in name
    )
