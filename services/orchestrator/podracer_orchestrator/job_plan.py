"""What of a job's spec the orchestrator itself decides by, every default filled in."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.environments import BUILT_IN
from podracer_core.jobs.messages import seconds_from_duration
from podracer_orchestrator.budget import Budget, Round
from podracer_orchestrator.pod_kind import PodKind
from podracer_orchestrator.tables import JobRow

DEFAULT_POPULATION = 8
DEFAULT_ROUND_S = 15.0
DEFAULT_EPISODES = 32
MAX_MEMBERS = 16
"""Agents of an automatic cohort at most: beyond it a pod gains little and the tournament waits for its slowest."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The orchestrator's view of a spec. `members` 0 means automatic; `target_return` None means that there is none.

    `cpu` (cores) and `memory_bytes` (0: not said) are what a pod of `kind` needs. A cohort is trained by a team of
    `learners` pods, of which the lead is enough: at least `min_pods` of them lead, at most `max_teams`.
    """

    budget: Budget
    round: Round
    target_return: float | None
    target_is_mean: bool
    population: int
    members: int
    min_pods: int
    max_teams: int
    learners: int
    kind: PodKind
    cpu: float
    memory_bytes: int
    weight: float
    episodes: int

    @property
    def max_pods(self) -> int:
        """Pods at most, of all teams."""
        return self.max_teams * self.learners

    def teams(self, pods: int) -> int:
        """Cohorts that so many pods train at once; the last team may not be complete."""
        return max(1, math.ceil(pods / self.learners))

    def places(self, teams: int) -> int:
        """Agents that a pod trains at once where `teams` of them share the population."""
        return self.members or min(MAX_MEMBERS, math.ceil(self.population / max(1, teams)))


@functools.lru_cache(maxsize=256)
def read_spec(spec: bytes) -> job_pb2.JobSpec:
    """A stored spec. It is shared: never change it."""
    return job_pb2.JobSpec.FromString(spec)


def plan_of(job: JobRow) -> JobPlan:
    """The plan of a stored job."""
    return _plan(job.spec)


@functools.lru_cache(maxsize=256)
def _plan(stored: bytes) -> JobPlan:
    spec = read_spec(stored)
    objective, evolution, pod = spec.objective, spec.evolution, spec.pod
    min_pods = pod.min_count or 1
    return JobPlan(
        budget=_budget(objective),
        round=_round(evolution),
        target_return=objective.target_return if objective.HasField("target_return") else None,
        target_is_mean=objective.statistic == evolution_pb2.TARGET_STATISTIC_MEAN,
        population=evolution.population or DEFAULT_POPULATION,
        members=pod.members,
        min_pods=min_pods,
        max_teams=max(min_pods, pod.max_count),
        learners=max(1, pod.learners),
        kind=_kind(pod, spec.environment.id in BUILT_IN),
        cpu=pod.resources.cpu or 1.0,
        memory_bytes=pod.resources.memory_bytes,
        weight=spec.weight or 1.0,
        episodes=spec.evaluation.episodes or DEFAULT_EPISODES,
    )


def _kind(pod: job_pb2.PodShape, is_built_in: bool) -> PodKind:
    """A pod whose job says how many cores it needs has so many threads, whatever else runs beside it."""
    is_fused = is_built_in if pod.layout == job_pb2.POD_LAYOUT_UNSPECIFIED else pod.layout == job_pb2.POD_LAYOUT_FUSED
    kind = PodKind(is_fused, 0 if is_fused else pod.workers or 1, pod.resources.gpu)
    threads = max(1, int(pod.resources.cpu / kind.busy_processes)) if pod.resources.cpu else 0
    return dataclasses.replace(kind, threads=threads)


def _budget(objective: evolution_pb2.Objective) -> Budget:
    return Budget(
        env_steps=objective.max_env_steps or None,
        active_time_s=_seconds(objective, "max_duration"),
        cost_s=_seconds(objective, "max_cost"),
    )


def _round(evolution: evolution_pb2.Evolution) -> Round:
    time_s = _seconds(evolution, "round_time")
    if time_s is None and not evolution.round_env_steps:
        time_s = DEFAULT_ROUND_S
    return Round(evolution.round_env_steps, time_s)


def _seconds(message: evolution_pb2.Objective | evolution_pb2.Evolution, field: str) -> float | None:
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    return seconds_from_duration(getattr(message, field))
