"""Exports in an object store: written, followed, merged and read, one exporter at a time, over a real S3
protocol."""

import logging
import uuid

import pytest

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'gossipq[lake]'")
pytest.importorskip("moto", reason="moto is not installed")

import boto3
from moto.server import ThreadedMotoServer

from export.reading import read, values
from export.test_follower import Clock, publish
from gossipq.errors import ExportError, TornExport
from gossipq.wire import export
from gossipq_client import lake
from gossipq_node import bucket as buckets
from gossipq_node.export.compaction import compact
from gossipq_node.export.exporter import Exporter
from gossipq_node.export.follower import Follower
from gossipq_node.export.objects import folder_at


@pytest.fixture(scope="module")
def server():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    yield "http://{}:{}".format(*made.get_host_and_port())
    made.stop()


@pytest.fixture
def place(server, monkeypatch):
    """A URI of an empty bucket; the environment says how to get there."""
    for name, value in (
        ("ACCESS_KEY_ID", "k"),
        ("SECRET_ACCESS_KEY", "s"),
        ("REGION", "us-east-1"),
        ("ENDPOINT_URL", server),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=server).create_bucket(Bucket=bucket)
    return f"s3://{bucket}/lake"


def keys(server, place):
    bucket = place.split("/")[2]
    found = boto3.client("s3", endpoint_url=server).list_objects_v2(Bucket=bucket).get("Contents", [])
    return {each["Key"].removeprefix("lake/") for each in found}


@pytest.mark.parametrize("form", ["parquet", "lmdb"])
def test_written_merged_and_read(mq, server, place, form):
    with folder_at(place) as folder:
        for number in range(4):
            publish(mq, "t", 10, number * 10)
            Exporter(mq, folder, format=form).run()
        assert len(values(folder)) == 40
        assert compact(folder) == 3
        assert len(values(folder)) == 40
    with folder_at(place, make=False) as folder:
        publish(mq, "t", 5, 40)
        assert Exporter(mq, folder).run().records == 5
        assert [row["offset"] for row in read(folder, "messages")] == [*range(45)]
    if form == "parquet":
        assert lake.open(place).table("t").num_rows == 45


def test_the_name_that_spark_has_for_a_store_is_the_same_place(mq, server, place):
    publish(mq, "t", 10)
    with folder_at(place.replace("s3://", "s3a://")) as folder:
        Exporter(mq, folder).run()
    assert lake.open(place).table("t").num_rows == 10
    assert any(key.startswith("manifests/") for key in keys(server, place))


def test_names_are_the_same_to_writers_and_readers(mq, server, place):
    publish(mq, "t", 10)
    for name in ("a b", "ü"):
        with folder_at(f"{place}/{name}") as folder:
            Exporter(mq, folder).run()
        assert lake.open(f"{place}/{name}").table("t").num_rows == 10
        assert any(key.startswith(f"{name}/manifests/") for key in keys(server, place))
    for name in ("a#b", "a?b"):
        with pytest.raises(ExportError, match="invalid bucket URI"):
            folder_at(f"{place}/{name}")
    with pytest.raises(ExportError, match="cannot be used"):
        lake.open("nowhere://bucket/lake")


def test_a_follower_removes_what_was_replaced_and_is_old(mq, server, place, monkeypatch):
    monkeypatch.setattr(buckets, "UNNAMED_S", -60.0)
    clock = Clock()
    with folder_at(place) as folder:
        follower = Follower(Exporter(mq, folder), folder, clock, roll_s=0.0, keep_s=0.0)
        for number in range(10):
            publish(mq, "t", 10, number * 10)
            follower.look()
            clock.now += 720
        assert len(values(folder)) == 100
        found = folder.read()
    named = {file.path for file in found.files}
    assert {key for key in keys(server, place) if not key.startswith("manifests/")} == named
    assert len(named) < 10


def test_what_another_exporter_may_name_is_left(mq, server, place):
    with folder_at(place) as one:
        publish(mq, "t", 10)
        Exporter(mq, one).run()
        written = one.new()
        written.write_bytes(b"x")
        name = export.file_path("messages", "t", 9, 0, 10, 20, "0" * 64, "parquet")
        one.keep(written, name)
        with folder_at(place) as other:
            other.forget(0.0)
        assert name in keys(server, place)


def test_one_of_two_exporters_goes_on(mq, place):
    publish(mq, "t", 10)
    with folder_at(place) as one, folder_at(place) as other:
        first, second = Exporter(mq, one), Exporter(mq, other)
        first.run()
        with pytest.raises(TornExport, match=r"manifests/0000000001.json already exists"):
            second.run()
        assert len(values(one)) == 10
        publish(mq, "t", 10, 10)
        assert first.run().records == 10
        assert len(values(other)) == 20


def test_a_manifest_whose_confirm_was_lost_is_ours(mq, place, monkeypatch):
    publish(mq, "t", 10)
    with folder_at(place) as folder:
        put = folder.bucket.obstore.put

        def twice(store, name, content, **options):
            put(store, name, content, **options)
            if options:
                put(store, name, content, **options)

        monkeypatch.setattr(folder.bucket.obstore, "put", twice)
        assert Exporter(mq, folder).run().manifests == 1


def test_torn_files_and_stores_that_are_not_there(mq, server, place, monkeypatch):
    with folder_at(place) as folder:
        publish(mq, "t", 10)
        Exporter(mq, folder).run()
        (file,) = folder.read().files
        bucket = place.split("/")[2]
        client = boto3.client("s3", endpoint_url=server)
        client.put_object(Bucket=bucket, Key=f"lake/{file.path}", Body=b"torn")
        with pytest.raises(TornExport, match="is not as it was written"):
            folder.check(file)
        client.delete_object(Bucket=bucket, Key=f"lake/{file.path}")
        with pytest.raises(TornExport, match="is missing"):
            folder.check(file)
    with pytest.raises(ExportError, match="has no export"):
        folder_at(f"s3://{bucket}/nothing", make=False)
    with pytest.raises(ExportError, match="cannot be used"):
        folder_at("s3://no-such-bucket-here/lake")
    with pytest.raises(ExportError, match="nothing is known of ftp://"):
        folder_at("ftp://x/y")
