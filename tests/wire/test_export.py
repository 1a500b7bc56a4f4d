"""The manifests of an export: which ones count, and which ones must not be read."""

import json
from hashlib import sha256

import pytest

from gossipq.errors import DataLoss, ExportVersion, TornExport
from gossipq.wire import export
from gossipq.wire.export import File, Gap, Manifest, Position


def file(start, end, data_set="messages", partition=0, name=""):
    digest = sha256(f"{data_set}{partition}{start}{end}{name}".encode()).hexdigest()
    path = export.file_path(data_set, "orders", 40, partition, start, end, digest, "parquet")
    return File(path, data_set, "orders", 40, partition, start, end, end - start, 1_000, digest)


def chain(*increments, cluster="ab" * 16):
    """Manifests by number; an increment is given as its files, or as (files, base)."""
    raws, previous = {}, ""
    for sequence, increment in enumerate(increments, 1):
        files, base = increment if isinstance(increment, tuple) else (increment, False)
        raws[sequence] = export.encode(Manifest(1, cluster, sequence, previous, 5, "parquet", base, files))
        previous = sha256(raws[sequence]).hexdigest()
    return raws


def test_a_manifest_comes_back():
    position, gap = Position("orders", 40, 0, 0, 7, 2, 11, 12), Gap("orders", 40, 0, 3, 4)
    manifest = Manifest(1, "ab", 3, "cd", 5, "lmdb", True, [file(0, 7)], [position], [gap])
    assert export.decode(export.encode(manifest)) == manifest


def test_fields_of_a_later_version_are_ignored_and_those_of_an_older_one_have_their_defaults():
    old = {
        "version": 1,
        "cluster": "ab",
        "sequence": 1,
        "previous": "",
        "written_us": 5,
        "format": "parquet",
        "colour": "red",
    }
    found = export.decode(json.dumps(old).encode())
    assert (found.base, found.files, found.positions, found.gaps) == (False, [], [], [])


def test_a_later_version_says_what_it_needs():
    with pytest.raises(ExportVersion, match=r"0000000001.json has version 3; .* up to 2") as caught:
        export.fold({1: b'{"version": 3, "everything": "else"}'})
    assert "upgrade" in caught.value.hint or "pip" in caught.value.hint


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"version": 1}', b"\xff"])
def test_a_manifest_that_is_not_whole(raw):
    with pytest.raises(TornExport, match="not a whole manifest"):
        export.fold({1: raw})


def test_an_empty_folder_is_an_empty_export():
    assert export.fold({}) == export.NOTHING


def test_files_of_all_increments_count_in_order():
    raws = chain([file(5, 9, partition=1)], [file(7, 9), file(0, 3, "acks")], [file(0, 7)])
    found = export.fold(raws)
    assert found.files == [file(0, 3, "acks"), file(0, 7), file(7, 9), file(5, 9, partition=1)]
    assert found.digest == sha256(raws[3]).hexdigest()
    assert found.of("acks") == [file(0, 3, "acks")]


def test_a_base_replaces_what_was_before_and_needs_none_of_it():
    raws = chain([file(0, 3)], [file(3, 5)], ([file(0, 5)], True), [file(5, 6)])
    assert export.fold(raws).files == [file(0, 5), file(5, 6)]
    del raws[1], raws[2]
    assert export.fold(raws).files == [file(0, 5), file(5, 6)]


def test_only_the_newest_states_of_a_partition_count():
    other = file(0, 4, "deliveries", partition=1)
    raws = chain([file(0, 5, "deliveries"), other], [file(0, 9, "deliveries")])
    assert export.fold(raws).files == [file(0, 9, "deliveries"), other]


@pytest.mark.parametrize("gone", [1, 2])
def test_a_missing_manifest(gone):
    raws = chain([file(0, 1)], [file(1, 2)], [file(2, 3)])
    del raws[gone]
    with pytest.raises(TornExport, match=f"manifests/000000000{gone}.json is missing"):
        export.fold(raws)


def test_a_changed_manifest():
    raws = chain([file(0, 1)], [file(1, 2)])
    raws[1] += b"\n"
    with pytest.raises(TornExport, match=r"0000000001.json was changed after"):
        export.fold(raws)


def test_a_manifest_under_another_number():
    with pytest.raises(TornExport, match="says that it is number 1"):
        export.fold({2: chain([file(0, 1)])[1]})


def test_manifests_of_two_clusters():
    raws = chain([file(0, 1)])
    previous = sha256(raws[1]).hexdigest()
    raws[2] = export.encode(Manifest(1, "cd" * 16, 2, previous, 5, "parquet", files=[file(1, 2)]))
    with pytest.raises(TornExport, match="of another cluster"):
        export.fold(raws)


@pytest.mark.parametrize("data_set", ["messages", "acks"])
def test_two_files_with_the_same_offsets(data_set):
    with pytest.raises(TornExport, match=r"overlap: \[4, 5\) is in both"):
        export.fold(chain([file(0, 5, data_set)], [file(4, 9, data_set)]))


def test_the_same_offsets_of_two_partitions_are_no_overlap():
    assert len(export.fold(chain([file(0, 5)], [file(0, 5, partition=1)])).files) == 2


def test_a_file_that_is_not_as_it_was_written():
    one = file(0, 5)
    export.check_file(one, 1_000)
    export.check_file(one, 1_000, one.sha256)
    for found, says in [
        ((None,), "is missing"),
        ((999,), "999 bytes, 1000 expected"),
        ((1_000, "00"), "another SHA-256"),
    ]:
        with pytest.raises(TornExport, match=says):
            export.check_file(one, *found)


def test_a_gap_is_told_to_who_reads_across_it():
    gap = Gap("orders", 40, 0, 10, 20)
    found = export.fold({1: export.encode(Manifest(1, "ab", 1, "", 5, "parquet", gaps=[gap]))})
    export.check_loss(found, 40, 0, 0, 10)
    export.check_loss(found, 40, 0, 20, 30)
    export.check_loss(found, 40, 1, 0, 30)
    with pytest.raises(DataLoss, match="orders/0: records 10 to 14 left by retention"):
        export.check_loss(found, 40, 0, 0, 15)


def test_names():
    assert export.manifest_path(7) == "manifests/0000000007.json"
    assert [export.sequence_of(name) for name in ("0000000007.json", ".0000000007.json", "7.json", "x")] == [
        7,
        None,
        None,
        None,
    ]
    assert file(0, 65_536).path.startswith("messages/orders/40-0-00000000000000000000-00000000000000065536-")
