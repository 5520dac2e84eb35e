"""Searches on a real cluster: early stops give slots back, rules act before exits are judged, searches are answered."""

from __future__ import annotations

import json
import time

import pytest
from experiment_ground import Ground

from clutch.sdk import calls, experiment_calls
from clutch.testing.bars import within
from clutch.testing.cluster import until
from clutch.wire.errors import Conflict
from clutch.wire.experiment_api import AnswerSearch
from clutch.wire.experiment_words import CloseTrial, MakeTrial, Shutdown, TrainTo

SLOTS_BACK_S = within(1.0)


def held(ground: Ground) -> int:
    (pool,) = ground.client.perform(calls.list_pools()).items
    return pool.slots_held


def test_an_early_stop_gives_its_slots_back_within_a_second(ground: Ground) -> None:
    """Of two trials the worse validates second: it is stopped. From its validation on the clock runs."""
    gate = ground.gate()
    searcher = {
        "name": "asha", "metric": "loss", "max_time": 4, "max_trials": 2, "num_rungs": 2, "divisor": 4,
        "max_concurrent_trials": 2,
    }  # fmt: skip
    hparams = {"steps": 4, "gate": str(gate), "base": {"type": "double", "minval": 1.0, "maxval": 2.0}}
    experiment = ground.start(hparams, searcher)
    for number in (1, 2):
        trial = f"{experiment}.{number}"
        until(lambda trial=trial: "begins at 0" in ground.output(trial), f"{trial} to begin", 60.0)
    bases = {trial.trial: json.loads(trial.hparams)["base"] for trial in ground.trials(experiment)}
    better, worse = sorted(bases, key=bases.__getitem__)
    (gate / f"{better}.1").touch()
    ground.until_trial(f"{experiment}.{better}", lambda trial: trial.last_step == 1, "validated")
    assert held(ground) == 2
    began = time.monotonic()
    (gate / f"{worse}.1").touch()
    until(lambda: held(ground) == 1, "its slot to be free")
    took_s = time.monotonic() - began
    (gate / "all").touch()
    assert ground.until_ended(experiment).state == "completed"
    states = {trial.trial: trial.state for trial in ground.trials(experiment)}
    assert states == {better: "completed", worse: "stopped"}
    print(f"slots were back {took_s * 1000:.0f} ms after the validation that lost")
    assert took_s < SLOTS_BACK_S


@pytest.mark.parametrize(
    "searcher",
    [
        {"name": "random", "max_trials": 5, "max_concurrent_trials": 2},
        {"name": "asha", "max_time": 4, "max_trials": 6, "num_rungs": 2, "divisor": 2},
        {"name": "adaptive_asha", "max_time": 4, "max_trials": 6, "divisor": 2},
        {"name": "asha", "max_time": 4, "max_trials": 4, "num_rungs": 2, "divisor": 2, "stop_once": False},
        {"name": "pbt", "population_size": 3, "num_rounds": 2, "length_per_round": 2},
    ],
    ids=["random", "asha", "adaptive_asha", "asha_promotion", "pbt"],
)
def test_every_search_comes_to_its_end(ground: Ground, searcher: dict) -> None:
    asks = searcher["name"] == "pbt" or "stop_once" in searcher
    hparams = {"steps": 4, "save": 2, "base": {"type": "double", "minval": 1.0, "maxval": 2.0}, "operations": asks}
    experiment = ground.start(hparams, {**searcher, "metric": "loss"})
    view = ground.until_ended(experiment, 120.0)
    assert view.state == "completed" and view.trials_failed == 0, ground.story(experiment)
    assert view.trials >= min(searcher.get("max_trials", 3), 3)
    assert view.has_best and view.progress == 1.0


def test_a_rule_that_forbids_restarts_acts_before_the_exit_is_judged(ground: Ground) -> None:
    """The line is the last thing it prints: restarts are forbidden all the same, every time."""
    rules = [{"name": "broken", "pattern": "worn out .* for ever", "action": "cancel_retries"}]
    hparams = {"steps": 3, "print_at": 2, "text": "worn out and gone for ever", "fail_at": 2}
    for _ in range(3):
        experiment = ground.start(hparams, max_restarts=5, output_rules=rules)
        assert ground.until_ended(experiment).state == "failed"
        (trial,) = ground.trials(experiment)
        assert (trial.restarts, trial.labels) == (0, ",broken,"), ground.story(experiment)


def test_without_a_match_it_starts_again_as_often_as_it_may(ground: Ground) -> None:
    rules = [{"name": "broken", "pattern": "worn out", "action": "cancel_retries"}]
    experiment = ground.start({"steps": 3, "fail_at": 2}, max_restarts=2, output_rules=rules)
    assert ground.until_ended(experiment).state == "failed"
    assert (ground.trials(experiment)[0].restarts, ground.trials(experiment)[0].labels) == (2, "")


def test_a_rule_that_only_labels_and_one_that_never_ends(ground: Ground) -> None:
    rules = [
        {"name": "endless", "pattern": "(a+)+$", "action": "cancel_retries"},
        {"name": "seen", "pattern": "^ab*c$"},
    ]
    text = "abbbbc\n" + "a" * 60 + "!"
    experiment = ground.start({"steps": 2, "print_at": 1, "text": text}, output_rules=rules)
    assert ground.until_ended(experiment).state == "completed"
    assert ground.trials(experiment)[0].labels == ",seen,"


def test_a_custom_search_is_answered_by_a_user(ground: Ground) -> None:
    """Two trials, one of which goes on; every answer is given twice."""
    searcher = {"name": "custom", "metric": "loss"}
    experiment = ground.start({"steps": 9, "save": 1, "operations": True}, searcher)
    cursor, lengths = 0, {"a": [2, 4], "b": [2]}
    while True:
        found = ground.client.perform(experiment_calls.search_events(experiment, cursor, 20.0))
        if found.over:
            break
        answer: list = []
        for event in found.events:
            cursor = event.number
            if event.kind == "begin":
                answer += [MakeTrial("a", {"base": 1.0}), MakeTrial("b", {"base": 2.0})]
            elif event.kind in ("created", "trained"):
                more = lengths[event.request]
                answer.append(TrainTo(event.request, more.pop(0)) if more else CloseTrial(event.request))
            elif event.kind == "closed" and not any(lengths.values()):
                answer.append(Shutdown())
        said = AnswerSearch(cursor=cursor, operations=tuple(answer), state=b"kept")
        for _ in range(2):
            ground.client.perform(experiment_calls.answer_search(experiment, said))
    assert ground.until_ended(experiment).state == "completed", ground.story(experiment)
    assert [(trial.last_step, trial.best) for trial in ground.trials(experiment)] == [(4, 0.25), (2, 1.0)]
    single = ground.start({"steps": 1})
    with pytest.raises(Conflict, match="not a custom one"):
        ground.client.perform(experiment_calls.search_events(single, 0, 0.0))
        ground.until_ended(single)
