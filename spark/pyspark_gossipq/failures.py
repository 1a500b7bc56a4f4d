"""Errors of gossipq that come out of Spark wrapped in stack traces of three programs: said plainly again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from gossipq import errors

RAISED = re.compile(r"gossipq\.errors\.(\w+): (.*?)(?:\nhint: (.*?))?(?:\n|$)")


def cause(error: BaseException) -> errors.GossipqError | None:
    """The error that a task or a plan ended with, if it is one of gossipq's."""
    found = RAISED.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or kind is None or not issubclass(kind, errors.GossipqError):
        return None
    return kind(found[2], hint=found[3] or "")  # type: ignore[no-any-return]


@contextmanager
def plainly() -> Iterator[None]:
    """What fails inside for a reason of gossipq's raises that."""
    try:
        yield
    except PySparkException as error:
        found = cause(error)
        if found is None:
            raise
        raise found from None
