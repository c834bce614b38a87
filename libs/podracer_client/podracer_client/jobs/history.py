"""The one view of a job that terminal, `--json`, page, report, loggers and SDK read.

Times are seconds since the job was created, names are short, and numbers are finite or None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Generic, Self, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.names import enum_word, moment, seconds, short_name, time_text
from podracer_core.catalogue import HyperparameterValue, described_environment
from podracer_core.errors import InvalidInput
from podracer_core.statistics import posterior_means
from podracer_platform.jobs import broken_episodes
from podracer_platform.messages import arguments_from_message, hyperparameter_from_message


def best_first(agents: Iterable[Agent]) -> list[Agent]:
    """Agents in the order of all tables: by score, then those without one, then those that cannot
    be first."""
    return sorted(
        agents, key=lambda row: (bool(row.exclusion), row.score is None, -(row.score or 0.0))
    )


def score_name(
    environment: environment_pb2.EnvironmentSpec, changes: Mapping[str, object] | None = None
) -> str:
    """`Sharpe` of a market whose agents are ranked by that; `return` elsewhere, also of an
    environment unknown here. `changes` are arguments that take the place of its own."""
    info = described_environment(environment.id)
    if info is None:
        return "return"
    arguments = arguments_from_message(environment.kwargs, "environment.kwargs")
    return info.score_name({**arguments, **(changes or {})})


def score(evaluation: agent_pb2.Evaluation, objective: evolution_pb2.Objective) -> float:
    """The number of an evaluation that the objective looks at."""
    if objective.statistic == evolution_pb2.TARGET_STATISTIC_MEAN:
        return evaluation.mean
    return evaluation.lower_bound


def best_score(job: job_pb2.Job) -> float | None:
    """The number by which a job's best ranks, with its broken episodes; None without one."""
    return job.progress.best_score if job.progress.HasField("best_score") else None


def corrected_means(evaluations: Sequence[agent_pb2.Evaluation]) -> tuple[float, ...]:
    """The means of a leaderboard's evaluations, each drawn to all of them by as much as its
    episodes leave open: the best of many noisy numbers promises too much."""
    means = [each.mean for each in evaluations]
    variances = [each.standard_deviation**2 for each in evaluations]
    return posterior_means(means, [max(1, len(each.returns)) for each in evaluations], variances)


Item = TypeVar("Item")

