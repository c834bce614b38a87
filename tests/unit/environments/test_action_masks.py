"""Action masks of users' environments: both conventions, what they belong to, and every way in
which they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import (
    CartPole,
    allocate_step,
    check_mask,
    inspect_environment,
    sample_allowed,
)
from podracer_core.environments.processes import PreprocessVecEnv, episode_seed
from podracer_core.errors import InvalidInput, UserCodeFailed
from support.processes import kill_user_code

FOLDER = str(Path(__file__).parent)
CONVENTIONS = pytest.mark.parametrize("name", ["InfoMasks", "MethodMasks", "WrapperWithMasks"])

Start = Callable[..., PreprocessVecEnv]


def user_spec(name: str, **kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec(entry_point=f"user_environments:{name}", code_path=FOLDER, kwargs=kwargs)


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[PreprocessVecEnv] = []

    def _start(spec: EnvironmentSpec, num_envs: int, **options: Any) -> PreprocessVecEnv:
        made.append(PreprocessVecEnv(spec, num_envs, **options))
        return made[-1]

    yield _start
    for environment in made:
        environment.close()


def expected(observation: torch.Tensor) -> torch.Tensor:
    """What `Masked` allows where its observation shows (number, step)."""
    return observation[:, 1:].long() % 3 != torch.arange(3)


def first_allowed(mask: torch.Tensor | None) -> torch.Tensor:
    assert mask is not None
    return mask.long().argmax(1)


@CONVENTIONS
def test_the_mask_is_that_of_the_observation(start, name):
    """Also after a same-step autoreset, where the mask of the old episode's end would be
    another."""
    environment = start(user_spec(name), 5, processes=2)
    assert environment.has_action_mask
    observation = environment.reset(torch.arange(5))
    mask = environment.action_mask
    assert mask is not None
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected(observation))
    telling = 0
    for _ in range(40):
        step = environment.step(first_allowed(environment.action_mask))
        assert step.action_mask is not None
        assert torch.equal(step.action_mask, expected(step.observation))
        assert torch.equal(step.action_mask, environment.action_mask)
        telling += int((step.terminated & (step.final_observation[:, 1] % 3 != 0)).sum())
    assert telling > 10


def test_taxi(start):
    environment = start(EnvironmentSpec("Taxi-v4", max_episode_steps=20), 3, processes=2)
    references = [gymnasium.make("Taxi-v4", max_episode_steps=20) for _ in range(3)]
    environment.reset(torch.arange(3))
    masks = [
        reference.reset(seed=row)[1]["action_mask"] for row, reference in enumerate(references)
    ]
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for _ in range(50):
        assert environment.action_mask.tolist() == np.array(masks, bool).tolist()
        action = torch.multinomial(environment.action_mask.float(), 1, generator=generator).squeeze(
            1
        )
        environment.step(action)
        for row, reference in enumerate(references):
            _, _, terminated, truncated, info = reference.step(int(action[row]))
            if terminated or truncated:
                episode = int(environment.state()["episode"][row])
                _, info = reference.reset(seed=episode_seed(row, episode))
                ended += 1
            masks[row] = info["action_mask"]
    assert ended >= 6


@pytest.mark.parametrize("parts", [False, True])
def test_multi_discrete(start, parts):
    environment = start(user_spec("MultiDiscreteMasks", parts=parts), 2, processes=1)
    environment.reset(torch.arange(2))
    for choice in (0, 2):
        assert environment.action_mask.tolist() == [[False, True, True, False, True]] * 2
        environment.step(torch.tensor([[1, choice]] * 2))
    inspect_environment(user_spec("MultiDiscreteMasks", parts=parts))


@pytest.mark.parametrize("name", ["Counter", "BoxWithMasks", "MultiBinaryActions"])
def test_environments_without_masks(start, name):
    environment = start(user_spec(name), 2, processes=1)
    assert not environment.has_action_mask
    environment.reset(torch.arange(2))
    assert environment.action_mask is None
    assert allocate_step(environment).action_mask is None
    is_box = isinstance(environment.action_space, gymnasium.spaces.Box)
    action = torch.zeros(
        2, *environment.action_space.shape, dtype=torch.float32 if is_box else torch.int64
    )
    assert environment.step(action).action_mask is None
    inspect_environment(user_spec(name))


def test_built_in_environments_have_none():
    environment = CartPole(2)
    environment.reset(torch.arange(2))
    assert not environment.has_action_mask
    assert environment.action_mask is None


def test_step_writes_where_it_is_told(start):
    environment = start(user_spec("InfoMasks"), 5, processes=2)
    environment.reset(torch.arange(5))
    out = allocate_step(environment)
    assert out.action_mask is not None
    assert out.action_mask.shape == (5, 3)
    assert out.action_mask.all()
    environment.step(first_allowed(environment.action_mask), out=out)
    assert torch.equal(out.action_mask, expected(out.observation))
    assert torch.equal(environment.action_mask, out.action_mask)
    kept = out.action_mask.clone()
    environment.step(first_allowed(environment.action_mask))
    assert torch.equal(out.action_mask, kept)


def test_the_mask_after_load_state(start):
    environment = start(user_spec("InfoMasks"), 5, processes=2)
    environment.reset(torch.arange(5))
    saved = environment.state()
    environment.step(first_allowed(environment.action_mask))
    assert torch.equal(environment.load_state(saved)[:, 1], torch.zeros(5))
    assert environment.action_mask.tolist() == [[False, True, True]] * 5


def test_lost_and_broken_rows_show_the_mask_of_their_next_episode(start):
    environment = start(user_spec("MethodMasks"), 4, processes=2)
    environment.reset(torch.arange(4))
    environment.step(first_allowed(environment.action_mask))
    kill_user_code(environment.process_ids[1])
    step = environment.step(first_allowed(environment.action_mask))
    assert step.valid.tolist() == [True, True, False, False]
    assert step.action_mask.tolist() == [[True, True, False]] * 2 + [[False, True, True]] * 2
    broken = start(user_spec("InfoMasks", trouble="nan", trouble_at=1), 2, processes=1)
    broken.reset(torch.arange(2))
    step = broken.step(first_allowed(broken.action_mask))
    assert not step.valid.any()
    assert step.action_mask.tolist() == [[False, True, True]] * 2


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            user_spec("InfoMasks", trouble="missing", trouble_at=1),
            r"info\['action_mask'\] of step is missing",
        ),
        (
            user_spec("InfoMasks", trouble="missing", trouble_at=0),
            r"step gave info\['action_mask'\], the first reset did not; give it always or never",
        ),
        (
            user_spec("InfoMasks", trouble="length", trouble_at=1),
            r"info\['action_mask'\] of step has the shape \[2\]; a mask of Discrete\(3, start=1\) "
            r"has \[3\]",
        ),
        (
            user_spec("MethodMasks", trouble="length", trouble_at=0),
            r"the result of action_masks after reset has the shape \[2\]; a mask of Discrete\(3, "
            r"start=1\) has \[3\]",
        ),
        (
            user_spec("InfoMasks", trouble="nothing", trouble_at=1),
            r"info\['action_mask'\] of step allows no action; until the episode ends at least one "
            r"must be allowed",
        ),
        (
            user_spec("MethodMasks", trouble="nothing", trouble_at=1),
            "action_masks after step allows no action;",
        ),
        (
            user_spec("MultiDiscreteMasks", half=True),
            r"info\['action_mask'\] of reset allows no action in part 1;",
        ),
        (
            user_spec("InfoMasks", trouble="numbers", trouble_at=1),
            r"is array\(\[.*inf.*\]\); a mask holds 1 \(or True\)",
        ),
    ],
)
def test_masks_that_cannot_be_right(start, spec, complaint):
    """They are found while training and by an inspection."""
    environment = start(spec, 2, processes=1)
    action = torch.tensor([1, 2, 0])
    with pytest.raises(InvalidInput, match=complaint):
        environment.reset(torch.arange(2))
        for number in action:
            environment.step(number.expand(2))
    with pytest.raises(InvalidInput, match=complaint):
        inspect_environment(spec)


def test_a_method_that_raises(start):
    environment = start(user_spec("MethodMasks", trouble="raise in action_masks"), 1)
    with pytest.raises(UserCodeFailed, match="raised RuntimeError") as caught:
        environment.reset(torch.arange(1))
    assert "preprocess_child" not in caught.value.user_traceback


@CONVENTIONS
def test_an_inspection_takes_allowed_actions(name):
    """The environments assert it."""
    inspect_environment(user_spec(name))


def test_random_actions_are_allowed_ones():
    discrete = gymnasium.spaces.Discrete(4, start=2)
    several = gymnasium.spaces.MultiDiscrete([2, 3])
    flags = check_mask(several, [True, False, 0, 1, 1], "it")
    found = {tuple(int(choice) for choice in sample_allowed(several, flags)) for _ in range(50)}
    assert found == {(0, 1), (0, 2)}
    assert {int(sample_allowed(discrete, np.array([0, 1, 0, 1], bool))) for _ in range(50)} == {
        3,
        5,
    }
    assert {int(sample_allowed(discrete, None)) for _ in range(100)} == {2, 3, 4, 5}
