"""What a cohort needs is refused with its number and the knobs before anything is allocated."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from podracer_core.algorithms import CohortConfig, MemberConfig
from podracer_core.errors import InvalidInput
from podracer_core.training import require_room
from support.errors import raises

MILLION = gymnasium.spaces.Box(-1, 1, (1_000_000,), np.float32)
ACTIONS = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


def cohort(algorithm: str, members: int, **shared: object) -> CohortConfig:
    return CohortConfig(
        algorithm, tuple(MemberConfig(f"m{each}", each, {}) for each in range(members)), shared
    )


def test_rollouts_networks_and_replay_count_together(monkeypatch):
    for module in ("podracer_core.device", "podracer_core.training.plan"):
        monkeypatch.setattr(f"{module}.free_bytes", lambda device: 72 << 30)
    require_room(cohort("sac", 1, hidden_sizes=(256, 256)), 8, MILLION, ACTIONS, "cpu")
    parts = r"7\.\d for rollouts and batches, 60\.\d for networks and snapshots, 7\.\d for replay"
    with pytest.raises(InvalidInput, match=parts) as error:
        require_room(
            cohort("sac", 1, hidden_sizes=(256, 256), replay_capacity=2_000),
            8,
            MILLION,
            ACTIONS,
            "cpu",
        )
    assert "need 75.9 GiB" in error.value.message
    assert "batch_size or replay_capacity" in error.value.message
    with raises(InvalidInput, "REPLAY_TOO_LARGE", field="replay_capacity"):
        require_room(cohort("sac", 1, replay_capacity=100_000), 8, MILLION, ACTIONS, "cpu")
    with raises(InvalidInput, "NO_ROOM", field="members"):
        require_room(cohort("ppo", 8), 16, MILLION, ACTIONS, "cpu")
