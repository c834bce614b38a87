"""What the page says that one should test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gymnasium.utils.env_checker import check_env
from maze.environment import Maze

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import inspect_environment, make_vec_environment
from podracer_core.errors import UserCodeFailed

FOLDER = Path(__file__).parents[1]
SPEC = EnvironmentSpec(
    entry_point="maze.environment:Maze",
    code_path=str(FOLDER / "maze"),
    data={"plan": str(FOLDER / "plan.txt")},
    max_episode_steps=100,
)


def test_the_shortest_way() -> None:
    maze = Maze(str(FOLDER / "plan.txt"))
    maze.reset(seed=0)
    total, ended = 0.0, False
    for action in [2, 2, 2, 1, 1, 2, 1, 1, 1, 2]:
        assert not ended
        _, reward, ended, _, _ = maze.step(action)
        total += reward
    assert ended
    assert total == pytest.approx(1 - 0.1)


def test_gymnasium_is_content() -> None:
    check_env(Maze(str(FOLDER / "plan.txt")), skip_render_check=True)


def test_podracer_is_content() -> None:
    """As a job's inspection does it: in a process of its own, with every value looked at."""
    found = inspect_environment(SPEC)
    assert found.max_episode_steps == 100


def test_a_batch_of_them() -> None:
    environment = make_vec_environment(SPEC, num_envs=4)
    observation = environment.reset(torch.arange(4))
    assert observation.shape == (4, 36)  # the cell, one-hot
    assert environment.action_mask.tolist() == [[False, True, True, False]] * 4  # right and down
    step = environment.step(torch.tensor([1, 2, 1, 2]))
    assert step.observation.argmax(1).tolist() == [1, 6, 1, 6]
    environment.close()


def test_a_plan_without_a_goal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_text("S.\n..\n")
    spec = EnvironmentSpec(
        SPEC.id, SPEC.entry_point, SPEC.code_path, data={"plan": str(tmp_path / "plan.txt")}
    )
    with pytest.raises(UserCodeFailed, match="the plan needs one S and one G"):
        inspect_environment(spec)
