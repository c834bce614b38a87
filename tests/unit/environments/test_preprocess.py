"""Any Gymnasium environment as a batch over processes: the same numbers, and every way in which
user code can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import Step
from podracer_core.environments.processes import (
    PreprocessVecEnv,
    episode_seed,
    scrubbed_environment,
)
from podracer_core.errors import InvalidInput, PreconditionFailed, UserCodeFailed
from support.processes import kill_user_code

FOLDER = str(Path(__file__).parent)

Start = Callable[..., PreprocessVecEnv]


def user_spec(name: str, **kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec(entry_point=f"user_environments:{name}", code_path=FOLDER, kwargs=kwargs)


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes environments, closes them, and looks whether a process is left."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    made: list[PreprocessVecEnv] = []

    def _start(spec: EnvironmentSpec, num_envs: int, **options: Any) -> PreprocessVecEnv:
        made.append(PreprocessVecEnv(spec, num_envs, **options))
        return made[-1]

    yield _start
    for environment in made:
        environment.close()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def _compare_with_gymnasium(
    environment: PreprocessVecEnv, environment_id: str, actions: torch.Tensor
) -> int:
    """Step both, resetting Gymnasium's with the documented seeds; returns how many episodes
    ended."""
    seeds = [5, 2**40, -3, 0][: environment.num_envs]
    references = [
        gymnasium.make(environment_id, max_episode_steps=environment.max_episode_steps)
        for _ in seeds
    ]
    first = environment.reset(torch.tensor(seeds))
    for row, reference in enumerate(references):
        np.testing.assert_array_equal(
            first[row].numpy(), reference.reset(seed=episode_seed(seeds[row], 0))[0]
        )
    episodes = [0] * len(seeds)
    for action in actions:
        step = environment.step(action)
        for row, reference in enumerate(references):
            observation, reward, terminated, truncated, _ = reference.step(action[row].numpy())
            np.testing.assert_array_equal(step.final_observation[row].numpy(), observation)
            assert step.reward[row].item() == np.float32(reward)
            assert (step.terminated[row].item(), step.truncated[row].item()) == (
                terminated,
                truncated,
            )
            if terminated or truncated:
                episodes[row] += 1
                observation, _ = reference.reset(seed=episode_seed(seeds[row], episodes[row]))
            np.testing.assert_array_equal(step.observation[row].numpy(), observation)
        assert step.valid.all()
    assert environment.state()["episode"].tolist() == episodes
    return sum(episodes)


def test_acrobot(start):
    environment = start(EnvironmentSpec("Acrobot-v1", max_episode_steps=20), 4, processes=2)
    assert environment.max_episode_steps == 20
    assert environment.action_space == gymnasium.spaces.Discrete(3)
    actions = torch.randint(0, 3, (70, 4), generator=torch.Generator().manual_seed(0))
    assert _compare_with_gymnasium(environment, "Acrobot-v1", actions) == 12


def test_mountain_car_continuous(start):
    environment = start(EnvironmentSpec("MountainCarContinuous-v0"), 4, processes=2)
    assert environment.max_episode_steps == 999
    actions = torch.rand(50, 4, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert _compare_with_gymnasium(environment, "MountainCarContinuous-v0", actions) == 0


def test_a_limit_of_the_users_own(start):
    """The lower limit counts, wherever it is set; a task may end in the same step."""
    limit = EnvironmentSpec(
        entry_point="user_environments:limited",
        code_path=FOLDER,
        kwargs={"limit": 5},
        max_episode_steps=7,
    )
    environment = start(limit, 6, processes=2)
    assert environment.max_episode_steps == 5
    environment.reset(torch.arange(6))
    both = 0
    for _ in range(60):
        step = environment.step(torch.zeros(6, dtype=torch.int64))
        assert torch.equal(step.truncated, step.final_observation[:, 1] == 5)
        both += int((step.truncated & step.terminated).sum())
    assert both > 0


def _run(environment: PreprocessVecEnv, steps: int) -> list[list[torch.Tensor]]:
    environment.reset(torch.arange(environment.num_envs) + 100)
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(steps):
        step = environment.step(
            torch.randint(0, 3, (5,), generator=generator)[: environment.num_envs]
        )
        found.append(
            [
                value.clone()
                for value in (
                    step.observation,
                    step.reward,
                    step.terminated,
                    step.final_observation,
                )
            ]
        )
    return found


def test_the_number_of_processes_does_not_matter(start):
    spec = user_spec("Counter")
    one, three = start(spec, 5, processes=1), start(spec, 5, processes=3)
    assert (len(one.process_ids), len(three.process_ids)) == (1, 3)
    first = _run(one, 40)
    for left, right in zip(first, _run(three, 40), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    for left, right in zip(first, _run(one, 40), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_same_step_autoreset_and_the_true_final_observation(start):
    environment = start(user_spec("Counter"), 5, processes=2)
    observation = environment.reset(torch.arange(5)).clone()
    ended = 0
    for _ in range(40):
        step = environment.step(torch.ones(5, dtype=torch.int64))
        assert torch.equal(step.final_observation[:, 0], observation[:, 0]), "still the old episode"
        assert torch.equal(step.final_observation[:, 1], observation[:, 1] + 1)
        done = step.terminated
        assert not step.truncated.any()
        assert (step.observation[done, 1] == 0).all()
        assert (step.observation[done, 0] != observation[done, 0]).all()
        assert torch.equal(step.observation[~done], step.final_observation[~done])
        observation = step.observation.clone()
        ended += int(done.sum())
    assert ended > 20


def test_time_limits_of_users_environments(start):
    spec = EnvironmentSpec(
        entry_point="user_environments:NeverEnds", code_path=FOLDER, max_episode_steps=7
    )
    environment = start(spec, 2, processes=1)
    assert environment.max_episode_steps == 7
    environment.reset(torch.arange(2))
    flags = [
        environment.step(torch.zeros(2, dtype=torch.int64)).truncated.clone() for _ in range(14)
    ]
    assert [bool(flag.all()) for flag in flags] == ([False] * 6 + [True]) * 2


def test_who_plays_once_is_not_stepped_after_its_end(start):
    """Counter shows its steps. One episode each is alike to the first of those that go on, and a
    reset begins anew."""
    spec = EnvironmentSpec(
        entry_point="user_environments:Counter", code_path=FOLDER, max_episode_steps=6
    )
    environment, other = start(spec, 5, processes=2), start(spec, 5, processes=1)
    action = torch.tensor([0, 1, 2, 1, 0])
    for seeds in (torch.arange(5), torch.arange(5) + 10):
        environment.reset(seeds)
        other.reset(seeds)
        assert environment.play_once()
        running, last = torch.ones(5, dtype=torch.bool), torch.zeros(5, 2)
        for _ in range(8):
            step, going_on = environment.step(action), other.step(action)
            last[running] = going_on.final_observation[running]
            assert torch.equal(step.final_observation, last)
            assert torch.equal(step.reward, torch.where(running, going_on.reward, 0.0))
            for name in ("terminated", "truncated"):
                assert torch.equal(getattr(step, name), getattr(going_on, name) & running)
            running &= ~(step.terminated | step.truncated)
        assert not running.any()
        assert environment.state()["episode"].tolist() == [0] * 5
    environment.reset(torch.arange(5))
    for _ in range(20):
        environment.step(action)
    assert environment.state()["episode"].min() >= 2, "who was not asked to stand still goes on"


def test_discrete_actions_get_their_start_added(start):
    environment = start(user_spec("Counter"), 3, processes=1)
    environment.reset(torch.arange(3))
    assert environment.step(torch.tensor([0, 1, 2])).reward.tolist() == [1, 2, 3]


def test_box_actions_are_clipped_and_never_nan(start):
    environment = start(user_spec("BoxActions"), 3, processes=1)
    environment.reset(torch.arange(3))
    action = torch.tensor([[0.5, 0.25], [9.0, -9.0], [torch.nan, 1.0]])
    assert environment.step(action).reward.tolist() == [0.75, -1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "action", "reward"),
    [("MultiDiscreteActions", [[1, 2]], 8), ("MultiBinaryActions", [[1, 0, 1]], 2)],
)
def test_vector_actions(start, name, action, reward):
    environment = start(user_spec(name), 1)
    environment.reset(torch.arange(1))
    assert environment.step(torch.tensor(action)).reward.item() == reward


def test_dict_observations_are_flattened(start):
    environment = start(user_spec("DictObservations"), 2, processes=1)
    assert environment.observation_space.shape == (7,)
    assert environment.observation_space.dtype == np.float32
    environment.reset(torch.arange(2))
    step = environment.step(torch.zeros(2, dtype=torch.int64))
    # Gymnasium sorts a dict's names: count, then place (one-hot of 2 among 4, then two bits).
    assert step.final_observation.tolist() == [[1, 0, 0, 1, 0, 1, 0]] * 2


def test_images_stay_bytes(start):
    environment = start(user_spec("Images"), 2, processes=2)
    assert environment.reset(torch.arange(2)).dtype == torch.uint8
    step = environment.step(torch.zeros(2, dtype=torch.int64))
    assert step.final_observation.shape == (2, 4, 5, 3)
    assert (step.final_observation == 1).all()


def test_load_state_goes_on_with_the_next_episodes(start):
    environment = start(user_spec("Counter"), 3, processes=1)
    _run(environment, 20)
    saved = environment.state()
    other = start(user_spec("Counter"), 3, processes=2)
    observation = other.load_state(saved)
    assert torch.equal(other.state()["episode"], saved["episode"] + 1)
    assert (observation[:, 1] == 0).all()
    assert torch.equal(observation, environment.load_state(saved))


def test_nan_sets_the_row_aside(start):
    environment = start(user_spec("Counter", trouble="nan", trouble_at=2), 3, processes=1)
    environment.reset(torch.arange(3))
    environment.step(torch.zeros(3, dtype=torch.int64))
    step = environment.step(torch.zeros(3, dtype=torch.int64))
    assert not step.valid.any()
    assert step.truncated.all()
    assert not step.terminated.any()
    assert (step.final_observation == 0).all()
    assert (step.reward == 0).all()
    assert (step.observation[:, 1] == 0).all()
    assert environment.state()["episode"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("trouble", "complaint"),
    [
        ("raise", "step raised RuntimeError: the maze has no exit"),
        ("exit", "step raised SystemExit: 3"),
    ],
)
def test_an_exception_arrives_with_its_own_traceback(start, trouble, complaint):
    """At once, as nothing has worked before."""
    environment = start(user_spec("Counter", trouble=trouble, trouble_at=1), 4, processes=2)
    environment.reset(torch.arange(4))
    with pytest.raises(UserCodeFailed, match=f"user_environments:Counter: {complaint}") as caught:
        environment.step(torch.zeros(4, dtype=torch.int64))
    lines = caught.value.user_traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "user_environments.py" in lines[1]
    assert "in _get_into_trouble" in caught.value.user_traceback
    assert "preprocess_child" not in caught.value.user_traceback
    assert caught.value.metadata["environment"] == "user_environments:Counter"
    with pytest.raises(PreconditionFailed, match="closed"):
        environment.step(torch.zeros(4, dtype=torch.int64))


def test_a_wrong_shape_is_refused(start):
    environment = start(user_spec("Counter", trouble="shape", trouble_at=1), 1)
    environment.reset(torch.arange(1))
    with pytest.raises(InvalidInput, match="step returned"):
        environment.step(torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("spec", "complaint", "source"),
    [
        (
            user_spec("Counter", trouble="construction"),
            "construction raised ValueError: no map",
            "no map",
        ),
        (user_spec("Missing"), "construction raised AttributeError", "Missing"),
        (user_spec("Counter", sise=3), "unexpected keyword argument 'sise'", "sise"),
        (
            EnvironmentSpec(entry_point="no_such_package:Maze"),
            "ModuleNotFoundError",
            "no_such_package",
        ),
        (EnvironmentSpec("CartPole-v1", kwargs={"x": 1}), "construction raised TypeError", "'x'"),
    ],
)
def test_an_environment_that_cannot_start(start, spec, complaint, source):
    with pytest.raises(UserCodeFailed, match=complaint) as caught:
        start(spec, 2)
    assert source in caught.value.user_traceback


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (user_spec("not_an_environment"), "returned int, not a gymnasium.Env"),
        (user_spec("TextObservations"), "a Text space has no fixed size"),
        (
            EnvironmentSpec(entry_point="a:B", code_path="/no/such/folder"),
            "folder '/no/such/folder' does not exist",
        ),
        (
            EnvironmentSpec(entry_point="json.envs:B", code_path="/tmp"),
            "another module json is there already, from /",
        ),
    ],
)
def test_an_environment_that_cannot_be_right(start, spec, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        start(spec, 2)


def _assert_set_aside(step: Step, rows: slice, last: torch.Tensor) -> None:
    """The rows of a lost process are truncated, not valid, and show where they were."""
    others = torch.ones(len(step.valid), dtype=torch.bool)
    others[rows] = False
    assert step.valid.tolist() == others.tolist()
    assert step.truncated[rows].all()
    assert not step.terminated[rows].any()
    assert (step.reward[rows] == 0).all()
    assert torch.equal(step.final_observation[rows], last[rows])
    assert (step.observation[rows, 1] == 0).all(), "a new episode"
    assert (step.observation[rows, 0] != last[rows, 0]).all()


def test_a_killed_process_is_replaced(start):
    environment = start(user_spec("NeverEnds", trouble_at=0), 5, processes=2)
    environment.reset(torch.arange(5))
    last = environment.step(torch.zeros(5, dtype=torch.int64)).observation.clone()
    victim = environment.process_ids[1]
    kill_user_code(victim)
    step = environment.step(torch.zeros(5, dtype=torch.int64))
    _assert_set_aside(step, slice(2, 5), last)
    assert environment.process_ids[1] != victim
    step = environment.step(torch.zeros(5, dtype=torch.int64))
    assert step.valid.all()
    assert step.observation[:, 1].tolist() == [3, 3, 1, 1, 1]
    assert environment.state()["episode"].tolist() == [0, 0, 1, 1, 1]


def test_code_that_kills_its_process_is_given_another_chance(start, tmp_path):
    environment = start(user_spec("DieOnce", flag=str(tmp_path / "died")), 2, processes=2)
    environment.reset(torch.arange(2))
    lost = 0
    for _ in range(60):
        step = environment.step(torch.zeros(2, dtype=torch.int64))
        lost += int((~step.valid).sum())
    assert 1 <= lost <= 2


def test_code_that_always_kills_its_process_fails(start):
    environment = start(user_spec("Counter", trouble="die", trouble_at=1), 2, processes=1)
    environment.reset(torch.arange(2))
    with pytest.raises(UserCodeFailed, match="'step', 3 times"):
        for _ in range(3):
            environment.step(torch.zeros(2, dtype=torch.int64))


def test_a_hung_step_is_killed_at_the_deadline(start):
    environment = start(user_spec("NeverEnds", trouble="hang", trouble_at=2), 1, step_timeout_s=0.5)
    last = environment.reset(torch.arange(1)).clone()
    victim = environment.process_ids[0]
    last = environment.step(torch.zeros(1, dtype=torch.int64)).observation.clone()
    step = environment.step(torch.zeros(1, dtype=torch.int64))
    assert not psutil.pid_exists(victim)
    _assert_set_aside(step, slice(0, 1), last)
    assert environment.step(torch.zeros(1, dtype=torch.int64)).valid.all()


def test_processes_outlive_the_thread_that_started_them(start):
    """The kernel's parent-death signal comes when the starting thread ends."""
    with ThreadPoolExecutor(1) as thread:
        environment = thread.submit(start, user_spec("Counter"), 2, processes=1).result()
        processes = environment.process_ids
    environment.reset(torch.arange(2))
    assert environment.step(torch.zeros(2, dtype=torch.int64)).valid.all()
    assert environment.process_ids == processes, "they were killed and replaced"


