"""Whole searches, trial by trial: who trains to which lengths when results come in one after the other."""

from __future__ import annotations

from collections import deque

import pytest
from search_harness import Search, experiment

from clutch.wire.experiments import AdaptiveAsha, Asha, Categorical, Const, Grid, Int, Method, Nested, Pbt
from clutch.workloads.experiment.search.base import Began, Event, Exited, Finish, How, Stop, Train, Trained, Validated

Story = list[tuple[list[int], float]]
"""Of each trial: at which lengths it is compared, and its value there. NaN: it fails on the way to the last."""
FAILS = float("nan")


class Player:
    """Lets trials train in the order in which they were asked to; each validates when it has done what it was asked."""

    def __init__(self, method: Method, max_time: int, story: Story) -> None:
        self.search = Search(experiment(method, max_time=max_time))
        self.story = story
        self.queue: deque[tuple[int, int]] = deque()
        self.compared: dict[int, list[int]] = {}

    def play(self) -> dict[int, list[int]]:
        self._tell(Began())
        while self.queue:
            number, length = self.queue.popleft()
            if self.search.trials[number].ended is None:
                self._train(number, length)
        assert self.search.over is not None and not self.search.over.failed
        return self.compared

    def _train(self, number: int, length: int) -> None:
        trial = self.search.trials[number]
        lengths, value = self.story[number - 1]
        seen = self.compared.setdefault(number, [])
        seen.append(length)
        if value != value and len(seen) == len(lengths):
            trial.ended = How.FAILED
            self._tell(Exited(number, How.FAILED))
            return
        value = 0.0 if value != value else value
        self._tell(Validated(number, length, float(length), value))
        if trial.told_to_leave is None and length == trial.target:
            trial.reported = length
            self._tell(Trained(number, length, value))

    def _tell(self, event: Event) -> None:
        actions = self.search.tell(event)
        for action in actions:
            if isinstance(action, Train):
                self.queue.append((action.trial, action.length))
        for action in actions:
            if isinstance(action, Stop | Finish):
                how = How.STOPPED if isinstance(action, Stop) else How.COMPLETED
                self.search.trials[action.trial].ended = how
                self._tell(Exited(action.trial, how))


PROMOTING = Asha(8, num_rungs=3, divisor=2, promotion=True)
STOPPING = Asha(8, num_rungs=3, divisor=2)
ONE, TWO, ALL = [20], [20, 40], [20, 40, 80]


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(
            [(ALL, 1.0), (ALL, 2.0), (TWO, 3.0), (TWO, 4.0), (ONE, 5.0), (ONE, 6.0), (ONE, 7.0), (ONE, 8.0)],
            id="ever worse: the best half goes on, and the best half of that",
        ),
        pytest.param(
            [(TWO, FAILS), (ALL, 2.0), (ALL, 3.0), (TWO, 4.0), (ONE, 5.0), (ONE, 6.0), (ONE, 7.0), (ONE, 8.0)],
            id="one that fails on its way up is the worst there",
        ),
        pytest.param(
            [(ONE, FAILS), (ALL, 2.0), (ALL, 3.0), (TWO, 4.0), (TWO, 5.0), (ONE, 6.0), (ONE, 7.0), (ONE, 8.0)],
            id="one that fails before its first result is the worst of all",
        ),
        pytest.param(
            [(TWO, 7.0), (ONE, 8.0), (ALL, 1.0), (ALL, 2.0), (TWO, 3.0), (TWO, 4.0), (ONE, 5.0), (ONE, 6.0)],
            id="an early one is promoted before better ones have come",
        ),
    ],
)
def test_promotion(story: Story) -> None:
    found = Player(PROMOTING, 80, story).play()
    assert found == {number: lengths for number, (lengths, _) in enumerate(story, 1)}


