"""What benchmarks/peers_ppo.py plans, keeps and concludes; that its processes measure is shown by
running it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podracer_core.catalogue import find_algorithm
from podracer_platform.jobs import parse_job, validate

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lab.processes import Measured
from lab.runs import Runs
from peers import ppo_measure, ppo_recipes
from peers.ppo_measure import measure, our_job
from peers.ppo_plan import SYSTEMS, Entry, Run, Setting, systems_of
from peers.ppo_recipes import SAME, TASKS, hyperparameters, recipe_of
from peers.ppo_report import report

SETTING = Setting(speed_s=20.0, limit_s=None, threads=2, peers=Path("none"))


def speed(environment: str, system: str, seed: int, steps_per_second: float) -> Run:
    figures = {"steps_per_second": steps_per_second, "memory_mb": 1.0, "processes": 1}
    (run,) = Entry("speed", TASKS[environment], system, seed).runs(SETTING, [figures])
    return run


def solved(environment: str, system: str, seed: int, *seconds: float | None) -> list[Run]:
    rest = dict.fromkeys(("training_seconds", "env_steps", "steps_per_second", "memory_mb"), 1.0)
    found: list[dict[str, Any]] = [{"seconds": each, **rest} for each in seconds]
    return Entry("target", TASKS[environment], system, seed).runs(SETTING, found)


def targets_of(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report(runs)
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1])["targets"])


@pytest.mark.parametrize("environment", ["Ant-v5", "HalfCheetah-v5"])
def test_our_job_is_valid_and_has_the_recipe(environment):
    job = our_job(Entry("target", TASKS[environment], "ours", 3), 1000.0, 900.0)
    spec = parse_job(json.dumps(job))
    validate(spec)
    assert hyperparameters(SAME).keys() == {
        dimension.hyperparameter for dimension in spec.search.space
    }
    assert hyperparameters(SAME).keys() <= find_algorithm("ppo").defaults().keys()
    assert (spec.seed, spec.objective.target_return, spec.evaluation.episodes) == (3, 1000.0, 100)


@pytest.mark.parametrize("environment", ["CartPole-v1", "LunarLander-v3"])
def test_a_task_with_a_job_of_its_own_has_its_target(environment):
    task = TASKS[environment]
    spec = parse_job(json.dumps(our_job(Entry("target", task, "ours", 3), *task.targets, 60.0)))
    validate(spec)
    assert spec.environment.id == environment
    assert (spec.seed, spec.objective.max_duration) == (3, 60.0)
    assert spec.objective.target_return == task.targets[0]


def test_every_task_has_the_recipes_and_limits_of_its_systems():
    for task in TASKS.values():
        names = systems_of(task, ["podracer", "sb3", "sbx"])
        assert names[0] == "ours"
        for system in (SYSTEMS[name] for name in names if not SYSTEMS[name].is_ours):
            assert recipe_of(system.recipe, task.environment)
            assert not task.least or system.recipe in task.least
    assert "ours_8" in systems_of(TASKS["CartPole-v1"], ["podracer"])
    assert not [name for name in systems_of(TASKS["Ant-v5"], ["podracer"]) if name != "ours"]


def test_ended_runs_are_kept_also_behind_a_torn_line(tmp_path):
    results = tmp_path / "runs" / "results.jsonl"
    first, second = speed("Ant-v5", "ours", 0, 1.0), speed("Ant-v5", "sbx_same", 0, 2.0)
    Runs(Run, results).add([first])
    with results.open("a") as file:
        file.write('{"part": "speed", "envir')
    Runs(Run, results).add([second])
    assert list(Runs(Run, results)) == [first, second]
    assert first.key in Runs(Run, results)


def test_other_settings_make_another_run(monkeypatch):
    entry = Entry("target", TASKS["Ant-v5"], "sb3_same", 0)
    keys = [run.key for run in entry.runs(SETTING)]
    monkeypatch.setattr(ppo_recipes, "SAME", replace(SAME, epochs=4))
    assert not set(keys) & {run.key for run in entry.runs(SETTING)}


def test_ratios_are_paired_by_seed_and_held_against_the_best_peer(capsys):
    runs = [speed("Ant-v5", "ours", seed, 6000.0 + 1000 * seed) for seed in range(3)]
    # 3, 2.33, 2
    runs += [speed("Ant-v5", "sb3_same", seed, 2000.0 + 1000 * seed) for seed in range(3)]
    runs += [speed("Ant-v5", "sbx_same", seed, 1000.0) for seed in range(3)]  # 6, 7, 8
    runs += [speed("Ant-v5", "sb3_published", seed, 1000.0) for seed in range(3)]
    found = targets_of(runs, capsys)
    assert found["b_Ant-v5_steps_per_second"]["value"] == pytest.approx(7 / 3)
    assert found["c_Ant-v5_steps_per_second"]["value"] == pytest.approx(7.0)


def test_a_peer_that_fails_counts_with_its_limit_and_ours_not_at_all(capsys):
    runs = [*solved("Ant-v5", "ours", 0, 30.0, None), *solved("Ant-v5", "sb3_same", 0, 120.0, None)]
    runs += solved("Ant-v5", "sbx_published", 0, None, None)
    found = targets_of(runs, capsys)
    assert found["a_Ant-v5_seconds_to_1000"]["value"] == pytest.approx(0.25)
    assert found["a_Ant-v5_seconds_to_2000"]["value"] is None
    assert not found["a_Ant-v5_seconds_to_2000"]["met"]


def test_a_peer_has_what_it_told_until_its_time_was_over(monkeypatch):
    events: list[tuple[float, dict[str, Any]]] = [
        (10.0, {"event": "training"}),
        (110.0, {"event": "reached", "target": 1000.0, "env_steps": 50_000, "mean_return": 1100.0}),
        (890.0, {"event": "steps", "env_steps": 440_000}),
    ]
    told = Measured(events, peak_bytes=5_000_000, processes=2, timed_out=True)
    monkeypatch.setattr(ppo_measure, "run_script", lambda *args, **kwargs: told)
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


def test_a_peer_that_ends_before_its_time_is_an_error(tmp_path, monkeypatch):
    log = tmp_path / "sbx_published.log"
    log.write_text("no such thing")
    told = Measured([(10.0, {"event": "training"})], timed_out=False, log=log)
    monkeypatch.setattr(ppo_measure, "run_script", lambda *args, **kwargs: told)
    with pytest.raises(SystemExit, match="thing"):
        measure(Entry("target", TASKS["Ant-v5"], "sbx_published", 0), SETTING)
