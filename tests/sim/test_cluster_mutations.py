"""A simulator that cannot find a broken law proves nothing: each of these must be caught within a hundred seeds."""

from __future__ import annotations

import pytest

from clutch.testing.sim.mutations import MUTATIONS
from clutch.testing.sim.run import run

SEEDS_MAX = 100
CAUGHT_BEFORE = {"believes any writer": 65, "forgets machines that stop": 25, "blames victims": 19}
"""Where the first seed that catches it is a late one, it is tried first."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_law_is_caught(name: str) -> None:
    for seed in (CAUGHT_BEFORE.get(name, 0), *range(SEEDS_MAX)):
        outcome = run(seed, kit=MUTATIONS[name])
        if outcome.broken:
            assert not run(seed).broken, "the seed breaks a promise without the mutation too"
            return
    pytest.fail(f"a cluster that {name} was not caught in {SEEDS_MAX} seeds")
