"""Shared by the tests of exports: reads an export as any reader would, only by its manifests."""

from gossipq.wire import export
from gossipq_node.export import files


def read(folder, data_set):
    """All rows of a data set as dicts, every file checked."""
    found = export.fold({number: folder.manifest(number) for number in folder.sequences()})
    rows = []
    for file in found.of(data_set):
        before = len(rows)
        for batch in files.read(found.newest.format, folder.check(file), data_set):
            rows += batch.to_pylist()
        assert len(rows) - before == file.rows, file
        if data_set == "messages":
            offsets = [row["offset"] for row in rows[before:]]
            assert offsets == sorted(set(offsets))
            assert all(file.start <= offset < file.end for offset in offsets), file
    return rows


def values(folder, topic=None):
    """(topic, partition, offset) -> value; no record twice."""
    rows = [row for row in read(folder, "messages") if topic in (None, row["topic"])]
    found = {(row["topic"], row["partition"], row["offset"]): row["value"] for row in rows}
    assert len(found) == len(rows), "a record is there twice"
    return found


def states(folder, topic, group="g"):
    """(partition, offset) -> state of each record of a group."""
    found = {}
    for row in read(folder, "deliveries"):
        if (row["topic"], row["group_name"]) == (topic, group):
            for offset in range(row["start_offset"], row["end_offset"]):
                assert (row["partition"], offset) not in found, "a record stands in one place"
                found[row["partition"], offset] = row["state"]
    return found
