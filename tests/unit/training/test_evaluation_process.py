"""Evaluation of what MuJoCo Warp trains, in a process beside training and on C MuJoCo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import podracer
from podracer_core.algorithms import Algorithm, CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import CONTACT_WEIGHTS, EnvironmentSpec, find_environment
from podracer_core.environments import is_evaluated_beside, make_vec_environment
from podracer_core.errors import Unavailable, UserCodeFailed
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.training import EvaluationAnswer, EvaluationOrder, ProcessBackend

SPEC = EnvironmentSpec("Ant-v5", kwargs={"engine": "warp"}, max_episode_steps=40)
COHORT = CohortConfig("ppo", (MemberConfig("a", 1), MemberConfig("b", 2)), {"hidden_sizes": (8,)})


@pytest.fixture
def algorithm() -> Algorithm:
    judged = make_vec_environment(SPEC, 1, evaluation=True)
    return algorithm_class("ppo")(COHORT, judged.observation_space, judged.action_space)


@pytest.fixture
def backend() -> Iterator[ProcessBackend]:
    backend = ProcessBackend(COHORT, SPEC, keep=True)
    yield backend
    backend.close()
    spare, ProcessBackend._spare = ProcessBackend._spare, None
    if spare is not None:
        spare[0].kill()
        spare[0].wait()


def answers(backend: ProcessBackend, count: int) -> list[EvaluationAnswer]:
    found: list[EvaluationAnswer] = []
    while len(found) < count:
        found += backend.poll(60.0)
    return found


def test_what_the_process_plays_is_what_this_one_would(backend, algorithm):
    """Orders that come before it has started, and while it is busy; policies as they were when
    ordered."""
    seeds = tuple(range(6))
    expected = GreedyEvaluator(
        lambda count: make_vec_environment(SPEC, count, evaluation=True)
    ).evaluate(algorithm.actor, seeds)
    backend.submit(EvaluationOrder(1, (0, 1), algorithm.actor, seeds))
    backend.submit(EvaluationOrder(2, (1,), algorithm.actor.member(1), seeds, screening=True))
    for weight in algorithm.actor.state().values():
        weight.zero_()
    backend.submit(EvaluationOrder(3, (0,), algorithm.actor.member(0), seeds))
    full, look = answers(backend, 2)
    assert (full.order_id, full.results) == (1, expected)
    assert (look.order_id, look.results[0].seeds) == (2, seeds)

    backend.close()  # an order is open
    again = ProcessBackend(COHORT, SPEC, keep=True)
    assert again._process is backend._process
    backend.close()  # twice
    again.submit(EvaluationOrder(3, (0,), algorithm.actor.member(0), seeds))
    again.submit(EvaluationOrder(4, (0,), algorithm.actor, seeds))  # of two members
    (answer,) = answers(again, 1)
    assert answer.order_id == 3
    with pytest.raises(UserCodeFailed, match="evaluation failed"):
        answers(again, 1)
    again.close()
    assert again._process.wait() == -9, "it is not kept after an error"


def test_the_end_of_the_process_is_noticed(backend):
    backend._process.kill()
    with pytest.raises(Unavailable, match="evaluates"):
        while True:
            backend.poll(60.0)


@pytest.mark.parametrize(
    ("environment_id", "kwargs", "device", "beside"),
    [
        ("Ant-v5", {}, "cuda", True),
        ("Ant-v5", {}, "cpu", False),
        ("Ant-v5", {"engine": "warp"}, "cpu", True),
        ("CartPole-v1", {}, "cuda", False),
    ],
)
def test_only_what_warp_trains_is_evaluated_beside(environment_id, kwargs, device, beside):
    assert is_evaluated_beside(EnvironmentSpec(environment_id, kwargs=kwargs), device) is beside


@pytest.mark.xdist_group("warp")  # one process compiles Warp's kernels, once
def test_training_on_warp_ends_with_the_target_and_an_evaluation_that_repeats(tmp_path):
    result = podracer.train(
        "Ant-v5",
        target=1.0,
        statistic="mean",
        members=2,
        envs_per_member=2,
        episodes=8,
        max_episode_steps=40,
        environment_arguments={"engine": "warp"},
        hyperparameters={"horizon": 8, "hidden_sizes": [8]},
        device="cpu",
        progress=False,
    )
    assert result.stopped_by == "target"
    assert result.history
    saved = podracer.load(result.save(tmp_path / "ant"))
    best = saved.best
    assert best is not None
    assert saved.checkpoint.metadata["environment"]["kwargs"] == {
        "engine": "warp",
        "contact_cost_weight": 5e-4,
    }
    (again,) = _judge(saved.checkpoint.metadata["environment"]).evaluate(
        saved.policy._actor, best.seeds
    )
    assert again.returns == best.returns


def _judge(environment: dict[str, object]) -> GreedyEvaluator:
    spec = EnvironmentSpec.from_metadata(environment)
    return GreedyEvaluator(lambda count: make_vec_environment(spec, count, evaluation=True))


def test_a_record_of_an_earlier_version_is_not_charged_for_contacts():
    for environment_id, weights in CONTACT_WEIGHTS.items():
        defaults = {
            argument.name: argument.default
            for argument in find_environment(environment_id).arguments
        }
        assert weights.items() <= defaults.items()
    stored = EnvironmentSpec("Humanoid-v5").to_metadata()
    assert EnvironmentSpec.from_metadata(stored).kwargs == {"contact_cost_weight": 5e-7}
    assert EnvironmentSpec.from_metadata({**stored, "kwargs": {}}).kwargs == {
        "contact_cost_weight": 0.0
    }
    assert EnvironmentSpec.from_metadata({"id": "CartPole-v1", "kwargs": {}}).kwargs == {}
