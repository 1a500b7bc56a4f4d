"""Tries: attempts and last delivery of a record as one number, so that equal neighbours share a range.

Tries count 2 for each attempt that began, and 1 more if the record was delivered since. So 0 means that no
consumer has had the record, 1 that one had it and did not begin, 2 that the first attempt began.
"""


def begun(tries: int) -> int:
    """Count the attempts that began."""
    return tries >> 1


def newest(tries: int) -> int:
    """Number the attempt of the last delivery; 0 = never delivered."""
    return (tries + 1) >> 1


def after(attempt: int, started: bool) -> int:
    """Tries of a record whose last delivery was this attempt; 0 = it was never delivered."""
    return 2 * attempt - (not started) if attempt > 0 else 0
