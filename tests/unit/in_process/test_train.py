"""`podracer.train`: what it takes, when it ends, whom it tells."""

from __future__ import annotations

import _thread
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import podracer
from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import Interval
from podracer_core.checkpoint import Checkpoint
from podracer_core.environments import CartPole
from podracer_core.errors import InvalidInput
from podracer_core.in_process import begin_from, replace_worst
from podracer_core.random_numbers import member_seeds
from podracer_core.training import plan
from tests.unit.in_process.tiny import FAST, Lights, Times

train = partial(podracer.train, progress=False)
lights = partial(train, Lights, members=4, envs_per_member=4, episodes=8, hyperparameters=FAST)


class Notes(podracer.Callback):
    """Everything that was told; `on_look` does what it is given."""

    def __init__(self, act: Callable[[], bool | None] = lambda: None) -> None:
        self.told: list[Any] = []
        self._act = act

    def on_start(self, run: Any) -> None:
        self.told.append(run)

    def on_look(self, look: podracer.Look) -> bool | None:
        self.told.append(look)
        return self._act()

    def on_end(self, result: podracer.Result) -> None:
        self.told.append(result)


def test_times_that_float32_cannot_tell_apart(tmp_path, monkeypatch):
    """The origin of the first training stays, in processes of their own, too, though the clock has
    moved on."""
    options: dict[str, Any] = {
        "members": 2,
        "envs_per_member": 4,
        "episodes": 8,
        "hyperparameters": FAST,
    }
    first = train(Times, steps=3_000, **options)
    (origin,) = first.checkpoint.metadata["environment"]["observation_origin"]
    assert Times.clock <= origin < Times.clock + 120
    assert first.evaluate(8).mean > 7
    kept = podracer.load(first.save(tmp_path / "first"), Times)
    assert kept.evaluate(8).returns == first.evaluate(8).returns
    times = Times.clock + np.array([[5], [25], [95], [115]])
    assert kept.policy(times).tolist() == [0, 0, 1, 1]
    monkeypatch.setattr(Times, "clock", Times.clock + 1)
    second = train(Times, start=tmp_path / "first", isolation="process", steps=600, **options)
    assert second.checkpoint.metadata["environment"]["observation_origin"] == [origin]
    assert second.evaluate(8).mean > 7


def test_it_stops_at_the_target_of_cartpole():
    result = train(
        "CartPole-v1", algorithm="ppo", members=8, target=475, statistic="mean", seconds=120
    )
    assert result.stopped_by == "target"
    assert result.best is not None
    assert result.best.mean >= 475
    assert result.returns.shape == (32,)
    assert result.evaluate(32).mean > 300
    assert all(len(look.returns) == 8 for look in result.history)


@pytest.mark.parametrize(
    "environment", [Lights, lambda reward=1.0: Lights(reward), partial(Lights)]
)
def test_a_class_a_function_or_a_partial_makes_the_environments(environment):
    result = train(
        environment,
        members=2,
        envs_per_member=4,
        episodes=8,
        hyperparameters=FAST,
        target=7.5,
        seconds=60,
    )
    assert result.stopped_by == "target"
    assert [int(result.policy(seen)) for seen in ([1.0, 0.0], [0.0, 1.0])] == [0, 1]


def test_an_id_that_only_this_process_has_registered():
    gymnasium.register("Lights-v0", Lights, max_episode_steps=8)
    try:
        result = train(
            "Lights-v0", members=2, envs_per_member=4, steps=128, hyperparameters=FAST,
            environment_arguments={"reward": 2.0},
        )  # fmt: skip
        assert result.environment == "Lights-v0"
        assert result.evaluate(4).mean == 2 * round(result.evaluate(4).mean / 2)
    finally:
        del gymnasium.registry["Lights-v0"]


def test_a_class_of_batched_environments():
    result = train(
        CartPole, members=2, envs_per_member=8, steps=2_000, hyperparameters={"horizon": 16}
    )
    assert result.environment.endswith(":CartPole")
    assert result.evaluate(4).episodes == 4


def test_steps_are_of_all_members_together():
    result = lights(steps=1_000)
    assert result.stopped_by == "steps"
    assert 1_000 <= result.history[-1].env_steps <= 1_000 + 4 * 4 * 16
    assert result.env_steps <= 1_000 / 4 + 4 * 16


def test_whole_floats_and_a_plain_function_are_taken():
    told: list[Any] = []
    lights(steps=1e3, members=np.int64(2), callbacks=told.append)
    assert [len(look.returns) for look in told] == [2] * len(told) != []


def test_seconds_end_it():
    assert lights(seconds=0.5).stopped_by == "seconds"


