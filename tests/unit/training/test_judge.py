"""What an evaluation is said to have taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.environments.registry import make_vec_environment
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.training import judge as judge_module
from podracer_core.training.judge import EvaluationOrder, InProcessJudge
from tests.unit.training.conftest import SPEC


def test_the_start_of_environments_is_no_part_of_it(
    make_algorithm: Callable[..., Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of a user's environment take seconds to start, and would use up what looks may take."""
    now = [0.0]
    monkeypatch.setattr(judge_module.time, "monotonic", lambda: now[0])

    def start(num_envs: int, device: torch.device) -> VecEnvironment:
        now[0] += 5.0
        return make_vec_environment(SPEC, num_envs, device)

    judge = InProcessJudge(start)
    judge.submit(EvaluationOrder(1, (0, 1), make_algorithm().actor, (1, 2, 3), screening=True))
    (answer,) = judge.poll()
    assert now[0] >= 5.0
    assert answer.duration_s == 0.0
    judge.close()
