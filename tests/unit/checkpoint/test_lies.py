"""A checkpoint whose metadata lie about its networks is refused before memory is taken for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.algorithms import PPO
from podracer_core.checkpoint import array_spaces, load_policy
from podracer_core.errors import InvalidInput
from support.policies import random_policy

OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = {"kind": "box", "low": -1.0, "high": 1.0, "shape": [4], "dtype": "float32"}


@pytest.mark.parametrize(
    "lie",
    [
        {"observation_space": BOX | {"shape": [10**9]}},
        {"observation_space": BOX | {"shape": [10**30, 10**30]}},
        {
            "observation_space": {
                "kind": "dict",
                "spaces": [["a", {"kind": "discrete", "n": 10**40, "start": 0}]],
            }
        },
        {"observation_space": {"kind": "multi_discrete", "nvec": [2**40] * 3, "start": []}},
        {"observation_space": BOX | {"shape": [1_000_000]}},
        {"action_space": {"kind": "discrete", "n": 10**12, "start": 0}},
        {"action_space": {"kind": "discrete", "n": 1_000_000, "start": 0}},
        {"hyperparameters": {"hidden_sizes": [16_000] * 3}},
    ],
)
def test_it_is_refused(lie, monkeypatch):
    checkpoint = random_policy("ppo", OBSERVATIONS, gymnasium.spaces.Discrete(2), 1)
    make, places = PPO.make_actor, []

    def recorded(
        cohort: Any, observations: Any, actions: Any, device: torch.device | str = "cpu"
    ) -> Any:
        places.append(str(device))
        return make(cohort, observations, actions, device)

    monkeypatch.setattr(PPO, "make_actor", recorded)
    load_policy(checkpoint)
    assert places == ["meta", "cpu"]
    with pytest.raises(InvalidInput):
        load_policy(replace(checkpoint, metadata={**checkpoint.metadata, **lie}))
    assert places[2:] in ([], ["meta"])


def test_a_space_may_be_as_large_as_its_networks():
    """And without networks, where only the metadata were loaded, as large as four million
    numbers."""
    checkpoint = random_policy("ppo", OBSERVATIONS, gymnasium.spaces.Discrete(2), 1)
    large = replace(
        checkpoint,
        groups={},
        metadata={**checkpoint.metadata, "observation_space": BOX | {"shape": [1 << 22]}},
    )
    assert array_spaces(large)[0].shape == (1 << 22,)
