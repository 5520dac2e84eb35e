"""Members that are killed with -9 while they report, with their master or their agent away: what lay in the spool when
they died is stored once, the search hears the last validation, and nobody waits longer than he must."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "stories"))

from stories_ground import Ground, process_of

from clutch.sdk import calls
from clutch.testing.cluster import until

PROGRAM = Path(__file__).with_name("left_trial.py")
PROMPT_S = 30.0
"""Well below the minute that a store has to catch up."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground(tmp_path_factory.mktemp("left"), 4) as found:
        yield found


@pytest.fixture(autouse=True)
def _all_run(ground: Ground) -> Iterator[None]:
    """Whatever a test that failed left dead is started again."""
    yield
    for child in (ground.cluster.masters[0], ground.cluster.agents["n1"]):
        if not child.runs:
            child.start()
            ground.cluster.wait_serving()


def start(ground: Ground, gate: Path | None, **hparams: Any) -> str:
    searcher = {"name": "single", "metric": "loss", "smaller_is_better": True}
    hparams |= {"gate": str(gate)} if gate is not None else {}
    config = ground.config([], searcher=searcher, hparams=hparams, entrypoint=[sys.executable, str(PROGRAM)])
    return ground.submit(config).experiment


def died(task: str) -> None:
    until(lambda: process_of(task, str(PROGRAM)) is None, f"the death of {task}", 60.0)


def folder_of(ground: Ground, task: str) -> Path | None:
    found = list((ground.cluster.folder / "n1" / "work").glob(f"{task.replace('.', '%2E')}~*"))
    return found[-1] if found else None


def spooled(ground: Ground, task: str) -> Counter[tuple[str, int, float]]:
    """What lies in its spool: group, step and value of each point of its whole lines."""
    folder = folder_of(ground, task)
    assert folder is not None
    (path,) = folder.glob("tmp/clutch-metrics-*/spool.jsonl")
    numbers: set[int] = set()
    found: Counter[tuple[str, int, float]] = Counter()
    for line in path.read_bytes().split(b"\n")[:-1]:
        batch = json.loads(line)
        if batch["sequence"] not in numbers:
            numbers.add(batch["sequence"])
            found.update((p["group"], p["step"], v) for p in batch["points"] for v in p["values"].values())
    return found


def stored(ground: Ground, trial: str) -> Counter[tuple[str, int, float]]:
    curves = {group: ground.curve(trial, group, name) for group, name in (("training", "cost"), ("validation", "loss"))}
    return Counter((group, step, value) for group, curve in curves.items() for step, value in curve)


def check(ground: Ground, experiment: str, left: Counter[tuple[str, int, float]]) -> None:
    trial = f"{experiment}.1"
    found = stored(ground, trial)
    assert left, "the fault that was planned did not happen: nothing was left"
    assert set(found.values()) == {1}, "everything is stored once"
    assert not left - found, "nothing that was spooled is lost"
    last = max(step for group, step, _ in found if group == "validation")
    view = ground.trial(trial)
    assert (view.last_step, view.last) == (last, 1_000.0 - last), "the search has heard the last validation"
    heard = [row.step for row in ground.workloads(trial) if row.kind == "validate"]
    assert heard == list(range(10, last + 1, 10)), "and every one before it, once"
    until(lambda: folder_of(ground, trial) is None, "its folder to be gone", PROMPT_S)


def test_what_was_spooled_without_a_master_is_stored_when_it_is_back(ground: Ground) -> None:
    gate = ground.gate()
    experiment = start(ground, gate, points=5_000)
    until(gate.with_suffix(".1").exists, "its beginning", 60.0)
    ground.cluster.masters[0].kill()
    gate.touch()
    died(f"{experiment}.1")
    left = spooled(ground, f"{experiment}.1")
    why = gate.with_suffix(".why")
    assert not why.exists(), why.read_text()
    assert len(left) >= 5_500
    ground.cluster.masters[0].start()
    ground.cluster.wait_serving()
    began = time.monotonic()
    ground.ended(experiment, "failed")
    assert time.monotonic() - began < PROMPT_S, ground.story(experiment)
    check(ground, experiment, left)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_members_killed_at_any_moment_while_their_agent_is_dead(ground: Ground, seed: int) -> None:
    chance, gate = random.Random(seed), ground.gate()
    experiment = start(ground, gate, after_s=0.2 + chance.random() * 1.5)
    until(gate.with_suffix(".1").exists, "its beginning", 60.0)
    agent, master = ground.cluster.agents["n1"], ground.cluster.masters[0]
    agent.kill()
    gate.touch()
    if away := seed != 1:  # with the master there, little or nothing is left; without it, all
        master.kill()
    died(f"{experiment}.1")
    left = spooled(ground, f"{experiment}.1")
    agent.start()
    if away:
        master.start()
        ground.cluster.wait_serving()
    began = time.monotonic()
    ground.ended(experiment, "failed")
    assert time.monotonic() - began < PROMPT_S, ground.story(experiment)
    check(ground, experiment, left or stored(ground, f"{experiment}.1"))


