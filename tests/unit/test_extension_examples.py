"""The examples of docs/write-a-*.md, installed beside us: found by their names, their mistakes
refused.

tests/e2e/test_extensions.py trains with them in real services.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_core.algorithms import CohortConfig, MemberConfig
from podracer_core.catalogue import EnvironmentSpec, load_class
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import evaluator_class
from podracer_core.evolution import Generator
from podracer_core.fusion import fusion_class
from podracer_core.training import PolicyEvaluation
from podracer_platform.jobs import JobSpec, load_job_file
from support.commands import Result, run_here
from support.errors import raises
from support.examples import ALGORITHM, EVALUATOR, FUSION, GENERATOR, HOVER, MAZE, Packages


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    packages = Packages(tmp_path / "packages", monkeypatch)
    yield packages
    packages.forget()


def refused(job: Path, good: str, bad: str) -> Result:
    """What `podracer run` says of a job file with a mistake. It has not started anything."""
    text = job.read_text()
    assert good in text
    job.write_text(text.replace(good, bad))
    result = run_here("run", job, "--plain", cwd=job.parent)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert not (job.parent / "runs").exists()
    return result


def test_an_algorithm_is_listed(packages, tmp_path):
    packages.install(ALGORITHM)
    result = run_here("algorithms", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.lines[-1].startswith("munchausen_dqn ")
    assert result.lines[-1].endswith("munchausen-dqn 0.1.0")
    assert not result.stderr
    assert "munchausen_weight: 0.9" in run_here("algorithms", "munchausen_dqn", cwd=tmp_path).lines


def test_a_generator_is_found_and_named_by_a_name(packages):
    job = packages.install(GENERATOR) / "cartpole.yaml"
    found = load_class("podracer.generators", "median_stopping", Generator, "generator")
    assert found.__name__ == "MedianStopping"
    result = refused(job, "generator: median_stopping", "generator: [median_stopping]")
    assert "evolution.generator" in result.stderr


def test_a_fusion_is_found_by_its_name_and_so_are_the_built_in_ones(packages):
    packages.install(FUSION)
    found = {name: fusion_class(name).__name__ for name in ("median", "mean", "weighted", "outer")}
    assert found == {"median": "Median", "mean": "Mean", "weighted": "Weighted", "outer": "Outer"}
    with raises(InvalidInput, "UNKNOWN_EXTENSION", match="outer, weighted"):
        fusion_class("medain")


def test_a_job_file_with_a_fusion_is_valid(packages):
    pod = load_job_file(packages.install(FUSION) / "cartpole.yaml").pod
    assert pod.learners == 3
    assert pod.fusion is not None
    assert pod.fusion.name == "median"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import a_package_that_is_not_there\n", "cannot be imported: ModuleNotFoundError"),
        ("class Median:\n    pass\n", "is no podracer_core.fusion.Fusion"),
    ],
)
def test_a_package_with_a_broken_fusion_is_named(packages, text, problem):
    (packages.install(FUSION) / "median_fusion" / "fusion.py").write_text(text)
    with pytest.raises(InvalidInput, match=problem) as raised:
        fusion_class("median")
    assert "fusion 'median' of package median-fusion 0.1.0" in raised.value.message


def test_the_name_of_a_built_in_fusion_cannot_be_taken(packages):
    packages.install(FUSION)
    packages.add("another", "2.0", {"podracer.fusions": {"mean": "median_fusion.fusion:Median"}})
    with raises(InvalidInput, "UNKNOWN_EXTENSION", match="another 2.0, podracer-core"):
        fusion_class("mean")


def test_an_evaluator_is_found_by_its_name_and_so_are_the_built_in_ones(packages):
    job = load_job_file(packages.install(EVALUATOR) / "acrobot.yaml")
    assert JobSpec.from_message(job.to_message()).evaluation.evaluator == "success_rate"
    found = {
        name: evaluator_class(name).__name__
        for name in ("", "greedy_episodes", "backtest", "success_rate")
    }
    assert list(found.values()) == [
        "GreedyEvaluator",
        "GreedyEvaluator",
        "BacktestEvaluator",
        "SuccessRate",
    ]
    known = "backtest, greedy_episodes, success_rate"
    with raises(InvalidInput, "UNKNOWN_EXTENSION", field="evaluation.evaluator", match=known):
        evaluator_class("succes_rate")


def test_an_evaluator_of_a_package_judges_the_policies_of_a_session(packages):
    """Whose car, with weights that are not trained, never gets up the hill: no episode ends before
    its 200 steps."""
    packages.install(EVALUATOR)
    cohort = CohortConfig("ppo", (MemberConfig("a", 7), MemberConfig("b", 8)))
    spec = EnvironmentSpec(id="MountainCar-v0")
    rates = {}
    for name in ("", "success_rate"):
        evaluation = PolicyEvaluation(cohort, spec, "cpu", evaluator=name)
        tensors = evaluation._actor(2).state()
        results, _ = evaluation.evaluate(["a", "b"], tensors, range(8), 4, None, screening=False)
        evaluation.close()
        rates[name] = [(result.mean, result.episodes) for result in results]
    assert rates == {"": [(-200.0, 8)] * 2, "success_rate": [(0.0, 8)] * 2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import a_package_that_is_not_there\n", "cannot be imported: ModuleNotFoundError"),
        ("class SuccessRate:\n    pass\n", "is no podracer_core.evaluate.evaluator.Evaluator"),
    ],
)
def test_a_package_with_a_broken_evaluator_is_named(packages, text, problem):
    (packages.install(EVALUATOR) / "success_rate" / "evaluator.py").write_text(text)
    with pytest.raises(InvalidInput, match=problem) as raised:
        evaluator_class("success_rate")
    assert "evaluator 'success_rate' of package success-rate 0.1.0" in raised.value.message


def test_an_evaluator_that_leaves_a_policy_out_is_told_so(packages):
    module = packages.install(EVALUATOR) / "success_rate" / "evaluator.py"
    module.write_text(
        module.read_text().replace(", first_row=first_row)))", ", first_row=first_row)))[:1]")
    )
    cohort = CohortConfig("ppo", (MemberConfig("a", 7), MemberConfig("b", 8)))
    evaluation = PolicyEvaluation(
        cohort, EnvironmentSpec(id="MountainCar-v0"), "cpu", evaluator="success_rate"
    )
    with raises(InvalidInput, "BROKEN_EVALUATOR"):
        evaluation.evaluate(
            ["a", "b"], evaluation._actor(2).state(), range(8), 0, None, screening=False
        )
    evaluation.close()


@pytest.mark.thorough
def test_the_tests_that_the_examples_bring_pass(packages, tmp_path):
    """Those of maze and hover without anything installed, as their page says."""
    copies = [packages.install(example) for example in (ALGORITHM, EVALUATOR, FUSION, GENERATOR)]
    copies += [shutil.copytree(example, tmp_path / example.name) for example in (MAZE, HOVER)]
    paths = ":".join([os.environ["PYTHONPATH"], *map(str, copies)])
    folders = [copy / "tests" for copy in copies]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
            *folders,
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for folder in folders:
        assert len(list(folder.glob("test_*.py"))) == 1
    assert " passed" in result.stdout
