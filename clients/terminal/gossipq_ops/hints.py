"""Hints for errors that carry none. Pure."""

from collections.abc import Sequence

from gossipq import errors

#: code of an error -> the next step
HINTS = {
    errors.UnknownTopic.code: "`gossipq topic ls` lists topics, `gossipq topic create NAME` makes one",
    errors.UnknownRecord.code: (
        "a ref is TOPIC/PARTITION/OFFSET, as `gossipq pub` and `gossipq msg find` print it"
    ),
    errors.WrongState.code: "`gossipq why REF` says where it stands",
    errors.TopicExists.code: "`gossipq topic create --if-not-exists ...` leaves it as it is",
    errors.Unreachable.code: (
        "start one with `gossipq node`, or point elsewhere: `gossipq -s tcp://HOST:7700 status`"
    ),
    errors.NotConfirmed.code: (
        "it may be stored: `gossipq sub TOPIC --from -1m --exit-at-end` shows the last minute"
    ),
    errors.StoreFull.code: "free disk space or shorten retention; `gossipq status` shows the store",
}


def hint_of(error: errors.GossipqError) -> str:
    return error.hint or HINTS.get(error.code, "")


def message_of(error: errors.GossipqError) -> str:
    return error.message or error.code.replace("_", " ")


def nearest(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean `...`?" or ""."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""
