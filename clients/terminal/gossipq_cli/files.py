"""Files that commands write for the user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from gossipq_cli.failures import Failure
from gossipq_cli.output import is_special

OWNER = 0o600  #: files with records or facts about a cluster are readable for their owner only
EVERYBODY = 0o666  #: minus the user's umask


@contextmanager
def written(file: str, what: str, mode: int = OWNER) -> Iterator[BinaryIO]:
    """Open a file for writing. It gets its name when it is complete and synced.

    `what` names the content, for example "token". Raises Failure, and OSError with the given name.
    """
    part = f"{file}.part"
    try:
        with open(file, "wb") if is_special(file) else _whole(file, part, mode) as stream:
            yield stream
    except FileExistsError:
        hint = f"rm {part}"
        text = f"{part} is there: another {what} is under way, or was cut short"
        raise Failure("exists", text, hint) from None
    except OSError as error:
        if error.filename in (None, part):  # None: from a write
            error.filename = file
        raise


@contextmanager
def _whole(file: str, part: str, mode: int) -> Iterator[BinaryIO]:
    with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
        try:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(part, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise
    directory = os.open(os.path.dirname(file) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def save_picture(file: str, svg: str) -> None:
    """Raises as `written`."""
    with written(file, "picture", EVERYBODY) as stream:
        stream.write(svg.encode())
