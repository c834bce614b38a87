"""What benchmarks/pipeline.py runs and concludes; that it measures is shown by running it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from podracer_platform.jobs import parse_job, validate

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import pipeline
from lab.processes import Measured
from pipeline import AHEAD, FUSED, LOCK_STEP, PODS, TASKS, Pod


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_every_row_is_a_job_that_is_accepted(task, pod):
    spec = parse_job(json.dumps(pipeline.job(TASKS[task], pod, 12.0)))
    validate(spec)
    assert spec.pod.layout == ("split" if pod.workers else "fused")
    assert spec.pod.workers == max(pod.workers, 1)


def test_the_pace_is_the_median_of_what_was_told_after_it_had_settled():
    def told(at: float, pace: float) -> tuple[float, dict[str, Any]]:
        return at, {"event": "progress", "env_steps_per_second": pace}

    other: tuple[float, dict[str, Any]] = (9.0, {"event": "note"})
    shown = [told(1.0, 0.0), told(2.0, 10.0), told(3.0, 10.0), other]
    assert (
        pipeline.steady_pace(
            Measured([*shown, told(6.0, 90.0), told(7.0, 90.0), told(9.0, 100.0)]), 4.0
        )
        == 95.0
    )
    assert pipeline.steady_pace(Measured(shown), 4.0) == 10.0, (
        "it was over before: all measurements count"
    )
    with pytest.raises(SystemExit):
        pipeline.steady_pace(Measured([told(1.0, 0.0)]), 1.0)


def test_targets_are_ratios_of_runs_that_followed_one_another():
    ant = {
        FUSED: [10.0, 20.0, 30.0],
        LOCK_STEP: [10.0, 10.0, 30.0],
        AHEAD: [9.0, 10.0, 30.0],
        Pod(1): [9.5, 18.0, 30.0],
    }
    quick = {FUSED: [100.0], LOCK_STEP: [90.0], AHEAD: [135.0]}
    targets = pipeline._targets({"ant": ant, "sleeping": quick})
    assert {name: (target.value, target.met) for name, target in targets.items()} == {
        "ant_split_over_fused": (0.95, True),
        "sleeping_split_over_fused": (1.35, True),
        "sleeping_ahead_over_lock_step": (1.5, True),
        "ant_ahead_over_lock_step": (1.0, True),
    }
