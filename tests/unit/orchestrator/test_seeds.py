"""Seeds of a challenge: the same for the same work, and none that was seen."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from podracer_core.random_numbers import ADMISSION, CONFIRMATION, SCREENING, evaluation_seeds
from podracer_orchestrator.works import fresh_seeds


def test_the_seeds_are_the_same_everywhere():
    # SHA-256("podracer/7/evaluation/w/0"), the first eight bytes without the sign
    assert fresh_seeds(7, "w", 1) == [1295246667962605905]


def test_they_are_none_of_the_learners():
    of_learner = {
        seed
        for purpose in (SCREENING, ADMISSION, CONFIRMATION)
        for seed in evaluation_seeds(7, purpose, 1000)
    }
    assert of_learner.isdisjoint(fresh_seeds(7, "w", 1000))


@given(st.integers(0, 2**63 - 1), st.text(max_size=8), st.integers(0, 40), st.integers(0, 40))
def test_they_differ_from_each_other_and_from_what_was_seen(job_seed, work, count, already_seen):
    first = fresh_seeds(job_seed, work, count + already_seen)
    seen = first[:already_seen]
    assert len(set(first)) == len(first)
    assert all(0 <= seed < 2**63 for seed in first)
    assert fresh_seeds(job_seed, work, count, seen) == first[already_seen:]
    for other_work, other_seed in itertools.product((f"{work}'", work), (job_seed ^ 1, job_seed)):
        if (other_work, other_seed) != (work, job_seed):
            assert set(first).isdisjoint(fresh_seeds(other_seed, other_work, count))
