"""`podracer run`, then what one does with the result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from podracer_platform.jobs import load_job_file
from support.commands import one_evaluator

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FINAL_KEYS = {
    "event", "state", "best_return", "env_steps", "train_seconds", "seconds_to_target",
    "env_steps_per_second", "agents", "checkpoint",
}  # fmt: skip


def test_cartpole_from_the_command_to_a_policy_that_acts(run, tmp_path):
    command = run("run", EXAMPLES / "cartpole.yaml", "--json")
    assert command.returncode == 0, command.stderr
    final = command.events[-1]
    assert final.keys() >= FINAL_KEYS
    assert final["event"] == "job_finished"
    assert final["state"] == "SUCCEEDED"
    assert final["best_return"] >= 475
    assert final["agents"] >= 8  # more if rounds are short of the target on a busy machine
    assert final["env_steps"] > 0
    assert 0 < final["seconds_to_target"] <= final["train_seconds"] + 0.5
    checkpoint = tmp_path / final["checkpoint"]
    assert (checkpoint / "manifest.json").is_file()

    with one_evaluator():
        evaluated = run("evaluate", checkpoint, "--json")
        exported = run("export", checkpoint, "--output", tmp_path / "policy.pt2")
    assert evaluated.returncode == 0, evaluated.stderr
    answer = evaluated.events[-1]
    assert len(answer["returns"]) == 100
    assert answer["largest_difference"] <= 1e-4
    assert exported.returncode == 0, exported.stderr
    acts = (
        "import sys, torch; policy = torch.export.load(sys.argv[1]).module();"
        "print(policy(torch.tensor([[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]])).tolist());"
        "print(sorted(name for name in sys.modules if name.startswith('podracer')))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", acts, tmp_path / "policy.pt2"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout.splitlines()
    assert json.loads(shown[0]) == [1, 0]  # pushes under the pole
    assert shown[1] == "[]"


@pytest.mark.thorough
def test_split_layout_reaches_the_same_target(run, tmp_path):
    text = (EXAMPLES / "cartpole.yaml").read_text()
    assert "layout: fused" in text
    (tmp_path / "split.yaml").write_text(text.replace("layout: fused", "layout: split"))
    command = run("run", "split.yaml", "--json")
    assert command.returncode == 0, command.stderr
    assert command.events[-1]["state"] == "SUCCEEDED"
    assert command.events[-1]["best_return"] >= 475


@pytest.mark.thorough
def test_any_gymnasium_environment(run, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "name: lake\nenvironment: {id: FrozenLake-v1}\nobjective: {max_env_steps: 4_096}\n"
        "evolution: {population: 1, leaderboard_size: 1, round: {env_steps: 4_096}}\n"
        "search: {algorithms: [ppo], space: {horizon: 32, minibatch_size: 128}}\n"
        "pod: {members: 1, envs_per_member: 8}\nevaluation: {episodes: 8}\n"
    )
    command = run("run", "job.yaml", "--json")
    assert command.returncode == 0, command.stderr
    assert command.events[-1]["env_steps"] == 4_096


USER_ENVIRONMENT = """
import gymnasium, numpy

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, broken=False):
        if broken:
            raise RuntimeError("the rails are missing")

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = 0.0, 0
        return numpy.array([self.position], numpy.float32), {}

    def step(self, action):
        self.position += 1.0 if action == 1 else -1.0
        self.steps += 1
        reward = 1.0 if action == 1 else 0.0
        return numpy.array([self.position], numpy.float32), reward, self.steps >= 8, False, {}
"""


@pytest.fixture
def user_package(tmp_path: Path) -> Path:
    package = tmp_path / "code" / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "envs.py").write_text(USER_ENVIRONMENT)
    return tmp_path


def _user_job(folder: Path, broken: bool) -> Path:
    job = folder / "job.yaml"
    job.write_text(
        "name: line\n"
        "environment:\n  entry_point: my_package.envs:Line\n  code: ./code\n"
        f"  kwargs: {{broken: {str(broken).lower()}}}\n"
        "objective: {target_return: 7.9, max_duration: 90s}\n"
        "evolution: {population: 2, leaderboard_size: 1, round: {seconds: 5}}\n"
        "search: {space: {horizon: 16, minibatch_size: 64}}\n"
        "pod: {members: 2, envs_per_member: 8}\nevaluation: {episodes: 8}\n"
    )
    return job


@pytest.mark.thorough
def test_a_users_environment_that_cannot_start_fails_before_any_agent(run, user_package):
    command = run("run", _user_job(user_package, broken=True), "--json")
    assert command.returncode == 1
    final = command.events[-1]
    assert final["state"] == "FAILED"
    assert final["agents"] == 0
    assert "RuntimeError: the rails are missing" in command.stderr
    assert "my_package/envs.py" in command.stderr


def test_the_examples_are_what_the_issue_of_their_kind_asks():
    pendulum = load_job_file(EXAMPLES / "pendulum.yaml")
    assert pendulum.evolution.population >= 6
    assert pendulum.pod.layout == "split"
    assert pendulum.objective.target_return == -200
    assert pendulum.objective.statistic == "lower_bound"
    assert pendulum.evaluation.episodes == 32
    cartpole = load_job_file(EXAMPLES / "cartpole.yaml")
    assert (cartpole.pod.layout, cartpole.pod.members, cartpole.evaluation.episodes) == (
        "fused",
        8,
        100,
    )
