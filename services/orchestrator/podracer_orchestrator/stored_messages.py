"""The messages in the tables: one function decodes each column that holds one, and `encode` encodes
all of them."""

from __future__ import annotations

import functools
from datetime import datetime

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import PodracerError, UserCodeFailed
from podracer_orchestrator.tables import CheckpointRow, JobRow, PodRow, PromotionRow, WorkRow


def encode(message: Message) -> bytes:
    """The stored form of a message: equal messages have equal bytes."""
    return message.SerializeToString(deterministic=True)


@functools.lru_cache(maxsize=256)
def read_spec(stored: bytes) -> job_pb2.JobSpec:
    """A stored spec. It is shared: never change it."""
    return job_pb2.JobSpec.FromString(stored)


def spec_of(job: JobRow) -> job_pb2.JobSpec:
    """A job's spec. It is shared: never change it."""
    return read_spec(job.spec)


def description_of(job: JobRow) -> environment_pb2.EnvironmentDescription:
    """The description of a job's environment; empty until it has been inspected."""
    return environment_pb2.EnvironmentDescription.FromString(job.description or b"")


def problem_of(row: JobRow | WorkRow) -> cohort_pb2.Problem | None:
    """The error with which a job or a work has failed."""
    return None if row.problem is None else cohort_pb2.Problem.FromString(row.problem)


def as_problem(error: PodracerError) -> cohort_pb2.Problem:
    """The stored form of an error."""
    detail = error.user_traceback if isinstance(error, UserCodeFailed) else ""
    return cohort_pb2.Problem(reason=error.reason, message=error.message, detail=detail)


def best_of(job: JobRow) -> agent_pb2.Evaluation | None:
    """The evaluation of a job's best candidate."""
    return _evaluation(job.best)


def retrained_of(job: JobRow) -> agent_pb2.Parent | None:
    """A job's best candidate after it was trained again."""
    return None if job.retrained is None else agent_pb2.Parent.FromString(job.retrained)


def final_policy(job: JobRow) -> agent_pb2.Parent | None:
    """The final policy of a job: its best candidate, trained again if the job asked for that and it
    is done."""
    retrained, best = retrained_of(job), best_of(job)
    if retrained is not None or best is None:
        return retrained
    return agent_pb2.Parent(agent=best.agent, checkpoint=best.checkpoint)


def ensemble_of(job: JobRow) -> job_pb2.Ensemble | None:
    """A job's evaluated ensemble."""
    return None if job.ensemble is None else job_pb2.Ensemble.FromString(job.ensemble)


def proposal_of(work: WorkRow) -> leaderboard_pb2.ProposeCohortResponse:
    """The leaderboard's answer with the agents that a work trains."""
    return leaderboard_pb2.ProposeCohortResponse.FromString(work.proposal or b"")


def order_of(work: WorkRow) -> pod_pb2.EvaluateWork:
    """The evaluation order of a work."""
    return pod_pb2.EvaluateWork.FromString(work.evaluation or b"")


def build_of(pod: PodRow) -> cohort_pb2.BuildInfo | None:
    """The build of a pod's learner."""
    return None if pod.build is None else cohort_pb2.BuildInfo.FromString(pod.build)


def result_of(work: WorkRow) -> agent_pb2.Evaluation | None:
    """The result of a work of a final, or of one side of a contest."""
    return _evaluation(work.result)


def champion_of(row: PromotionRow) -> agent_pb2.Evaluation | None:
    """The result of the champion in the contest that led to a decision."""
    return _evaluation(row.champion)


def challenger_of(row: PromotionRow) -> agent_pb2.Evaluation | None:
    """The result of the challenger in that contest."""
    return _evaluation(row.challenger)


def policy_of(row: PromotionRow) -> agent_pb2.Parent:
    """The target of an alias after a decision."""
    checkpoint = agent_pb2.CheckpointReference.FromString(row.checkpoint or b"")
    return agent_pb2.Parent(agent=row.agent, checkpoint=checkpoint)


def timestamp(time: datetime | None) -> Timestamp | None:
    """A stored time as a message."""
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def checkpoint_reference(row: CheckpointRow) -> agent_pb2.CheckpointReference:
    """A stored checkpoint as the message that a learner resumes from."""
    return agent_pb2.CheckpointReference(
        prefix=row.prefix,
        manifest_sha256=row.manifest_sha256,
        size_bytes=row.size_bytes,
        env_steps=row.env_steps,
        fence=row.fence,
        create_time=timestamp(row.create_time),
    )


def _evaluation(stored: bytes | None) -> agent_pb2.Evaluation | None:
    return None if stored is None else agent_pb2.Evaluation.FromString(stored)
