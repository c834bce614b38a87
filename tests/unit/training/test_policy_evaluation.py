"""What an evaluator does for a session, without gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.training import PolicyEvaluation
from support.errors import raises

SPEC = EnvironmentSpec(id="CartPole-v1", max_episode_steps=40)
COHORT = CohortConfig(
    "ppo", tuple(MemberConfig(f"a{seed}", seed) for seed in (1, 2, 3)), {"hidden_sizes": (16,)}
)


@pytest.fixture
def evaluation() -> Iterator[PolicyEvaluation]:
    torch.set_num_threads(1)
    evaluation = PolicyEvaluation(COHORT, SPEC, "cpu")
    yield evaluation
    evaluation.close()


def weights() -> dict[str, torch.Tensor]:
    environment = make_vec_environment(SPEC, 1)
    spaces = environment.observation_space, environment.action_space
    return algorithm_class("ppo")(COHORT, *spaces).actor_state()


def test_the_cohort_and_a_member_alone_give_the_same_returns(evaluation):
    state = weights()
    together, duration_s = evaluation.evaluate(["a1", "a2", "a3"], state, range(8), 0, None, False)
    assert duration_s > 0
    alone, _ = evaluation.evaluate(
        ["a2"], {name: one[1:2] for name, one in state.items()}, range(8), 0, None, False
    )
    assert alone[0].returns == together[1].returns


def test_a_look_may_round_differently_but_plays_the_same_episodes(evaluation):
    state = weights()
    (look, *_), _ = evaluation.evaluate(["a1", "a2", "a3"], state, range(8), 0, None, True)
    (full, *_), _ = evaluation.evaluate(["a1", "a2", "a3"], state, range(8), 0, None, False)
    assert look.seeds == full.seeds
    assert look.mean == pytest.approx(full.mean, rel=0.2)


@pytest.mark.parametrize("agents", [[], ["a9"], ["a1", "a9"]])
def test_strangers_are_refused(evaluation, agents):
    with pytest.raises(InvalidInput):
        evaluation.evaluate(agents, weights(), range(8), 0, None, False)


def test_more_episodes_than_there_can_be_environments_are_refused(evaluation):
    with raises(InvalidInput, field="seeds"):
        evaluation.evaluate(["a1", "a2", "a3"], weights(), range(500_000), 0, None, False)


def test_an_evaluation_is_given_up_without_a_caller():
    checks: list[None] = []

    def check() -> None:
        checks.append(None)
        if len(checks) == 3:
            raise Unavailable("no caller waits")

    endless = EnvironmentSpec(id="Pendulum-v1", max_episode_steps=1 << 40)
    environment = make_vec_environment(endless, 1)
    spaces = environment.observation_space, environment.action_space
    evaluation = PolicyEvaluation(COHORT, endless, "cpu", check)
    with pytest.raises(Unavailable, match="caller waits"):
        evaluation.evaluate(
            ["a1", "a2", "a3"],
            algorithm_class("ppo")(COHORT, *spaces).actor_state(),
            range(2),
            0,
            None,
            False,
        )
    evaluation.close()


def test_weights_of_another_shape_are_refused(evaluation):
    with pytest.raises(InvalidInput):
        evaluation.evaluate(["a1"], weights(), range(8), 0, None, False)
