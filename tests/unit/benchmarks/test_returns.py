"""What benchmarks/returns.py keeps and concludes; that its processes train is shown by running
it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lab.statistics import estimate, interquartile_mean
from peers.ppo_recipes import ARGUMENTS
from peers.returns_report import PUBLISHED, report
from peers.returns_training import AgentRuns, Run, settings_of

EVERY = 1000


def run(system: str = "ours", seed: int = 0, *returns: float, task: str = "Hopper-v5") -> Run:
    looks = [(1000 * (index + 1), value) for index, value in enumerate(returns)]
    settings = settings_of("sb3" if system == "sb3" else "ours", EVERY)
    return Run(task, system, seed, settings, 1000 * len(returns), looks, 1.0)


def test_an_agent_that_was_trained_is_found_again_also_behind_a_torn_line(tmp_path):
    results, record = tmp_path / "runs" / "results.jsonl", tmp_path / "record.jsonl"
    first = run("ours", 0, 1.0, 2.0)
    second = run("ours", 1, 3.0, 4.0)
    third = run("sb3", 0, 5.0, 6.0)
    AgentRuns(Run, record).add([third])
    AgentRuns(Run, results).add([first])
    with results.open("a") as file:
        file.write('{"task": "Hop')
    AgentRuns(Run, results).add([second])
    found = AgentRuns(Run, results, record)
    assert found.find("Hopper-v5", "ours", [0, 1, 2], EVERY, 2000) == as_read([first, second])
    assert found.find("Hopper-v5", "sb3", [0], EVERY, 2000) == as_read([third])
    assert not found.find("Hopper-v5", "ours", [0], EVERY, 2001)
    assert not found.find("Hopper-v5", "ours", [0], EVERY + 1, 2000)
    found.copy(record)
    again = AgentRuns(Run, record)
    assert again.find("Hopper-v5", "ours", [1], EVERY, 2000) == as_read([second])


def as_read(runs: list[Run]) -> list[Run]:
    return [replace(each, looks=[list(look) for look in each.looks]) for each in runs]


def test_a_long_run_holds_a_short_one(tmp_path):
    short, long = run("ours", 0, 1.0, 2.0), run("ours", 0, 1.0, 2.0, 6.0, 7.0)
    runs = AgentRuns(Run, tmp_path / "results.jsonl")
    runs.add([long])
    runs.add([short])
    assert runs.find("Hopper-v5", "ours", [0], EVERY, 4000) == [long]
    assert runs.find("Hopper-v5", "ours", [0], EVERY, 2000) == [short]
    assert (long.score, short.score) == (5.0, 1.5)
    assert (long.first_at(5.0), long.first_at(8.0)) == (3000, None)


def test_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert interquartile_mean(
        np.array([[100.0, 1.0, 2.0, 3.0, -50.0], [0.0, 0.0, 3.0, 6.0, 9.0]])
    ).tolist() == [2, 3]
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0  # of three seeds none


def test_the_interval_holds_the_estimate_and_draws_within_each_task():
    one = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (one.value, one.low >= 1, one.high <= 5, one.low < 3 < one.high) == (
        3.0,
        True,
        True,
        True,
    )
    # A task always has its share, so two tasks without any spread have none together.
    both = estimate([1.0] * 4, [3.0] * 4)
    assert (both.value, both.low, both.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("worst", "met"), [(100.0, True), (1.0, False)])
def test_the_target_is_missed_by_one_task_whose_interval_is_below(worst, met, capsys):
    found = {
        task: {
            "ours": [run("ours", seed, 100.0 + seed, task=task) for seed in range(5)],
            "sb3": [run("sb3", seed, 100.0 + seed, task=task) for seed in range(3)],
        }
        for task in ARGUMENTS
    }
    found["Ant-v5"]["ours"] = [
        replace(one, looks=[(1000, worst + one.seed)]) for one in found["Ant-v5"]["ours"]
    ]
    report(found, 1000)
    closing = json.loads(capsys.readouterr().out.splitlines()[-1])
    target = closing["targets"]["tasks_with_an_interval_below_sb3"]
    assert (target["value"], target["met"]) == (0 if met else 1, met)


def test_nothing_is_concluded_before_all_tasks_are_there(capsys):
    report({"Ant-v5": {"ours": [run("ours", 0, 1.0, task="Ant-v5")], "sb3": []}}, 1000)
    closing = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert closing["targets"]["tasks_with_an_interval_below_sb3"]["value"] is None
    assert PUBLISHED.keys() == ARGUMENTS.keys()
