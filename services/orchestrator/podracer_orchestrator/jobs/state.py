"""The states of a job and every way from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from podracer_core.errors import PreconditionFailed


class JobState(StrEnum):
    VALIDATING = "VALIDATING"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class JobOutcome(StrEnum):
    TARGET_REACHED = "TARGET_REACHED"
    BUDGET_USED = "BUDGET_USED"
    NOTHING_JUDGED = "NOTHING_JUDGED"


class JobSignal(StrEnum):
    """Events that change the state of a job."""

    INSPECTED = "its environment has been inspected"
    LEASED = "a pod has leased a cohort"
    SUSPEND = "it is suspended"
    RESUME = "it is resumed"
    SUCCEED = "it has reached its target or used its budget"
    FAIL = "it cannot go on"
    CANCEL = "it is cancelled"


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
LIVE_STATES = frozenset(JobState) - FINAL_STATES
ACTIVE_STATES = frozenset({JobState.VALIDATING, JobState.PENDING, JobState.RUNNING})
"""States in which pods are wanted."""
TRAINING_STATES = frozenset({JobState.PENDING, JobState.RUNNING})
"""States in which cohorts are leased."""

_TRANSITIONS: Mapping[tuple[JobState, JobSignal], JobState] = {
    (JobState.VALIDATING, JobSignal.INSPECTED): JobState.PENDING,
    (JobState.SUSPENDED, JobSignal.INSPECTED): JobState.SUSPENDED,
    (JobState.PENDING, JobSignal.LEASED): JobState.RUNNING,
    (JobState.RUNNING, JobSignal.LEASED): JobState.RUNNING,
    **{
        (state, JobSignal.SUSPEND): JobState.SUSPENDED
        for state in ACTIVE_STATES | {JobState.SUSPENDED}
    },
    **{(state, JobSignal.RESUME): state for state in ACTIVE_STATES},
    # A pod that is told to stop may still bring the result that ends its suspended job.
    **{
        (state, JobSignal.SUCCEED): JobState.SUCCEEDED
        for state in TRAINING_STATES | {JobState.SUSPENDED}
    },
    **{(state, JobSignal.FAIL): JobState.FAILED for state in LIVE_STATES},
    **{(state, JobSignal.CANCEL): JobState.CANCELLED for state in LIVE_STATES},
}


def next_state(
    state: JobState, signal: JobSignal, *, described: bool = True, started: bool = False
) -> JobState:
    """The state after `signal`.

    A resumed job gets the state that it would have without the pause: VALIDATING until its
    environment is `described`, PENDING until it has `started`, RUNNING from then on. Raises
    PreconditionFailed for an invalid signal."""
    if state is JobState.SUSPENDED and signal is JobSignal.RESUME:
        if not described:
            return JobState.VALIDATING
        return JobState.RUNNING if started else JobState.PENDING
    following = _TRANSITIONS.get((state, signal))
    if following is None:
        reason = "JOB_ENDED" if state in FINAL_STATES else "WRONG_JOB_STATE"
        raise PreconditionFailed(
            f"the job is {state}; it cannot go on after this: {signal}", reason=reason, state=state
        )
    return following
