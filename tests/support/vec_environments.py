"""One of every kind of batched environment, and what drives them: for tests of what all of them
promise."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from podracer_core.catalogue import (
    BUILT_IN_ENVIRONMENTS,
    EnvironmentSpec,
    find_environment,
    is_batched,
)
from podracer_core.environments import (
    State,
    Step,
    TorchEnvironment,
    VecEnvironment,
    make_vec_environment,
)
from podracer_core.random_numbers import integers, uniform
from support.stock_market import market_rows, write_csv

EXAMPLES = Path(__file__).parents[2] / "examples"
USER_CODE = str(Path(__file__).parent.parent / "unit" / "environments")

# What a caller may send by mistake, or an agent that has diverged.
WILD = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 3.4e38, 100.0, -100.0])


@dataclass(frozen=True)
class Case:
    """A kind of environment: `make(num_envs, max_episode_steps)`. `many` is as many as it is cheap
    to make."""

    name: str
    make: Callable[[int, int | None], VecEnvironment]
    in_processes: bool = False
    many: int = 1000


class Lights(TorchEnvironment):
    """As a user would write one: switch lights (MultiBinary) in a picture (uint8); ends when all
    are as they should be.

    A wish for each of three lights, drawn anew every episode. Reward is how many are right.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = None,
    ) -> None:
        picture = gymnasium.spaces.Box(0, 255, (2, 3, 1), np.uint8)
        super().__init__(
            num_envs, device, picture, gymnasium.spaces.MultiBinary(3), max_episode_steps
        )

    def initial_state(self, key: Tensor) -> State:
        light = torch.arange(3, device=key.device)[:, None]
        return {
            "wish": integers(key, light, 2),
            "lit": torch.zeros(3, key.numel(), dtype=torch.int64),
        }

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        lit = (state["lit"] + action.t()).remainder(2)
        right = (lit == state["wish"]).sum(0)
        return {"wish": state["wish"], "lit": lit}, right.float(), right == 3

    def observe(self, state: State, out: Tensor) -> None:
        pair = torch.stack([state["wish"], state["lit"]])  # [2, 3, K]
        out.copy_(pair.movedim(-1, 0)[..., None] * 255)


class Drift(TorchEnvironment):
    """Its numbers grow without bounds under the action: the observations break unless it is
    reset."""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = None,
    ) -> None:
        place = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        push = gymnasium.spaces.Box(-np.inf, np.inf, (2, 1), np.float32)
        super().__init__(num_envs, device, place, push, max_episode_steps)

    def initial_state(self, key: Tensor) -> State:
        return {"place": uniform(key, torch.arange(2, device=key.device)[:, None])}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        place = state["place"] + action[..., 0].t()
        return {"place": place}, place.sum(0), place[0] > 3

    def observe(self, state: State, out: Tensor) -> None:
        out.copy_(state["place"].t())


def built_in_case(environment_id: str, name: str = "", **kwargs: Any) -> Case:
    """The case of a built-in id."""

    def make(num_envs: int, max_episode_steps: int | None) -> VecEnvironment:
        arguments = (
            _stock_trading_arguments()
            if environment_id == "StockTrading-v0"
            else {"kwargs": kwargs}
        )
        spec = EnvironmentSpec(environment_id, **arguments, max_episode_steps=max_episode_steps)
        return make_vec_environment(spec, num_envs)

    return Case(
        name or environment_id,
        make,
        many=100 if find_environment(environment_id).backend == "mujoco" else 1000,
    )


@functools.cache
def _market_folder() -> tempfile.TemporaryDirectory[str]:
    """With a price table in it; it goes with this process."""
    folder = tempfile.TemporaryDirectory()
    write_csv(Path(folder.name, "prices.csv"), market_rows(tickers=3, bars=80))
    return folder


def _stock_trading_arguments() -> dict[str, Any]:
    table = str(Path(_market_folder().name, "prices.csv"))
    return {"kwargs": {"turbulence_window": 10, "cool_down": 1}, "data": {"table": table}}


def _process_case(name: str, many: int, **spec: Any) -> Case:
    def make(num_envs: int, max_episode_steps: int | None) -> VecEnvironment:
        named = EnvironmentSpec(**spec, max_episode_steps=max_episode_steps)
        return make_vec_environment(named, num_envs, processes=1 if num_envs < 5 else 2)

    return Case(name, make, in_processes=True, many=many)


