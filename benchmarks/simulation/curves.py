"""Measured training curves, replayed: how good an agent is after so much more training with these
hyperparameters."""

from __future__ import annotations

import bisect
import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

CURVES = Path(__file__).with_name("curves.csv")
"""PPO on HalfCheetah-v5, recorded by benchmarks/simulation/record_curves.py of the tag
benchmarks-2026-11: looks at agents, by learning rate, discount and seed."""

_STEP_S = 1.0
_CLIMB = 1e-3
"""Return that every second of training adds: a level then belongs to one moment of a curve, on a
plateau too."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Best return so far at 0, 1, 2, … seconds of training; it grows all the time."""

    levels: tuple[float, ...]

    @property
    def start(self) -> float:
        return self.levels[0]

    def after(self, level: float, seconds: float) -> float:
        """Where training gets in `seconds` from an agent of that level, which may have learnt it
        elsewhere.

        A level above the curve's end stays: these hyperparameters do not get further.
        """
        begin_s = self._moment(level)
        return level if begin_s is None else max(level, self._at(begin_s + seconds))

    def seconds_to(self, level: float, target: float) -> float | None:
        """Training from `level` until `target`; None where this curve does not get there."""
        if level >= target:
            return 0.0
        begin_s, end_s = self._moment(level), self._moment(target)
        return None if begin_s is None or end_s is None else max(0.0, end_s - begin_s)

    def _at(self, seconds: float) -> float:
        index = min(int(seconds / _STEP_S), len(self.levels) - 2)
        part = min(1.0, seconds / _STEP_S - index)
        return self.levels[index] + part * (self.levels[index + 1] - self.levels[index])

    def _moment(self, level: float) -> float | None:
        """When the curve is first at `level`."""
        index = bisect.bisect_left(self.levels, level)
        if index == 0:
            return 0.0
        if index == len(self.levels):
            return None
        low, high = self.levels[index - 1], self.levels[index]
        return (index - 1 + (level - low) / (high - low)) * _STEP_S


class Curves:
    """The table. Between its hyperparameters, and between its seeds, curves are interpolated."""

    def __init__(self) -> None:
        looks: dict[tuple[float, float, int], list[tuple[float, float]]] = defaultdict(list)
        self.env_steps_per_second = 0.0
        with CURVES.open(newline="") as file:
            for row in csv.DictReader(file):
                key = (float(row["learning_rate"]), float(row["gamma"]), int(row["seed"]))
                looks[key].append((float(row["device_s"]), float(row["mean_return"])))
                if float(row["device_s"]):
                    self.env_steps_per_second = float(row["env_steps"]) / float(row["device_s"])
        self.rates = sorted({key[0] for key in looks})
        self.gammas = sorted({key[1] for key in looks})
        self.seeds = sorted({key[2] for key in looks})
        length_s = int(min(found[-1][0] for found in looks.values()))
        self._levels = {key: _envelope(found, length_s) for key, found in looks.items()}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Of the hyperparameters."""
        rates, gammas = self.rates, self.gammas
        return {"rates": (rates[0], rates[-1]), "gammas": (gammas[0], gammas[-1])}

    def of(self, learning_rate: float, gamma: float, seed: int) -> Curve:
        """The curve of an agent: its seed says how much of each recorded seed's luck it has."""
        low, high, rate = _between(
            [math.log(value) for value in self.rates], math.log(learning_rate)
        )
        left, right, discount = _between(
            [-math.log1p(-value) for value in self.gammas], -math.log1p(-gamma)
        )
        luck = Random(seed).random()
        corners = [
            (
                weight_seed * weight_rate * weight_gamma,
                self._levels[self.rates[i], self.gammas[j], own],
            )
            for own, weight_seed in zip(
                (self.seeds[0], self.seeds[-1]), (luck, 1.0 - luck), strict=True
            )
            for i, weight_rate in ((low, 1.0 - rate), (high, rate))
            for j, weight_gamma in ((left, 1.0 - discount), (right, discount))
        ]
        return Curve(
            tuple(
                sum(weight * levels[second] for weight, levels in corners) + _CLIMB * second
                for second in range(len(corners[0][1]))
            )
        )


def _envelope(looks: Sequence[tuple[float, float]], length_s: int) -> tuple[float, ...]:
    """The best so far of the medians of three looks that follow one another, at every second."""
    times = [time for time, _ in looks]
    padded = [looks[0][1], *(value for _, value in looks), looks[-1][1]]
    best, medians = -math.inf, []
    for index in range(len(looks)):
        best = max(best, sorted(padded[index : index + 3])[1])
        medians.append(best)
    levels = []
    for second in range(length_s + 1):
        low, high, part = _between(times, float(second))
        levels.append(medians[low] + part * (medians[high] - medians[low]))
    return tuple(levels)


def _between(values: Sequence[float], value: float) -> tuple[int, int, float]:
    """The places of the two neighbours of `value`, and how far it is from the first to the second;
    ends are kept."""
    high = bisect.bisect_left(values, value)
    if high == 0:
        return 0, 0, 0.0
    if high == len(values):
        return high - 1, high - 1, 0.0
    return high - 1, high, (value - values[high - 1]) / (values[high] - values[high - 1])
