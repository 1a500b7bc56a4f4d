"""`gossipq job`: each verb against a real node."""

import json

import pytest

from gossipq_client import connect

pytestmark = pytest.mark.e2e


def test_a_job_that_nobody_runs(ask, topic: str) -> None:
    assert ask("pub", topic, "job", "--keep-result", "1h").code == 0
    shown = ask("job", "show", f"{topic}/0/0").out
    assert "waiting" in shown
    ran = ask("job", "wait", f"{topic}/0/0", "--for", "100ms", "-o", "json")
    assert (ran.code, json.loads(ran.out)["state"]) == (75, "waiting")
    assert ask("msg", "cancel", f"{topic}/0/0", "--yes").code == 0
    assert ask("job", "wait", f"{topic}/0/0").code == 1
    assert ask("job", "show", f"{topic}/0/9").code == 4


def test_the_result_of_a_job(ask, topic: str, shared_node) -> None:
    with connect(shared_node.endpoint) as mq:
        receipt = mq.publish(topic, b"job", keep_result="1h")
        (msg,) = mq.fetch(topic, "workers", n=1, wait=30)
        msg.ack(result={"width": 320})
    assert ask("job", "wait", receipt.ref).out == '{"width":320}\n'
    row = json.loads(ask("job", "show", receipt.ref, "-o", "json").out)
    assert (row["state"], row["group"], row["result"]) == ("succeeded", "workers", '{"width":320}')
    assert "succeeded" in ask("job", "show", receipt.ref).out


def test_errors_are_counted_by_what_they_have_in_common(ask, topic: str, shared_node) -> None:
    texts = ["no user 17", "no user 18 for 'ada'", "disk full", "no user 19", "disk full", "no user 20"]
    with connect(shared_node.endpoint) as mq:
        mq.publish_many(topic, texts)
        for text in texts:
            (msg,) = mq.fetch(topic, "workers", n=1, wait=30)
            msg.reject(text)
            mq.flush(None)
    group = f"{topic}/workers"
    rows = json.loads(ask("job", "errors", group, "-o", "json").out)
    assert [(row["letters"], row["error"]) for row in rows] == [
        (3, "no user 20"),
        (2, "disk full"),
        (1, "no user 18 for 'ada'"),
    ]
    assert rows[0]["first_ms"] <= rows[0]["last_ms"]
    assert (rows[0]["ref"], rows[0]["ranges"]) == (f"{topic}/0/5", ["0/0-0", "0/3-3", "0/5-5"])
    name = rows[0]["name"]
    dry = ask("job", "errors", group, "--replay", name, "--dry-run")
    assert dry.out == "3 jobs would be ready for workers again\n"
    assert ask("job", "errors", group, "--replay", name).out == "3 jobs ready for workers again\n"
    left = json.loads(ask("job", "errors", group, "-o", "json").out)
    assert [row["letters"] for row in left] == [2, 1]
    assert ask("job", "errors", group, "--replay", "nothing").code == 2
    assert ask("job", "errors", topic).code == 2


def test_a_running_job_is_cancelled(ask, topic: str, shared_node) -> None:
    with connect(shared_node.endpoint) as mq:
        ref = mq.publish(topic, b"job").ref
        assert len(mq.fetch(topic, "workers", n=1, wait=30)) == 1
        assert ask("msg", "cancel", ref, "--yes").code != 0
        assert ask("job", "cancel", ref, "--reason", "too slow", "--yes").out == f"cancelled {ref}\n"
        row = json.loads(ask("job", "show", ref, "-o", "json").out)
        assert (row["state"], "too slow" in row["because"]) == ("cancelled", True)
        assert ask("job", "cancel", ref, "--yes").code != 0


def test_jobs_are_joined(ask, topic: str, shared_node) -> None:
    with connect(shared_node.endpoint) as mq:
        jobs = [mq.publish(topic, b"job").ref for _ in range(2)]
        row = json.loads(ask("job", "join", topic, "all done", *jobs, "--when", "1", "-o", "json").out)
        assert "waits for jobs: 0 of 1" in ask("job", "show", row["ref"]).out
        (msg,) = mq.fetch(topic, "workers", n=1, wait=30)
        msg.ack()
        followed = next(each for each in mq.consume(topic, "workers") if each.value == b"all done")
        assert [job.state for job in followed.joined] == ["succeeded", "open"]
        assert mq.job(row["ref"]).ref == followed.ref
    assert ask("job", "join", topic, "all done", f"{topic}/0/0", "--when", "some").code == 2
