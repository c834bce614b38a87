"""A policy whose weights are useless gives an error that names it, never an action."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from podracer.policy.v1 import policy_service_pb2 as pb
from podracer_core.errors import PreconditionFailed
from podracer_policy.server import response_of
from support.errors import raises


def test_an_action_that_is_not_finite_is_refused():
    policy: Any = SimpleNamespace(name="walker", version="1", observation_shape=(3,))
    request = pb.ActRequest(values=[0.0] * 6)
    assert list(response_of(torch.tensor([[0.5], [1.0]]), request, policy, alone=False).values) == [
        0.5,
        1.0,
    ]
    with raises(PreconditionFailed, "BAD_ACTION"):
        response_of(torch.tensor([[0.5], [torch.nan]]), request, policy, alone=False)
