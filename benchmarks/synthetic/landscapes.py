"""What synthetic agents learn: how hyperparameters and training change an agent's state, and what
that is worth.

Every landscape is drawn anew for each seed, so no generator can be fitted to where its optimum is.
Time is in rounds. A state is what weights are to a real agent: it is copied, averaged and resumed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from random import Random
from typing import ClassVar

from podracer.common.v1 import agent_pb2, evolution_pb2

State = tuple[float, ...]
Hyperparameters = Mapping[str, float | int]

SUBSTEPS = 8
"""Steps of the integration of one round."""

RETURN_SCALE = 1000.0


class Landscape(ABC):
    """One problem, as drawn by a seed."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    fresh: ClassVar[State] = (0.0,)

    @abstractmethod
    def __init__(self, random: Random) -> None: ...

    @abstractmethod
    def search(self) -> evolution_pb2.Search:
        """What a job searches."""

    @abstractmethod
    def slope(self, state: State, algorithm: str, hyperparameters: Hyperparameters) -> State:
        """How fast each number of the state changes, for each round."""

    def train(
        self, state: State, algorithm: str, hyperparameters: Hyperparameters, rounds: float
    ) -> State:
        """The state after so many rounds, by explicit Euler steps."""
        steps = max(1, round(SUBSTEPS * rounds))
        for _ in range(steps):
            slope = self.slope(state, algorithm, hyperparameters)
            state = tuple(
                value + change * rounds / steps for value, change in zip(state, slope, strict=True)
            )
        return state

    def value(self, state: State) -> float:
        """The return without noise, 0 to about 1,000; its first number is the skill."""
        return RETURN_SCALE * state[0]


class Drift(Landscape):
    """A quadratic bowl in the logarithm of the learning rate and in gamma, whose optimum moves as
    the agent learns.

    What is best at the beginning stands still later: a schedule is needed, which only selection
    along the way finds. Learning rates far above the optimum undo what was learned."""

    name, meaning = "drift", "an optimum that moves as the agent learns"

    def __init__(self, random: Random) -> None:
        self._rate = (random.uniform(-2.6, -2.2), random.uniform(-3.9, -3.5))
        self._gamma = (random.uniform(0.91, 0.94), random.uniform(0.97, 0.995))

    def search(self) -> evolution_pb2.Search:
        return _search({"ppo": ("learning_rate", "gamma")})

    def slope(self, state: State, algorithm: str, hyperparameters: Hyperparameters) -> State:
        (skill,) = state
        too_high = math.log10(hyperparameters["learning_rate"]) - _between(self._rate, skill)
        too_long = hyperparameters["gamma"] - _between(self._gamma, skill)
        speed = math.exp(-0.5 * ((too_high / 0.4) ** 2 + (too_long / 0.02) ** 2))
        undone = 0.02 * skill if too_high > 0.8 else 0.0
        return ((0.1 * speed if skill < 1.0 else 0.0) - undone,)


class SlowStarters(Landscape):
    """Deceptive: a low gamma learns at once and ends low, a high one begins slowly and ends high.

    Long training with a low gamma lowers the reachable score (`ceiling` sinks), so a copy of an
    early winner is not a free start for a better agent. An agent that is judged against older
    agents never gets there."""

    name, meaning = "slow starters", "the best begin worst, and early winners spoil their weights"
    fresh = (0.0, 1.0)

    def __init__(self, random: Random) -> None:
        self._rate = random.uniform(-3.5, -2.5)
        self._slowest = random.uniform(0.3, 0.4)

    def search(self) -> evolution_pb2.Search:
        return _search({"ppo": ("learning_rate", "gamma")})

    def slope(self, state: State, algorithm: str, hyperparameters: Hyperparameters) -> State:
        skill, ceiling = state
        patience = (hyperparameters["gamma"] - 0.9) / 0.099
        quality = math.exp(
            -0.5 * ((math.log10(hyperparameters["learning_rate"]) - self._rate) / 0.5) ** 2
        )
        speed = quality * (self._slowest + 1.2 * (1.0 - patience))
        end = min(ceiling, (0.35 + 0.65 * patience) * (0.5 + 0.5 * quality))
        grows = speed * (skill + 0.02) * (1.0 - skill / end)
        return max(grows, -0.1 * skill), -0.03 * max(0.0, ceiling - end)


