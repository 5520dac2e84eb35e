"""What all trials of an experiment printed, read as one: by time, followed, filtered, marked with their trial."""

from __future__ import annotations

import threading

import pytest
from experiment_ground import Ground

from clutch.cli.experiment_logs import whose
from clutch.sdk import experiment_calls
from clutch.sdk.output import output_query
from clutch.wire.errors import NotFound
from clutch.wire.experiment_words import ContinueExperiment
from clutch.wire.output import OutputLine


def test_lines_of_all_trials_come_by_time_and_are_followed_to_the_end(ground: Ground) -> None:
    gate = ground.gate()
    bases = {"type": "categorical", "vals": [1.0, 2.0, 3.0]}
    hparams = {"steps": 2, "gate": str(gate), "print_at": 1, "text": "first step", "base": bases}
    experiment = ground.start(hparams, {"name": "grid", "metric": "loss", "max_concurrent_trials": 2})
    heard: list[OutputLine] = []
    enough = threading.Event()

    def follow() -> None:
        for line in ground.client.experiment(experiment).output(follow=True):
            heard.append(line)
            if len({one.member.task for one in heard}) == 2:
                enough.set()

    reader = threading.Thread(target=follow)
    reader.start()
    assert enough.wait(30.0), "lines of two trials while both still run"
    (gate / "all").touch()  # the third trial begins while it is followed
    ground.until_ended(experiment)
    reader.join(30.0)
    assert not reader.is_alive(), "the follower ends with the experiment"

    found = ground.client.experiment(experiment)
    lines = list(found.output())
    assert len(lines) == 6
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert {whose(line) for line in lines} == {"trial 1", "trial 2", "trial 3"}
    assert sorted(map(str, heard)) == sorted(map(str, lines)), "followed and read are the same lines"
    assert [line.text for line in found.output(trials=(2,))] == ["begins at 0", "first step"]
    assert {line.text for line in found.output(regex="^first")} == {"first step"}
    assert list(found.output(tail=2)) == lines[-2:]
    assert list(found.output(since=lines[3].at)) == lines[3:]
    assert list(found.output(limit=1)) == lines, "a page at a time they are the same"
    with pytest.raises(NotFound, match="no trial 9"):
        list(found.output(trials=(9,)))


def test_a_continued_trial_is_read_over_all_its_tasks(ground: Ground) -> None:
    experiment = ground.start({"steps": 1, "save": 1})
    ground.until_ended(experiment)
    more = ContinueExperiment(hparams={"steps": 2})
    ground.client.perform(experiment_calls.continue_experiment(experiment, more))
    ground.until_ended(experiment)
    trial = ground.client.experiment(experiment).trial(1)
    assert [line.text for line in trial.output()] == ["begins at 0", "begins at 1"]
    assert [line.text for line in trial.output(follow=True)] == ["begins at 0", "begins at 1"]
    page = ground.client.perform(experiment_calls.read_trial_output(trial.id, output_query(trial.id, tail=1)))
    assert [line.text for line in page.lines] == ["begins at 1"]
