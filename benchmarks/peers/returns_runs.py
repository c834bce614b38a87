"""The ended runs of benchmarks/returns.py: one JSON line an agent, so that a killed benchmark goes
on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from report import read_lines

LAST_LOOKS = 3


@dataclass(frozen=True)
class Run:
    """One agent's training.

    settings          a digest of all hyperparameters and of the spacing of looks: with others it is
                      another run
    steps             that were asked for; a run of more of them holds one of fewer, since no
                      setting changes with time
    looks             steps taken and the mean return of the greedy episodes, look by look
    training_seconds  wall seconds without looks; ours are those of its whole cohort
    """

    task: str
    system: str
    seed: int
    settings: str
    steps: int
    looks: Sequence[tuple[int, float]]
    training_seconds: float

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Of the agent, however long it was trained."""
        return self.task, self.system, self.seed, self.settings

    @property
    def score(self) -> float:
        """The mean of the last three looks."""
        last = [value for _, value in self.looks[-LAST_LOOKS:]]
        return sum(last) / len(last)

    def first_at(self, target: float) -> int | None:
        """Steps at the first look of at least `target`."""
        return next((taken for taken, value in self.looks if value >= target), None)

    def cut(self, steps: int) -> Run:
        """The first `steps` of it: up to the first look at or after them."""
        end = next(
            (i for i, (taken, _) in enumerate(self.looks) if taken >= steps), len(self.looks) - 1
        )
        return replace(self, steps=steps, looks=self.looks[: end + 1])


def digest(settings: Mapping[str, object]) -> str:
    """Eight characters that are others for other settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=list).encode()).hexdigest()[
        :8
    ]


class Runs:
    """Those of several files, of which the first grows. Of one agent's runs the longest counts."""

    def __init__(self, results: Path, *others: Path) -> None:
        self._results = results
        self._runs: dict[tuple[str, str, int, str], Run] = {}
        for fields in read_lines(*others, results):
            looks = [(int(taken), float(value)) for taken, value in fields.pop("looks")]
            self._keep(Run(looks=looks, **fields))

    def _keep(self, run: Run) -> None:
        known = self._runs.get(run.key)
        if known is None or known.steps < run.steps:
            self._runs[run.key] = run

    def find(self, task: str, system: str, seed: int, settings: str, steps: int) -> Run | None:
        """The agent's first `steps`, where it has been trained for as many."""
        run = self._runs.get((task, system, seed, settings))
        return None if run is None or run.steps < steps else run.cut(steps)

    def add(self, runs: Iterable[Run]) -> None:
        """A line more for each."""
        self._results.parent.mkdir(parents=True, exist_ok=True)
        is_torn = self._results.exists() and not self._results.read_text().endswith("\n")
        with self._results.open("a") as file:
            for run in runs:
                file.write("\n" * is_torn + json.dumps(asdict(run)) + "\n")
                is_torn = False
                self._keep(run)

    def copy(self, path: Path) -> None:
        """All of them, for the repository."""
        lines = sorted(json.dumps(asdict(run)) for run in self._runs.values())
        path.write_text("".join(f"{line}\n" for line in lines))