class Mixed(Landscape):
    """Three algorithms with ranges of their own (real, logarithmic, whole numbers, choices), one of
    them the best.

    Skill goes towards what the hyperparameters allow, up or down, so that what is good now is good
    for ever."""

    name, meaning = "mixed", "three algorithms, each with a fixed optimum in its own space"
    _spaces: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ppo": ("learning_rate", "gamma", "clip_range", "epochs"),
        "sac": ("learning_rate", "gamma", "target_rate", "batch_size"),
        "td3": ("learning_rate", "gamma", "target_rate", "noise_scale"),
    }

    def __init__(self, random: Random) -> None:
        ceilings = random.sample([1.0, 0.8, 0.6], 3)
        self._ceiling = dict(zip(self._spaces, ceilings, strict=True))
        self._optimum = {
            name: {each: random.random() for each in names} for name, names in self._spaces.items()
        }

    def search(self) -> evolution_pb2.Search:
        return _search(self._spaces)

    def slope(self, state: State, algorithm: str, hyperparameters: Hyperparameters) -> State:
        (skill,) = state
        misses = (
            _coordinate(name, hyperparameters[name]) - optimum
            for name, optimum in self._optimum[algorithm].items()
        )
        quality = math.exp(-0.5 * math.fsum((miss / 0.4) ** 2 for miss in misses))
        return ((self._ceiling[algorithm] * quality - skill) / 5.0,)


LANDSCAPES: tuple[type[Landscape], ...] = (Drift, SlowStarters, Mixed)

_RANGES: Mapping[str, tuple[str, float, float]] = {
    "learning_rate": ("log", 1e-4, 1e-2),
    "gamma": ("even", 0.9, 0.999),
    "clip_range": ("even", 0.05, 0.4),
    "epochs": ("whole", 2, 16),
    "target_rate": ("log", 1e-3, 1e-1),
    "noise_scale": ("log", 0.02, 0.5),
    "batch_size": ("choice", 64, 512),
}
_BATCHES = (64, 128, 256, 512)


def _search(spaces: Mapping[str, tuple[str, ...]]) -> evolution_pb2.Search:
    return evolution_pb2.Search(
        algorithms=[evolution_pb2.AlgorithmShare(algorithm=name) for name in spaces],
        space=[
            _dimension(algorithm, name) for algorithm, names in spaces.items() for name in names
        ],
    )


def _dimension(algorithm: str, name: str) -> evolution_pb2.Dimension:
    kind, low, high = _RANGES[name]
    dimension = evolution_pb2.Dimension(hyperparameter=name, algorithm=algorithm)
    match kind:
        case "log":
            dimension.log_uniform.CopyFrom(evolution_pb2.Interval(low=low, high=high))
        case "even":
            dimension.uniform.CopyFrom(evolution_pb2.Interval(low=low, high=high))
        case "whole":
            dimension.integer_uniform.CopyFrom(
                evolution_pb2.IntegerInterval(low=int(low), high=int(high), log=True)
            )
        case _:
            values = [agent_pb2.HyperparameterValue(integer=value) for value in _BATCHES]
            dimension.choice.CopyFrom(evolution_pb2.Choice(values=values))
    return dimension


def _coordinate(name: str, value: float) -> float:
    """0 to 1 across the range."""
    kind, low, high = _RANGES[name]
    if kind == "even":
        return (value - low) / (high - low)
    return math.log(value / low) / math.log(high / low)


def _between(ends: tuple[float, float], part: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * min(part, 1.0)
