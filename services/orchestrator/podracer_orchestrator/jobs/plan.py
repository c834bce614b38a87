"""The parts of a job's spec that the orchestrator uses, with defaults filled in; and kinds of
pods."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
from dataclasses import dataclass

from podracer_core.catalogue import is_batched
from podracer_core.sections import EvaluationPlan, Pod
from podracer_orchestrator.jobs.budget import Budget, RoundLimits
from podracer_orchestrator.stored_messages import read_spec
from podracer_orchestrator.tables import JobRow
from podracer_platform.jobs import JobSpec
from podracer_platform.messages import (
    evolution_from_message,
    objective_from_message,
    pod_from_message,
)
from podracer_platform.rpc import DEFAULT_PROJECT

MIB = 1 << 20
_FUSED_BYTES = 400 * MIB
_PROCESS_BYTES = 250 * MIB
"""First estimates: of a fused learner, and of each process of a split pod (measured: 240 to 330
MiB)."""

_NAME = re.compile(
    r"(?:fused|split(?P<workers>\d+))(?:-gpu(?P<gpus>\d+))?(?:-threads(?P<threads>\d+))?(?:-of-(?P<owner>[0-9a-f]{8}))?(?:-on-(?P<profile>.+))?"
)

MAX_AUTOMATIC_MEMBERS = 16
"""The most agents of an automatic cohort: beyond it a pod gains little, and the tournament waits
for its slowest."""


@dataclass(frozen=True, slots=True)
class PodKind:
    """The processes of a pod. `workers` is 0 in the fused layout; `threads` of each process, 0:
    chosen by the machine; `profile`: one of the operator's pod profiles, "": anywhere; `owner`:
    stands for the project that it serves, "": the default one. A pod serves no other, as users'
    code runs in it."""

    is_fused: bool = True
    workers: int = 0
    gpus: int = 0
    threads: int = 0
    profile: str = ""
    owner: str = ""

    @property
    def name(self) -> str:
        """`fused`, `split2`, `fused-gpu1-on-a100`, `split1-threads4`: the beginning of its pods'
        names."""
        words = ["fused" if self.is_fused else f"split{self.workers}"]
        words += [f"gpu{self.gpus}"] if self.gpus else []
        words += [f"threads{self.threads}"] if self.threads else []
        words += [f"of-{self.owner}"] if self.owner else []
        words += [f"on-{self.profile}"] if self.profile else []
        return "-".join(words)

    @classmethod
    def parse(cls, name: str) -> PodKind:
        """The kind of a name; a malformed name gives the default kind."""
        match = _NAME.fullmatch(name)
        if match is None:
            return cls()
        workers, gpus, threads = (int(match[word] or 0) for word in ("workers", "gpus", "threads"))
        return cls(
            match["workers"] is None,
            workers,
            gpus,
            threads,
            match["profile"] or "",
            match["owner"] or "",
        )

    @property
    def layout(self) -> str:
        return "FUSED" if self.is_fused else "SPLIT"

    @property
    def busy_processes(self) -> int:
        """The number of processes that compute at the same time. A split pod's learner and workers
        take turns, or one of them has time to spare, and its evaluator mostly waits. On two cores
        Ant-v5 with a worker of two threads takes 6,700 steps/s in lock-step and 7,500 ahead, with
        one thread each 4,200 and 6,000."""
        return max(self.workers, 1)

    @property
    def memory_bytes(self) -> int:
        """Bytes that a pod needs, as a guess until one has been measured."""
        return _FUSED_BYTES if self.is_fused else (self.workers + 2) * _PROCESS_BYTES


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The orchestrator's view of a spec. `members` 0: automatic; `target_return` None: no target.

    `cpu` (cores) and `memory_bytes` (0: unset) are the needs of a pod of `kind`. A team of
    `learners` pods trains a cohort; its lead alone is enough. At least `min_pods` and at most
    `max_teams` pods lead."""

    budget: Budget
    round: RoundLimits
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
        """The most pods of all teams."""
        return self.max_teams * self.learners

    def teams(self, pods: int) -> int:
        """The number of cohorts that `pods` train at once; the last team may be incomplete."""
        return max(1, math.ceil(pods / self.learners))

    def places(self, teams: int) -> int:
        """The agents that a pod trains at once if `teams` share the population."""
        return self.members or min(
            MAX_AUTOMATIC_MEMBERS, math.ceil(self.population / max(1, teams))
        )


def plan_of(job: JobRow) -> JobPlan:
    """The plan of a stored job."""
    return _plan(job.spec, job.project)


@functools.lru_cache(maxsize=256)
def _plan(stored: bytes, project: str) -> JobPlan:
    spec = read_spec(stored)
    objective, pod = objective_from_message(spec.objective), pod_from_message(spec.pod)
    evolution = evolution_from_message(spec.evolution)
    return JobPlan(
        budget=Budget(objective.max_env_steps, objective.max_duration, objective.max_cost),
        round=RoundLimits(evolution.round.env_steps or 0, evolution.round.seconds),
        target_return=objective.target_return,
        target_is_mean=objective.statistic == "mean",
        population=evolution.population,
        members=pod.members or 0,
        min_pods=pod.count.min,
        max_teams=max(pod.count.min, pod.count.most),
        learners=pod.learners,
        kind=_kind(pod, is_batched(spec.environment.id), project),
        cpu=pod.resources.cpu or 1.0,
        memory_bytes=pod.resources.memory or 0,
        weight=spec.weight or JobSpec.weight,
        episodes=spec.evaluation.episodes or EvaluationPlan.episodes,
    )


def _kind(pod: Pod, fits_fused: bool, project: str) -> PodKind:
    """The kind of a job's pods. If the job sets the cores, each pod has that many threads, whatever
    runs beside it."""
    is_fused = fits_fused if pod.layout == "auto" else pod.layout == "fused"
    kind = PodKind(is_fused, 0 if is_fused else pod.workers, pod.resources.gpu, profile=pod.profile)
    threads = max(1, int(pod.resources.cpu / kind.busy_processes)) if pod.resources.cpu else 0
    owner = "" if project == DEFAULT_PROJECT else hashlib.sha256(project.encode()).hexdigest()[:8]
    return dataclasses.replace(kind, threads=threads, owner=owner)
