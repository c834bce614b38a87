"""What of a job's spec the orchestrator itself decides by, every default filled in."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.environments import BUILT_IN
from podracer_core.jobs.evolution import Evolution
from podracer_core.jobs.objective import EvaluationPlan, Objective
from podracer_core.jobs.pod import Pod
from podracer_core.jobs.spec import JobSpec
from podracer_orchestrator.budget import Budget, Round
from podracer_orchestrator.pod_kind import PodKind
from podracer_orchestrator.tables import JobRow

MAX_AUTOMATIC_MEMBERS = 16
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
        return self.members or min(MAX_AUTOMATIC_MEMBERS, math.ceil(self.population / max(1, teams)))


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
    objective, pod = Objective.from_message(spec.objective), Pod.from_message(spec.pod)
    evolution = Evolution.from_message(spec.evolution)
    return JobPlan(
        budget=Budget(objective.max_env_steps, objective.max_duration, objective.max_cost),
        round=Round(evolution.round.env_steps or 0, evolution.round.seconds),
        target_return=objective.target_return,
        target_is_mean=objective.statistic == "mean",
        population=evolution.population,
        members=pod.members or 0,
        min_pods=pod.count.min,
        max_teams=max(pod.count.min, pod.count.most),
        learners=pod.learners,
        kind=_kind(pod, spec.environment.id in BUILT_IN),
        cpu=pod.resources.cpu or 1.0,
        memory_bytes=pod.resources.memory or 0,
        weight=spec.weight or JobSpec.weight,
        episodes=spec.evaluation.episodes or EvaluationPlan.episodes,
    )


def _kind(pod: Pod, is_built_in: bool) -> PodKind:
    """A pod whose job says how many cores it needs has so many threads, whatever else runs beside it."""
    is_fused = is_built_in if pod.layout == "auto" else pod.layout == "fused"
    kind = PodKind(is_fused, 0 if is_fused else pod.workers, pod.resources.gpu)
    threads = max(1, int(pod.resources.cpu / kind.busy_processes)) if pod.resources.cpu else 0
    return dataclasses.replace(kind, threads=threads)
