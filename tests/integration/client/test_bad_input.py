"""Every mistake gives one clear message, exit code 2, and creates nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import run_here

GOOD = """
name: job
environment: {id: CartPole-v1}
objective: {target_return: 475, max_duration: 1m}
"""

BAD_FILES = {
    "unknown key": (GOOD + "objektive: 3\n", ["job.yaml:5", "objektive", "objective"]),
    "unknown nested key": (GOOD + "pod: {membrs: 2}\n", ["job.yaml:5", "pod.membrs", "members"]),
    "wrong type": (GOOD + "seed: many\n", ["job.yaml:5", "seed", "whole number"]),
    "impossible range": (
        GOOD + "search:\n  space:\n    gamma: {uniform: [0.99, 0.9]}\n",
        ["job.yaml:7", "search.space.gamma", "low < high"],
    ),
    "logarithm of zero": (
        GOOD + "search: {space: {learning_rate: {log_uniform: [0, 1]}}}\n",
        ["job.yaml:5", "search.space.learning_rate"],
    ),
    "unknown environment": (
        GOOD.replace("CartPole-v1", "CartPole-v7"),
        ["job.yaml:3", "CartPole-v7", "CartPole-v1"],
    ),
    "unknown algorithm": (GOOD + "search: {algorithms: [ppq]}\n", ["job.yaml:5", "ppq", "ppo"]),
    "empty search": (
        GOOD + "search: {algorithms: []}\n",
        ["job.yaml:5", "search.algorithms", "empty"],
    ),
    "population of none": (
        GOOD + "evolution: {population: 0}\n",
        ["job.yaml:5", "evolution.population"],
    ),
    "a leaderboard larger than the population": (
        GOOD + "evolution: {population: 3, leaderboard_size: 4}\n",
        ["job.yaml:5", "evolution.leaderboard_size", "expected 1 to 3"],
    ),
    "an ensemble larger than the leaderboard": (
        GOOD + "evolution:\n  leaderboard_size: 3\n  ensemble_size: 4\n",
        ["job.yaml:7", "evolution.ensemble_size", "2 to 3"],
    ),
    "no generations": (
        GOOD + "evolution: {scheduler: generational, generations: 0}\n",
        ["job.yaml:5", "evolution.generations", "expected 1 to"],
    ),
    "generations of a tournament": (
        GOOD + "evolution: {generations: 3}\n",
        ["job.yaml:5", "evolution.generations", "generational"],
    ),
    "shares that sum to zero": (
        GOOD + "search: {algorithms: {ppo: 0, d3qn: 0}}\n",
        ["job.yaml:5", "search.algorithms", "more than 0"],
    ),
    "a negative share": (
        GOOD + "search: {algorithms: {ppo: -1}}\n",
        ["job.yaml:5", "search.algorithms", "got -1.0"],
    ),
    "a share that is no number": (
        GOOD + "search: {algorithms: {ppo: .nan}}\n",
        ["job.yaml:5", "search.algorithms.ppo", "expected a number"],
    ),
    "a search space that excludes all algorithms": (
        GOOD + "search:\n  algorithms: [sac, td3]\n",
        [
            "job.yaml:6",
            "search.algorithms[0]",
            "search.algorithms[1]",
            "sac cannot act in Discrete(2)",
        ],
    ),
    "a space of an algorithm that cannot act": (
        GOOD + "search: {space: {sac.gamma: 0.9}}\n",
        [
            "job.yaml:5",
            "search.space.sac.gamma",
            "'sac' is not searched; expected ppo or d3qn or discrete_sac",
        ],
    ),
    "a budget too small for any round": (
        GOOD.replace("max_duration: 1m", "max_env_steps: 15") + "pod: {envs_per_member: 16}\n",
        ["job.yaml:4", "objective.max_env_steps", "one step in each of an agent's 16 environments"],
    ),
    "a time too short for any round": (
        GOOD.replace("1m", "0.05"),
        ["job.yaml:4", "objective.max_duration", "at least 0.1 s"],
    ),
    "a population smaller than its pods": (
        GOOD + "pod: {count: 3, members: 3}\n",
        ["job.yaml:5", "pod.members", "need a population of 9; it is 8"],
    ),
    "an argument that the environment does not take": (
        GOOD.replace("{id: CartPole-v1}", "{id: CartPole-v1, kwargs: {gravity: 9.8}}"),
        ["job.yaml:3", "environment.kwargs.gravity", "sutton_barto_reward"],
    ),
    "a file that the environment does not take": (
        GOOD + "data: {table: job.yaml}\n",
        ["job.yaml:5", "data.table", "CartPole-v1 takes no such file"],
    ),
    "a combination of a matrix": (
        GOOD + "matrix:\n  seed: [0, 1]\n  search.algorithms: [[ppo], [sac]]\n",
        [
            "job.yaml:7",
            "search.algorithms[0]",
            "sac cannot act",
            "(where seed = 0, search.algorithms = [sac]",
        ],
    ),
    "an axis of a matrix": (
        GOOD + "matrix: {seed: 3}\n",
        ["job.yaml:5", "matrix.seed", "a list of at least one"],
    ),
    "a matrix of too many jobs": (
        GOOD + f"matrix: {{seed: {list(range(40))}, weight: {list(range(1, 41))}}}\n",
        ["job.yaml:5", "matrix", "makes 1_600 jobs; expected at most 1_000"],
    ),
    "no end": (
        GOOD.replace("{target_return: 475, max_duration: 1m}", "{}"),
        ["job.yaml:4", "objective"],
    ),
    "missing key": ("name: job\n", ["environment", "objective"]),
    "not YAML": ("name: [\n", ["job.yaml:", "YAML"]),
    "twice": (GOOD + "name: other\n", ["job.yaml:5", "name"]),
    "empty file": ("", ["job.yaml", "nothing"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_job_file(case: str, tmp_path: Path) -> None:
    text, expected = BAD_FILES[case]
    (tmp_path / "job.yaml").write_text(text)
    command = run_here("run", "job.yaml", "--plain", cwd=tmp_path)
    assert command.returncode == 2, command.stderr
    for part in expected:
        assert part in command.stderr, command.stderr
    assert "Traceback" not in command.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "folder.yaml").mkdir()
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(100 << 20)
    for name in ("missing.yaml", "binary.yaml", "folder.yaml", "huge.yaml"):
        command = run_here("run", name, "--plain", cwd=tmp_path)
        assert command.returncode == 2
        assert name in command.stderr
        assert "Traceback" not in command.stderr
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    (tmp_path / "file").write_text("in the way")
    command = run_here(
        "run", "job.yaml", "--plain", "--dir", tmp_path / "file" / "runs", cwd=tmp_path
    )
    assert command.returncode == 2
    assert str(tmp_path / "file") in command.stderr
    assert "Traceback" not in command.stderr
