"""On which device a fused pod trains."""

from __future__ import annotations

import pytest
import torch

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_learner.round_setup import device_for


@pytest.mark.parametrize(
    ("spec", "device"),
    [
        (EnvironmentSpec("CartPole-v1"), "cuda"),
        (EnvironmentSpec("Ant-v5"), "cuda"),
        (EnvironmentSpec("Swimmer-v5"), "cpu"),  # MuJoCo Warp does not step it
        (EnvironmentSpec("Reacher-v5"), "cpu"),
        (EnvironmentSpec("LunarLander-v3"), "cpu"),  # in processes
        (EnvironmentSpec(entry_point="gymnasium.envs.mujoco.ant_v5:AntEnv"), "cpu"),
    ],
)
def test_auto_is_a_gpu_where_the_environment_runs_on_it(
    spec: EnvironmentSpec, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_for("auto", spec) == device
    assert device_for("cuda:1", spec) == "cuda:1"  # whoever says so is told where it cannot be
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_for("auto", spec) == "cpu"
