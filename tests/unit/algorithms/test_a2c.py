"""A2C's own formula: one step along the policy gradient of the n-step returns."""

from __future__ import annotations

import pytest
import torch

from podracer_core.algorithms import Minibatch
from podracer_core.optimizers import BETA1, BETA2

SIZE = 11
PLAIN = {"normalize_observations": False, "normalize_values": False}


def test_the_loss_by_hand(make_on_policy):
    """log pi = -1, -2 and A = 3, -0.5: the losses are 3 and -1, their derivatives in log pi -3 and
    0.5."""
    algorithm = make_on_policy("a2c", "discrete")
    row = torch.tensor([[3.0, -0.5]])
    batch = Minibatch(
        *[torch.empty(0)] * 2, None, torch.empty(0), row, row + 1, *[torch.empty(0)] * 2
    )
    loss, slope, metrics = algorithm._policy_loss(torch.tensor([[-1.0, -2.0]]), batch)
    assert loss.tolist() == [[3.0, -1.0]]
    assert slope.tolist() == [[-3.0, 0.5]]
    assert metrics == ()
    # V = 2, 2 and R = 4, 0.5: (V - R)^2 / 2 = 2, 1.125
    value_loss, value_slope = algorithm._value_loss(torch.tensor([[2.0, 2.0]]), batch)
    assert value_loss.tolist() == [[2.0, 1.125]]
    assert value_slope.tolist() == [[-2.0, 1.5]]


def test_advantages_are_those_of_the_longest_return_in_the_rollout(make_on_policy, make_rollout):
    """R[t] = r[t] + gamma r[t+1] + … + gamma^n V up to the rollout's or the episode's end, the
    paper's algorithm S3."""
    algorithm = make_on_policy("a2c", "discrete", gae_lambda=1.0, **PLAIN)
    for m in range(3):
        algorithm.set_hyperparameters(m, {"gae_lambda": 1.0})
    rollout = make_rollout(algorithm.actor)
    rows, _ = algorithm._preparation.rows(rollout, algorithm.active, stale=False)
    (batch,) = rows.minibatches(rows.count)
    value = algorithm._preparation.values(rollout.observation)
    final_value = algorithm._preparation.values(rollout.final_observation)
    for m, gamma in enumerate((0.9, 0.99, 0.8)):
        for e in range(4):
            following = value[-1, m, e]
            for t in reversed(range(5)):
                if rollout.truncated[t, m, e]:
                    following = final_value[t, m, e]
                if rollout.terminated[t, m, e]:
                    following = torch.tensor(0.0)
                following = rollout.reward[t, m, e] + gamma * following
                row = t * 4 + e
                torch.testing.assert_close(batch.target[m, row], following, rtol=1e-4, atol=1e-5)
                advantage = following - value[t, m, e]
                torch.testing.assert_close(batch.advantage[m, row], advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "masked"), [("discrete", False), ("discrete", True), ("box", False)]
)
def test_an_update_is_one_step_along_autograds_gradient(
    make_on_policy, make_rollout, densities, kind, masked
):
    """The mean over the rollout of -log pi A + c_v (V - R)^2 / 2 - c_e H, its gradient scaled down,
    then Adam."""
    algorithm = make_on_policy("a2c", kind, **PLAIN)
    torch.manual_seed(0)
    networks = algorithm._networks
    parameters = networks.parameters
    parameters.flat.normal_(std=0.4)
    rollout = make_rollout(algorithm.actor, masked=kind if masked else "")
    rows, _ = algorithm._preparation.rows(rollout, algorithm.active, stale=False)
    (batch,) = rows.minibatches(rows.count)

    parameters.zero_gradient()
    output = networks(batch.observation)
    log_std = parameters["log_std"][0::2] if kind == "box" else torch.empty(3, 0)
    density = densities(kind, output[:, 0], log_std, batch.action_mask)
    hyper = {name: value.unsqueeze(1) for name, value in algorithm._hyperparameters.items()}
    loss = (
        -density.log_prob(batch.action) * batch.advantage
        + hyper["value_coefficient"] * 0.5 * (output[:, 1, :, 0] - batch.target).square()
        - hyper["entropy_coefficient"] * density.entropy()
    )
    loss.mean(1).sum().backward()
    parameters.gather_gradient()
    gradient = networks.member_gradients.clone()
    norm = gradient.norm(dim=1, keepdim=True)
    limited = gradient * (hyper["max_gradient_norm"] / norm).clamp(max=1.0)
    first = (1 - BETA1) * limited / (1 - BETA1)
    second = (1 - BETA2) * limited.square() / (1 - BETA2)
    expected = networks.member_parameters - hyper["learning_rate"] * first / (second.sqrt() + 1e-5)

    metrics = algorithm.update(rollout)
    torch.testing.assert_close(metrics["gradient_norm"], norm[:, 0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(networks.member_parameters, expected.detach(), rtol=1e-4, atol=1e-6)
    assert [algorithm.member_state(m)["optimizer"]["step_count"] for m in range(3)] == [1, 1, 1]
    assert metrics.keys() == {
        "policy_loss",
        "value_loss",
        "entropy",
        "gradient_norm",
        "explained_variance",
        "active",
    }
