"""Action masks on their way from an environment to the actor and into the rollout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import CartPole
from podracer_core.environments.processes import PreprocessVecEnv

FOLDER = str(Path(__file__).parents[1] / "environments")
MEMBERS, ENVS = 2, 3


class FirstAllowed:
    """Takes the first allowed action, and remembers what it was shown."""

    members = MEMBERS
    head = SimpleNamespace(
        action_shape=(), action_dtype=torch.int64, to_environment=lambda action: action
    )

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def draw_noise(self, key: torch.Tensor, counter: torch.Tensor, horizon: int) -> torch.Tensor:
        return torch.zeros(horizon, MEMBERS, ENVS, 1)

    def act(self, observation: torch.Tensor, noise: torch.Tensor, action_mask: Any = None) -> Any:
        self.seen.append(action_mask if action_mask is None else action_mask.clone())
        rows = observation.shape[:2]
        action = (
            torch.zeros(rows, dtype=torch.int64)
            if action_mask is None
            else action_mask.long().argmax(-1)
        )
        return action, torch.zeros(rows)


def expected(observation: torch.Tensor) -> torch.Tensor:
    """What the environment allows where it shows (number, step)."""
    return observation[..., 1:].long() % 3 != torch.arange(3)


@pytest.fixture
def environment() -> Iterator[PreprocessVecEnv]:
    spec = EnvironmentSpec(entry_point="user_environments:InfoMasks", code_path=FOLDER)
    made = PreprocessVecEnv(spec, MEMBERS * ENVS, processes=1)
    yield made
    made.close()


def test_masks_reach_the_actor_and_the_rollout(environment):
    """Episodes end in between, and the mask goes on from one rollout to the next, of another length
    too."""
    actor = FirstAllowed()
    collector = Collector(environment, actor, torch.tensor([3, 4]))  # type: ignore[arg-type]
    ended = 0
    for horizon in (7, 7, 4, 7):
        rollout = collector.collect(horizon)
        assert rollout.action_mask.shape == (horizon + 1, MEMBERS, ENVS, 3)
        assert torch.equal(rollout.action_mask, expected(rollout.observation))
        assert torch.equal(torch.stack(actor.seen[-horizon:]), rollout.action_mask[:-1])
        assert rollout.action_mask[:-1].gather(-1, rollout.action.unsqueeze(-1)).all()
        ended += int(rollout.terminated.sum())
    assert ended > 10


def test_the_mask_after_load_state(environment):
    collector = Collector(environment, FirstAllowed(), torch.tensor([3, 4]))  # type: ignore[arg-type]
    collector.collect(5)
    state = collector.state()
    collector.collect(2)
    collector.load_state(state)
    rollout = collector.collect(1)
    assert (rollout.observation[0, ..., 1] == 0).all(), (
        "a user's environment goes on with the next episode"
    )
    assert torch.equal(rollout.action_mask, expected(rollout.observation))


def test_without_masks_the_actor_gets_none():
    actor = FirstAllowed()
    rollout = Collector(CartPole(MEMBERS * ENVS), actor, torch.tensor([3, 4])).collect(2)  # type: ignore[arg-type]
    assert rollout.action_mask is None
    assert actor.seen == [None, None]
