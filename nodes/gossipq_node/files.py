"""Small files of the data directory that are replaced atomically."""

import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gossipq.core.register import check_member
from gossipq.errors import ConfigError, Refused, StoreError
from gossipq.values import AccessTable, Member

log = logging.getLogger(__name__)


class SavedRoster(msgspec.Struct, frozen=True):
    """roster.json: the last known members of the cluster. If it is lost,
    the node learns them again.
    """

    version: int = 0
    members: list[Member] = []


def read_roster(path: Path) -> SavedRoster:
    """Read the roster; empty if it cannot be read. Invalid rows are left out."""
    try:
        roster = msgspec.json.decode(path.read_bytes(), type=SavedRoster)
    except FileNotFoundError:
        return SavedRoster()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s is put aside, the others are asked: %s", path, error)
        return SavedRoster()
    members = [member for member in roster.members if _may_be(member, path)]
    return roster if len(members) == len(roster.members) else SavedRoster(0, members)


def _may_be(member: Member, path: Path) -> bool:
    try:
        check_member(member)
    except Refused as error:
        log.warning("%s: a row is left out, the others are asked: %s", path, error)
        return False
    return True


def keep_roster(path: Path, version: int, members: list[Member]) -> None:
    """Write the roster for the next start. A failure only costs a question then."""
    try:
        replace_file(path, SavedRoster(version, members))
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def read_access(path: Path) -> AccessTable:
    """Read the last known users and roles.

    Raises ConfigError if the file cannot be read, because an empty table would admit everybody.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=AccessTable)
    except FileNotFoundError:
        return AccessTable()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", f"if nobody changed it: rm {path}; the node learns it again"
        ) from None


def keep_access(path: Path, table: AccessTable) -> None:
    """Write users and roles for the next start."""
    try:
        replace_file(path, table)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def replace_file(path: Path, value: object) -> None:
    """Write `value` as JSON atomically. Raises OSError."""
    _replace(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def replace_private(path: Path, data: bytes) -> None:
    """Write bytes atomically, readable for this user only."""
    _replace(path, data, 0o600)


def _replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            # otherwise a crash after the rename could leave an empty file under the name
            os.fsync(file.fileno())
        # readers see the old content or the new one, and the rename lasts once its directory is synced
        os.rename(new, path)
        sync_directory(path.parent)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def make_directory(path: Path) -> None:
    """Create a directory and missing parents, and sync them. Raises OSError."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


@contextmanager
def building_at(path: Path) -> Iterator[None]:
    """Enter a directory in which one process at a time builds something that
    is renamed when complete.

    Raises StoreError while another process builds there, and OSError.
    """
    make_directory(path)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{path} is being made by another process", "wait for it, or end it") from None
        except OSError as error:
            # some network file systems have no locks
            log.warning("%s: two processes that make it are not kept apart: %s", path, error)
        yield
    finally:
        os.close(held)


def check_free(target: Path) -> None:
    """Raise StoreError if a directory cannot be created there."""
    if target.exists() and os.path.ismount(target):
        raise StoreError(
            f"{target} is where a disk is mounted, and cannot be made",
            "name a directory below it with --data",
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} is not empty", "give a new directory with --data")


def take_place(building: Path, target: Path) -> None:
    """Move a finished directory to its name. An empty directory there is replaced; its owner stays.

    Raises OSError.
    """
    if target.exists():
        about = target.stat()
        target.rmdir()
        if not os.geteuid():
            os.chown(building, about.st_uid, about.st_gid)
            hand_over(building)
    os.rename(building, target)


def hand_over(path: Path) -> None:
    """Give files that root created in a user's directory to that user, whose node must open them.

    Raises OSError.
    """
    about = path.stat()
    if os.geteuid() or not about.st_uid:
        return
    for _, directories, files, fd in os.fwalk(path):
        for name in (*directories, *files):
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            linked = stat.S_ISREG(found.st_mode) and found.st_nlink > 1  # it may be a file of root
            if found.st_uid == 0 and not linked:
                os.chown(name, about.st_uid, about.st_gid, dir_fd=fd, follow_symlinks=False)


def clear(path: Path) -> None:
    """Make the directory empty. Raises OSError."""
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def sync_directory(path: Path) -> None:
    """Sync new and renamed entries of a directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
