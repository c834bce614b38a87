"""What `podracer.train` returns: it acts, is evaluated, drawn, saved and loaded."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

import podracer
from podracer_core.environments import EpisodeStatistic
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.evaluate import EvaluationResult, result_to_json
from support.errors import raises
from tests.unit.in_process.tiny import FAST, Lights

OBSERVATIONS = np.random.default_rng(0).normal(size=(50, 4))


@pytest.fixture(scope="module")
def cartpole() -> podracer.Result:
    return podracer.train(
        "CartPole-v1", members=2, envs_per_member=8, steps=8_000, progress=False, target=1e9
    )


@pytest.fixture(scope="module")
def own() -> podracer.Result:
    return podracer.train(
        Lights, members=2, envs_per_member=4, steps=512, hyperparameters=FAST, progress=False
    )


def test_a_policy_takes_one_observation_or_many(cartpole):
    many = cartpole.policy(OBSERVATIONS)
    assert (many.shape, many.dtype) == ((50,), np.int64)
    assert [int(cartpole.policy(each)) for each in OBSERVATIONS] == many.tolist()
    with gymnasium.make("CartPole-v1") as environment:
        observation, _ = environment.reset(seed=0)
        environment.step(cartpole.policy(observation))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(3), r"expected the shape \[4\] or \[B, 4\], got \[3\]"),
        ({"a": 1}, "got the parts a; gymnasium.spaces.flat"),
    ],
)
def test_a_policy_refuses_other_shapes(cartpole, observation, message):
    with pytest.raises(InvalidInput, match=message):
        cartpole.policy(observation)


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_actions_in_a_box_are_in_the_units_of_the_environment(algorithm):
    result = podracer.train(
        "Pendulum-v1", algorithm, members=1, envs_per_member=2, steps=400, progress=False
    )
    actions = result.policy(100 * np.ones((3, 3)))
    assert (actions.shape, actions.dtype) == ((3, 1), np.float32)
    assert np.abs(actions).max() <= 2.0


def test_discrete_actions_begin_where_the_space_does():
    class FromFive(Lights):
        action_space = gymnasium.spaces.Discrete(2, start=5)

    result = podracer.train(
        FromFive, members=1, envs_per_member=2, steps=128, hyperparameters=FAST, progress=False
    )
    assert set(result.policy(np.eye(2)).tolist()) <= {5, 6}


def test_a_dict_is_taken_as_the_environment_gives_it(tmp_path):
    class Robot(Lights):
        observation_space = gymnasium.spaces.Dict(
            speed=gymnasium.spaces.Box(-1e5, 1e5, (), np.float64),
            gear=gymnasium.spaces.Discrete(3, start=1),
        )

        def _next(self) -> Any:
            super()._next()
            return {"gear": 1 + self.light, "speed": np.array(7.0)}

    class Turned(Robot):
        observation_space = gymnasium.spaces.Dict(list(Robot.observation_space.items())[::-1])

    trained = podracer.train(
        Robot, members=1, envs_per_member=2, steps=128, hyperparameters=FAST, progress=False
    )
    assert trained.treatment == "the policy sees speed (1 number), gear (one-hot, 3 numbers)"
    result = podracer.load(trained.save(tmp_path / "robot.safetensors"))
    assert result.policy.observation_space == Robot.observation_space
    observations = [{"gear": gear, "speed": 100.0 * gear} for gear in (1, 2, 3)]
    rows = [gymnasium.spaces.flatten(Robot.observation_space, each) for each in observations]
    expected = result.policy(np.array(rows)).tolist()
    assert (
        [int(result.policy(each)) for each in observations]
        == expected
        == result.policy(observations).tolist()
    )
    assert result.policy({"gear": [1, 2, 3], "speed": [100, 200, 300]}).tolist() == expected
    with raises(InvalidInput, "OTHER_SPACES", match=r"Dict\(gear"):
        podracer.load(tmp_path / "robot.safetensors", Turned).evaluate(1)


def test_a_policy_draws_from_its_distribution():
    short = {"members": 1, "envs_per_member": 2, "steps": 128, "progress": False}
    policy = podracer.train(Lights, hyperparameters=FAST, **short).policy
    many = np.tile(np.eye(2), (200, 1))
    drawn = policy(many, deterministic=False, seed=3)
    assert np.array_equal(drawn, policy(many, deterministic=False, seed=3))
    assert not np.array_equal(drawn, policy(many, deterministic=False, seed=4))
    assert 0 < np.abs(drawn - policy(many)).mean() < 1
    assert set(policy(many, np.tile([True, False], (400, 1)), deterministic=False).tolist()) == {0}
    with raises(PreconditionFailed, "DETERMINISTIC_POLICY"):
        podracer.train(Lights, "d3qn", **short).policy(many, deterministic=False)


@pytest.mark.parametrize("name", ["best", "deep/best", "best.safetensors"])
def test_what_was_saved_acts_alike(cartpole, tmp_path, name):
    assert cartpole.save(tmp_path / name) == tmp_path / name
    cartpole.save(tmp_path / name)  # once more: it is replaced
    loaded = podracer.load(tmp_path / name)
    assert np.array_equal(loaded.policy(OBSERVATIONS), cartpole.policy(OBSERVATIONS))
    assert loaded.evaluate(8) == cartpole.evaluate(8)
    assert (loaded.best, loaded.history) == (cartpole.best, cartpole.history)
    assert (loaded.algorithm, loaded.environment, loaded.env_steps) == (
        "ppo",
        "CartPole-v1",
        cartpole.env_steps,
    )
    assert loaded.plot().axes[0].get_title() == "ppo in CartPole-v1"
    assert not list(tmp_path.rglob(".*")), "no drafts are left"


def test_its_text_has_the_interval_of_a_sharpe_ratio(own):
    alike = EvaluationResult(
        (12.0,), (50,), (7,), statistic=EpisodeStatistic(1.5, -0.5, 3.0, {})
    ).repeated((1, 2, 3))
    metadata = {**own.checkpoint.metadata, "evaluation": result_to_json(alike)}
    result = podracer.Result(replace(own.checkpoint, metadata=metadata))
    assert ": 1.5 (95 % interval -0.5 to 3) in 3 greedy episodes" in repr(result)


def test_no_file_starts_the_callers_code(own, tmp_path):
    loaded = podracer.load(own.save(tmp_path / "own"))
    assert np.array_equal(loaded.policy(np.eye(2)), own.policy(np.eye(2)))
    with raises(InvalidInput, "NO_ENVIRONMENT", field="environment"):
        loaded.evaluate(4)
    assert podracer.load(tmp_path / "own", Lights).evaluate(4) == own.evaluate(4)
    assert (
        podracer.load(tmp_path / "own", partial(Lights, reward=2.0)).evaluate(4).mean
        == 2 * own.evaluate(4).mean
    )
    with raises(InvalidInput, "OTHER_SPACES", match="made"):
        podracer.load(tmp_path / "own", "CartPole-v1").evaluate(4)


def test_no_file_has_a_module_imported(cartpole, tmp_path):
    """Gymnasium imports the module of an id such as `minigrid:MiniGrid-Empty-5x5-v0`."""
    (tmp_path / "injected.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w').close()\n")
    environment = {**cartpole.checkpoint.metadata["environment"], "id": "injected:Any-v0"}
    metadata = {**cartpole.checkpoint.metadata, "environment": environment}
    forged = podracer.Result(replace(cartpole.checkpoint, metadata=metadata)).save(
        tmp_path / "forged.safetensors"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        for use in (podracer.load(forged).evaluate, podracer.load(forged).video):
            with raises(InvalidInput, "NO_ENVIRONMENT", field="environment"):
                use()
    assert not (tmp_path / "started").exists()
    assert podracer.load(forged, "CartPole-v1").evaluate(4) == cartpole.evaluate(4)


@pytest.mark.parametrize("name", ["nothing", "nothing.safetensors"])
def test_where_there_is_no_checkpoint(tmp_path, name):
    with raises(InvalidInput, "NO_CHECKPOINT"):
        podracer.load(tmp_path / name)


def test_a_video_of_the_callers_environment(own, tmp_path):
    pytest.importorskip("av")
    recording = own.video(tmp_path / "lights.mp4")
    assert (recording.frames, recording.complete) == (9, True)
    assert recording.path.stat().st_size > 0


def test_a_figure_shows_training_members_the_best_and_the_target(cartpole, tmp_path):
    figure = cartpole.plot()
    assert len(figure.axes[0].lines) == 1 + 2 + 1 + 1
    figure.savefig(tmp_path / "looks.png")


def test_a_figure_without_matplotlib(cartpole, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(PreconditionFailed, match=r"podracer-core\[plot\]"):
        cartpole.plot()
