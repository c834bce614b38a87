"""A trading agent whose best is trained once more, on the days that selected it too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.commands import one_evaluator
from support.stock_market import days_of, market_rows, write_csv

JOB = """
name: trader
environment:
  id: StockTrading-v0
  kwargs: {{indicators: [], train_end: {train_end}, validation_end: {validation_end}}}
data: {{table: prices.csv}}
objective: {{max_env_steps: 4_096}}
search: {{algorithms: [ppo], space: {{horizon: 32}}}}
evolution: {{population: 1, leaderboard_size: 1, round: {{env_steps: 2_048}}}}
pod: {{envs_per_member: 16, layout: fused}}
evaluation: {{episodes: 8}}
retrain: {{kwargs: {{train_end: {validation_end}}}, env_steps: 2_048}}
"""


@pytest.mark.thorough
def test_a_back_test_plays_the_retrained_policy(run, tmp_path):
    rows = market_rows(3, 160, seed=4)
    days = days_of(rows)
    write_csv(tmp_path / "prices.csv", rows)
    (tmp_path / "job.yaml").write_text(JOB.format(train_end=days[90], validation_end=days[120]))
    command = run("run", "job.yaml", "--json")
    assert command.returncode == 0, command.stderr
    assert command.events[-1]["env_steps"] == 6_144
    checkpoint = Path(command.events[-1]["checkpoint"])
    assert checkpoint.parent.parent.name == "a0001-retrained"
    found = json.loads((tmp_path / checkpoint / "manifest.json").read_text())["metadata"]
    assert found["environment"]["kwargs"]["train_end"] == days[120]
    job = next(event["job"] for event in command.events if event["event"] == "progress")
    with one_evaluator():
        tests = [
            run("backtest", policy, "--json", "--against", "cash") for policy in (job, checkpoint)
        ]
        evaluated = run("evaluate", checkpoint, "--json")
    for tested in tests:
        assert tested.returncode == 0, tested.stderr
        values = tested.events[-1]
        assert values["agent"].endswith("/a0001-retrained")
        assert (values["trained_bars"], values["selected_bars"], values["from"][:10]) == (
            0,
            0,
            days[121],
        )
    edges = [tested.events[-1]["validation"] for tested in tests]
    assert 1 <= edges[0]["independent_trials"] <= edges[0]["trials"], (
        "of the candidate, in the days that selected it"
    )
    assert edges[1] is None, "of a checkpoint"
    assert evaluated.returncode == 0, "it has no stored evaluation"
    shown = run("job", job)
    line = rf"retrained    a0001-retrained, [\d,]+ environment steps, train_end {days[120]}"
    assert re.search(line, "\n".join(shown.lines)), (
        "the best snapshot's steps, and those of the last training"
    )
