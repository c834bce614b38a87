"""An experiment's jobs on a terminal and as JSON."""

from __future__ import annotations

import io
import json

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display import (
    ExperimentDisplay,
    JsonExperimentDisplay,
    comparison_text,
)

AXES = ("search.algorithms", "seed")


def job(
    number: int,
    algorithm: str,
    seed: int,
    best: float | None = None,
    to_target_s: int | None = None,
) -> job_pb2.Job:
    message = job_pb2.Job(
        name=f"projects/default/jobs/grid-{number}-x", state=job_pb2.JOB_STATE_RUNNING
    )
    message.spec.display_name = f"grid-{number}"
    message.spec.labels.update(
        {"experiment": "grid", "matrix.search.algorithms": algorithm, "matrix.seed": str(seed)}
    )
    message.progress.env_steps = 1000 * number
    message.progress.cost.seconds = number
    if best is not None:
        message.progress.best.mean = message.progress.best_score = best
    if to_target_s is not None:
        message.state = job_pb2.JOB_STATE_SUCCEEDED
        message.progress.time_to_target.seconds = to_target_s
    return message


JOBS = [
    job(1, "[ppo]", 0, 480.0, 4),
    job(2, "[ppo]", 1, 490.0, 6),
    job(3, "[d3qn]", 0, 300.0),
    job(4, "[d3qn]", 1),
]


def test_a_row_for_each_job_and_one_for_the_repeats_of_each_combination():
    assert comparison_text(JOBS, AXES).splitlines() == [
        "job       algorithms  seed  state      best return  to target  steps  device s",
        "grid-1-x  [ppo]       0     succeeded        480.0      4.0 s  1,000         1",
        "grid-2-x  [ppo]       1     succeeded        490.0      6.0 s  2,000         2",
        "grid-3-x  [d3qn]      0     running          300.0          –  3,000         3",
        "grid-4-x  [d3qn]      1     running              –          –  4,000         4",
        "",
        "algorithms  reached  median best return  median to target",
        "[ppo]        2 of 2               485.0             5.0 s",
        "[d3qn]       0 of 2               300.0                 –",
    ]


def test_seeds_alone_are_nothing_to_group():
    assert "reached" not in comparison_text(JOBS[:2], ("seed",))


def test_a_line_only_where_something_has_changed():
    out, diagnostics = io.StringIO(), io.StringIO()
    display = ExperimentDisplay(AXES, out, diagnostics)
    display.show(JOBS)
    display.show(JOBS)
    later = job(4, "[d3qn]", 1, 250.0)
    display.show([*JOBS[:3], later])
    lines = [line.split("  ", 1)[1] for line in diagnostics.getvalue().splitlines()]
    assert lines[0] == "grid-1  succeeded, best 480.0, 1,000 steps"
    assert lines[3:] == ["grid-4  running, 4,000 steps", "grid-4  running, best 250.0, 4,000 steps"]
    display.finish(JOBS, ["podracer report grid"])
    assert out.getvalue().endswith("–\nnext\n  podracer report grid\n")


def test_an_end_before_the_first_look():
    out = io.StringIO()
    ExperimentDisplay(AXES, out, io.StringIO()).finish([], ["podracer run grid.yaml"])
    assert (
        out.getvalue()
        == "the server has not reported the jobs yet\nnext\n  podracer run grid.yaml\n"
    )


def test_why_a_job_has_failed_is_said():
    failed = job(4, "[d3qn]", 1)
    failed.state = job_pb2.JOB_STATE_FAILED
    failed.problem.message = "no generator 'x' is installed"
    diagnostics = io.StringIO()
    ExperimentDisplay(AXES, io.StringIO(), diagnostics).show([failed])
    assert diagnostics.getvalue().endswith(
        "grid-4  failed, 4,000 steps: no generator 'x' is installed\n"
    )


def test_json_lines():
    out = io.StringIO()
    display = JsonExperimentDisplay(AXES, out, io.StringIO())
    display.show(JOBS[:1])
    display.note("a note")
    display.finish(JOBS, ["podracer report grid"])
    changed, note, finished = [json.loads(line) for line in out.getvalue().splitlines()]
    assert changed == {
        "event": "job_changed",
        "job": "projects/default/jobs/grid-1-x",
        "state": "SUCCEEDED",
        "outcome": None,
        "matrix": {"search.algorithms": "[ppo]", "seed": "0"},
        "best_return": 480.0,
        "seconds_to_target": 4.0,
        "env_steps": 1000,
        "cost_seconds": 1.0,
        "problem": None,
    }
    assert note == {"event": "note", "message": "a note"}
    assert [each["matrix"]["seed"] for each in finished["jobs"]] == ["0", "1", "0", "1"]
