"""QR-DQN's loss by hand and beside autograd, its target, and a policy of it alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from podracer_core.algorithms import quantile_error
from podracer_core.errors import InvalidInput
from support.off_policy import (
    ACTIONS,
    MEMBERS,
    ROWS,
    build,
    history,
    make_batch,
    plain_gradient,
    plain_network,
    train,
)

QUANTILES = 4


def test_the_quantile_huber_loss_by_hand():
    # Two quantiles, 0 and 2, at 1/4 and 3/4, against one value of 0.5: u is 0.5 and -1.5.
    rows = torch.tensor([[[[0.0, 2.0]]]]), torch.tensor([[[0.5]]]), torch.tensor([[2.0]])
    loss, slope, error = quantile_error(*rows, torch.tensor([1.0]))
    # 1/4 * 0.5^2 / 2 + |3/4 - 1| * (1.5 - 0.5), twice for the weight.
    torch.testing.assert_close(loss, torch.tensor([2 * (0.25 * 0.125 + 0.25 * 1.0)]))
    torch.testing.assert_close(slope, torch.tensor([[[[-2 * 0.25 * 0.5, 2 * 0.25 * 1.0]]]]))
    torch.testing.assert_close(error, torch.tensor([[0.5]]))
    # With κ = 0.25 both are beyond it: the slopes are those of the absolute error.
    loss, slope, _ = quantile_error(*rows, torch.tensor([0.25]))
    torch.testing.assert_close(
        loss, torch.tensor([2 * (0.25 * (0.5 - 0.125) + 0.25 * (1.5 - 0.125))])
    )
    torch.testing.assert_close(slope, torch.tensor([[[[-2 * 0.25, 2 * 0.25]]]]))


def plain_loss(quantiles: Tensor, target: Tensor) -> Tensor:
    """quantiles [B, K], target [B, K] -> [B]"""
    middle = (torch.arange(quantiles.shape[1]) + 0.5) / quantiles.shape[1]
    wanted, own = torch.broadcast_tensors(target.unsqueeze(1), quantiles.unsqueeze(2))
    huber = functional.huber_loss(own, wanted, reduction="none")
    return ((middle.view(1, -1, 1) - (wanted < own).float()).abs() * huber).mean(2).sum(1)


def test_its_slope_is_autograds():
    generator = torch.Generator().manual_seed(0)
    quantiles = 2 * torch.randn(MEMBERS, 2, ROWS, QUANTILES, generator=generator)
    target = torch.randn(MEMBERS, ROWS, QUANTILES, generator=generator)
    weight = torch.rand(MEMBERS, ROWS)
    quantiles.requires_grad_()
    threshold = torch.ones(MEMBERS)
    loss, slope, _ = quantile_error(quantiles, target, weight, threshold)
    own = torch.stack([
        sum((plain_loss(quantiles[m, n], target[m]) * weight[m]).sum() for n in range(2)) for m in range(MEMBERS)
    ])  # fmt: skip
    own.sum().backward()
    torch.testing.assert_close(loss, own.detach())
    torch.testing.assert_close(slope, quantiles.grad)
    assert quantile_error(quantiles, target + torch.inf, weight, threshold)[1].isnan().all()
    with pytest.raises(InvalidInput, match="fit targets"):
        quantile_error(quantiles, target[:, 1:], weight, threshold)


def test_a_gradient_step_is_that_of_plain_torch():
    algorithm: Any = build("qr_dqn")
    for member in range(MEMBERS):
        algorithm.set_hyperparameters(member, {"max_gradient_norm": 0.0})
    train(algorithm, history(algorithm, 15))
    batch = make_batch(algorithm)
    before = [algorithm.member_state(member)["actor"] for member in range(MEMBERS)]
    with torch.no_grad():
        algorithm.learn(batch)
    rows = torch.arange(ROWS)
    for member, state in enumerate(before):
        network, slow = plain_network(state), plain_network(state, target=True)
        following = slow(batch.next_observation[member]).view(ROWS, ACTIONS, QUANTILES)
        best = following[rows, following.mean(2).argmax(1)].detach()
        target = batch.reward[member].unsqueeze(1) + batch.discount[member].unsqueeze(1) * best
        own = network(batch.observation[member]).view(ROWS, ACTIONS, QUANTILES)[
            rows, batch.action[member]
        ]
        (plain_loss(own, target) * batch.weight[member]).sum().backward()
        mine = algorithm.optimizers["actor"].gradient[member]
        assert mine.abs().max() > 1e-3
        torch.testing.assert_close(mine, plain_gradient(network), rtol=1e-4, atol=1e-6)


def test_an_ensembles_target_is_of_the_network_with_the_smallest_mean():
    algorithm: Any = build("qr_dqn", ensemble_size=2, alike=True)
    batch = make_batch(algorithm)
    values = torch.zeros(MEMBERS, 2, ROWS, QUANTILES)
    for weight in algorithm.policy.target.weights:
        weight.zero_()
    biases = algorithm.policy.target.biases[-1].view(MEMBERS, 2, ACTIONS, QUANTILES)
    biases[:, 0], biases[:, 1] = 1.0, torch.tensor([0.0, 0.0, 0.0, 3.0])
    _, _, error = algorithm.error(values, batch)
    torch.testing.assert_close(error, (batch.reward + 0.75 * batch.discount).abs())