def test_a_hung_environment_does_not_delay_closing(start):
    environment = start(user_spec("Counter", trouble="hang", trouble_at=1), 1)
    environment.reset(torch.arange(1))
    environment._processes.children[0].send("step")
    environment.close()
    environment.close()


def test_what_users_print_stays_off_our_output():
    program = (
        "import torch; from podracer_core.catalogue import EnvironmentSpec;"
        "from podracer_core.environments.processes import PreprocessVecEnv;"
        f"spec = EnvironmentSpec(entry_point='user_environments:Talkative', code_path={FOLDER!r});"
        "environment = PreprocessVecEnv(spec, 1);"
        "environment.reset(torch.arange(1)); environment.step(torch.zeros(1, dtype=torch.int64)); "
        "environment.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert "a line for the console" in done.stderr


def test_children_inherit_no_secrets(start, monkeypatch):
    names = ["PODRACER_TOKEN", "AWS_ACCESS_KEY_ID", "MY_API_KEY", "DB_PASSWORD", "MUJOCO_GL"]
    for name in names:
        monkeypatch.setenv(name, "x")
    environment = start(user_spec("Secretive", names=names), 1)
    assert environment.reset(torch.arange(1))[0, 0].item() == 0b10000
    assert (
        scrubbed_environment({"OMP_NUM_THREADS": "4", "PYTHONPATH": "/x"})["OMP_NUM_THREADS"] == "4"
    )
    secrets = [
        "S3_ACCESS_KEY",
        "STRIPE_KEY",
        "KEY_PASSPHRASE",
        "DATABASE_URL",
        "KUBECONFIG",
        "SSH_AUTH_SOCK",
    ]
    harmless = {"KEYBOARD": "us", "XDG_SESSION_ID": "1", "HOME": "/h", "LANG": "C.UTF-8"}
    kept = scrubbed_environment(dict.fromkeys(secrets, "x") | harmless)
    assert kept.items() >= harmless.items()
    assert not kept.keys() & set(secrets)


PARENT = f"""
import concurrent.futures, sys, time, torch
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes import PreprocessVecEnv

kwargs = {{"trouble": "hang", "trouble_at": 1}}
spec = EnvironmentSpec(entry_point="user_environments:Counter", code_path={FOLDER!r}, kwargs=kwargs)
if sys.argv[1] == "main thread":
    environment = PreprocessVecEnv(spec, 4, processes=2)
else:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        environment = thread.submit(PreprocessVecEnv, spec, 4, processes=2).result()
environment.reset(torch.arange(4))
environment._processes.children[0].send("step")
print(*environment.process_ids, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("started_by", ["main thread", "other thread"])
def test_nothing_is_left_of_a_killed_parent(started_by):
    """kill -9 of us takes the children along, even one that hangs; the shared memory never had a
    name."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, started_by], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    children = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
    assert len(children) == 2
    children += [each for child in children for each in child.children()]
    maps = [Path(f"/proc/{child.pid}/maps") for child in children]
    assert not [path for path in maps if path.exists() and "/dev/shm/" in path.read_text()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
