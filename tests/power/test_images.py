"""What images of a power cut may contain, and what they never contain."""

from random import Random

from power.images import SECTOR, Disk
from power.journal import NUMBER, Entry, Kind

ROOT, FILE, OLD, NEW = 1, 2, b"o" * SECTOR * 8, b"n" * SECTOR * 8
BEGIN = (
    Entry(Kind.CREATE, FILE, path="/root/file"),
    Entry(Kind.SYNC, ROOT),
    Entry(Kind.WRITE, FILE, 0, data=OLD),
)
SYNC = Entry(Kind.SYNC, FILE)


def contents(*entries: Entry, lie: Kind | None = None) -> set[bytes | None]:
    """All that "file" may have in the end; None: it is not there."""
    disk = Disk("/root", ROOT, lie)
    for entry in entries:
        disk.take(entry)
    return {disk.cut(Random(seed)).get("file") for seed in range(500)}


def wrote(offset: int, size: int) -> Entry:
    return Entry(Kind.WROTE, FILE, offset, data=NUMBER.pack(size))


def test_what_was_synced_is_there() -> None:
    assert contents(*BEGIN, SYNC) == {OLD}


def test_what_was_not_synced_is_there_or_not_or_torn_between_sectors() -> None:
    found = contents(*BEGIN, SYNC, Entry(Kind.WRITE, FILE, 0, data=NEW))
    assert {OLD, NEW} < found
    assert {
        content[at : at + SECTOR] for content in found if content for at in range(0, len(OLD), SECTOR)
    } == {
        OLD[:SECTOR],
        NEW[:SECTOR],
    }


def test_a_file_grows_with_and_without_its_bytes() -> None:
    found = contents(*BEGIN, SYNC, Entry(Kind.WRITE, FILE, len(OLD), data=NEW))
    assert {OLD, OLD + NEW, OLD + bytes(len(NEW))} < found


def test_writes_after_a_sync_come_in_any_order() -> None:
    found = contents(
        *BEGIN, SYNC, *(Entry(Kind.WRITE, FILE, at * SECTOR, data=b"n" * SECTOR) for at in range(2))
    )
    assert {content[: 2 * SECTOR : SECTOR] for content in found if content} == {b"oo", b"on", b"no", b"nn"}


def test_a_synchronous_write_lasts_when_it_has_returned_and_not_before() -> None:
    begun = (*BEGIN, Entry(Kind.WRITE, FILE, 9, data=b"new"))
    assert {content[9:12] for content in contents(*begun) if content} > {b"new", b"ooo"}
    found = contents(*begun, wrote(9, 3))
    assert {content[9:12] for content in found if content is not None} == {b"new"}
    assert any(content is not None and content[:9] == bytes(9) for content in found), (
        "the others do not last by that"
    )


def test_a_file_that_was_cut_is_long_or_short_until_it_is_synced() -> None:
    cut = Entry(Kind.TRUNCATE, FILE, data=NUMBER.pack(5))
    assert contents(*BEGIN, SYNC, cut) == {OLD, OLD[:5]}
    assert contents(*BEGIN, SYNC, cut, SYNC) == {OLD[:5]}


def test_a_name_lasts_by_a_sync_of_its_directory() -> None:
    without = [entry for entry in BEGIN if entry.kind != Kind.SYNC]
    assert contents(*without, SYNC) == {OLD, None}


def test_a_renamed_file_is_the_old_or_the_new_one() -> None:
    other = 3
    renamed = (
        *(
            Entry(Kind.CREATE, other, path="/root/new"),
            Entry(Kind.WRITE, other, 0, data=NEW),
            Entry(Kind.SYNC, other),
        ),
        Entry(Kind.RENAME, path="/root/new", data=b"/root/file"),
    )
    assert contents(*BEGIN, SYNC, *renamed) == {OLD, NEW}
    assert contents(*BEGIN, SYNC, *renamed, Entry(Kind.SYNC, ROOT)) == {NEW}


def test_a_lost_directory_takes_its_files_along() -> None:
    disk = Disk("/root", ROOT)
    for entry in (
        Entry(Kind.MKDIR, 5, path="/root/d"),
        Entry(Kind.CREATE, 6, path="/root/d/f"),
        Entry(Kind.SYNC, 5),
    ):
        disk.take(entry)
    assert {tuple(disk.cut(Random(seed))) for seed in range(50)} == {(), ("d", "d/f")}


def test_a_lying_disk_keeps_nothing() -> None:
    assert len(contents(*BEGIN, SYNC, lie=Kind.SYNC)) > 2
    assert (
        len(contents(*BEGIN, SYNC, Entry(Kind.WRITE, FILE, 0, data=b"new"), wrote(0, 3), lie=Kind.WROTE)) == 2
    )
