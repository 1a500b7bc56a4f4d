"""The storage for huey in the examples, by the tests for storages that huey ships."""

import itertools
import runpy
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import HOME, RunningNode

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = HOME / "clients" / "python" / "examples" / "huey_storage.py"


def test_huey_finds_what_it_expects_of_a_storage(
    shared_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUEY_SLOW_TESTS", "1")
    for name in [name for name in sys.modules if name.startswith("huey.tests")]:
        monkeypatch.delitem(sys.modules, name)
    huey = pytest.importorskip("huey")
    # the package imports all of its tests, and one sets up Django, which another test may have done
    tests = ModuleType("huey.tests")
    tests.__path__ = [str(Path(huey.__file__).parent / "tests")]
    monkeypatch.setitem(sys.modules, "huey.tests", tests)
    from huey.api import Huey
    from huey.tests.base import BaseTestCase
    from huey.tests.test_storage import StorageTests

    storage, names = runpy.run_path(str(EXAMPLE))["GossipqStorage"], itertools.count()

    class Stored(StorageTests, BaseTestCase):  # type: ignore[misc]
        def get_huey(self) -> Any:
            return Huey(
                f"huey-{next(names)}",
                storage_class=storage,
                server=shared_node.endpoint,
                utc=False,
                wait_s=0.2,
            )

        def tearDown(self) -> None:
            super().tearDown()
            self.huey.storage.close()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Stored).run(result)
    assert [text for _, text in (*result.errors, *result.failures)] == []
    assert (result.testsRun, result.skipped) == (10, [])
