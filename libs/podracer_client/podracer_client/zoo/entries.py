"""The entries of the zoo."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from podracer_core.config.other_libraries import did_you_mean
from podracer_core.errors import NotFound
from podracer_platform.jobs.job_file import load_job_file
from podracer_platform.jobs.spec import JobSpec

FOLDER = Path(__file__).parent
SHORT_S = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run of an entry's job.

    mean, lower, upper  the return of its best policy over `episodes` greedy episodes, and the 95 %
                        interval of the mean
    env_steps           of all agents together
    device_s            processor seconds of all pods
    wall_s              from the start of the command to its end
    machine, versions   where it ran, and with what
    curve               wall seconds of training, and the best return until then
    """

    date: str
    outcome: str
    mean: float
    lower: float
    upper: float
    episodes: int
    algorithm: str
    env_steps: int
    device_s: float
    wall_s: float
    machine: str
    versions: str
    curve: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that is known to work, or is expected to.

    note  what is known without a run; empty for an entry that was run
    """

    name: str
    job_file: Path
    note: str
    run: Run | None

    @property
    def job(self) -> JobSpec:
        """What the job file says."""
        return load_job_file(self.job_file)

    @property
    def is_short(self) -> bool:
        """Whether it is run every night: it reached its target, and soon."""
        return (
            self.run is not None
            and self.run.outcome == "TARGET_REACHED"
            and self.run.wall_s <= SHORT_S
        )


def entries() -> list[Entry]:
    """All of them, by name."""
    return [_read(file) for file in sorted(FOLDER.glob("*.yaml"))]


def find_entry(name: str) -> Entry:
    """Raises NotFound with the nearest names."""
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        advice = did_you_mean(name, known, "`podracer zoo list` lists them")
        raise NotFound(f"the zoo has no job {name}; {advice}", reason="ENTRY_NOT_FOUND", entry=name)
    return known[name]


def _read(file: Path) -> Entry:
    card = json.loads(file.with_suffix(".json").read_text())
    run = card["run"]
    return Entry(file.stem, file, card["note"], Run(**run) if run else None)