FINAL_STATES = frozenset(
    {job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED}
)
MAX_EVALUATIONS = 12_000
MAX_EVENTS = 20_000
COUNTS = ("evaluated_episodes", "broken_number_episodes", "broken_code_episodes")
"""Of an agent: the episodes of all its evaluations, and those of them that broke."""
_RESOURCE = re.compile(
    r"projects/[^/\s]+/(?:jobs/[^/\s]+/)?(?:agents|jobs|leaderboards|leases|pods)/(?=\S)"
)
"""The prefix of a resource name, before its last part."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Greedy episodes of one policy.

    env_steps  of the agent's lineage
    time_s     the time of its end; None if unknown
    train_s    how long its lease had trained when the weights were taken
    mean       the only number that may be not finite: such an evaluation is no part of a History
    lower, upper  95 % interval of the mean; None if there is none
    purpose    PROGRESS, CANDIDATE, CHALLENGE, REQUESTED, FINAL
    score      the number by which it ranks, with its broken episodes; None where the server does
               not tell it
    lease      the id of its lease
    unix_s     the time of its end in seconds since 1970
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
    lease: str = field(default="", compare=False)
    unix_s: float = field(default=0.0, compare=False)
    statistics: Mapping[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, message: agent_pb2.Evaluation, origin: Timestamp, score: float | None = None
    ) -> Self:
        """An evaluation, which ranks by `score` if that is known."""
        return cls(
            agent=short_name(message.agent),
            env_steps=message.env_steps,
            time_s=time_of(message.create_time, origin),
            train_s=seconds(message.train_time),
            mean=message.mean,
            lower=_finite(message.lower_bound),
            upper=_finite(message.upper_bound),
            episodes=len(message.returns),
            purpose=enum_word(agent_pb2.EvaluationPurpose, message.purpose),
            checkpoint=message.checkpoint.prefix,
            score=score,
            lease=message.evaluation_id.partition("-")[0],
            unix_s=seconds(message.create_time),
            statistics=dict(message.statistics),
        )

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.mean)

    @property
    def judges(self) -> bool:
        """Whether it counts for the ranking of candidates."""
        return self.purpose in ("CANDIDATE", "CHALLENGE", "FINAL")


def finite_evaluation(
    message: agent_pb2.Evaluation, origin: Timestamp, score: float | None = None
) -> Evaluation | None:
    """An evaluation; None if its mean is not finite."""
    found = Evaluation.of(message, origin, score)
    return found if found.is_finite else None


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective; None if there is no target or limit. `by_mean`: the mean is compared with the
    target."""

    target: float | None = None
    by_mean: bool = False
    max_env_steps: int | None = None
    max_duration_s: float | None = None
    max_cost_s: float | None = None

    @classmethod
    def of(cls, message: evolution_pb2.Objective) -> Self:
        return cls(
            target=message.target_return if message.HasField("target_return") else None,
            by_mean=message.statistic == evolution_pb2.TARGET_STATISTIC_MEAN,
            max_env_steps=message.max_env_steps or None,
            max_duration_s=seconds(message.max_duration)
            if message.HasField("max_duration")
            else None,
            max_cost_s=seconds(message.max_cost) if message.HasField("max_cost") else None,
        )

    @property
    def statistic(self) -> str:
        return "mean" if self.by_mean else "lower bound"

    def score(self, evaluation: Evaluation) -> float | None:
        """The number of an evaluation that counts; None if it is missing."""
        if evaluation.score is not None:
            return evaluation.score
        return evaluation.mean if self.by_mean else evaluation.lower


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
    best, latest its evaluations; None where it has none
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
    best: Evaluation | None = None
    latest: Evaluation | None = None

    @classmethod
    def of(cls, message: leaderboard_pb2.Agent, wanted: Objective, origin: Timestamp) -> Self:
        first, best, latest = message.spec.initialization, None, None
        if message.HasField("best_evaluation"):
            best = finite_evaluation(message.best_evaluation, origin, message.best_score)
        if message.HasField("latest_evaluation"):
            latest = finite_evaluation(message.latest_evaluation, origin)
        return cls(
            name=short_name(message.name),
            algorithm=message.spec.algorithm,
            state=enum_word(leaderboard_pb2.AgentState, message.state),
            start=enum_word(agent_pb2.InitializationKind, first.kind) or "FRESH",
            parents=tuple(map(short_name, message.parents)),
            replaced=short_name(message.replaced),
            create_s=time_of(message.create_time, origin),
            start_steps=max((parent.checkpoint.env_steps for parent in first.parents), default=0),
            env_steps=message.env_steps,
            cost_s=seconds(message.cost),
            rung=message.rung,
            score=wanted.score(best) if best else None,
            hyperparameters=agent_hyperparameters(message.spec),
            reason=message.reason,
            failure=message.failure,
            pinned=message.pinned,
            stopping=message.stopping,
            exclusion=message.exclusion,
            best=best,
            latest=latest,
            **{name: getattr(message, name) for name in COUNTS},
        )


def agent_hyperparameters(spec: agent_pb2.AgentSpec) -> dict[str, HyperparameterValue]:
    """Hyperparameters that have a value, by name."""
    found = {}
    for name in sorted(spec.hyperparameters):
        try:
            found[name] = hyperparameter_from_message(spec.hyperparameters[name])
        except InvalidInput:  # of a kind that a newer server knows
            continue
    return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place on the leaderboard; `note` tells of broken episodes."""

    rank: int
    agent: str
    score: float | None
    evaluation: Evaluation
    confirmed: bool
    note: str = ""


def broken_text(candidate: leaderboard_pb2.Candidate) -> str:
    """What is known of a candidate's broken episodes; empty if none broke."""
    agent = candidate.agent
    if candidate.exclusion:
        return f"cannot be first: {candidate.exclusion}"
    broken = broken_episodes(agent)
    return f"broke in {broken:,} of {agent.evaluated_episodes:,} episodes" if broken else ""


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

    @classmethod
    def of(cls, message: job_pb2.Event, origin: Timestamp) -> Self:
        parts = message.subject.split("/")
        return cls(
            position=message.position,
            kind=message.kind,
            message=_RESOURCE.sub("", message.message),
            about=parts[-2] if len(parts) > 1 else "",
            subject=parts[-1],
            time_s=time_of(message.time, origin) or 0.0,
            details=dict(message.details),
        )


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the job."""

    name: str
    state: str
    layout: str
    version: str
    env_steps_per_second: float
    restarts: int
    message: str
    agents: tuple[str, ...] = ()
    memory_bytes: int = 0

    @classmethod
    def of(cls, message: job_pb2.Pod) -> Self:
        build = message.build
        return cls(
            name=short_name(message.name),
            state=enum_word(job_pb2.PodState, message.state),
            layout=enum_word(job_pb2.PodLayout, message.layout).lower(),
            version=f"{build.version}{f' ({build.git_commit})' if build.git_commit else ''}",
            env_steps_per_second=message.env_steps_per_second,
            restarts=message.restart_count,
            message=message.message,
            agents=tuple(map(short_name, message.agents)),
            memory_bytes=message.used.memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class Ensemble:
    """An ensemble of candidates."""

    agents: tuple[str, ...]
    rule: str
    evaluation: Evaluation | None


class Thinning(Generic[Item]):
    """Keeps every n-th item; n doubles whenever `limit` is passed: a long stream leaves limit/2 to
    `limit` items."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stride = 1
        self.count = 0
        self.kept: list[Item] = []

    def add(self, item: Item) -> None:
        if self._limit and self.count % self._stride == 0:
            self.kept.append(item)
            if len(self.kept) > self._limit:
                del self.kept[1::2]
                self._stride *= 2
        self.count += 1


