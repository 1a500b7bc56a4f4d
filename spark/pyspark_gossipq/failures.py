"""Finds errors of gossipq inside the stack traces of Spark."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from gossipq import errors

RAISED = re.compile(r"gossipq\.errors\.(\w+): (.*?)(?:\nhint: (.*?))?(?:\n|$)")


def cause(error: BaseException) -> errors.GossipqError | None:
    """Return the error of gossipq with which a task or plan failed, if any."""
    found = RAISED.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or kind is None or not issubclass(kind, errors.GossipqError):
        return None
    return kind(found[2], hint=found[3] or "")  # type: ignore[no-any-return]


@contextmanager
def plainly() -> Iterator[None]:
    """Raise the error of gossipq if Spark failed because of one."""
    try:
        yield
    except PySparkException as error:
        found = cause(error)
        if found is None:
            raise
        raise found from None
