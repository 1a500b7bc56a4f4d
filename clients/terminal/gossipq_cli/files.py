"""Files that commands write for their user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from gossipq_cli.failures import Failure
from gossipq_cli.output import is_special

OWNER = 0o600  #: what has records, or tells of a cluster, is for its owner alone
EVERYBODY = 0o666  #: less what the user's umask takes away


@contextmanager
def written(file: str, what: str, mode: int = OWNER) -> Iterator[BinaryIO]:
    """What is written there. A file appears when it is whole and on the disk. `what`: a dump, say. Raises
    Failure, OSError with the name as given."""
    part = f"{file}.part"
    try:
        with open(file, "wb") if is_special(file) else _whole(file, part, mode) as stream:
            yield stream
    except FileExistsError:
        hint = f"rm {part}"
        text = f"{part} is there: another {what} is under way, or was cut short"
        raise Failure("exists", text, hint) from None
    except OSError as error:
        if error.filename in (None, part):  # None: of a write
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
