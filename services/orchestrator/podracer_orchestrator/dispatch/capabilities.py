"""The capabilities of a pod, and the obstacles to its work for a job."""

from __future__ import annotations

import functools
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.catalogue import (
    BUILT_IN_ALGORITHMS,
    BUILT_IN_ENVIRONMENTS,
    BUILT_IN_EVALUATORS,
    automatic_algorithms,
    known_environments,
)
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import plan_of
from podracer_orchestrator.stored_messages import order_of, proposal_of, read_spec
from podracer_orchestrator.tables import JobRow, MemberRow, PodRow, WorkRow

PASSED_OVER = "POD_PASSED_OVER"
_BUILT_IN_EVALUATORS = frozenset(entry.name for entry in BUILT_IN_EVALUATORS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a pod: see PodCapabilities. `memory_bytes` 0: unknown."""

    algorithms: Set[str] = frozenset(BUILT_IN_ALGORITHMS)
    environments: Set[str] = frozenset()
    evaluators: Set[str] = frozenset()
    gpus: int = 0
    memory_bytes: int = 0
    allows_user_code: bool = False
    can_fuse: bool = False

    @classmethod
    def from_message(cls, message: pod_pb2.PodCapabilities) -> Capabilities:
        return cls(
            algorithms=frozenset(message.algorithms or BUILT_IN_ALGORITHMS),
            environments=frozenset(message.environments),
            evaluators=frozenset(message.evaluators),
            gpus=len(message.gpus),
            memory_bytes=message.memory_bytes,
            allows_user_code=message.allows_user_code,
            can_fuse=message.can_fuse,
        )

    def obstacle(self, pod: PodRow, job: JobRow) -> str:
        """Why the pod cannot work for a job; empty if it can."""
        plan, spec = plan_of(job), read_spec(job.spec)
        environment, evaluator = spec.environment, spec.evaluation.evaluator
        if environment.entry_point and not self.allows_user_code:
            ways = (
                "use the split layout, or allow it (PODRACER_ALLOW_USER_CODE, on Linux with "
                "Landlock)"
            )
            return f"it does not run user code; {ways}"
        if environment.id not in self.environments and _is_installed(environment.id):
            return f"the environment {environment.id} is not installed there"
        if evaluator and evaluator not in self.evaluators | _BUILT_IN_EVALUATORS:
            return f"the evaluator {evaluator} is not installed there"
        if not _searched(job.spec) & self.algorithms:
            return (
                "none of the job's algorithms is installed there: "
                f"{', '.join(sorted(_searched(job.spec)))}"
            )
        if pod.kind:  # the pool has made it for jobs like this one
            return ""
        if plan.kind.gpus > self.gpus:
            return f"it has {self.gpus} GPUs, the job asks for {plan.kind.gpus}"
        if 0 < self.memory_bytes < plan.memory_bytes:
            own, asked = (size / 2**30 for size in (self.memory_bytes, plan.memory_bytes))
            return f"it has {own:.1f} GiB of memory, the job asks for {asked:.1f}"
        return ""

    def trainable(self, job: JobRow) -> list[str]:
        """The algorithms of a job that the pod can train, for ProposeCohort; empty: all."""
        searched = _searched(job.spec)
        return [] if searched <= self.algorithms else sorted(searched & self.algorithms)

    def can_do(self, session: Session, job: JobRow, work: WorkRow) -> bool:
        """Whether the pod has the algorithms of a work."""
        if _searched(job.spec) <= self.algorithms:
            return True
        agents = [policy.agent for policy in order_of(work).policies]
        trained = (
            select(WorkRow)
            .join(MemberRow, MemberRow.work_id == WorkRow.id)
            .where(MemberRow.agent.in_(agents))
        )
        proposals = (
            proposal_of(each).proposals for each in [work, *session.scalars(trained.distinct())]
        )
        return {each.agent.algorithm for found in proposals for each in found} <= self.algorithms


def note_passed_over(session: Session, job: JobRow, pod: str, obstacle: str, now: datetime) -> None:
    """Record once in a job's log why pods get none of its work."""
    if not any(
        message.endswith(obstacle) for message in outbox.messages(session, job, PASSED_OVER)
    ):
        outbox.record(
            session, job, PASSED_OVER, f"{pod} gets no work: {obstacle}", now=now, subject=pod
        )


@functools.lru_cache(maxsize=256)
def _searched(spec: bytes) -> Set[str]:
    """The algorithms that a job may train."""
    named = [each.algorithm for each in read_spec(spec).search.algorithms]
    return frozenset(named or automatic_algorithms(None))


@functools.lru_cache(maxsize=256)
def _is_installed(environment_id: str) -> bool:
    """Whether it is a package's environment, neither built in nor Gymnasium's."""
    return environment_id in known_environments().keys() - BUILT_IN_ENVIRONMENTS.keys()
