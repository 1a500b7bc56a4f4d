"""Each rule that is broken on purpose is seen by the check that it names. The first seed is random, and
printed."""

import pytest

from sim.hunt import SEEDS_MAX, fresh_seed, hunt
from sim.planted import PLANTED


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_rule_is_seen(name: str) -> None:
    first = fresh_seed()
    took, labels = hunt(name, first)
    print(f"{name}: {PLANTED[name].trips} after {took} seeds from {first}")
    assert took, (
        f"no {PLANTED[name].trips} for {name} in {SEEDS_MAX} seeds from {first}; seen: {dict(labels)}"
    )
