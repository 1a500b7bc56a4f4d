"""A part of `make fuzz`, the vectors it has found before, and the numbers in the documents."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.fuzzing import SURFACES, VECTORS, counts, life

HOUSE = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("surface", SURFACES)
def test_mutated_conversations_end_nothing(surface: str, seed: int) -> None:
    life(surface, seed)


def test_what_was_found_stays_mended() -> None:
    for path in sorted(VECTORS.glob("*.json")):
        said = json.loads(path.read_text())
        life(said["surface"], said["seed"], said["inputs"])


def test_the_documents_say_how_many_inputs_there_were() -> None:
    text = (HOUSE / "docs" / "internals" / "attacks.md").read_text()
    by_commit = counts()
    assert f"{sum(sum(fed.values()) for fed in by_commit.values()):,} inputs" in text
    commit, fed = list(by_commit.items())[-1]
    assert f"{sum(fed.values()):,} of them to commit {commit}" in text
    for surface, count in fed.items():
        assert f"{count:,} {surface}" in text
