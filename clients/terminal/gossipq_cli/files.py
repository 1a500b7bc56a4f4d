"""Files that commands write for their user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from gossipq_cli.failures import Failure
from gossipq_cli.output import is_special


@contextmanager
def written(file: str, what: str) -> Iterator[BinaryIO]:
    """What is written there. A file appears when it is whole and on the disk, for its owner alone: it has
    records, or tells of a cluster. `what`: a dump, say. Raises Failure, OSError with the name as given."""
    if is_special(file):
        with open(file, "wb") as stream:
            yield stream
        return
    part = f"{file}.part"
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file)
    except FileExistsError:
        hint = f"rm {part}"
        text = f"{part} is there: another {what} is under way, or was cut short"
        raise Failure("exists", text, hint) from None
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and error.filename == part:
            error.filename = file
        raise
    directory = os.open(os.path.dirname(file) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
