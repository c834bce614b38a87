"""The table of a job's states: every pair of state and signal is one that is meant, or refused."""

from __future__ import annotations

import itertools

import pytest

from podracer_core.errors import PreconditionFailed
from podracer_orchestrator.jobs import (
    ACTIVE_STATES,
    FINAL_STATES,
    LIVE_STATES,
    JobSignal,
    JobState,
    next_state,
)
from support.errors import raises

MEANT = {
    (JobState.VALIDATING, JobSignal.INSPECTED): JobState.PENDING,
    (JobState.VALIDATING, JobSignal.SUSPEND): JobState.SUSPENDED,
    (JobState.VALIDATING, JobSignal.RESUME): JobState.VALIDATING,
    (JobState.VALIDATING, JobSignal.FAIL): JobState.FAILED,
    (JobState.VALIDATING, JobSignal.CANCEL): JobState.CANCELLED,
    (JobState.PENDING, JobSignal.LEASED): JobState.RUNNING,
    (JobState.PENDING, JobSignal.SUSPEND): JobState.SUSPENDED,
    (JobState.PENDING, JobSignal.RESUME): JobState.PENDING,
    (JobState.PENDING, JobSignal.SUCCEED): JobState.SUCCEEDED,
    (JobState.PENDING, JobSignal.FAIL): JobState.FAILED,
    (JobState.PENDING, JobSignal.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobSignal.LEASED): JobState.RUNNING,
    (JobState.RUNNING, JobSignal.SUSPEND): JobState.SUSPENDED,
    (JobState.RUNNING, JobSignal.RESUME): JobState.RUNNING,
    (JobState.RUNNING, JobSignal.SUCCEED): JobState.SUCCEEDED,
    (JobState.RUNNING, JobSignal.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobSignal.CANCEL): JobState.CANCELLED,
    (JobState.SUSPENDED, JobSignal.INSPECTED): JobState.SUSPENDED,
    (JobState.SUSPENDED, JobSignal.SUSPEND): JobState.SUSPENDED,
    (JobState.SUSPENDED, JobSignal.RESUME): JobState.RUNNING,
    (JobState.SUSPENDED, JobSignal.SUCCEED): JobState.SUCCEEDED,
    (JobState.SUSPENDED, JobSignal.FAIL): JobState.FAILED,
    (JobState.SUSPENDED, JobSignal.CANCEL): JobState.CANCELLED,
}


@pytest.mark.parametrize(("state", "signal"), list(itertools.product(JobState, JobSignal)))
def test_every_transition_is_meant_or_refused(state, signal):
    if (state, signal) in MEANT:
        assert next_state(state, signal, described=True, started=True) == MEANT[state, signal]
    else:
        with pytest.raises(PreconditionFailed):
            next_state(state, signal, described=True, started=True)


@pytest.mark.parametrize(
    ("described", "started", "expected"),
    [
        (False, False, JobState.VALIDATING),
        (True, False, JobState.PENDING),
        (True, True, JobState.RUNNING),
    ],
)
def test_a_resumed_job_goes_back_to_where_it_was(described, started, expected):
    assert (
        next_state(JobState.SUSPENDED, JobSignal.RESUME, described=described, started=started)
        == expected
    )


def test_a_final_state_is_never_left():
    for state, signal in itertools.product(FINAL_STATES, JobSignal):
        with raises(PreconditionFailed, "JOB_ENDED"):
            next_state(state, signal)


def test_the_groups_cover_all_states():
    assert set(JobState) == FINAL_STATES | LIVE_STATES
    assert not FINAL_STATES & LIVE_STATES
    assert LIVE_STATES - {JobState.SUSPENDED} == ACTIVE_STATES
