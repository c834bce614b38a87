"""The data of a report. Times are seconds since the job was created, returns are finite, names are
short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from podracer_core.catalogue.ranges import HyperparameterValue

__all__ = [
    "Agent",
    "Candidate",
    "Ensemble",
    "Evaluation",
    "Event",
    "HyperparameterValue",
    "JobReport",
    "Objective",
    "Pod",
    "Problem",
]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Greedy episodes of one policy.

    env_steps  of the agent's lineage
    time_s     the time of its end; None if unknown
    train_s    how long its lease had trained when the weights were taken
    lower, upper  95 % interval of the mean; None if there is none
    purpose    PROGRESS, CANDIDATE, CHALLENGE, REQUESTED, FINAL
    score      the number by which it ranks, with its broken episodes; None where the server does
               not tell it
    """

    agent: str
    env_steps: int
    time_s: float | None
    train_s: float
    mean: float
    lower: float | None
    upper: float | None
    episodes: int
    purpose: str
    checkpoint: str
    score: float | None = None

    @property
    def judges(self) -> bool:
        """Whether it counts for the ranking of candidates."""
        return self.purpose in ("CANDIDATE", "CHALLENGE", "FINAL")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent and its origin.

    start        FRESH, COPY, NOISE or FUSE
    parents      the agents whose checkpoints it began with
    start_steps  environment steps of its lineage before it
    score        its best by the objective's statistic; None before it was judged
    pinned       a user has protected it from being replaced
    stopping     a user has stopped it; its round is still under way
    exclusion    why it cannot be first
    """

    name: str
    algorithm: str
    state: str
    start: str
    parents: tuple[str, ...]
    replaced: str
    create_s: float | None
    start_steps: int
    env_steps: int
    cost_s: float
    rung: int
    score: float | None
    hyperparameters: Mapping[str, HyperparameterValue]
    reason: str = ""
    failure: str = ""
    pinned: bool = False
    stopping: bool = False
    evaluated_episodes: int = 0
    broken_number_episodes: int = 0
    broken_code_episodes: int = 0
    exclusion: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place on the leaderboard; `note` tells of broken episodes."""

    rank: int
    agent: str
    score: float | None
    evaluation: Evaluation
    confirmed: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; `subject` is a short name, `about` the kind of that name (`pods`,
    `agents`)."""

    position: int
    kind: str
    message: str
    about: str
    subject: str
    time_s: float
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that exists now."""

    name: str
    state: str
    layout: str
    version: str
    env_steps_per_second: float
    restarts: int
    message: str


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a job failed; `detail` may be a user's traceback."""

    reason: str
    message: str
    detail: str


@dataclass(frozen=True, slots=True)
class Ensemble:
    """An ensemble of candidates."""

    agents: tuple[str, ...]
    rule: str
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective; None if there is no target or limit. `by_mean`: the mean is compared with the
    target."""

    target: float | None = None
    by_mean: bool = False
    max_env_steps: int | None = None
    max_duration_s: float | None = None
    max_cost_s: float | None = None

    @property
    def statistic(self) -> str:
        return "mean" if self.by_mean else "lower bound"

    def score(self, evaluation: Evaluation) -> float | None:
        """The number of an evaluation that counts; None if it is missing."""
        if evaluation.score is not None:
            return evaluation.score
        return evaluation.mean if self.by_mean else evaluation.lower


@dataclass(frozen=True, slots=True)
class JobReport:
    """All data of a job's page.

    request           the keys of the job file and their values
    searched          hyperparameters that were searched → whether logarithmically
    start_s, end_s    the first work, and the end; None if not reached yet
    now_s             the end, or the time of the latest data
    train_s           active time, without pauses
    cost_s            device seconds, evaluation included; `evaluation_cost_s` of them for
                      evaluation
    evaluations       oldest first; an even sample of a long history
    retrained         the final policy, if it is not the best candidate
    standing          of a continuous job: generation, champion, reason for waiting
    environment       the facts of the environment
    score_name        the name of the numbers of evaluations
    versions          of the components and libraries that took part
    notes             omitted data, and data that could not be read
    video             URL of a video of the result, and its caption; or none, and the reason
    """

    name: str
    uid: str
    environment_id: str
    labels: Mapping[str, str]
    state: str
    outcome: str
    problem: Problem | None
    objective: Objective
    request: tuple[tuple[str, str], ...]
    searched: Mapping[str, bool]
    created: datetime
    start_s: float | None
    end_s: float | None
    now_s: float
    env_steps: int
    train_s: float
    time_to_target_s: float | None
    cost_s: float
    evaluation_cost_s: float
    agent_count: int
    completed_rounds: int
    best: Evaluation | None
    ensemble: Ensemble | None
    retrained: str = ""
    standing: tuple[tuple[str, str], ...] = ()
    candidates: tuple[Candidate, ...] = ()
    agents: tuple[Agent, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    evaluation_count: int = 0
    events: tuple[Event, ...] = ()
    pods: tuple[Pod, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())
    score_name: str = "mean return"
    video: tuple[str, str] = ("", "")

    @property
    def ended(self) -> bool:
        return self.end_s is not None

    @property
    def best_score(self) -> float | None:
        return self.objective.score(self.best) if self.best else None

    @property
    def confirmed(self) -> bool:
        """Whether the best was evaluated a second time, with fresh seeds."""
        return self.best is not None and self.best.purpose in ("CHALLENGE", "FINAL")