@pytest.mark.parametrize(
    "story",
    [
        pytest.param([(ALL, 1.0)] + [(ONE, float(worse)) for worse in range(2, 9)], id="ever worse"),
        pytest.param([(ALL, float(-better)) for better in range(8)], id="ever better"),
        pytest.param(
            [(ALL, 1.0), (ONE, 2.0), (ALL, 1.0), (ONE, 2.0), (ALL, 1.0), (ONE, 2.0), (ALL, 1.0), (ONE, 2.0)],
            id="in turns: one that is as good as the best stays",
        ),
        pytest.param(
            [(TWO, FAILS), (ONE, 2.0), (ALL, -1.0), (ONE, 2.0), (ALL, -2.0), (ONE, 2.0), (ALL, -3.0), (ONE, 2.0)],
            id="one that fails stands in nobody's way",
        ),
    ],
)
def test_stopping(story: Story) -> None:
    found = Player(STOPPING, 80, story).play()
    assert found == {number: lengths for number, (lengths, _) in enumerate(story, 1)}


@pytest.mark.parametrize("promotion", [True, False])
def test_brackets_compare_only_their_own(promotion: bool) -> None:
    """The three of the first bracket are better than the two of the second, which all go to the end all the same."""
    method = AdaptiveAsha(5, max_rungs=2, divisor=3, promotion=promotion)
    story: Story = [([30, 90], 0.1), ([30], 0.2), ([30], 0.3), ([90], 8.0), ([90], 9.0)]
    found = Player(method, 90, story).play()
    assert found == {number: lengths for number, (lengths, _) in enumerate(story, 1)}


# -- populations --------------------------------------------------------------------------------------------------


def rounds_of(method: Pbt, values: list[float]) -> list[int]:
    """Through how many rounds each trial trains; NaN: it fails in its first."""
    longest: dict[int, int] = {}
    search = Search(experiment(method))
    queue: deque[tuple[int, int]] = deque()

    def tell(event: Event) -> None:
        actions = search.tell(event)
        queue.extend((action.trial, action.length) for action in actions if isinstance(action, Train))
        for action in actions:
            if isinstance(action, Finish):
                search.trials[action.trial].ended = How.COMPLETED
                tell(Exited(action.trial, How.COMPLETED))

    tell(Began())
    while queue:
        number, length = queue.popleft()
        longest[number] = longest.get(number, 0) + 1
        value = values[number - 1]
        if value != value:
            search.trials[number].ended = How.FAILED
            tell(Exited(number, How.FAILED))
        else:
            search.trials[number].reported = length
            tell(Trained(number, length, value))
    assert search.over is not None and not search.over.failed
    return [longest[number] for number in sorted(longest)]


def test_populations() -> None:
    half = Pbt(4, 5, 10, 0.5)
    assert rounds_of(half, [float(number) for number in range(99)]) == [5, 5, *[1] * 10], "the old are better"
    assert rounds_of(half, [float(-number) for number in range(99)]) == [1, 1, *[2] * 8, 1, 1], "the new are better"
    assert rounds_of(Pbt(3, 4, 10, 0.0), [1.0, 2.0, 3.0]) == [4, 4, 4], "nobody is replaced"
    pair = Pbt(2, 4, 10, 0.5)
    assert rounds_of(pair, [5.0, 6.0, 1.0, 2.0, 3.0]) == [2, 1, 3, 1, 1]
    assert rounds_of(pair, [FAILS, 6.0, 1.0, 2.0, 3.0]) == [1, 2, 3, 1, 1], "the lost one's place is the worst"


def test_a_grid_keeps_maps_in_which_nothing_varies() -> None:
    space = {
        "x": Nested({"none": Nested({}), "some": Categorical((1, [2], {"c": 3}))}),
        "k": Const("v"),
        "n": Int(4, 5, 9),
    }
    search = Search(experiment(Grid(), space))
    search.tell(Began())
    assert [trial.made.hparams for trial in search.trials.values()] == [
        {"x": {"none": {}, "some": some}, "k": "v", "n": n} for n in (4, 5) for some in (1, [2], {"c": 3})
    ]
