"""Tasks of Django on a broker in this process, under Django 6 or under Django 5 with its backport."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from gossipq_client import testing
from waiting import until

pytest.importorskip("django")

SITE = "integrations.shop_site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.Broker]:
    """The site is set up once in this process: Django knows no other way."""
    with pytest.MonkeyPatch.context() as patch, testing.Broker() as broker:
        patch.setenv("DJANGO_SETTINGS_MODULE", f"{SITE}.settings")
        patch.setenv("GOSSIPQ_SERVER", broker.endpoint)
        patch.setenv("SHOP_DATABASE", str(tmp_path_factory.mktemp("shop") / "shop.db"))
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        yield broker
        from gossipq_django.versions import task_backends

        for alias in ("default", "patient", "outbox"):
            task_backends[alias].close()
        connections.close_all()


@pytest.fixture
def tasks(site: testing.Broker) -> Any:
    from integrations.shop_site import tasks

    tasks.DONE.clear()
    tasks.GO_ON.clear()
    return tasks


@pytest.fixture
def work(site: testing.Broker) -> Callable[..., None]:
    """Run what waits, in this thread."""

    def work(backend: str = "default") -> None:
        from gossipq_django.versions import task_backends
        from gossipq_django.worker import Worker

        found = task_backends[backend]
        Worker(found, sorted(found.queues)).run(until_empty=True, signals=False)

    return work


def test_a_task_has_a_result(tasks: Any, work: Callable[..., None]) -> None:
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs) == ("READY", [1], {"b": 2})
    assert len(result.id) <= 64
    result.refresh()
    assert (result.status, result.attempts, result.enqueued_at is not None) == ("READY", 0, True)
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    again = tasks.add.get_result(result.id)
    assert (again.args, again.kwargs, again.return_value) == ([1], {"b": 2}, 3)


def test_a_coroutine_is_a_task(tasks: Any, work: Callable[..., None]) -> None:
    async def enqueue() -> Any:
        return await tasks.send.aenqueue("ada")

    result = asyncio.run(enqueue())
    work()
    assert asyncio.run(tasks.send.aget_result(result.id)).return_value == {"to": "ada"}


@pytest.mark.parametrize(
    ("name", "arguments", "path", "text"),
    [
        ("fail", ["no such order\nat all"], "builtins.LookupError", "at all"),
        ("not_json", [], "builtins.TypeError", "Unsupported type"),
    ],
)
def test_a_task_that_raises_has_failed(
    tasks: Any, work: Callable[..., None], name: str, arguments: list[Any], path: str, text: str
) -> None:
    result = getattr(tasks, name).enqueue(*arguments)
    work()
    result.refresh()
    (error,) = result.errors
    assert (result.status, result.is_finished) == ("FAILED", True)
    assert error.exception_class_path == path
    assert error.exception_class.__name__ == path.rpartition(".")[2]
    assert "Traceback" in error.traceback
    assert text in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_task_runs_again_until_it_has_failed_too_often(
    tasks: Any, work: Callable[..., None], site: testing.Broker
) -> None:
    result = tasks.fail_once.enqueue()
    work("patient")
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 1)
    site.advance("1h")
    work("patient")
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 2, 2)


def test_run_after(tasks: Any, work: Callable[..., None], site: testing.Broker) -> None:
    from django.utils import timezone

    result = tasks.add.using(run_after=timezone.now() + timedelta(days=2)).enqueue(1, 1)
    work()
    result.refresh()
    assert result.status == "READY"
    site.advance("49h")
    work()
    result.refresh()
    assert result.return_value == 2


def test_a_running_task_is_seen(tasks: Any, site: testing.Broker) -> None:
    from gossipq_django.versions import task_backends
    from gossipq_django.worker import Worker

    result = tasks.wait.enqueue()
    worker = Worker(task_backends["default"], ["default"])
    thread = threading.Thread(target=worker.run, kwargs={"signals": False})
    thread.start()
    try:
        until(lambda: tasks.DONE, what="the task does not run")
        result.refresh()
        assert (result.status, result.attempts) == ("RUNNING", 1)
        assert result.started_at is not None
    finally:
        tasks.GO_ON.set()
        worker.mq.stop()
        thread.join()


def test_a_task_of_the_outbox_goes_with_its_transaction(
    tasks: Any, work: Callable[..., None], site: testing.Broker
) -> None:
    from django.db import transaction

    from gossipq_django import outbox

    with transaction.atomic():
        kept = tasks.pack.enqueue("figs")
    with transaction.atomic():
        dropped = tasks.pack.enqueue("dates")
        transaction.set_rollback(True)
    kept.refresh()
    assert kept.status == "READY"
    with site.connect() as mq:
        outbox.relay(mq).run(until_empty=True)
    work("outbox")
    kept.refresh()
    assert kept.return_value == "figs packed"
    from gossipq_django.versions import TaskResultDoesNotExist

    with pytest.raises(TaskResultDoesNotExist):
        tasks.pack.get_result(dropped.id)


def test_tasks_of_a_higher_priority_come_first(tasks: Any, work: Callable[..., None]) -> None:
    results = [tasks.note.using(priority=priority).enqueue(priority) for priority in (-100, 0, 100, 30, 0)]
    work()
    assert tasks.DONE == [100, 30, 0, 0, -100]
    results[0].refresh()
    assert results[0].status == "SUCCESSFUL"


def test_the_priorities_of_django_keep_their_order() -> None:
    from gossipq_django.backend import priority_of

    found = [priority_of(priority) for priority in range(-100, 101)]
    assert found == sorted(found)
    assert (found[0], found[99], found[100], found[200]) == (0, 4, 5, 9)


@pytest.mark.parametrize("result_id", ["nonsense", "-", "0123-nobody", "0123-default"])
def test_a_result_that_does_not_exist(tasks: Any, result_id: str) -> None:
    from gossipq_django.versions import TaskResultDoesNotExist

    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(result_id)


def test_old_connections_are_closed_around_tasks(tasks: Any, work: Callable[..., None]) -> None:
    results = [tasks.use_database.enqueue() for _ in range(2)]
    work()
    for result in results:
        result.refresh()
        assert result.return_value is True


def test_signals_know_the_task(tasks: Any, work: Callable[..., None]) -> None:
    from gossipq_django.versions import task_enqueued, task_finished, task_started

    heard: list[tuple[str, str]] = []
    receivers = []
    for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):

        def hear(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            heard.append((name, task_result.id))

        receivers.append((signal, hear))
        signal.connect(hear)
    try:
        result = tasks.add.enqueue(1, 1)
        work()
    finally:
        for signal, hear in receivers:
            signal.disconnect(hear)
    assert heard == [("enqueued", result.id), ("started", result.id), ("finished", result.id)]


def test_commands(tasks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import call_command

    result, row = tasks.add.enqueue(20, 22), tasks.pack.enqueue("figs")
    call_command("gossipq_relay", "--server", os.environ["GOSSIPQ_SERVER"], "--until-empty")
    call_command("gossipq_worker", "--until-empty", "--threads", "2")
    call_command("gossipq_worker", "--backend", "outbox", "--until-empty")
    assert "1 published" in capsys.readouterr().out
    result.refresh()
    row.refresh()
    assert (result.return_value, row.return_value) == (42, "figs packed")


def test_checks(site: testing.Broker) -> None:
    from django.core.management import call_command

    from gossipq_django.backend import TasksBackend

    call_command("check", fail_level="WARNING")
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    wrong = TasksBackend("wrong", {"OPTIONS": {"COLOUR": "red", "OUTBOX": "nowhere", "KEEP_RESULT": "soon"}})
    assert [each.msg.partition(": ")[0] for each in wrong.check()] == [
        "TASKS['wrong'] has unknown OPTIONS",
        "TASKS['wrong']",
        "TASKS['wrong']",
    ]