@dataclass(frozen=True)
class History:
    """A job at one moment, and what led to it. It is bounded: of more than MAX_EVALUATIONS
    evaluations every second, fourth, … is kept, beside each agent's best and newest; of more than
    MAX_EVENTS events the newest.

    job                as the orchestrator tells it, with its request and its progress
    pods               also those that have left
    board              the ranking
    agents             oldest first
    sample             of the evaluations; `evaluation_count` is the number of all
    events             oldest first
    """

    job: job_pb2.Job
    pods: Sequence[Pod] = ()
    board: leaderboard_pb2.Leaderboard = field(default_factory=leaderboard_pb2.Leaderboard)
    agents: Sequence[Agent] = ()
    sample: Sequence[Evaluation] = ()
    evaluation_count: int = 0
    events: Sequence[Event] = ()

    @property
    def name(self) -> str:
        return short_name(self.job.name)

    @property
    def environment_id(self) -> str:
        environment = self.job.spec.environment
        return environment.id or environment.entry_point

    @property
    def labels(self) -> Mapping[str, str]:
        return self.job.spec.labels

    @property
    def state(self) -> str:
        return enum_word(job_pb2.JobState, self.job.state)

    @property
    def ended(self) -> bool:
        return self.job.state in FINAL_STATES

    @property
    def outcome(self) -> str:
        return enum_word(job_pb2.JobOutcome, self.job.outcome)

    @property
    def problem(self) -> cohort_pb2.Problem | None:
        """Why the job failed; its detail may be a user's traceback."""
        return self.job.problem if self.job.HasField("problem") else None

    @cached_property
    def objective(self) -> Objective:
        return Objective.of(self.job.spec.objective)

    @property
    def score_name(self) -> str:
        """The name of the numbers of evaluations, usually `return`."""
        return score_name(self.job.spec.environment)

    @property
    def score_title(self) -> str:
        """The same for people who do not see the objective's statistic."""
        return "mean return" if self.score_name == "return" else self.score_name

    @property
    def created(self) -> datetime:
        return moment(self.job.create_time) or datetime.fromtimestamp(0, UTC)

    @property
    def start_s(self) -> float | None:
        """The first work; None before it."""
        return time_of(self.job.start_time, self.job.create_time)

    @property
    def end_s(self) -> float | None:
        return time_of(self.job.end_time, self.job.create_time)

    @cached_property
    def now_s(self) -> float:
        """The end, or the time of the latest data."""
        if self.end_s is not None:
            return self.end_s
        known = [each.time_s for each in self.events[-1:]]
        return max(known + [each.time_s or 0.0 for each in self.evaluations[-1:]], default=0.0)

    @property
    def env_steps(self) -> int:
        """The steps of committed checkpoints."""
        return self.job.progress.env_steps

    @property
    def live_env_steps(self) -> int:
        """With the steps that pods report beyond them."""
        return max(self.env_steps, self.job.progress.live_env_steps)

    @property
    def env_steps_per_second(self) -> float:
        return self.job.progress.env_steps_per_second

    @property
    def train_s(self) -> float:
        """Active time, without pauses."""
        return seconds(self.job.progress.train_time)

    @property
    def eta_s(self) -> float | None:
        progress = self.job.progress
        return seconds(progress.eta) if progress.HasField("eta") else None

    @property
    def time_to_target_s(self) -> float | None:
        progress = self.job.progress
        return seconds(progress.time_to_target) if progress.HasField("time_to_target") else None

    @property
    def cost_s(self) -> float:
        """Device seconds, evaluation included."""
        return seconds(self.job.progress.cost)

    @property
    def evaluation_cost_s(self) -> float:
        return seconds(self.job.progress.evaluation_cost)

    @property
    def agent_count(self) -> int:
        return self.job.progress.agent_count

    @property
    def completed_rounds(self) -> int:
        return self.job.progress.completed_rounds

    @cached_property
    def best(self) -> Evaluation | None:
        progress = self.job.progress
        if not progress.HasField("best"):
            return None
        return finite_evaluation(progress.best, self.job.create_time, best_score(self.job))

    @property
    def best_score(self) -> float | None:
        return self.objective.score(self.best) if self.best else None

    @property
    def confirmed(self) -> bool:
        """Whether the best was evaluated a second time, with fresh seeds."""
        return self.best is not None and self.best.purpose in ("CHALLENGE", "FINAL")

    @property
    def ensemble(self) -> Ensemble | None:
        if not self.job.HasField("ensemble"):
            return None
        found, evaluated = self.job.ensemble, None
        if found.HasField("evaluation"):
            evaluated = finite_evaluation(found.evaluation, self.job.create_time)
        agents = tuple(short_name(policy.agent) for policy in found.policies)
        return Ensemble(agents, found.rule, evaluated)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The ranking, without those whose evaluation is not finite."""
        found = []
        for place in self.board.candidates:
            judged = finite_evaluation(place.evaluation, self.job.create_time, place.score)
            if judged is not None:
                agent, score = short_name(place.agent.name), self.objective.score(judged)
                note = broken_text(place)
                found.append(Candidate(place.rank, agent, score, judged, place.confirmed, note))
        return tuple(found)

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The sample, and every agent's best and newest, which it may have missed; oldest first."""
        found = dict.fromkeys(self.sample)
        for agent in self.agents:
            for landmark in filter(None, (agent.best, agent.latest)):
                found.setdefault(landmark)
        return tuple(
            sorted(found, key=lambda each: (each.time_s or 0.0, each.agent, each.env_steps))
        )

    @property
    def omissions(self) -> tuple[str, ...]:
        """Sentences about what is left out."""
        notes, first = [], self.job.event_position - len(self.events)
        if self.events and first > 0:
            notes.append(
                f"Of {self.job.event_position:,} events the newest {len(self.events):,} were read."
            )
        if len(self.sample) < self.evaluation_count:
            chosen = f"an even choice of {len(self.sample):,} is drawn."
            notes.append(f"Of {self.evaluation_count:,} evaluations {chosen}")
        return tuple(notes)

    @property
    def standing(self) -> Mapping[str, str]:
        """Of a continuous job: generation, champion and the reason for waiting; empty for an
        ordinary job."""
        if not self.job.HasField("continuous_status"):
            return {}
        status = self.job.continuous_status
        waits_for = _waits_for(self.job)
        return {
            "generation": str(status.generation),
            "champion": _champion(status),
            "waits for": waits_for,
        }


def _champion(status: job_pb2.ContinuousStatus) -> str:
    if not status.HasField("champion"):
        return "none yet"
    name = status.champion.agent.partition("/jobs/")[2].replace("/agents/", "/")
    return (
        f"{name}, of generation {status.champion_generation}"
        if status.champion_generation
        else name
    )


def _waits_for(job: job_pb2.Job) -> str:
    status = job.continuous_status
    if status.current_job:
        return f"the end of {short_name(status.current_job)}"
    if not status.generation:
        return "its first generation"
    ways = ["other data"] if job.spec.data_sets else []
    ways += [time_text(status.next_time)] if status.HasField("next_time") else []
    return " or ".join(ways)


def time_of(timestamp: Timestamp, origin: Timestamp) -> float | None:
    """Seconds since `origin`; None if the time is not set."""
    if not timestamp.seconds:
        return None
    return (timestamp.seconds - origin.seconds) + (timestamp.nanos - origin.nanos) * 1e-9


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