@pytest.mark.slow
def test_agent_and_master_killed_again_and_again_while_they_ship(ground: Ground) -> None:
    chance, gate = random.Random(7), ground.gate()
    experiment = start(ground, gate, points=60_000)
    until(gate.with_suffix(".1").exists, "its beginning", 60.0)
    agent, master = ground.cluster.agents["n1"], ground.cluster.masters[0]
    master.kill()
    gate.touch()
    died(f"{experiment}.1")
    left = spooled(ground, f"{experiment}.1")
    for child in (master, agent, master, agent, agent, master):
        if child.runs:
            child.kill()
        child.start()
        ground.cluster.wait_serving()
        time.sleep(chance.random() * 0.3)  # the moment is the point: nothing is waited for
    ground.ended(experiment, "failed")
    check(ground, experiment, left)


def test_junk_in_place_of_a_spool_holds_nothing_up(ground: Ground) -> None:
    for text in ("what is this\n" * 1_000, '{"sequence": "x", "points": 3}\n', "\0" * 5_000 + "\n"):
        began = time.monotonic()
        experiment = start(ground, None, junk={"spool.jsonl": text, "sequence": f"{99:020d} {12:020d}\n"})
        ground.ended(experiment, "completed")
        assert time.monotonic() - began < PROMPT_S, ground.story(experiment)
        story = ground.client.perform(calls.why_task(f"{experiment}.1")).story
        assert any("in place of its metrics is ignored" in line for line in story), story
        until(lambda: folder_of(ground, f"{experiment}.1") is None, "its folder to be gone", PROMPT_S)  # noqa: B023


def test_a_batch_that_no_store_takes_is_left_out(ground: Ground) -> None:
    point = '{"group":"validation","step":%d,"values":{"loss":%d},"at":1.0}'
    lines = [f'{{"sequence":{n},"points":[{point % (10 * n, 1_000 - 10 * n)}]}}' for n in range(1, 8)]
    lines[3] = '{"sequence":4,"points":["no point"]}'
    text = "\n".join([*lines, '{"sequence":8,"poi'])
    experiment = start(ground, None, junk={"spool.jsonl": text, "sequence": f"{7:020d} {0:020d}\n"})
    ground.ended(experiment, "completed", within_s=PROMPT_S)
    assert [step for step, _ in ground.curve(f"{experiment}.1", "validation", "loss")] == [10, 20, 30, 50, 60, 70]
    assert ground.trial(f"{experiment}.1").last_step == 70


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_spool_that_can_never_be_shipped_ends_at_the_deadline(ground: Ground) -> None:
    """It says that the store has a million batches of it, which the store has not."""
    lines = "".join(f'{{"sequence":{n},"points":[]}}\n' for n in range(1_000_001, 1_000_004))
    junk = {"spool.jsonl": lines, "sequence": f"{1_000_003:020d} {1_000_000:020d}\n"}
    experiment, began = start(ground, None, junk=junk), time.monotonic()

    def sentence() -> str:
        return ground.client.perform(calls.why_task(f"{experiment}.1")).sentence

    until(lambda: "being stored" in sentence(), "a sentence that says what is waited for", 30.0)
    ground.ended(experiment, "completed", within_s=100.0)
    assert time.monotonic() - began > 55.0
    story = ground.client.perform(calls.why_task(f"{experiment}.1")).story
    assert any("flushed=False" in line for line in story), story
