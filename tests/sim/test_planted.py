"""Each rule that is broken on purpose is seen by the check that it names. The first seed is random, and
printed."""

import pytest

from sim.clients import SHARDED
from sim.hunt import SEEDS_MAX, fresh_seed, hunt
from sim.planted import PLANTED

SEEDS = 3 * SEEDS_MAX  #: one try in ten may miss a bug in a third of these
#: those that need three shards take longer
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if planted.kinds == SHARDED else name
    for name, planted in PLANTED.items()
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_broken_rule_is_seen(name: str) -> None:
    first = fresh_seed()
    took, labels = hunt(name, first, SEEDS)
    print(f"{name}: {PLANTED[name].trips} after {took} seeds from {first}")
    assert took, f"no {PLANTED[name].trips} for {name} in {SEEDS} seeds from {first}; seen: {dict(labels)}"
