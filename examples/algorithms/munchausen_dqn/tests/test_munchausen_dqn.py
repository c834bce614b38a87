"""What Munchausen DQN calculates, and that agents learn in company as they would alone; for where
it is installed."""

from __future__ import annotations

from math import log

import gymnasium
import pytest
import torch
from munchausen_dqn.algorithm import MunchausenDQN

from podracer_core.algorithms import Batch, CohortConfig, MemberConfig
from podracer_core.collect import Collector
from podracer_core.environments import CartPole

SHARED = {
    "hidden_sizes": (8, 9),
    "batch_size": 7,
    "horizon": 5,
    "updates_per_step": 0.1,
    "learning_starts": 0,
}
AGENTS = (
    MemberConfig(
        "a", 1, {"munchausen_weight": 0.5, "policy_temperature": 1.0, "learning_rate": 1e-2}
    ),
    MemberConfig("b", 2, {"munchausen_weight": 0.9, "policy_temperature": 0.5, "gamma": 0.9}),
    MemberConfig("c", 3, {"munchausen_weight": 0.0, "exploration": 0.5, "target_rate": 0.5}),
)


class Training:
    """Agents in four CartPoles each."""

    def __init__(self, *agents: MemberConfig) -> None:
        environment = CartPole(len(agents) * 4)
        cohort = CohortConfig("munchausen_dqn", agents, SHARED)
        self.algorithm = MunchausenDQN(
            cohort, environment.observation_space, environment.action_space
        )
        seeds = torch.tensor([agent.seed for agent in agents])
        self.collector = Collector(environment, self.algorithm.actor, seeds)

    def go_on(self, updates: int) -> MunchausenDQN:
        for _ in range(updates):
            self.algorithm.update(self.collector.collect(self.algorithm.horizon))
        return self.algorithm


def assert_equal_members(
    one: MunchausenDQN, index: int, other: MunchausenDQN, other_index: int
) -> None:
    state, other_state = one.member_state(index), other.member_state(other_index)
    for group in ("actor", "optimizer", "algorithm"):
        for name, tensor in state[group].items():
            torch.testing.assert_close(
                tensor, other_state[group][name], rtol=1e-5, atol=1e-7, msg=f"{group} {name}"
            )


def test_the_target_by_hand() -> None:
    """M = 2, B = 3 and n = 4 differ, so nothing broadcasts unnoticed."""
    space = gymnasium.spaces.Box(-10.0, 10.0, (4,))
    algorithm = MunchausenDQN(
        CohortConfig("munchausen_dqn", AGENTS[:2]), space, gymnasium.spaces.Discrete(4)
    )
    # which thus are the values of the four actions
    algorithm.policy.target = lambda observation: observation
    level, one_better = [0.0] * 4, [log(5), 0.0, 0.0, 0.0]

    def of_both(rows: list) -> torch.Tensor:
        return torch.tensor([rows, rows])

    batch = Batch(
        observation=of_both([one_better, one_better, level]),
        action=of_both([0, 1, 3]),
        reward=of_both([1.0, 1.0, 0.0]),
        discount=of_both([0.9, 0.0, 0.5]),  # the second has terminated
        next_observation=of_both([level, level, one_better]),
        weight=of_both([1 / 3, 1 / 3, 1 / 3]),
        place=of_both([0, 1, 2]),
    )
    # With τ = 1, π = (5, 1, 1, 1) / 8 where one is better; log 1/8 and log 1/4 are below -1, the
    # least that counts.
    first = [1 + 0.5 * log(5 / 8) + 0.9 * log(4), 1 + 0.5 * -1, 0.5 * -1 + 0.5 * log(8)]
    # With τ = 1/2, π = (25, 1, 1, 1) / 28, and τ log 1/4 = -0.69 is above -1.
    second = [
        1 + 0.9 * log(25 / 28) / 2 + 0.9 * log(4) / 2,
        1 + 0.9 * -1,
        0.9 * log(1 / 4) / 2 + 0.5 * log(28) / 2,
    ]
    torch.testing.assert_close(algorithm.target(batch), torch.tensor([first, second]))


@pytest.mark.parametrize("index", range(3))
def test_an_agent_learns_in_company_what_it_learns_alone(index: int) -> None:
    together, alone = Training(*AGENTS).go_on(3), Training(AGENTS[index]).go_on(3)
    assert together.gradient_steps == 6
    assert_equal_members(together, index, alone, 0)


def test_a_diverged_agent_stays_as_it_was_and_does_no_harm() -> None:
    broken, sound = Training(*AGENTS), Training(*AGENTS)
    broken.algorithm.hyperparameters["gamma"][1] = torch.nan
    before = broken.algorithm.policy.member_state(1)
    broken.go_on(2), sound.go_on(2)
    assert broken.algorithm.active.tolist() == [True, False, True]
    for name, tensor in broken.algorithm.policy.member_state(1).items():
        assert torch.equal(tensor, before[name]), name
    for index in (0, 2):
        assert_equal_members(broken.algorithm, index, sound.algorithm, index)


def test_it_goes_on_from_its_state_as_if_nothing_had_happened() -> None:
    training, resumed = Training(*AGENTS), Training(*AGENTS)
    training.go_on(2)
    for index in range(3):
        resumed.algorithm.load_member_state(index, training.algorithm.member_state(index))
    resumed.algorithm.load_replay_states(
        [training.algorithm.replay_state(index) for index in range(3)]
    )
    resumed.collector.load_state(training.collector.state())
    training.go_on(2), resumed.go_on(2)
    for index in range(3):
        assert_equal_members(training.algorithm, index, resumed.algorithm, index)
