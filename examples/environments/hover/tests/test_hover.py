"""What the page says that one should test."""

from __future__ import annotations

from pathlib import Path

import torch
from hover.environment import TIME_STEP, Hover

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import inspect_environment


def test_a_step_by_hand() -> None:
    environment = Hover(3, gravity=10.0)
    state = {"drone": torch.tensor([[0.0, 0.5, 2.99], [0.0, -1.0, 1.0]])}
    after, reward, lost = environment.dynamics(state, torch.tensor([[0.0], [0.0], [1.0]]))
    # floats, falls, climbs at 10 m/s²
    torch.testing.assert_close(after["drone"][1], torch.tensor([0.0, -1.0, 1.5]))
    torch.testing.assert_close(after["drone"][0], torch.tensor([0.0, 0.45, 2.99 + 1.5 * TIME_STEP]))
    torch.testing.assert_close(reward, torch.tensor([1.0, 0.55, 0.0]))
    assert lost.tolist() == [False, False, True]


def test_episodes_depend_on_their_seed_alone() -> None:
    several, alone = Hover(4), Hover(1)
    seeds = torch.tensor([3, 1, 4, 1])
    observation = several.reset(seeds)
    assert torch.equal(observation[1], observation[3])
    assert torch.equal(alone.reset(seeds[2:3])[0], observation[2])


def test_time_limit_and_autoreset() -> None:
    environment = Hover(2, max_episode_steps=5)
    environment.reset(torch.arange(2))
    for _ in range(4):
        assert not environment.step(torch.zeros(2, 1)).truncated.any()
    step = environment.step(torch.zeros(2, 1))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert not torch.equal(step.observation, step.final_observation)  # the next episode's first


def test_podracer_is_content() -> None:
    """As a job's inspection does it: in a process of its own, with every value looked at."""
    folder = str(Path(__file__).parents[1] / "hover")
    found = inspect_environment(
        EnvironmentSpec(entry_point="hover.environment:Hover", code_path=folder)
    )
    assert found.max_episode_steps == 100
