"""The node inside this process: how its threads begin."""

import threading

import pytest

from gossipq_node import inline


def test_a_thread_that_begins_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "START_S", 5.0)
    waited = threading.Event()

    def serve(turning: inline.Turning) -> None:
        waited.wait()
        turning.ready = lambda: True
        while turning.running():
            pass

    turning = inline.Turning("late", serve)
    threading.Timer(0.05, waited.set).start()
    try:
        turning.await_ready()
    finally:
        turning.stop()
