"""Recorded curves: one JSON line each, so that an interrupted recording goes on where it was."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recorded.tasks import LAST_LOOKS
from report import read_lines


@dataclass(frozen=True)
class Look:
    """Greedy episodes of one agent after `env_steps` steps and `seconds` CPU seconds of training,
    its share of them."""

    env_steps: int
    seconds: float
    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.returns)


@dataclass(frozen=True)
class Curve:
    """The training of one configuration. `members`: of the cohort that it was trained in;
    `looks_s`: CPU seconds of its looks, its share of them."""

    task: str
    number: int
    settings: str
    algorithm: str
    hyperparameters: Mapping[str, Any]
    members: int
    looks_s: float
    looks: tuple[Look, ...]

    @property
    def key(self) -> tuple[str, int, str]:
        return self.task, self.number, self.settings

    @property
    def end(self) -> float:
        """The mean of the last looks' episodes."""
        return statistics.fmean(
            value for look in self.looks[-LAST_LOOKS:] for value in look.returns
        )

    def cut(self, looks: int) -> Curve:
        """The curve as it was after so many looks, beside the one at the untrained policy."""
        return replace(self, looks=self.looks[: looks + 1])

    def to_json(self) -> str:
        """One line; returns have four digits."""
        looks = [
            (look.env_steps, round(look.seconds, 3), list(map(_short, look.returns)))
            for look in self.looks
        ]
        return json.dumps({**asdict(self), "looks": looks}, separators=(",", ":"))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Curve:
        """The inverse, of a parsed line."""
        looks = tuple(
            Look(steps, seconds, tuple(returns)) for steps, seconds, returns in fields.pop("looks")
        )
        return cls(looks=looks, **fields)


def _short(value: float) -> float:
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def read_curves(*files: Path) -> dict[tuple[str, int, str], Curve]:
    """All curves by key."""
    return {curve.key: curve for curve in map(Curve.from_json, read_lines(*files))}


def append_curves(file: Path, curves: Iterable[Curve]) -> None:
    """Write a line more for each; a torn last line gets its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    is_torn = file.exists() and not file.read_text().endswith("\n")
    with file.open("a") as opened:
        opened.write("\n" * is_torn + "".join(f"{curve.to_json()}\n" for curve in curves))
