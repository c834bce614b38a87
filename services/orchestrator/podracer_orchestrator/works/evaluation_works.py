"""Works that evaluate: what is evaluated, by which seeds, and whether an answer is one to what was
asked."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput
from podracer_orchestrator.jobs.job_files import environment_of
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.stored_messages import encode, order_of, spec_of
from podracer_orchestrator.tables import JobRow, LeaseRow, WorkRow, WorkState
from podracer_orchestrator.works.works import Change, Work
from podracer_platform.jobs.evaluations import broken_episodes, counted
from podracer_platform.messages.sections import seconds_from_duration, seconds_to_duration

TIMEOUT_S = 600.0
"""Limit of one evaluation, which its pod keeps."""
_GRACE = timedelta(seconds=60)
_SETTLING_S = 1.0  # for what a job does after its last evaluation


class EvaluationWork(Work):
    """A kind of work that evaluates policies."""

    results = (pod_pb2.EvaluateResult,)

    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """The stored order."""
        message.evaluate.CopyFrom(order_of(change.work))
        if not message.evaluate.HasField("environment"):
            message.evaluate.environment.CopyFrom(environment_of(change.job))

    def complete(self, change: Change, lease: LeaseRow, result: pod_pb2.EvaluateResult) -> None:
        """Count the cost of a result that is of just what was asked for."""
        super().complete(change, lease, result)
        check_result(change.work, result)
        cost_s = max(0.0, seconds_from_duration(result.cost))
        change.job.cost_s += cost_s
        change.job.evaluation_cost_s += cost_s

    def is_overdue(self, grant_time: datetime, now: datetime) -> bool:
        """Whether its pod has exceeded the time limit."""
        return now > grant_time + timedelta(seconds=TIMEOUT_S) + _GRACE


class TimedEvaluationWork(EvaluationWork):
    """A kind of work that evaluates within the rest of the job's time."""

    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """The stored order, with the rest of the job's time as its limit."""
        super().encode(change, lease, message)
        left_s = min(TIMEOUT_S, late_left_s(change.job, lease.active_time_s))
        message.evaluate.timeout.CopyFrom(seconds_to_duration(max(1.0, left_s)))


def fill(
    job: JobRow,
    work: WorkRow,
    policies: Sequence[agent_pb2.Parent],
    purpose: agent_pb2.EvaluationPurpose.ValueType,
    seen: Collection[int],
    *,
    episodes: int = 0,
    seeds_of: str = "",
    environment: environment_pb2.EnvironmentSpec | None = None,
) -> None:
    """Say what a work evaluates, and make it READY: `episodes` (0: the job's number), none by a
    seed of `seen`.

    Works with the same words as `seeds_of` have the same seeds; without them each has its own.
    `environment`: another than the job's."""
    spec = spec_of(job)
    order = pod_pb2.EvaluateWork(
        policies=policies,
        evaluator=spec.evaluation.evaluator,
        seeds=fresh_seeds(spec.seed, seeds_of or work.id, episodes or plan_of(job).episodes, seen),
        purpose=purpose,
        timeout=seconds_to_duration(TIMEOUT_S),
        environment=environment,
    )
    work.evaluation = encode(order)
    work.state, work.places = WorkState.READY, len(policies)


def expected_cost_s(evaluation: agent_pb2.Evaluation, episodes: int) -> float:
    """Device seconds that `episodes` are expected to cost, by those that the episodes of
    `evaluation` took."""
    return seconds_from_duration(evaluation.duration) * episodes / max(1, len(evaluation.returns))


def late_left_s(job: JobRow, active_time_s: float) -> float:
    """Seconds that a job's challenge or final may take after `active_time_s`, so that the job does
    not end late."""
    budget = plan_of(job).budget
    ends = [(budget.active_time_s, active_time_s), (budget.cost_s, job.cost_s)]
    left_s = [limit_s - used_s for limit_s, used_s in ends if limit_s is not None]
    return min(left_s, default=math.inf) + budget.late_s - _SETTLING_S


def check_result(work: WorkRow, result: pod_pb2.EvaluateResult) -> None:
    """Raise InvalidInput unless `result` is of just what the work asked for."""
    order, evaluation = order_of(work), result.evaluation
    intact = set(evaluation.seeds) if broken_episodes(evaluation) else set(order.seeds)
    # a world may break each time that one is played
    expected_seeds = [seed for seed in order.seeds if seed in intact]
    expected = order.policies[0] if len(order.policies) == 1 else agent_pb2.Parent()
    problems = [
        problem
        for problem, holds in (
            ("it has no id", evaluation.evaluation_id),
            (
                f"it is of {evaluation.agent!r}, expected {expected.agent!r}",
                evaluation.agent == expected.agent,
            ),
            ("it is of another checkpoint", _is_same(evaluation.checkpoint, expected.checkpoint)),
            ("its purpose is another", evaluation.purpose == order.purpose),
            ("its seeds are others", list(evaluation.seeds) == expected_seeds),
            ("it has no return for each seed", len(evaluation.returns) == len(expected_seeds)),
            (
                "it does not say how the policies act together",
                len(order.policies) == 1 or result.ensemble,
            ),
        )
        if not holds
    ]
    if problems:
        raise InvalidInput(
            f"evaluation {evaluation.evaluation_id!r}: {'; '.join(problems)}", reason="WRONG_RESULT"
        )


def describe(evaluation: agent_pb2.Evaluation) -> str:
    """The numbers of an evaluation, for people."""
    interval = f"{evaluation.lower_bound:.6g} to {evaluation.upper_bound:.6g}"
    broken, cut = broken_episodes(evaluation), evaluation.cut_episodes
    notes = (f"; {broken} broke and were played again" if broken else "") + (
        f"; {cut} were cut" if cut else ""
    )
    return (
        f"mean {evaluation.mean:.6g} ({interval}) over {len(evaluation.returns)} fresh "
        f"episodes{notes}"
    )


def numbers(evaluation: agent_pb2.Evaluation) -> dict[str, object]:
    """The same as details of an event."""
    return {
        "mean": evaluation.mean,
        "lower_bound": evaluation.lower_bound,
        "upper_bound": evaluation.upper_bound,
        "episodes": len(evaluation.returns),
    }


def is_finite(evaluation: agent_pb2.Evaluation) -> bool:
    """Whether its numbers can be compared."""
    is_intact = counted(evaluation, None) is not None
    return is_intact and math.isfinite(evaluation.mean) and math.isfinite(evaluation.lower_bound)


def _is_same(left: agent_pb2.CheckpointReference, right: agent_pb2.CheckpointReference) -> bool:
    return (left.prefix, left.manifest_sha256) == (right.prefix, right.manifest_sha256)


def fresh_seeds(job_seed: int, work_id: str, count: int, seen: Collection[int] = ()) -> list[int]:
    """`count` different seeds from 0 to 2^63 - 1, none of `seen`: SHA-256 of the job's seed, the
    work and a number.

    A work that is leased again has the same ones.
    """
    avoided, found = set(seen), list[int]()
    for number in itertools.count():
        if len(found) == count:
            break
        seed = _seed(job_seed, work_id, number)
        if seed not in avoided:
            avoided.add(seed)
            found.append(seed)
    return found


def _seed(job_seed: int, work_id: str, number: int) -> int:
    digest = hashlib.sha256(f"podracer/{job_seed}/evaluation/{work_id}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