class Endless(Lights):
    """Its episodes never end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        found = super().reset(seed=seed)
        self.left = -1
        return found


def test_episodes_without_an_end_are_cut_and_that_is_told(tmp_path):
    with pytest.warns(UserWarning, match="episodes after 125") as told:
        result = train(
            Endless, members=2, envs_per_member=4, episodes=8, hyperparameters=FAST, steps=10_000
        )
    assert [str(one.message) for one in told] == list(result.warnings)
    assert result.stopped_by == "steps"
    assert result.best is not None
    assert (result.best.cut, set(result.best.lengths)) == (result.best.episodes, {125})
    again = podracer.load(result.save(tmp_path), Endless)
    assert again.warnings == result.warnings
    assert again.evaluate(2).lengths == (125, 125)


def test_what_nothing_has_judged_is_returned_as_that(monkeypatch):
    made: list[int] = []
    steps: list[int] = []

    class Interrupting(Endless):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            made.append(1)

        def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
            steps.extend(made[1:2])  # the first is only tried
            if len(steps) == 50:
                _thread.interrupt_main()
            return super().step(action)

    monkeypatch.setattr(plan, "_HURRY_S", 0.0)  # no time for an evaluation
    with pytest.warns(UserWarning, match="evaluated: interrupt"):
        result = train(
            Interrupting,
            members=2,
            envs_per_member=4,
            hyperparameters=FAST | {"horizon": 64},
            seconds=600,
        )
    assert (result.stopped_by, result.best, result.history) == ("interrupt", None, ())
    assert len(steps) < 56, "the step has ended between two of the 8 environments"
    assert "not evaluated" in repr(result)
    assert int(result.policy([1.0, 0.0])) in (0, 1)


class Stuck(Endless):
    """A step of the first one interrupts training, and does not return."""

    def __init__(self, pid: int = 0) -> None:
        super().__init__()
        self.pid, self.steps = pid, 0

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        is_first = os.environ.get("PODRACER_ENVIRONMENT_INDEX") == "0"
        if is_first and self.steps == 2_000:  # more than the checks take
            os.kill(self.pid, signal.SIGINT)
            time.sleep(1_000)
        return super().step(action)


def test_an_interrupt_does_not_wait_for_processes_that_take_long(monkeypatch):
    monkeypatch.setattr(plan, "_HURRY_S", 0.0)
    given: dict[str, Any] = {"environment_arguments": {"pid": os.getpid()}, "isolation": "process"}
    options = FAST | {"horizon": 2_048}
    with pytest.warns(UserWarning, match="evaluated: interrupt"):
        result = train(
            Stuck, members=2, envs_per_member=1, hyperparameters=options, seconds=600, **given
        )
    assert (result.stopped_by, result.best, result.warnings[1:]) == ("interrupt", None, ()), (
        "no process was lost"
    )


def test_callbacks_are_told_and_may_end_it():
    notes, others = Notes(lambda: False), Notes()
    result = lights(seconds=600, callbacks=[notes, others])
    assert result.stopped_by == "callback"
    run, *looks, end = notes.told
    assert (run.algorithm, run.members, run.seconds) == ("ppo", 4, 600)
    assert [type(look) for look in looks] == [podracer.Look] * len(looks)
    assert end is result
    assert tuple(looks) == result.history
    assert len(others.told) == len(notes.told), "all of them hear of each look"


def test_an_interrupt_ends_it_with_the_result_so_far():
    result = lights(seconds=600, callbacks=Notes(_thread.interrupt_main))
    assert result.stopped_by == "interrupt"
    assert result.best is not None


def test_members_differ_where_something_is_searched_and_the_worst_are_replaced():
    searched = {**FAST, "learning_rate": {"log_uniform": [1e-4, 1e-2]}}
    result = lights(steps=10_240, hyperparameters=searched)
    assert 1e-4 <= result.hyperparameters["learning_rate"] <= 1e-2
    assert result.hyperparameters["gamma"] == 0.99
    assert 10_240 <= result.history[-1].env_steps <= 12_800


def test_the_worst_quarter_goes_on_as_children_of_the_best():
    members = tuple(MemberConfig(f"agent-{number}", number, {"gamma": 0.9}) for number in range(8))
    cohort = CohortConfig("ppo", members, {"horizon": 16, "hidden_sizes": (16,)})
    algorithm = algorithm_class("ppo")(cohort, Lights.observation_space, Lights.action_space)
    before = [algorithm.member_state(member)["actor"] for member in range(8)]
    values = [{"gamma": 0.9} for _ in range(8)]
    ranges = {"gamma": Interval(0.8, 0.99)}
    replace_worst(algorithm, [5.0, 1.0, 9.0, 4.0, 0.0, 8.0, 6.0, 7.0], values, ranges, Random(0))
    changed = [member for member in range(8) if values[member] != {"gamma": 0.9}]
    assert changed == [1, 4]
    for member in range(8):
        weights = algorithm.member_state(member)["actor"]
        alike = [
            parent
            for parent in range(8)
            if all(torch.equal(weights[name], before[parent][name]) for name in weights)
        ]
        assert alike == [member] if member not in changed else alike in ([2], [5])


def test_search_takes_the_ranges_of_the_algorithm():
    notes = Notes()
    lights(steps=256, hyperparameters={"horizon": 16}, search=True, callbacks=notes)
    assert "learning_rate" in notes.told[0].ranges
    assert notes.told[0].shared == {"horizon": 16}


@pytest.mark.parametrize("form", ["result", "folder", "file"])
def test_training_goes_on_from_a_result(form, tmp_path):
    """With other members, hyperparameters and arguments of the environment."""
    first = lights(target=7.5, seconds=60)
    start: Any = (
        first
        if form == "result"
        else first.save(tmp_path / ("first.safetensors" if form == "file" else form))
    )
    still = {"learning_rate": 1e-7}
    result = train(
        Lights, start=start, members=2, envs_per_member=2, steps=256, episodes=8,
        hyperparameters=still, environment_arguments={"reward": 2.0},
    )  # fmt: skip
    assert result.history[0].returns == pytest.approx([16.0, 16.0], abs=4.0), "both know it already"
    assert result.env_steps == first.env_steps + 128, "steps of one member, counted on"
    assert result.hyperparameters["hidden_sizes"] == [16]
    assert result.hyperparameters["learning_rate"] == 1e-7
    for wrong, message in (
        ({"environment": "Pendulum-v1"}, "made for observations in"),
        ({"algorithm": "a2c"}, "start: it was trained by ppo, not by a2c"),
        ({"hyperparameters": {"hidden_sizes": [8]}}, "hidden_sizes: .* cannot change"),
        ({"start": tmp_path / "none"}, "no checkpoint at"),
        ({"start": 3}, "start: expected a Result, or the path"),
    ):
        with pytest.raises(InvalidInput, match=message):
            train(**{"environment": Lights, "start": start, "steps": 256} | wrong)


def test_the_first_member_goes_on_exactly_and_the_others_with_their_own_randomness():
    cohort = CohortConfig(
        "ppo", (MemberConfig("a", 1), MemberConfig("b", 2)), FAST | {"hidden_sizes": (16,)}
    )
    made = [
        algorithm_class("ppo")(cohort, Lights.observation_space, Lights.action_space)
        for _ in range(2)
    ]
    former = made[0].member_state(0)
    begin_from(Checkpoint(former, {}, {}), made[1])
    states = [made[1].member_state(member) for member in range(2)]
    for group, name in ((group, name) for group, tensors in former.items() for name in tensors):
        is_same = [torch.equal(state[group][name], former[group][name]) for state in states]
        assert is_same[0] and (is_same[1] or group == "random"), (group, name)
    assert not torch.equal(states[1]["random"]["seed"], states[0]["random"]["seed"])


def test_the_same_seed_trains_the_same_members():
    first, again = (lights(steps=512, seed=3).checkpoint.groups["random"]["seed"] for _ in range(2))
    assert torch.equal(first, again)
    assert first.item() in member_seeds(3, 8)
    assert len({*member_seeds(3, 8), *member_seeds(4, 8)}) == 16, "another seed shares none of them"


def test_what_the_environment_raises_is_what_the_caller_sees():
    class Broken(Lights):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="user"):
        train(Broken, members=1, envs_per_member=1, steps=64)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"environment": "CartPol-v1"}, "unknown environment 'CartPol-v1'; did you mean CartPole-v1"),
    ({"environment": 7}, "expected an id, a class, or a function"),
    (
        {"environment": Lights()},
        "expected the class Lights or a function that makes one, not an instance of Lights",
    ),
    ({"algorithm": "pp"}, "unknown algorithm 'pp'; did you mean ppo"),
    ({"algorithm": "td3"}, "td3 cannot act in Discrete"),
    ({"members": 0}, "members: expected a whole number from 1 to 1_024, got 0"),
    ({"members": "8"}, "members: expected a whole number"),
    ({"steps": None}, "training needs an end: give target, steps or seconds"),
    ({"steps": -1}, "steps: expected a whole number"),
    ({"seconds": 0}, "seconds: expected more than 0"),
    ({"target": float("nan")}, "target: expected a finite number"),
    ({"statistic": "median"}, "statistic: expected mean or lower_bound"),
    (
        {"hyperparameters": {"gama": 0.9}},
        "hyperparameters.gama: unknown hyperparameter 'gama'; did you mean gamma",
    ),
    ({"hyperparameters": {"gamma": 1.5}}, "hyperparameters.gamma"),
    ({"hyperparameters": {"gamma": {"between": [0, 1]}}}, "hyperparameters.gamma"),
    (
        {"hyperparameters": {"horizon": {"choice": [8, 16]}}},
        "hyperparameters.horizon: all members share it",
    ),
    ({"device": "abacus"}, "'abacus' is no device"),
    ({"environment_arguments": {"colour": 1}}, "CartPole-v1 does not take these"),
    ({"total_timesteps": 100}, "`total_timesteps` of Stable-Baselines3 is `steps` here"),
    ({"n_steps": 128}, "`horizon` here, a hyperparameter: hyperparameters={'horizon': …}"),
    ({"gamma": 0.9}, "gamma: train has no such argument; it is a hyperparameter"),
    ({"membrs": 3}, "did you mean members?"),
    ({"callbacks": podracer.Callback}, "callbacks: expected a podracer.Callback such as"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_argument_gives_one_clear_message(arguments, message):
    with pytest.raises(InvalidInput) as refused:
        train(**{"environment": "CartPole-v1", "steps": 100} | arguments)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
