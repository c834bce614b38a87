"""Worlds that break: their episodes have no return, the rows go on, and everything is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import Step
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.errors import InvalidInput, UserCodeFailed
from tests.unit.environments.test_preprocess import start, user_spec

__all__ = ["start"]
NOTHING = torch.zeros(2, 1)


class Breaks(gymnasium.Env[Any, Any]):
    """Episodes of five steps. At step `at` (0: reset) of the episodes whose number `when` accepts,
    `value` comes as the observation, the reward or a flag, or is raised."""

    observation_space = gymnasium.spaces.Box(-10, 10, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    made: list[Breaks]

    def __init__(
        self,
        what: str = "",
        value: Any = np.nan,
        at: int = 3,
        when: Any = lambda number: number % 2 == 0,
    ):
        self.what = what
        self.value = value
        self.at = at
        self.when = when
        self.number = 0
        self.closed = False
        Breaks.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number, self.seed, self.steps = self.number + 1, seed, 0
        return self._told(np.ones(4, np.float32), "observation"), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation = self._told(np.ones(4, np.float32), "observation")
        reward = self._told(1.0, "reward")
        return observation, reward, self._told(self.steps == 5, "flag"), False, {}

    def close(self) -> None:
        self.closed = True

    def _told(self, usual: Any, what: str) -> Any:
        if self.steps != self.at or not self.when(self.number):
            return usual
        if self.what == "raise":
            raise self.value
        if what != self.what:
            return usual
        if what == "observation" and np.ndim(self.value) == 0 and isinstance(self.value, float):
            usual[3] = self.value
            return usual
        return self.value


@pytest.fixture(autouse=True)
def made() -> Iterator[list[Breaks]]:
    Breaks.made = []
    yield Breaks.made
    Breaks.made = []


def opened(**how: Any) -> PreprocessVecEnv:
    return PreprocessVecEnv(
        EnvironmentSpec(entry_point="here:Breaks"), 2, make=lambda: Breaks(**how)
    )


def played(environment: PreprocessVecEnv, steps: int) -> list[Step]:
    """The steps, copied."""
    environment.reset(torch.arange(2))
    taken = []
    for _ in range(steps):
        step = environment.step(NOTHING)
        taken.append(
            Step(
                **{
                    name: getattr(step, name).clone()
                    for name in Step.__slots__
                    if name != "action_mask"
                },
                action_mask=None,
            )
        )
    return taken


TEXTS = [
    ({"what": "reward", "value": np.nan}, "step 3: the reward was nan"),
    ({"what": "reward", "value": 1e40}, "step 3: the reward was inf"),
    (
        {"what": "reward", "value": None},
        "step 3: the reward of step must be a finite number, not NoneType None",
    ),
    (
        {"what": "reward", "value": "1.0"},
        "step 3: the reward of step must be a finite number, not str '1.0'",
    ),
    ({"what": "observation", "value": -np.inf}, "step 3: observation[3] was -inf"),
    (
        {"what": "observation", "value": None},
        "step 3: step returned None in place of an observation",
    ),
    (
        {"what": "observation", "value": np.ones(3)},
        "step 3: step returned an observation of shape [3]; its space has",
    ),
    ({"what": "flag", "value": np.nan}, "step 3: terminated must be a bool, not float nan"),
    ({"what": "raise", "value": KeyError("price")}, "step 3: KeyError: 'price'"),
]


@pytest.mark.parametrize(("how", "text"), TEXTS)
def test_an_episode_that_breaks_in_a_step(how, text, made):
    # never in what is made anew
    environment = opened(**how, when=lambda number: number == 1 and len(made) == 2)
    steps = played(environment, 9)
    assert [step.valid.tolist() for step in steps] == [[True] * 2, [True] * 2, [False] * 2] + [
        [True] * 2
    ] * 6
    assert steps[2].truncated.all()
    assert not steps[2].terminated.any()
    assert steps[2].reward.tolist() == [0.0, 0.0]
    assert steps[2].final_observation.isfinite().all()
    assert steps[7].terminated.all(), "the next episode has five steps"
    first, second = environment.take_breaks()
    assert (first.row, second.row) == (0, 1)
    assert first.text.startswith(text)
    assert first.numbers == (how["what"] != "raise")
    assert ("in _told" in first.traceback) == (how["what"] == "raise")
    assert environment.take_breaks() == []
    assert [one.closed for one in made] == (
        [True, True, False, False] if how["what"] == "raise" else [False, False]
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("value", [3e38, -3e38])
def test_a_large_number_breaks_nothing(what, value):
    environment = opened(what=what, value=value, when=lambda number: True)
    steps = played(environment, 5)
    shown = steps[2].reward if what == "reward" else steps[2].observation[:, 3]
    assert shown.tolist() == pytest.approx([value] * 2)
    assert all(step.valid.all() for step in steps)
    assert environment.take_breaks() == []


@pytest.mark.parametrize("value", [np.nan, None, KeyError("price")])
def test_a_reset_that_breaks_is_repeated(value):
    kind = "raise" if isinstance(value, KeyError) else "observation"
    environment = opened(what=kind, value=value, at=0, when=lambda number: number == 2)
    steps = played(environment, 5)
    assert all(step.valid.all() for step in steps)
    assert environment.state()["episode"].tolist() == [2, 2], "one was left out"
    assert steps[-1].observation.isfinite().all()
    assert [each.text[:7] for each in environment.take_breaks()] == ["reset: "] * 2


def test_three_resets_in_a_row():
    with pytest.raises(InvalidInput, match="reset failed 3"):
        played(opened(what="observation", at=0, when=lambda number: True), 1)
    later = lambda number: number > 1 or len(Breaks.made) > 2  # noqa: E731
    with pytest.raises(KeyError, match="price"):
        played(opened(what="raise", value=KeyError("price"), at=0, when=later), 6)


@pytest.mark.parametrize(
    ("what", "value"), [("reward", None), ("reward", "1.0"), ("raise", KeyError("price"))]
)
def test_what_has_never_worked_is_refused_at_once(what, value):
    with pytest.raises((InvalidInput, KeyError), match=r"step|price"):
        played(opened(what=what, value=value, at=1, when=lambda number: True), 2)


def test_an_exception_in_one_episode_of_eight_is_borne(made):
    environment = opened(
        what="raise",
        value=KeyError("price"),
        when=lambda number: made[0].closed is False and number == 8,
    )
    assert sum(int((~step.valid).sum()) for step in played(environment, 100)) == 2
    assert len(environment.take_breaks()) == 2


@pytest.mark.parametrize(
    ("how", "note", "steps"),
    [
        ({"at": 3, "when": lambda number: True}, "it ended 7 of 8 episodes", 40),
        (
            {"at": 1, "when": lambda number: len(Breaks.made) > 2 or number > 1},
            "it came 3 times in a row",
            20,
        ),
    ],
)
def test_exceptions_that_are_not_borne(how, note, steps):
    with pytest.raises(KeyError) as caught:
        played(opened(what="raise", value=KeyError("price"), **how), steps)
    assert note in caught.value.__notes__[0]


def test_an_exception_at_the_same_step_of_the_same_seed_is_not_borne():
    """Other episodes work meanwhile."""
    environment = opened(what="raise", value=KeyError("price"), at=4)
    with pytest.raises(KeyError) as caught:
        for _ in range(5):
            for one in Breaks.made:
                one.when = lambda number, one=one: one.seed == 1
            played(environment, 12)
    assert "it came 3 times at step 4 of the episode with seed 1" in caught.value.__notes__[0]


def test_a_row_that_stands_still_stays_so_beside_one_that_breaks(made):
    environment = opened(what="raise", value=KeyError("price"), at=5)
    environment.reset(torch.arange(2))
    made[0].when, made[1].at, made[1].when = (lambda number: False), 2, (lambda number: True)
    environment.play_once()
    steps = [environment.step(NOTHING).valid.tolist() for _ in range(8)]
    assert steps == [[True, True], [True, False]] + [[True, True]] * 6
    assert (made[0].steps, made[1].steps, len(made)) == (5, 2, 2)
    environment.reset(torch.arange(2))
    assert made[1].closed
    assert not made[0].closed


def test_breaks_come_from_other_processes(start):
    environment = start(user_spec("Counter", trouble="raise", trouble_at=3), 4, processes=2)
    environment.reset(torch.arange(4))
    steps = [environment.step(torch.zeros(4, dtype=torch.int64)).valid.tolist() for _ in range(3)]
    assert steps == [[True] * 4, [True] * 4, [False] * 4]
    breaks = environment.take_breaks()
    assert sorted(each.row for each in breaks) == [0, 1, 2, 3]
    assert {(each.text, each.numbers) for each in breaks} == {
        ("step 3: RuntimeError: the maze has no exit", False)
    }
    assert "in _get_into_trouble" in breaks[0].traceback
    with pytest.raises(UserCodeFailed, match="maze") as caught:
        for _ in range(60):
            environment.step(torch.zeros(4, dtype=torch.int64))
    assert "it ended" in caught.value.user_traceback
