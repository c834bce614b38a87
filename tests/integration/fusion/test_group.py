"""Learners in one torch.distributed group: processes on the CPU, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import ROOT

pytestmark = [pytest.mark.thorough, pytest.mark.processes]


def run_group(size: int, folder: Path, *what: str) -> list[list[dict[str, Any]]]:
    """What every rank prints, for each WHAT."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")])
        ),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "support.group_learner",
                str(rank),
                str(size),
                str(folder / "store"),
                *what,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    lines = zip(*(output.splitlines() for output, _ in outputs), strict=True)
    return [[json.loads(line) for line in of_ranks] for of_ranks in lines]


def test_all_ranks_get_the_exact_mean_and_another_cohort_is_refused_by_all(tmp_path: Path) -> None:
    fused, (first, second) = run_group(2, tmp_path, "contributions", "cohorts")
    assert fused == [{"right": [True] * 4}] * 2
    assert first == {
        "reason": "COHORT_MISMATCH",
        "message": "the learners of ranks [1] train another cohort",
    }
    assert second["message"] == "the learners of ranks [0] train another cohort"


def test_three_learners_end_with_the_same_bits_and_count_each_others_steps(tmp_path: Path) -> None:
    fused, trained = run_group(3, tmp_path, "contributions", "learners")
    assert fused == [{"right": [True] * 4}] * 3
    assert len({result["digest"] for result in trained}) == 1
    assert len({result["own"] for result in trained}) == 3
    for result in trained:
        assert result["env_steps"] == [3 * 3 * 4 * 8] * 2
        assert result["updates"] == 3