def _user_case(kind: type[TorchEnvironment]) -> Case:
    return Case(
        f"user's {kind.__name__}", lambda num_envs, limit: kind(num_envs, max_episode_steps=limit)
    )  # type: ignore[call-arg]


def _stock_trading_case() -> Case:
    """In the example's market, with every knob that adds to its state."""
    kwargs = {
        "table": str(EXAMPLES / "stock_trading" / "prices.csv"),
        "gaps": "forward_fill",
        "turbulence_window": 60,
        "turbulence_threshold": 12.0,
        "cool_down": 2,
    }

    def make(num_envs: int, max_episode_steps: int | None) -> VecEnvironment:
        spec = EnvironmentSpec(
            "StockTrading-v0", kwargs=kwargs, max_episode_steps=max_episode_steps
        )
        return make_vec_environment(spec, num_envs)

    return Case("StockTrading-v0", make)


CASES = (
    *(
        built_in_case(name)
        for name, info in BUILT_IN_ENVIRONMENTS.items()
        if not info.needs_inspection
    ),
    built_in_case("Acrobot-v1", "a noisy Acrobot", torque_noise_max=0.5),
    built_in_case("PointChasingDiscrete-v0", "a factored chase", dimensions=3, factored=True),
    *([_stock_trading_case()] if is_batched("StockTrading-v0") else []),
    _user_case(Lights),
    _user_case(Drift),
    _process_case("masks in processes", 4, id="Taxi-v4"),
    _process_case(
        "MountainCarContinuous in processes",
        1000,
        entry_point="gymnasium.envs.classic_control:Continuous_MountainCarEnv",
    ),
    _process_case(
        "a Dict in processes",
        1000,
        entry_point="user_environments:DictObservations",
        code_path=USER_CODE,
    ),
)


def random_action(
    environment: VecEnvironment, generator: torch.Generator, wild: bool = False
) -> Tensor:
    """Allowed actions for all; where `wild`, half of a Box's numbers are invalid ones."""
    count, space = environment.num_envs, environment.action_space
    match space:
        case gymnasium.spaces.Discrete() if environment.action_mask is not None:
            return torch.multinomial(
                environment.action_mask.float(), 1, generator=generator
            ).squeeze(1)
        case gymnasium.spaces.Discrete():
            return torch.randint(int(space.n), (count,), generator=generator)
        case gymnasium.spaces.MultiBinary():
            return torch.randint(2, (count, *space.shape), generator=generator)
        case gymnasium.spaces.MultiDiscrete():
            sizes = torch.as_tensor(space.nvec)
            return (torch.rand(count, sizes.numel(), generator=generator) * sizes).long()
        case gymnasium.spaces.Box():
            low, high = (
                torch.as_tensor(bound).float().clamp(-1, 1) for bound in (space.low, space.high)
            )
            action = low + (high - low) * torch.rand(count, *space.shape, generator=generator)
            if not wild:
                return action
            strange = WILD[torch.randint(WILD.numel(), action.shape, generator=generator)]
            return torch.where(torch.rand(action.shape, generator=generator) < 0.5, strange, action)
    raise AssertionError(f"no actions for {space}")


def values(step: Step) -> dict[str, Tensor]:
    """Copies of all that a step holds, by name."""
    found = {field.name: getattr(step, field.name) for field in fields(step)}
    return {name: value.clone() for name, value in found.items() if value is not None}


def run(environment: VecEnvironment, actions: Iterable[Tensor]) -> list[dict[str, Tensor]]:
    """One step after the other, each copied."""
    return [values(environment.step(action)) for action in actions]


def explore(
    environment: VecEnvironment, steps: int, seed: int, wild: bool = False
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Random steps: the actions, and what came of each."""
    generator = torch.Generator().manual_seed(seed)
    actions, found = [], []
    for _ in range(steps):
        actions.append(random_action(environment, generator, wild))
        found.append(values(environment.step(actions[-1])))
    return actions, found


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], what: str = "") -> None:
    """Bit by bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), f"{name} {what}: {value} is not {other[name]}"
