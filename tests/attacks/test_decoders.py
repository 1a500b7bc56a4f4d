"""Each decoder takes its seeds, the inputs that it once could not take, and mutations of them."""

import json
from pathlib import Path
from random import Random

import pytest

from attacks import guided
from attacks.decoders import DECODERS
from attacks.fuzzing import mutated

HOUSE = Path(__file__).resolve().parents[2]
MUTATIONS = 60
NESTED = b"[" * 5_000 + b"]" * 5_000


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_refuses_only_as_its_callers_expect(name: str) -> None:
    decoder, random = DECODERS[name], Random(f"decoder {name}")
    seeds = [*decoder.seeds(), *guided.vectors(name)]
    for seed in seeds:
        decoder.feed(seed)
    for _ in range(MUTATIONS):
        decoder.feed(mutated(random, random.choice(seeds), random.choice(seeds)))


@pytest.mark.parametrize("name", ["frame", "batch", "plain", "schema", "manifest", "form", "moonmq"])
def test_some_seed_is_accepted(name: str) -> None:
    """A decoder that refuses all seeds would hide its deeper branches from the fuzzer."""
    assert any(DECODERS[name].feed(seed) for seed in DECODERS[name].seeds())


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    for name in ("schema", "manifest", "http-body", "sqs-body", "kapokmq-frame", "queue-server", "xxl-mq"):
        for raw in (NESTED, b'{"version": 1, "x": ' + NESTED + b"}"):
            DECODERS[name].feed(raw)
    for attribute in ("RedrivePolicy", "RedriveAllowPolicy"):
        policy = json.dumps({"x": 0}).replace("0", NESTED.decode())
        DECODERS["sqs-body"].feed(json.dumps({"Attributes": {attribute: policy}}).encode())


def test_the_documents_say_how_many_inputs_the_guided_fuzzer_made() -> None:
    text = (HOUSE / "docs" / "internals" / "attacks.md").read_text("utf-8").replace("\n", " ")
    total = sum(sum(fed.values()) for fed in guided.counts().values())
    assert f"{total:,} inputs by coverage" in text
