"""Policies that are written out, and how many of their episodes succeed."""

from __future__ import annotations

import torch
from success_rate.evaluator import SuccessRate
from torch import Tensor

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment


class Pushing:
    """Pushes the car of MountainCar-v0 the way it goes already, which takes it up the hill; or
    always to the left."""

    members = 1

    def __init__(self, *, cleverly: bool) -> None:
        self._cleverly = cleverly

    def repeat(self, times: int) -> Pushing:
        return self

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        velocity = observation[..., 1]
        return (
            torch.where(velocity >= 0, 2, 0)
            if self._cleverly
            else torch.zeros_like(velocity, dtype=torch.int64)
        )


def rate(*, cleverly: bool) -> float:
    spec = EnvironmentSpec(id="MountainCar-v0")
    evaluator = SuccessRate(lambda count: make_vec_environment(spec, count, evaluation=True))
    (result,) = evaluator.evaluate(Pushing(cleverly=cleverly), range(8))
    assert evaluator.look(Pushing(cleverly=cleverly), range(8)) == (result,)
    evaluator.close()
    return result.mean


def test_a_car_that_gets_up_the_hill_succeeds() -> None:
    assert rate(cleverly=True) == 1.0


def test_a_car_that_is_cut_off_does_not() -> None:
    assert rate(cleverly=False) == 0.0
