"""What an evaluation is said to have taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from podracer_core.environments import VecEnvironment, make_vec_environment
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks import Actor
from podracer_core.training import (
    EvaluationOrder,
    InProcessBackend,
    evaluate_order,
    evaluation_backend,
)
from tests.unit.training.conftest import SPEC


def test_the_start_of_environments_is_no_part_of_it(make_algorithm, monkeypatch):
    """Processes of a user's environment take seconds to start, and would use up what looks may
    take."""
    now = [0.0]
    monkeypatch.setattr(evaluation_backend, "processor_seconds", lambda: now[0])

    def start(num_envs: int, device: torch.device) -> VecEnvironment:
        now[0] += 5.0
        return make_vec_environment(SPEC, num_envs, device)

    judge = InProcessBackend(start)
    judge.submit(EvaluationOrder(1, (0, 1), make_algorithm().actor, (1, 2, 3), screening=True))
    (answer,) = judge.poll()
    assert now[0] >= 5.0
    assert answer.duration_s == 0.0
    judge.close()


@pytest.mark.parametrize(
    ("admission", "required", "means", "is_open"),
    [
        (None, None, (1.0, 2.0, 3.0), True),
        (None, 9.0, (1.0, 2.0, 3.0), False),  # the interval ends at 4.48
        (None, 4.0, (1.0, 2.0, 3.0), True),
        (None, 0.0, (1.0, 2.0, 3.0), True),
        (2.5, None, (1.0, 2.0, 3.0), True),
        (9.0, None, (1.0, 2.0, 3.0), False),
        (-9.0, None, (1.0, 2.0, 3.0), True),  # only a full evaluation gets a place
        (None, 9.0, (1.0,), True),  # of one episode nothing is known
    ],
)
def test_the_rest_is_played_where_the_first_episodes_leave_something_open(
    admission, required, means, is_open, make_algorithm
):
    order = EvaluationOrder(
        1,
        (0,),
        make_algorithm((1,)).actor,
        (1,),
        admission_score=admission,
        required_score=required,
    )
    first = EvaluationResult(means, (1,) * len(means), tuple(range(len(means))))
    assert order.leaves_open(first) is is_open


def test_a_confirmation_is_given_up_once_its_first_episodes_show_that_it_fails(make_algorithm):
    """An untrained policy has 20 or so on CartPole; all episodes come out where the target is in
    reach."""
    judge = InProcessBackend(lambda count, device: make_vec_environment(SPEC, count, device))
    for required, episodes in ((400.0, 4), (1.0, 12)):
        order = EvaluationOrder(
            1,
            (0,),
            make_algorithm((1,)).actor,
            tuple(range(12)),
            first_episodes=4,
            required_score=required,
        )
        judge.submit(order)
        (answer,) = judge.poll()
        assert [one.episodes for one in answer.results] == [episodes]
    judge.close()


class FixedReturns:
    """An evaluator in which member m of the first actor has returns around 10 m; it looks where
    policies lie."""

    def __init__(self) -> None:
        self.devices: list[str] = []

    def evaluate(
        self, actor: Actor, seeds: Sequence[int], **options: Any
    ) -> tuple[EvaluationResult, ...]:
        self.devices += [actor.device.type, actor.network.weights[0].device.type]
        return tuple(
            EvaluationResult(
                tuple(10.0 * m + seed % 2 for seed in seeds), (1,) * len(seeds), tuple(seeds)
            )
            for m in range(actor.members)
        )


def test_policies_that_are_evaluated_further_stay_on_their_device(make_algorithm):
    actor = make_algorithm().actor._map(
        lambda tensor: tensor.to("meta"), make_algorithm().actor.head
    )
    evaluator = FixedReturns()
    order = EvaluationOrder(
        1, (0, 1), actor, tuple(range(8)), first_episodes=4, admission_score=10.5
    )
    results = evaluate_order(evaluator, order)  # type: ignore[arg-type]
    assert [result.episodes for result in results] == [4, 8]
    assert evaluator.devices == ["meta"] * 4
