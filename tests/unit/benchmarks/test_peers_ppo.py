"""What benchmarks/peers_ppo.py plans, keeps and concludes; that its processes measure is shown by
running it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podracer_core.catalogue.algorithms import find_algorithm
from podracer_platform.jobs.job_file import parse_job
from podracer_platform.jobs.spec import validate

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from measured_process import Measured
from peers import ppo_measure, ppo_recipes
from peers.ppo_measure import measure, our_job
from peers.ppo_plan import Entry, Run, Setting, append_run, read_runs
from peers.ppo_recipes import BEST, TASKS, hyperparameters
from peers.ppo_report import report

SETTING = Setting(speed_s=20.0, limit_s=None, threads=2, peers=Path("none"))


def speed(environment: str, system: str, seed: int, steps_per_second: float) -> Run:
    (blank,) = Entry("speed", TASKS[environment], system, seed).blank_runs(SETTING)
    return replace(
        blank, figures={"steps_per_second": steps_per_second, "memory_mb": 1.0, "processes": 1}
    )


def solved(environment: str, system: str, seed: int, *seconds: float | None) -> list[Run]:
    blank = Entry("target", TASKS[environment], system, seed).blank_runs(SETTING)
    rest: dict[str, Any] = {
        "training_seconds": 1.0,
        "env_steps": 1,
        "steps_per_second": 1.0,
        "memory_mb": 1.0,
    }
    return [
        replace(run, figures={"seconds": each, **rest})
        for run, each in zip(blank, seconds, strict=True)
    ]


def targets_of(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report(runs)
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1])["targets"])


@pytest.mark.parametrize("environment", sorted(TASKS))
def test_our_job_is_valid_and_has_the_recipe(environment: str) -> None:
    job = our_job(Entry("target", TASKS[environment], "ours", 3), 1000.0, 900.0)
    spec = parse_job(json.dumps(job))
    validate(spec)
    assert hyperparameters(BEST[environment]).keys() == {
        dimension.hyperparameter for dimension in spec.search.space
    }
    assert hyperparameters(BEST[environment]).keys() <= find_algorithm("ppo").defaults().keys()
    assert (spec.seed, spec.objective.target_return, spec.evaluation.episodes) == (3, 1000.0, 100)


def test_ended_runs_are_kept_also_behind_a_torn_line(tmp_path: Path) -> None:
    results = tmp_path / "runs" / "results.jsonl"
    first, second = speed("Ant-v5", "ours", 0, 1.0), speed("Ant-v5", "sbx_same", 0, 2.0)
    append_run(results, first)
    with results.open("a") as file:
        file.write('{"part": "speed", "envir')
    append_run(results, second)
    assert read_runs(results) == {first.key: first, second.key: second}


def test_other_settings_make_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("target", TASKS["Ant-v5"], "sb3_same", 0)
    keys = [run.key for run in entry.blank_runs(SETTING)]
    monkeypatch.setitem(ppo_recipes.BEST, "Ant-v5", replace(BEST["Ant-v5"], epochs=4))
    assert not set(keys) & {run.key for run in entry.blank_runs(SETTING)}


def test_ratios_are_paired_by_seed_and_held_against_the_best_peer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [speed("Ant-v5", "ours", seed, 6000.0 + 1000 * seed) for seed in range(3)]
    # 3, 2.33, 2
    runs += [speed("Ant-v5", "sb3_same", seed, 2000.0 + 1000 * seed) for seed in range(3)]
    runs += [speed("Ant-v5", "sbx_same", seed, 1000.0) for seed in range(3)]  # 6, 7, 8
    runs += [speed("Ant-v5", "sb3_published", seed, 1000.0) for seed in range(3)]
    found = targets_of(runs, capsys)
    assert found["b_Ant-v5_steps_per_second"]["value"] == pytest.approx(7 / 3)
    assert found["c_Ant-v5_steps_per_second"]["value"] == pytest.approx(7.0)


def test_a_peer_that_fails_counts_with_its_limit_and_ours_not_at_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [*solved("Ant-v5", "ours", 0, 30.0, None), *solved("Ant-v5", "sb3_same", 0, 120.0, None)]
    runs += solved("Ant-v5", "sbx_published", 0, None, None)
    found = targets_of(runs, capsys)
    assert found["a_Ant-v5_seconds_to_1000"]["value"] == pytest.approx(0.25)
    assert found["a_Ant-v5_seconds_to_2000"]["value"] is None
    assert not found["a_Ant-v5_seconds_to_2000"]["met"]


def test_a_peer_has_what_it_told_until_its_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[float, dict[str, Any]]] = [
        (10.0, {"event": "training"}),
        (110.0, {"event": "reached", "target": 1000.0, "env_steps": 50_000, "mean_return": 1100.0}),
        (890.0, {"event": "steps", "env_steps": 440_000}),
    ]
    told = Measured(events, peak_bytes=5_000_000, processes=2, timed_out=True)
    monkeypatch.setattr(ppo_measure, "run_measured", lambda *args, **kwargs: told)
    first, second = measure(Entry("target", TASKS["Ant-v5"], "sbx_published", 0), SETTING)
    assert (
        first.seconds,
        first.figures["training_seconds"],
        first.figures["steps_per_second"],
    ) == (110.0, 100.0, 500)
    assert (second.seconds, second.figures["seconds"], second.figures["env_steps"]) == (
        900.0,
        None,
        440_000,
    )
    assert second.figures["steps_per_second"] == 500.0


def test_a_peer_that_ends_before_its_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sbx_published.log").write_text("no such thing")
    told = Measured([(10.0, {"event": "training"})], timed_out=False)
    monkeypatch.setattr(ppo_measure, "run_measured", lambda *args, **kwargs: told)
    with pytest.raises(SystemExit, match="no such thing"):
        measure(Entry("target", TASKS["Ant-v5"], "sbx_published", 0), SETTING)
