"""Which rows of a write are the same rows: over repeated batches, equal saves, topics made anew, and tasks
that ran again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")

from pyspark.sql import functions as F

from conftest import RunningNode
from gossipq.errors import BadRequest
from gossipq_client import Client
from pyspark_gossipq import identities, writer
from pyspark_gossipq.identities import BATCH, QUERY, ROOT, Commits, Write
from spark.queries import run_out
from spark.topics import values

PATIENCE_S = 240


def save(frame: Any, node: RunningNode, topic: str, **options: str) -> None:
    frame.write.format("gossipq").mode("append").options(servers=node.endpoint, topic=topic, **options).save()


class Query:
    """A query that takes the available rows. It may have to repeat batches, as after a
    crash before Spark noted them.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def run(self, writer: Any) -> None:
        made = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        run_out(made.start, PATIENCE_S)

    def forget_commits(self) -> None:
        notes = [
            note
            for note in (self.checkpoint / "commits").iterdir()
            if note.name.isdigit() or note.suffix == ".crc"
        ]
        assert notes, "Spark keeps its notes elsewhere"
        for note in notes:
            note.unlink()


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint")


def lines(spark: Any, folder: Path, count: int) -> Any:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "rows.txt").write_text("".join(f"{at % 10}\n" for at in range(count)))
    return spark.readStream.text(str(folder / "in"))


