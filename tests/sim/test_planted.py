"""Each planted bug is found by the check that it names: at a seed where the newest hunt saw it, or else
after a random seed, which is printed.
"""

import pytest

from sim.hunt import SEEDS_MAX, fresh_seed, hunt, seen_before
from sim.planted import PLANTED

SEEDS = 3 * SEEDS_MAX  #: in one try of ten, a third of these may miss a bug


@pytest.mark.parametrize("name", PLANTED)
def test_what_a_planted_bug_breaks_is_there(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name].plant(patch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_rule_is_seen(name: str) -> None:
    for known in seen_before(name):
        if hunt(name, known, 1)[0]:
            print(f"{name}: {PLANTED[name].trips} at seed {known}, as before")
            return
    first = fresh_seed()
    took, labels = hunt(name, first, SEEDS)
    print(f"{name}: {PLANTED[name].trips} after {took} seeds from {first}")
    assert took, f"no {PLANTED[name].trips} for {name} in {SEEDS} seeds from {first}; seen: {dict(labels)}"
