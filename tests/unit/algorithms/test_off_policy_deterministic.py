"""DDPG and TD3 by hand: critics that are linear in the action, actors that always do the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch

from podracer_core.algorithms import Batch, algorithm_class
from podracer_core.errors import InvalidInput
from support.off_policy import OBSERVATION_SPACE, build, make_batch, set_linear, set_outputs

HALF = math.atanh(0.5)
TINY = {"learning_rate": 1e-7, "actor_learning_rate_scale": 1.0}


def one_row(algorithm: Any, reward: float, discount: float, action: list[list[float]]) -> Batch:
    """A batch of one transition of each member, of all weight."""
    batch = make_batch(algorithm, 3)
    members = algorithm.members
    return replace(
        batch,
        observation=batch.observation[:, :1],
        next_observation=batch.next_observation[:, :1],
        action=torch.tensor(action).unsqueeze(1),
        reward=torch.full((members, 1), reward),
        discount=torch.full((members, 1), discount),
        weight=torch.ones(members, 1),
        place=batch.place[:, :1],
    )


def learn(algorithm: Any, batch: Batch) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        metrics = dict(zip(algorithm.metrics, algorithm.learn(batch), strict=True))
    algorithm._streams.count += 1
    algorithm.gradient_steps += 1
    return metrics


def actor_gradient(algorithm: Any) -> torch.Tensor:
    """Of the last layer's biases, so of the actor's outputs before tanh: [M, A]."""
    return algorithm.optimizers["actor"].gradient[:, -2:]


def ddpg() -> Any:
    algorithm = build("ddpg", 0, 1, alike=True, **TINY)
    set_outputs(algorithm.policy.frozen, [[0.0, HALF], [HALF, 0.0]])
    set_outputs(algorithm.policy.target, [[HALF, -HALF], [0.0, 0.0]])
    set_linear(algorithm.critic.frozen, [0.0, 1.0], [[1.0, -2.0], [0.0, 4.0]])
    set_linear(algorithm.critic.target, [3.0, 5.0], [[2.0, 1.0], [7.0, 7.0]])
    return algorithm


def test_ddpg_bootstraps_from_the_target_actors_action():
    algorithm = ddpg()
    metrics = learn(algorithm, one_row(algorithm, 1.0, 0.9, [[0.25, 0.5], [0.5, -0.5]]))
    # Agent 0: Q'(0.5, -0.5) = 3 + 1 - 0.5 = 3.5, 1 + 0.9 * 3.5 = 4.15 against Q(0.25, 0.5) = 0.25 -
    # 1 = -0.75 Agent 1: Q'(0, 0) = 5, 1 + 0.9 * 5 = 5.5 against Q(0.5, -0.5) = 1 - 2 = -1
    torch.testing.assert_close(
        metrics["critic_loss"], torch.tensor([4.9**2 / 2, 6.5**2 / 2]), rtol=1e-5, atol=0
    )
    # Down minus Q(0, 0.5) = -1 and Q(0.5, 0) = 1
    torch.testing.assert_close(metrics["actor_loss"], torch.tensor([1.0, -1.0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(metrics["value"], torch.tensor([-1.0, 1.0]), rtol=0, atol=1e-4)


def test_ddpg_takes_nothing_from_beyond_the_end():
    algorithm = ddpg()
    metrics = learn(algorithm, one_row(algorithm, 1.0, 0.0, [[0.25, 0.5], [0.5, -0.5]]))
    torch.testing.assert_close(
        metrics["critic_loss"], torch.tensor([1.75**2 / 2, 2.0**2 / 2]), rtol=1e-5, atol=0
    )


def test_ddpgs_actor_climbs_its_critic():
    algorithm = ddpg()
    learn(algorithm, one_row(algorithm, 1.0, 0.9, [[0.25, 0.5], [0.5, -0.5]]))
    # Of -Q(tanh(o)): minus the critic's slope, times 1 - tanh(o)^2, which is 1 at 0 and 0.75 at
    # atanh(0.5)
    expected = torch.tensor([[-1.0, 2.0 * 0.75], [0.0, -4.0]])
    torch.testing.assert_close(actor_gradient(algorithm), expected, rtol=0, atol=1e-3)
    before = algorithm.policy.frozen.biases[-1][:, 0].clone()
    for member in range(2):
        algorithm.set_hyperparameters(
            member, {"learning_rate": 1e-3, "actor_learning_rate_scale": 100.0}
        )
    algorithm.optimizers["actor"].first_moment.zero_()
    algorithm.optimizers["actor"].second_moment.zero_()
    algorithm.optimizers["actor"].step_count.zero_()
    learn(algorithm, one_row(algorithm, 1.0, 0.9, [[0.25, 0.5], [0.5, -0.5]]))
    moved = algorithm.policy.frozen.biases[-1][:, 0] - before
    # Adam's first step is the learning rate, 1e-3 * 100, against the gradient's sign.
    torch.testing.assert_close(moved[0], torch.tensor([0.1, -0.1]), rtol=0, atol=1e-3)
    assert moved[1, 1].item() == pytest.approx(0.1, abs=1e-3)


def test_ddpgs_targets_follow_both_networks():
    algorithm = build("ddpg")
    before = [algorithm.networks[name].member_state(2) for name in ("actor", "critic")]
    learn(algorithm, make_batch(algorithm))
    after = [algorithm.networks[name].member_state(2) for name in ("actor", "critic")]
    for old, new in zip(before, after, strict=True):
        for name in (name for name in old if name.startswith("target.")):
            # member 2's target_rate is 0.5
            halfway = 0.5 * (old[name] + new[name.removeprefix("target.")])
            assert not torch.equal(new[name], old[name])
            torch.testing.assert_close(new[name], halfway, rtol=1e-5, atol=1e-7)


def td3(**shared: Any) -> Any:
    """Two agents; the first has usual target noise, the second more, that is clipped at less."""
    algorithm = build("td3", 0, 1, alike=True, **TINY | shared)
    algorithm.set_hyperparameters(1, {"target_noise": 0.4, "target_noise_clip": 0.1})
    set_outputs(algorithm.policy.target, [[math.atanh(0.8), 0.0], [0.0, -HALF]])
    return algorithm


def test_td3_takes_the_smaller_of_the_twins():
    algorithm = td3(target_noise=0.0)
    algorithm.set_hyperparameters(1, {"target_noise": 0.0})
    set_outputs(algorithm.critic.frozen, [[1.0], [2.0], [0.0], [0.0]])
    set_outputs(algorithm.critic.target, [[5.0], [3.0], [1.0], [4.0]])
    metrics = learn(algorithm, one_row(algorithm, 0.5, 0.9, [[0.0, 0.0], [0.0, 0.0]]))
    # 0.5 + 0.9 * 3 = 3.2 against 1 and 2; 0.5 + 0.9 * 1 = 1.4 against 0 and 0: both twins learn
    losses = torch.tensor([0.5 * (2.2**2 + 1.2**2), 0.5 * (1.4**2 + 1.4**2)])
    torch.testing.assert_close(metrics["critic_loss"], losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(metrics["value"], torch.tensor([1.0, 0.0]))


def test_td3_smooths_targets_with_clipped_noise_and_clipped_actions():
    algorithm = td3()
    # The twins' smaller one is Q = action 0 + 10 * action 1; the other is far above.
    set_linear(algorithm.critic.target, [0.0, 99.0] * 2, [[1.0, 10.0]] * 4)
    drawn = torch.tensor([
        [[0.0, 0.0], [0.5, 1.0], [10.0, -10.0]],
        [[0.0, 0.0], [0.125, -0.125], [-3.0, -3.0]],
    ])  # fmt: skip
    algorithm.noise = lambda *shape: drawn
    batch = make_batch(algorithm, 3)
    # Agent 0 (0.2, at most 0.5) around (0.8, 0): as it is; + (0.1, 0.2); + (0.5, -0.5), of which
    # 1.3 is clipped to 1 Agent 1 (0.4, at most 0.1) around (0, -0.5): as it is; + (0.05, -0.05); +
    # (-0.1, -0.1)
    expected = torch.tensor([[0.8, 0.9 + 2.0, 1.0 - 5.0], [-5.0, 0.05 - 5.5, -0.1 - 6.0]])
    torch.testing.assert_close(algorithm.next_values(batch).amin(1), expected, rtol=1e-4, atol=1e-4)


def test_td3s_target_noise_is_normal_and_anew_for_every_row_number_and_step():
    algorithm = build("td3", 0, 1, alike=True)
    first = algorithm.noise(2000, 2)
    assert torch.equal(first, algorithm.noise(2000, 2))
    algorithm._streams.count += 1
    following = algorithm.noise(2000, 2)
    everything = torch.cat([first, following]).flatten()
    assert everything.unique().shape[0] > 0.99 * everything.shape[0]
    assert everything.mean().abs() < 0.02
    assert abs(everything.std() - 1) < 0.02


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_td3s_actor_and_targets_wait(delay):
    algorithm = build("td3", policy_delay=delay)
    for step in range(1, 8):
        before = [network.member_state(1) for network in algorithm.networks.values()]
        learn(algorithm, make_batch(algorithm, seed=step))
        assert algorithm.optimizers["critic"].step_count.tolist() == [step] * 3
        assert algorithm.optimizers["actor"].step_count.tolist() == [step // delay] * 3
        actor, critic = (network.member_state(1) for network in algorithm.networks.values())
        moves = step % delay == 0
        assert torch.equal(actor["layers.0.weight"], before[0]["layers.0.weight"]) != moves
        assert (
            torch.equal(actor["target.layers.0.weight"], before[0]["target.layers.0.weight"])
            != moves
        )
        assert (
            torch.equal(critic["target.layers.0.weight"], before[1]["target.layers.0.weight"])
            != moves
        )
        assert not torch.equal(critic["layers.0.weight"], before[1]["layers.0.weight"])


def test_td3s_actor_climbs_the_first_critic_alone():
    algorithm = td3(policy_delay=1)
    set_outputs(algorithm.policy.frozen, [[0.0, HALF], [0.0, 0.0]])
    # The second critic is lower and steeper, and has no say.
    set_linear(
        algorithm.critic.frozen,
        [4.0, 0.0, 0.0, -3.0],
        [[1.0, 2.0], [90.0, -90.0], [0.5, -2.0], [-7.0, -7.0]],
    )
    metrics = learn(algorithm, one_row(algorithm, 0.0, 0.9, [[0.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(metrics["actor_loss"], torch.tensor([-5.0, 0.0]), rtol=0, atol=1e-3)
    expected = torch.tensor([[-1.0, -2.0 * 0.75], [-0.5, 2.0]])
    torch.testing.assert_close(actor_gradient(algorithm), expected, rtol=0, atol=1e-3)


def test_gradients_are_scaled_down_to_each_members_norm():
    algorithm = build("ddpg")
    algorithm.set_hyperparameters(1, {"max_gradient_norm": 0.02})
    learn(algorithm, make_batch(algorithm))
    for name in ("actor", "critic"):
        free = build("ddpg")
        for member in range(3):
            free.set_hyperparameters(member, {"max_gradient_norm": 0.0})
        learn(free, make_batch(free))
        mine, raw = algorithm.optimizers[name].gradient, free.optimizers[name].gradient
        norm = raw.norm(dim=1)
        assert norm[1] > 0.02
        limit = torch.tensor([torch.inf, 0.02, 1.0])
        torch.testing.assert_close(
            mine, raw * (limit / norm).clamp(max=1.0).unsqueeze(1), rtol=2e-3, atol=1e-6
        )


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "modsac", "redq", "crossq", "flash_sac"])
def test_other_action_spaces_are_refused(name):
    cohort = build(name).cohort
    for space in (gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-torch.inf, torch.inf, (2,))):
        with pytest.raises(InvalidInput, match="finite bounds"):
            algorithm_class(name)(cohort, OBSERVATION_SPACE, space)