def live(spark: Any, node: RunningNode, topic: str) -> Any:
    options = {"servers": node.endpoint, "topics": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("gossipq").options(**options).load()


@pytest.mark.slow
@pytest.mark.e2e
def test_equal_saves_of_a_batch_are_two_writes_and_a_batch_done_again_is_none(
    spark: Any, shared_node: RunningNode, mq: Client, topic: str, query: Query, tmp_path: Path
) -> None:
    def detail_twice_and_a_summary(frame: Any, _: int) -> None:
        save(frame, shared_node, topic)
        save(frame, shared_node, topic)
        save(frame.groupBy().agg(F.count(F.lit(1)).cast("string").alias("value")), shared_node, topic)

    expected = Counter({b"%d" % at: 8 for at in range(10)}) + Counter({b"40": 1})
    for _ in range(2):
        query.run(lines(spark, tmp_path, 40).writeStream.foreachBatch(detail_twice_and_a_summary))
        assert values(mq, topic) == expected
        query.forget_commits()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("by", ["stream", "foreachBatch"])
def test_a_batch_of_topic_rows_that_is_done_again_is_none(
    spark: Any, shared_node: RunningNode, mq: Client, topic: str, query: Query, by: str
) -> None:
    mq.publish_many(topic, [b"same"] * 100, partition=0, timeout=30)
    mq.publish_many(topic, [b"%d" % at for at in range(100)], partition=1, timeout=30)
    mq.create_topic(target := f"{topic}.copies")
    for _ in range(2):
        writer = live(spark, shared_node, topic).writeStream
        if by == "stream":
            query.run(writer.format("gossipq").options(servers=shared_node.endpoint, topic=target))
        else:
            query.run(writer.foreachBatch(lambda frame, _: save(frame, shared_node, target)))
        assert sum(values(mq, target).values()) == 200
        query.forget_commits()


@pytest.mark.e2e
@pytest.mark.parametrize("kafka", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_topic_made_anew_has_records_of_its_own(
    spark: Any, shared_node: RunningNode, mq: Client, topic: str, tmp_path: Path, kafka: str
) -> None:
    """Offsets begin at 0 again, and the values may be the same ones."""
    from gossipq_cli.main import main

    mq.create_topic(target := f"{topic}.copies")
    for _ in range(2):
        mq.publish_many(topic, [b"same"] * 5, partition=0, timeout=30)
        assert main(["-s", shared_node.endpoint, "-q", "export", topic, "--out", str(tmp_path / "lake")]) == 0
        mq.topic(topic).delete()
        mq.create_topic(topic, partitions=2)
    rows = spark.read.format("gossipq").options(topics=topic, kafkaSchema=kafka).load(str(tmp_path / "lake"))
    assert rows.count() == 10
    for _ in range(2):
        save(rows, shared_node, target, writeId="again")
    assert values(mq, target) == {b"same": 10}


# --- the rules, without Spark

PLAIN = writer.Target(
    ("x",), "t", "made-up", named=False, replay=False, per_second=0.0, streams=False, commits={}
)
BATCH_7 = {QUERY: "q", BATCH: "7", ROOT: "30"}


def ids(write: Write, partition: int, rows: dict[str, list[Any]]) -> list[bytes]:
    task = writer.Task(None, PLAIN, write, partition)  # type: ignore[arg-type]
    return task.ids(rows, len(rows["value"]))


def named(target: writer.Target = PLAIN, **properties: str) -> Write:
    return target.write_of({**BATCH_7, **properties}.get)


def test_the_same_rows_in_another_order_have_the_same_ids_each_its_own() -> None:
    made = [sorted(ids(named(), 0, {"value": rows})) for rows in (["a", "b", "a"], ["b", "a", "a"])]
    assert made[0] == made[1]
    assert len(set(made[0])) == 3
    assert set(ids(named(), 1, {"value": ["a"]})).isdisjoint(made[0]), "equal rows of two tasks are two"


def test_what_makes_another_write() -> None:
    again = writer.Target(**{**vars(PLAIN), "commits": {"q": Commits("30", "7", 1)}})
    monday = writer.Target(**{**vars(PLAIN), "write_id": "monday", "named": True})
    stream = writer.Target(**{**vars(PLAIN), "streams": True})
    names = [
        named().name,
        named(again).name,
        named(PLAIN, **{BATCH: "8"}).name,
        named(PLAIN, **{QUERY: "p"}).name,
        named(monday).name,
        named(stream).name,
        PLAIN.write_of({}.get).name,
        monday.write_of({}.get).name,
    ]
    assert len(set(names)) == len(names)
    assert named(again, **{ROOT: "31"}).name == named().name, "the batch begins anew"
    other_process = writer.Target(**{**vars(PLAIN), "write_id": "made up elsewhere"})
    assert named(other_process) == named()


def test_an_empty_id_of_a_row_is_none() -> None:
    made = ids(named(), 0, {"value": ["a", "b", "c", "d"], "id": ["", b"", None, "own"]})
    assert b"" not in made
    assert made[3] == b"own"
    assert len(set(made)) == 4


PLACES = {"topic": ["t", "t"], "topic_id": [4, 5], "partition": [0, 0], "offset": [3, 3]}


def test_rows_of_a_topic_are_named_by_their_place_whichever_task_has_them() -> None:
    rows = {**PLACES, "value": ["a", "a"]}
    first, second = ids(named(), 0, rows)
    assert first != second, "a topic made anew has another id"
    assert ids(named(), 1, rows) == [first, second]
    torn = {**PLACES, "topic_id": [4, 4], "value": ["a", "a"]}
    assert len(set(ids(named(), 0, torn))) == 2, "a record that was made two rows is two"
    assert len(set(ids(named(), 0, {**torn, "value": ["a", "b"]}))) == 2
    nameless = {name: column for name, column in rows.items() if name != "topic_id"}
    assert len({*ids(named(), 0, nameless), *ids(named(), 1, nameless)}) == 4, (
        "nobody knows which topic that was"
    )


def test_saves_of_a_batch_are_counted_when_they_are_done(tmp_path: Path) -> None:
    batch = identities.Batch("q", "7", "30")
    assert identities.commits(tmp_path) == {}
    identities.commit(tmp_path, batch, 0)
    assert identities.commits(tmp_path) == {"q": Commits("30", "7", 1)}
    identities.commit(tmp_path, batch, 1)
    identities.commit(tmp_path, identities.Batch("p", "0", "31"), 0)
    assert identities.commits(tmp_path) == {"q": Commits("30", "7", 2), "p": Commits("31", "0", 1)}
    identities.commit(tmp_path, identities.Batch("q", "8", "32"), 0)
    assert identities.commits(tmp_path)["q"] == Commits("32", "8", 1)


def test_two_saves_at_a_time_in_one_batch_need_names(tmp_path: Path) -> None:
    """They would look the same when the batch is repeated."""
    batch = identities.Batch("q", "7", "30")
    identities.commit(tmp_path, batch, 0)
    with pytest.raises(BadRequest, match="two saves of batch 7 ran at the same time") as caught:
        identities.commit(tmp_path, batch, 0)
    assert "writeId" in caught.value.hint


@pytest.mark.e2e
@pytest.mark.slow
def test_saves_at_a_time_are_refused_in_a_real_batch(
    spark: Any, shared_node: RunningNode, topic: str, query: Query, tmp_path: Path
) -> None:
    from threading import Barrier

    from pyspark import InheritableThread

    failed: list[BaseException] = []
    both = Barrier(2)
    at_work = tmp_path / "at work"
    at_work.mkdir()
    folder = str(at_work)

    def attempt(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    @F.udf("string", useArrow=False)
    def slowly(value):
        """Each save is at work until both of them are: two processes."""
        import os
        import time
        from pathlib import Path

        Path(folder, str(os.getpid())).touch()
        end = time.monotonic() + 60
        while len(os.listdir(folder)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        return value

    def at_once(frame: Any, _: int) -> None:
        def work() -> None:
            frame.sparkSession.createDataFrame(
                [], "a int"
            )  # makes it the session of this thread, where Spark looks for sources
            both.wait(PATIENCE_S)
            save(frame.coalesce(1).select(slowly("value").alias("value")), shared_node, topic)

        threads = [InheritableThread(target=attempt, args=(work,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    query.run(lines(spark, tmp_path, 2).writeStream.foreachBatch(at_once))
    assert len(failed) == 1, [str(error)[:3000] for error in failed]
    assert "two saves of batch 0 ran at the same time" in str(failed[0])
