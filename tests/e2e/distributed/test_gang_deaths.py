"""Gangs over several nodes whose ranks, shims, supervisors and networks die at random moments.

Each time the whole gang ends within seconds, the reason names who it was, and it goes on from its last checkpoint. In
the end its losses are those of a gang to which nothing happened, to the last bit, in every step.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from gang_ground import Death, Gangs, kill, kill_early, named

from clutch.testing import namespaces
from clutch.testing.bars import within

cuts_cables = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)

END_WITHIN_S = within(5.0)
STEPS, STEPS_A_LIFE, EVERY = 15, 15, 4
KINDS = ("rank", "node", "shim", "supervisor")
RESTART_S = 90.0


def disturbed(ground: Gangs, kinds: list[str], seed: int, *, shard: bool) -> list[Death]:
    """A gang that dies so often, beside what an undisturbed one computes. What was planned has happened."""
    chance = random.Random(seed)
    steps = STEPS + STEPS_A_LIFE * len(kinds)
    hparams = {"steps": steps, "every": EVERY, "pace_s": 0.02, "shard": shard}
    calm = ground.start(hparams, seed=seed)
    calm.ended()
    expected = calm.losses()
    assert [step for step, _ in expected] == [*range(1, steps + 1), -1]
    gate = ground.folder / f"gate{seed}"
    counted = len(kinds) - kinds.count("shim") - kinds.count("node")
    gang = ground.start({**hparams, "gate": str(gate)}, seed=seed, max_restarts=counted)
    deaths, epoch, began_at = [], 1, 0
    for kind in kinds:
        ranks = gang.begun(epoch)
        assert len({one.step for one in ranks}) == 1 and ranks[0].step >= began_at, "all from the same checkpoint"
        began_at = ranks[0].step
        death = kill(gang, epoch, kind, chance)
        deaths.append(death)
        print(f"{kind}: rank {death.victim.rank} on {death.victim.node} from step {began_at}: ranks gone "
              f"{death.processes_s:.2f} s, known {death.known_s:.2f} s: {death.detail[:160]}")  # fmt: skip
        assert named(death, ranks), f"{kind} {death.victim}: {death.detail}\n{gang.story()}"
        epoch = gang.next_epoch(epoch, RESTART_S)
    gate.touch()
    gang.ended(within_s=RESTART_S)
    found = gang.losses()
    missing = sorted({step for step, _ in expected} - {step for step, _ in found})
    print(f"seed {seed}: {len(found)} of {len(expected)} losses; missing {missing}")
    assert found == [one for one in expected if one[0] not in missing], "each at most once, the same to the last bit"
    assert -1 not in missing and steps not in missing
    # What was reported before a checkpoint outlives its rank; only a cut may come between the two on their way
    assert len(missing) <= EVERY * kinds.count("node"), missing
    print(f"{len(kinds)} deaths, {gang.trial.restarts} of them counted as the program's")
    assert gang.trial.restarts == counted, f"a machine's fault is free, a program's is not\n{gang.story()}"
    assert Counter(death.kind for death in deaths) == Counter(kinds)
    worst = max(max(death.processes_s, death.known_s) for death in deaths)
    assert worst < END_WITHIN_S, f"{worst:.2f} s from a death to the end of all"
    return deaths


@cuts_cables
@pytest.mark.timeout(120)
def test_a_gang_that_dies_twice_computes_the_same(tmp_path: Path) -> None:
    with Gangs(tmp_path, 2, 2) as ground:
        disturbed(ground, ["rank", "node"], seed=11, shard=True)


@pytest.mark.timeout(120)
def test_a_rank_that_dies_while_the_ranks_meet(tmp_path: Path) -> None:
    """Twice, before all have come: nobody waits for it until a deadline. The third start is whole."""
    chance = random.Random(41)
    with Gangs(tmp_path, 2, 2, cables=False) as ground:
        gang = ground.start({"steps": 5}, max_restarts=2)
        for epoch in (1, 2):
            killed, at = kill_early(gang, epoch, chance)
            over = gang.over(epoch)
            took_s = time.monotonic() - at
            print(f"rank {killed} while they meet: known {took_s:.2f} s: {over.detail[:160]}")
            assert f"rank {killed} was killed by SIGKILL" in over.detail, gang.story()
            assert took_s < END_WITHIN_S
        gang.ended()
        assert (gang.trial.restarts, len(gang.begun(3))) == (2, 4)


@cuts_cables
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("slots", "kills", "seed"),
    [((2, 2), 10, 21), ((2, 3), 6, 22), ((2, 2, 2, 2), 8, 23), ((4, 4, 4), 4, 24), ((4, 4, 4, 4), 2, 25)],
    ids=str,
)
def test_thirty_deaths(tmp_path: Path, slots: tuple[int, ...], kills: int, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [*KINDS, *(chance.choice(KINDS) for _ in range(kills))][:kills]
    chance.shuffle(kinds)
    with Gangs(tmp_path, *slots) as ground:
        deaths = disturbed(ground, kinds, seed, shard=bool(seed % 2))
    assert len(deaths) == kills
