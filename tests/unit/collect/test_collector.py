"""Collected rollouts: what lies where, and that they belong to the agent, not to its company or its
process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from podracer_core.algorithms import PPO, CohortConfig, MemberConfig
from podracer_core.buffers import Rollout
from podracer_core.collect import Collector
from podracer_core.environments import CartPole, Pendulum, VecEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import evaluation_seeds

ENVS, HORIZON = 5, 7
ENVIRONMENTS = {"CartPole": CartPole, "Pendulum": Pendulum}
FIELDS = (
    "observation",
    "final_observation",
    "action",
    "log_prob",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "first_step",
)
BOTH = pytest.mark.parametrize("name", ENVIRONMENTS)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make(
    name: str, seeds: list[int], envs: int = ENVS, limit: int = 12
) -> tuple[VecEnvironment, PPO]:
    environment = ENVIRONMENTS[name](envs * len(seeds), max_episode_steps=limit)
    cohort = CohortConfig(
        "ppo", tuple(MemberConfig(str(seed), seed) for seed in seeds), {"hidden_sizes": (8,)}
    )
    return environment, PPO(cohort, environment.observation_space, environment.action_space)


def collector(name: str, seeds: list[int], envs: int = ENVS, **options: Any) -> Collector:
    environment, algorithm = make(name, seeds, envs)
    return Collector(environment, algorithm.actor, torch.tensor(seeds), **options)


def copy(rollout: Rollout) -> dict[str, torch.Tensor]:
    return {name: getattr(rollout, name).clone() for name in FIELDS}


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    for name in FIELDS:
        assert torch.equal(first[name], second[name]), name


@BOTH
def test_every_row_is_what_the_environment_did(name):
    """The same actions in a second environment give the same rows, episode ends included."""
    mine = collector(name, [3, 4], random_ages=False)
    rollouts = [copy(mine.collect(HORIZON)) for _ in range(3)]
    other = ENVIRONMENTS[name](2 * ENVS, max_episode_steps=12)
    from podracer_core.random_numbers import environment_keys

    observation = other.reset(environment_keys(torch.tensor([3, 4]), ENVS).flatten())
    for rollout in rollouts:
        for t in range(HORIZON):
            assert torch.equal(rollout["observation"][t].flatten(0, 1), observation)
            step = other.step(mine.actor.head.to_environment(rollout["action"][t]).flatten(0, 1))
            for field in ("reward", "terminated", "truncated", "valid"):
                assert torch.equal(rollout[field][t].flatten(), getattr(step, field)), field
            assert torch.equal(
                rollout["final_observation"][t].flatten(0, 1), step.final_observation
            )
            observation = step.observation.clone()
        assert torch.equal(rollout["observation"][HORIZON].flatten(0, 1), observation)
    ended = torch.cat([r["terminated"] | r["truncated"] for r in rollouts])
    assert ended.any()
    successor = torch.cat([r["observation"][1:] for r in rollouts])
    final = torch.cat([r["final_observation"] for r in rollouts])
    assert torch.equal(successor[~ended], final[~ended])
    assert not torch.isclose(successor[ended], final[ended]).all()


@BOTH
def test_log_probs_are_those_of_the_acting_policy(name):
    mine = collector(name, [3, 4])
    rollout = mine.collect(HORIZON)
    actor = mine.actor
    for t in range(HORIZON):
        output = actor.output(actor.normalize(rollout.observation[t]))  # type: ignore[attr-defined]
        density = actor.head.density(output, actor.settings, rollout.action[t])  # type: ignore[attr-defined]
        torch.testing.assert_close(density.log_prob, rollout.log_prob[t], rtol=1e-4, atol=1e-5)


@BOTH
def test_an_agent_experiences_the_same_alone_and_in_a_cohort(name):
    together, alone = collector(name, [3, 4, 5]), collector(name, [4])
    for _ in range(3):
        mine, whole = copy(alone.collect(HORIZON)), copy(together.collect(HORIZON))
        for field in FIELDS[:-1]:
            torch.testing.assert_close(mine[field][:, 0], whole[field][:, 1], rtol=1e-5, atol=1e-6)


@BOTH
def test_two_workers_experience_what_one_would(name):
    one = copy(collector(name, [3, 4], 5).collect(HORIZON))
    left = copy(collector(name, [3, 4], 2).collect(HORIZON))
    right = copy(collector(name, [3, 4], 3, first_environment=2).collect(HORIZON))
    for field in FIELDS[:-1]:
        torch.testing.assert_close(
            torch.cat([left[field], right[field]], 2), one[field], rtol=1e-5, atol=1e-6
        )


@BOTH
def test_the_horizon_does_not_matter(name):
    long = copy(collector(name, [3]).collect(2 * HORIZON))
    short = collector(name, [3])
    first, second = copy(short.collect(HORIZON)), copy(short.collect(HORIZON))
    assert second["first_step"].tolist() == [HORIZON]
    for field in ("action", "log_prob", "reward", "terminated", "final_observation"):
        assert torch.equal(torch.cat([first[field], second[field]]), long[field])


@BOTH
def test_resuming_is_exact(name):
    through = collector(name, [3, 4])
    through.collect(HORIZON)
    resumed = collector(name, [3, 4], session=1)
    resumed.load_state(through.state())
    for _ in range(3):
        mine, theirs = through.collect(HORIZON), resumed.collect(HORIZON)
        assert_equal(copy(mine), copy(theirs))
        for statistic in ("count", "return_sum", "length_sum"):
            assert torch.equal(
                getattr(mine.episodes, statistic), getattr(theirs.episodes, statistic)
            )


def test_a_new_session_has_new_episodes():
    first, second = collector("Pendulum", [3]), collector("Pendulum", [3], session=1)
    assert not torch.equal(first.collect(1).observation[0], second.collect(1).observation[0])


def test_fused_and_split_training_are_the_same():
    """A worker's actor that is given the learner's state, and a rollout that crosses a wire, change
    nothing."""

    def train(split: bool) -> dict[str, torch.Tensor]:
        environment, algorithm = make("CartPole", [3, 4])
        actor = algorithm.actor
        if split:
            spaces = environment.observation_space, environment.action_space
            actor = PPO.make_actor(algorithm.cohort, *spaces)
        worker = Collector(environment, actor, torch.tensor([3, 4]))
        for _ in range(3):
            if split:
                actor.load_state(algorithm.actor_state())
            rollout = worker.collect(HORIZON, policy_version=algorithm.version)
            if split:
                wire = {name: tensor.clone() for name, tensor in rollout.to_tensors().items()}
                rollout = Rollout.from_tensors(wire, rollout.policy_version)
            algorithm.update(rollout)
        return algorithm.actor_state()

    fused, split = train(False), train(True)
    assert all(torch.equal(fused[name], split[name]) for name in fused)


def test_finished_episodes_are_counted():
    mine = collector("Pendulum", [3, 4], random_ages=False)
    counts = [mine.collect(HORIZON).episodes.count.tolist() for _ in range(4)]
    assert counts == [[0, 0], [ENVS, ENVS], [0, 0], [ENVS, ENVS]]
    assert mine.collect(8).episodes.length_sum.tolist() == [12 * ENVS] * 2


def test_a_collector_of_another_size_is_refused():
    environment, algorithm = make("CartPole", [3, 4])
    with pytest.raises(InvalidInput, match="3 seeds for 2"):
        Collector(environment, algorithm.actor, torch.tensor([1, 2, 3]))
    with pytest.raises(InvalidInput, match="state"):
        Collector(environment, algorithm.actor, torch.tensor([1, 2])).load_state({})


def test_a_rollout_is_given_up_where_a_check_says_so():
    class GivenUp(Exception):
        pass

    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) > 2 * HORIZON + 3:
            raise GivenUp

    environment, algorithm = make("CartPole", [1])
    watched = Collector(environment, algorithm.actor, torch.tensor([1]), check=check)
    for _ in range(2):
        watched.collect(HORIZON)
    with pytest.raises(GivenUp):
        watched.collect(HORIZON)


def test_evaluation_seeds_overlap_with_nothing():
    from podracer_core.random_numbers import environment_keys

    training = set(environment_keys(torch.arange(50), 40).flatten().tolist())
    evaluation = [evaluation_seeds(job, purpose, 100) for job in range(5) for purpose in range(3)]
    everything = [seed for seeds in evaluation for seed in seeds]
    assert len(set(everything)) == len(everything)
    assert not training & set(everything)
    assert all(0 <= seed < 1 << 63 for seed in everything)
    assert evaluation_seeds(1, 2, 4, first=3) == evaluation_seeds(1, 2, 7)[3:]


@BOTH
def test_a_halted_rollout_has_the_steps_that_were_taken_or_is_padded_with_rows_that_are_not_valid(
    name,
):
    whole, halted, padded = (collector(name, [3, 4]) for _ in range(3))
    expected = whole.collect(HORIZON)
    for one in (halted, padded):
        asked = iter([False, False, True])
        one.halted = lambda asked=asked: next(asked)  # type: ignore[misc]
    short, full = halted.collect(HORIZON), padded.collect(HORIZON, padded=True)
    assert (short.horizon, full.horizon) == (3, HORIZON)
    for field in FIELDS[1:-1]:
        assert torch.equal(getattr(short, field), getattr(expected, field)[:3])
        assert torch.equal(getattr(full, field)[:3], getattr(expected, field)[:3])
    assert torch.equal(short.observation, expected.observation[:4])
    assert not full.valid[3:].any()
    assert full.truncated[3:].all()
    assert torch.equal(full.observation[3:], full.observation[3].expand_as(full.observation[3:]))
    halted.halted = padded.halted = lambda: False  # type: ignore[method-assign]
    assert torch.equal(halted.collect(1).observation[0], short.observation[-1]), (
        "the next one goes on from there"
    )
    assert padded.collect(HORIZON).valid.all()
