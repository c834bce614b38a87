"""Names of other libraries are answered by what they are called here."""

from __future__ import annotations

import pytest

from podracer_core.catalogue import Hyperparameter, find_algorithm, find_environment
from podracer_core.environments.processes import hint
from podracer_core.errors import InvalidInput, UserCodeFailed
from podracer_platform.jobs import parse_job


@pytest.mark.parametrize(
    ("algorithm", "name", "answer"),
    [
        ("ppo", "n_steps", "`n_steps` of Stable-Baselines3 is `horizon` here"),
        ("ppo", "ent_coef", "`entropy_coefficient` here"),
        ("sac", "ent_coef", "`learn_temperature` here"),
        ("sac", "buffer_size", "`replay_capacity` here"),
        ("ppo", "lr", "of RLlib is `learning_rate` here"),
        ("ppo", "num_steps", "of CleanRL is `horizon` here"),
        ("ppo", "use_sde", "no state-dependent exploration"),
        ("ppo", "gama", "did you mean gamma"),
    ],
)
def test_a_hyperparameter(algorithm, name, answer):
    with pytest.raises(InvalidInput, match=answer):
        find_algorithm(algorithm).hyperparameter(name)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("PPO", "did you mean ppo?"),
        ("DoubleDQN", "did you mean double_dqn?"),
        ("RecurrentPPO", "no recurrent policies"),
        ("maskable_ppo", "action_masks"),
        ("her", "no hindsight replay"),
    ],
)
def test_an_algorithm(name, answer):
    with pytest.raises(InvalidInput, match=answer.replace("?", r"\\?")):
        find_algorithm(name)


def test_a_schedule():
    knob: Hyperparameter = find_algorithm("ppo").hyperparameter("learning_rate")
    for value in ("lin_3e-4", lambda progress: 3e-4 * progress):
        with pytest.raises(InvalidInput, match="learning_rate_schedule"):
            knob.check(value)


def test_keys_of_a_job_file():
    text = (
        "name: x\nenv: CartPole-v1\nn_timesteps: 1e5\nframe_stack: 4\npod: {num_workers: "
        "2}\nobjective: {}"
    )
    with pytest.raises(InvalidInput) as caught:
        parse_job(text)
    for answer in (
        "env: unknown key; `env` of RLlib is `environment` here",
        "is `objective.max_env_steps` of a job here",
        "FrameStackObservation",
        "pod.num_workers: unknown key; `num_workers` of RLlib is `pod.workers` of a job here",
    ):
        assert answer in caught.value.message


@pytest.mark.parametrize(
    ("environment_id", "answer"),
    [
        ("ALE/Breakout-v5", "pip install ale-py, and name it ale_py:ALE/Breakout-v5"),
        ("PongNoFrameskip-v4", "ale_py:ALE/Pong-v5"),
        ("FetchReach-v4", "pip install gymnasium-robotics"),
        ("highway-v0", "highway_env:highway-v0"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("HalfCheetahBulletEnv-v0", "the former gym"),
        ("MlpPolicy", "the network follows"),
    ],
)
def test_an_environment_of_a_package(environment_id, answer):
    with pytest.raises(InvalidInput, match=answer) as caught:
        find_environment(environment_id)
    assert "did you mean" not in caught.value.message


def test_what_a_user_can_do_about_an_error():
    assert 'Path(__file__).parent / "a.csv"' in hint(
        FileNotFoundError(2, "No such file", "data/a.csv")
    )
    assert 'Path(__file__).parent / "a.csv"' in hint(FileNotFoundError("data/a.csv not found."))
    assert hint(FileNotFoundError(2, "No such file", "/data/a.csv")) == ""
    assert (
        hint(ModuleNotFoundError("No module named 'ale_py'", name="ale_py")) == "pip install ale-py"
    )
    assert "`environment.code`" in hint(
        ModuleNotFoundError("No module named 'mine'", name="mine.envs")
    )
    assert hint(KeyError("price")) == ""


def test_python_shows_the_users_own_traceback_once_and_not_all_of_it():
    (note,) = UserCodeFailed("x", user_traceback="\n".join(map(str, range(100)))).__notes__
    assert note.splitlines() == [str(number) for number in range(70, 100)]
