"""SAC, ModSAC and discrete SAC by hand, and against torch.distributions."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from podracer_core.algorithms import SAC, Batch, CohortConfig, MemberConfig, Temperature
from support.off_policy import ACTION_SIZE, ROWS, build, make_batch, set_linear, set_outputs

TINY = {"learning_rate": 1e-7}


def learn(algorithm: Any, batch: Batch) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        metrics = dict(zip(algorithm.metrics, algorithm.learn(batch), strict=True))
    algorithm._streams.count += 1
    algorithm.gradient_steps += 1
    return metrics


def small_batch(algorithm: Any, rewards: list[float], discount: float) -> Batch:
    """Rows with these rewards, of equal weight."""
    batch = make_batch(algorithm, max(3, len(rewards)))
    count = len(rewards)
    fields = {name: getattr(batch, name)[:, :count].clone() for name in Batch.__slots__}
    fields["reward"] = torch.tensor(rewards).expand(algorithm.members, -1)
    fields["discount"] = torch.full((algorithm.members, count), discount)
    fields["weight"] = torch.full((algorithm.members, count), 1 / count)
    return Batch(**fields)


def sac(name: str = "sac", **shared: Any) -> Any:
    """Two agents whose policies are Normal(0, 0.5) and Normal(atanh 0.5, 1) before tanh;
    temperatures 0.2 and 1."""
    algorithm = build(name, 0, 1, alike=True, **TINY | shared)
    algorithm.temperature.log.copy_(torch.tensor([[0.2], [1.0]]).log())
    mean = math.atanh(0.5)
    set_outputs(
        algorithm.policy.frozen, [[0.0, 0.0, math.log(0.5), math.log(0.5)], [mean, mean, 0.0, 0.0]]
    )
    return algorithm


# log N(0 | 0, 1) = -0.5 log 2 pi. Where the noise is 0 the action is the mean, u = 0 or atanh(0.5):
# log pi = 2 * (log N(0) - log std - log(1 - tanh(u)^2)), the sum over two dimensions
AT_MEAN = torch.tensor([
    2 * (-0.5 * math.log(2 * math.pi) - math.log(0.5)),
    2 * (-0.5 * math.log(2 * math.pi) - math.log(0.75)),
])  # fmt: skip


def test_the_log_probability_is_that_of_the_sampled_action_with_the_tanh_correction():
    algorithm = build("sac")
    noise = algorithm.noise(2, ROWS, ACTION_SIZE).unbind(1)[0]
    batch = make_batch(algorithm)
    output = algorithm.policy.frozen(batch.observation)
    action, log_prob = algorithm.head.sample_with_log_prob(output, noise)
    mean, log_std = output.double().chunk(2, -1)
    torch.testing.assert_close(
        action.double(), (mean + log_std.exp() * noise).tanh(), rtol=1e-5, atol=1e-6
    )
    peer = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(
        log_prob.double(), peer.log_prob(action.double()).sum(-1), rtol=1e-4, atol=1e-4
    )
    # The entropy that is reported is minus its mean, so it is of these actions.
    entropy = learn(algorithm, batch)["entropy"]
    torch.testing.assert_close(entropy, -(log_prob * batch.weight).sum(1), rtol=1e-5, atol=1e-6)


def test_sacs_target_by_hand():
    algorithm = sac()
    set_outputs(algorithm.critic.target, [[5.0], [3.0], [1.0], [4.0]])
    set_outputs(algorithm.critic.frozen, [[0.0], [1.0], [2.0], [0.0]])
    batch = small_batch(algorithm, [1.0], 0.9)
    with torch.no_grad():
        loss, target = algorithm.learn_critic(batch, torch.zeros(2, 1, ACTION_SIZE))
    expected = 1 + 0.9 * (torch.tensor([3.0, 1.0]) - torch.tensor([0.2, 1.0]) * AT_MEAN)
    torch.testing.assert_close(target[:, 0], expected, rtol=1e-5, atol=1e-5)
    losses = (
        0.5 * (expected - torch.tensor([0.0, 2.0])) ** 2
        + 0.5 * (expected - torch.tensor([1.0, 0.0])) ** 2
    )
    torch.testing.assert_close(loss, losses, rtol=1e-5, atol=1e-5)


def test_sacs_target_values_the_sampled_action():
    algorithm = sac()
    set_linear(algorithm.critic.target, [0.0, 50.0, 50.0, 0.0], [[1.0, 10.0]] * 4)
    noise = torch.tensor([[[1.0, -2.0]], [[0.5, 0.0]]])
    _, target = algorithm.learn_critic(small_batch(algorithm, [0.0], 1.0), noise)
    raw = torch.tensor([[0.5, -1.0], [math.atanh(0.5) + 0.5, math.atanh(0.5)]])
    density = (
        -0.5 * noise[:, 0] ** 2 - 0.5 * math.log(2 * math.pi) - torch.tensor([[0.5], [1.0]]).log()
    )
    log_prob = (density - (1 - raw.tanh() ** 2).log()).sum(1)
    expected = (raw.tanh() * torch.tensor([1.0, 10.0])).sum(1) - torch.tensor([0.2, 1.0]) * log_prob
    torch.testing.assert_close(target[:, 0], expected, rtol=1e-4, atol=1e-4)


def test_sacs_actor_loss_by_hand_and_its_gradient():
    """alpha log pi - min Q: the lower critic has its say, and the entropy widens what the critics
    do not care about."""
    algorithm = sac()
    set_linear(
        algorithm.critic.frozen,
        [0.0, 9.0, 5.0, 1.0],
        [[1.0, -2.0], [7.0, 7.0], [7.0, 7.0], [0.5, 0.0]],
    )
    algorithm.noise = lambda *shape: torch.zeros(2, *shape)
    metrics = learn(algorithm, small_batch(algorithm, [0.0], 0.0))
    value = torch.tensor([0.0, 1 + 0.25])
    torch.testing.assert_close(metrics["value"], value, rtol=0, atol=1e-3)
    torch.testing.assert_close(
        metrics["actor_loss"], torch.tensor([0.2, 1.0]) * AT_MEAN - value, rtol=0, atol=1e-3
    )
    torch.testing.assert_close(metrics["entropy"], -AT_MEAN, rtol=1e-5, atol=1e-5)
    gradient = algorithm.optimizers["actor"].gradient[:, -4:]
    # d log pi / d mean = 2 tanh(u), d / d log std = -1 (at noise 0); d Q / d mean = slope * (1 -
    # tanh(u)^2)
    expected = torch.tensor([
        [-1.0, 2.0, -0.2, -0.2],
        [2 * 0.5 - 0.5 * 0.75, 2 * 0.5, -1.0, -1.0],
    ])  # fmt: skip
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-3)


def test_sacs_targets_follow_but_its_actor_has_none():
    algorithm = build("sac")
    before = algorithm.critic.member_state(0)
    learn(algorithm, make_batch(algorithm))
    after = algorithm.critic.member_state(0)
    # member 0's target_rate
    expected = before["target.layers.1.weight"].lerp(after["layers.1.weight"], 0.1)
    torch.testing.assert_close(after["target.layers.1.weight"], expected)
    assert not any(name.startswith("target.") for name in algorithm.policy.member_state(0))


def test_the_temperature_goes_up_where_entropy_lacks_and_down_where_it_abounds():
    """J = E[-log alpha (log pi + target)], by torch's own Adam; with alpha in front its steps would
    shrink with it."""
    initial, rates = torch.tensor([1.0, 0.01, 0.3]), torch.tensor([1e-3, 1e-2, 3e-2])
    entropies = torch.tensor(
        [[-1.0, 2.0, 0.5], [-0.5, 1.0, 0.7], [-3.0, 1.5, -0.4], [0.2, 1.0, 0.0]]
    )
    target = torch.tensor([0.5, -1.0, 0.5])
    temperature = Temperature(initial, learns=True)
    logs = [torch.nn.Parameter(value.log()) for value in initial]
    peers = [
        torch.optim.Adam([log], lr=rate, eps=1e-8)
        for log, rate in zip(logs, rates.tolist(), strict=True)
    ]
    for step, entropy in enumerate(entropies):
        temperature.update(entropy, target, rates, torch.ones(3, dtype=torch.bool))
        for member, (log, peer) in enumerate(zip(logs, peers, strict=True)):
            peer.zero_grad()
            (-log * (-entropy[member] + target[member])).backward()
            peer.step()
        if step == 0:  # Adam's first step is the rate itself; member 2 has just what it wants
            moved = temperature.log[:, 0] - initial.log()
            torch.testing.assert_close(
                moved, torch.tensor([1e-3, -1e-2, 0.0]), rtol=1e-4, atol=1e-7
            )
    torch.testing.assert_close(
        temperature.log[:, 0], torch.stack(logs).detach(), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(temperature.value, temperature.log[:, 0].exp())


def test_a_temperature_that_is_given_stays_and_one_of_an_inactive_member_too():
    fixed, learned = (
        Temperature(torch.tensor([0.5, 0.5]), learns=learns) for learns in (False, True)
    )
    for temperature in (fixed, learned):
        for entropy in (1.0, torch.nan):
            active = torch.tensor([True, False])
            temperature.update(
                torch.full((2,), entropy), torch.zeros(2), torch.full((2,), 0.1), active
            )
    assert torch.equal(fixed.value, torch.full((2,), 0.5))
    torch.testing.assert_close(learned.log[:, 0] - math.log(0.5), torch.tensor([-0.1, 0.0]))


@pytest.mark.parametrize("name", ["sac", "discrete_sac"])
def test_a_temperature_is_learned_towards_each_members_target_entropy(name):
    algorithm, fixed = build(name), build(name, learn_temperature=False)
    for each in (algorithm, fixed):
        torch.testing.assert_close(each.temperature.value, torch.tensor([0.2, 1.0, 0.01]))
    metrics = learn(algorithm, make_batch(algorithm))
    learn(fixed, make_batch(fixed))
    # Minus the number of dimensions, or log n, times target_entropy_scale.
    target = torch.tensor([1.0, 0.5, 0.9]) * (
        math.log(5) if name == "discrete_sac" else -ACTION_SIZE
    )
    step = torch.tensor([1e-3, 3e-3, 1e-2]) * (target - metrics["entropy"]).sign()
    before = torch.tensor([0.2, 1.0, 0.01]).log()
    torch.testing.assert_close(algorithm.temperature.log[:, 0], before + step, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["temperature"], (before + step).exp(), rtol=1e-4, atol=1e-5)
    gradient = algorithm.optimizers["temperature"].gradient[:, 0]
    torch.testing.assert_close(gradient, metrics["entropy"] - target, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fixed.temperature.log[:, 0], before)


# ModSAC


def test_modsacs_reliability_by_hand():
    algorithm = sac("modsac", reliability_rate=0.5)
    set_outputs(algorithm.critic.frozen, [[0.0], [0.0], [1.0], [1.0]])
    metrics = learn(algorithm, small_batch(algorithm, [1.0, 3.0], 0.0))
    # The targets 1 and 3 have the variance 2. Losses: 2 * 0.5 * (1 + 9) / 2 = 5, and 2 * 0.5 * (0 +
    # 4) / 2 = 2. Running losses, from 1 half of the way to 2.5 and to 1: 1.75 and 1
    expected = torch.tensor([math.exp(-(1.75**2)), math.exp(-1.0)])
    torch.testing.assert_close(metrics["reliability"], expected, rtol=1e-5, atol=1e-6)
    twin = sac()
    set_outputs(twin.critic.frozen, [[0.0], [0.0], [1.0], [1.0]])
    usual = learn(twin, small_batch(twin, [1.0, 3.0], 0.0))
    torch.testing.assert_close(
        metrics["actor_loss"], expected * usual["actor_loss"], rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        algorithm.optimizers["actor"].gradient,
        twin.optimizers["actor"].gradient * expected.unsqueeze(1),
        rtol=1e-3,
        atol=1e-6,
    )


@pytest.mark.parametrize("running_loss", [0.0, 0.8, 10.0])
def test_modsacs_actor_steps_are_fewer_than_one_in_two_minus_reliability(running_loss):
    algorithm = build("modsac", alike=True, reliability_rate=1e-6)
    algorithm.memory["running_loss"].fill_(running_loss)
    reliability = math.exp(-(running_loss**2))  # 1, 0.527, 0
    taken = 0
    for step in range(1, 31):
        metrics = learn(algorithm, make_batch(algorithm, seed=step))
        taken += taken < step / (2 - reliability)
        assert metrics["reliability"].tolist() == pytest.approx([reliability] * 3, abs=1e-3)
        for name, count in (("actor", taken), ("temperature", taken), ("critic", step)):
            assert algorithm.optimizers[name].step_count.tolist() == [count] * 3
    assert taken == {0.0: 30, 0.8: 21, 10.0: 15}[running_loss]


def test_modsacs_members_wait_on_their_own():
    algorithm = build("modsac", alike=True, reliability_rate=1e-6)
    algorithm.memory["running_loss"].copy_(torch.tensor([0.0, 10.0, 0.8]))
    for step in range(12):
        learn(algorithm, make_batch(algorithm, seed=step))
    assert algorithm.optimizers["actor"].step_count.tolist() == [12, 6, 9]


# Discrete SAC


def discrete_sac() -> Any:
    """Two agents, with the probabilities 0.25, 0.75 and 0.5, 0.5 of the first two of five
    actions."""
    algorithm = build("discrete_sac", 0, 1, alike=True, **TINY)
    algorithm.temperature.log.copy_(torch.tensor([[0.2], [1.0]]).log())
    never = [-1e4] * 3
    set_outputs(algorithm.policy.frozen, [[0.0, math.log(3), *never], [0.0, 0.0, *never]])
    set_outputs(
        algorithm.critic.target,
        [[1.0, 2.0, *never], [3.0, 0.0, *never], [4.0, 5.0, *never], [6.0, 3.0, *never]],
    )
    set_outputs(
        algorithm.critic.frozen,
        [[1.0, 4.0, *never], [2.0, 3.0, *never], [0.0, 9.0, *never], [7.0, 1.0, *never]],
    )
    return algorithm


ENTROPY = torch.tensor([-0.25 * math.log(0.25) - 0.75 * math.log(0.75), math.log(2)])
ALPHA = torch.tensor([0.2, 1.0])


def test_discrete_sac_expects_over_all_actions():
    algorithm = discrete_sac()
    batch = small_batch(algorithm, [1.0], 0.9)
    batch.action.copy_(torch.tensor([[0], [1]]))
    metrics = learn(algorithm, batch)
    # The smaller target values: 1, 0 and 4, 3; their expectations 0.25 and 3.5, plus alpha times
    # the entropy
    target = 1 + 0.9 * (torch.tensor([0.25, 3.5]) + ALPHA * ENTROPY)
    chosen = torch.tensor([[1.0, 2.0], [9.0, 1.0]])  # of both critics
    losses = 0.5 * (chosen - target.unsqueeze(1)).square().sum(1)
    torch.testing.assert_close(metrics["critic_loss"], losses, rtol=1e-5, atol=1e-5)
    # The smaller values: 1, 3 and 0, 1; their expectations 2.5 and 0.5
    value = torch.tensor([2.5, 0.5])
    torch.testing.assert_close(metrics["value"], value, rtol=0, atol=1e-4)
    torch.testing.assert_close(metrics["entropy"], ENTROPY, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(metrics["actor_loss"], -ALPHA * ENTROPY - value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["sac", "discrete_sac"])
def test_a_temperature_that_is_not_learned_is_the_members_own_hyperparameter(name):
    algorithm = build(name, learn_temperature=False)
    state = algorithm.member_state(2)
    algorithm.load_member_state(
        1, {group: tensors for group, tensors in state.items() if group != "random"}
    )
    torch.testing.assert_close(algorithm.temperature.value, torch.tensor([0.2, 1.0, 0.01]))
    algorithm.set_hyperparameters(0, {"initial_temperature": 0.7})
    torch.testing.assert_close(algorithm.temperature.value, torch.tensor([0.7, 1.0, 0.01]))


def test_a_single_number_is_a_box_too():
    cohort = CohortConfig("sac", (MemberConfig("a", 1),), {"hidden_sizes": (4,)})
    box = gymnasium.spaces.Box(-2.0, 2.0, ())
    algorithm = SAC(cohort, gymnasium.spaces.Box(-1.0, 1.0, (3,)), box)
    assert algorithm.actor.greedy(torch.zeros(1, 5, 3)).shape == (1, 5)
