"""Lanes: reasons for which records of a group are parked.

A lane is a route without a consumer, or a key that is busy.
"""

ROUTE_LANE, KEY_LANE = b"r", b"k"


def route_lane(route: bytes) -> bytes:
    return ROUTE_LANE + route


def key_lane(key_hash: int) -> bytes:
    return KEY_LANE + key_hash.to_bytes(4, "big")


def key_of(lane: bytes) -> int:
    """Return the key hash of a key lane; 0 for a route."""
    return int.from_bytes(lane[1:], "big") if lane[:1] == KEY_LANE else 0
