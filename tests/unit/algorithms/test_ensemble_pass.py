"""A pass through an ensemble: its outputs and its gradients are autograd's, whatever the networks
are made of."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from torch import Tensor, nn

from podracer_core.algorithms import (
    EnsemblePass,
    TrainedNetwork,
    ensemble_outputs,
    squared_error,
)
from podracer_core.networks import (
    Architecture,
    Exploration,
    SquashedGaussianHead,
    StackedNetwork,
    stacked_mlp,
)

MEMBERS, COUNT, ROWS, SEEN, ACTIONS = 2, 3, 5, 4, 2
NETWORKS = {
    "narrow": Architecture(SEEN, None, (8, 6), 3, "tanh", ACTIONS),
    "wide": Architecture(SEEN, None, (128, 128), 3, "relu", ACTIONS),
    "layer_norm": Architecture(SEEN, None, (8, 6), 3, "relu", ACTIONS, "layer_normalized"),
    "batch_norm": Architecture(SEEN, None, (8, 6), 3, "elu", ACTIONS, "normalized"),
}


def networks(name: str) -> TrainedNetwork:
    trained = TrainedNetwork(MEMBERS, NETWORKS[name], "cpu", count=COUNT)
    trained.initialize(torch.arange(MEMBERS), 0)
    return trained


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(MEMBERS, rows, SEEN), torch.randn(MEMBERS, rows, ACTIONS)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("learned", [None, 2])
def test_outputs_and_gradients_are_those_of_autograd(name, learned, monkeypatch):
    monkeypatch.setattr(stacked_mlp, "_IS_FASTER", stacked_mlp._linear is not None)
    every = 160 if name == "wide" else ROWS
    observation, action = inputs(every)
    trained, rows = networks(name), every if learned is None else learned
    slope = torch.randn(MEMBERS, COUNT, rows, 3)

    leaf = action.clone().requires_grad_()
    expected = ensemble_outputs(trained.network, observation, leaf)
    expected[:, :, :rows].backward(slope)
    trained._parameters.gather_gradient()
    gradient = trained._parameters.gradient.clone()
    trained._parameters.gradient.fill_(torch.nan)

    with torch.no_grad():
        found = EnsemblePass(trained.network, observation, action, rows=learned)
        torch.testing.assert_close(found.output, expected[:, :, :rows].detach())
        torch.testing.assert_close(found.rest, expected[:, :, rows:].detach())
        found.fill_gradient(slope, trained._parameters, trained._layer_gradients)
        torch.testing.assert_close(trained._parameters.gradient, gradient, rtol=1e-4, atol=1e-5)
        if learned is None:
            shown = EnsemblePass(trained.frozen, observation, action).action_slope(slope)
            torch.testing.assert_close(shown, leaf.grad, rtol=1e-4, atol=1e-5)


def test_a_further_loss_adds_its_gradient():
    trained, (observation, action) = networks("narrow"), inputs(ROWS)
    slope, every = torch.randn(MEMBERS, COUNT, ROWS, 3), torch.ones(MEMBERS, dtype=torch.bool)

    def gradient(further: Tensor | None) -> Tensor:
        traced = EnsemblePass(trained.network, observation, action)
        trained.minimize(traced, slope, torch.zeros(MEMBERS), every, None, further)
        return trained._parameters.gradient.clone()

    outputs = ensemble_outputs(trained.network, observation, action)
    (2.0 * outputs.square().sum()).backward()
    added = torch.cat(
        [trained._parameters[name].grad.flatten(1) for name in trained._parameters.shapes], 1
    )
    further = 2.0 * ensemble_outputs(trained.network, observation, action).square().sum((1, 2, 3))
    torch.testing.assert_close(gradient(further) - gradient(None), added, rtol=1e-4, atol=1e-4)


def test_the_slope_of_a_squashed_sample_is_autograds():
    space = gymnasium.spaces.Box(-2.0, 2.0, (ACTIONS,))
    head = SquashedGaussianHead(space, Exploration("independent", 1, SEEN, ACTIONS))
    torch.manual_seed(0)
    # some deviations are at their limit
    output = (3.0 * torch.randn(MEMBERS, ROWS, 2 * ACTIONS)).requires_grad_()
    noise, action_slope = torch.randn(2, MEMBERS, ROWS, ACTIONS).unbind()
    log_prob_slope = torch.randn(MEMBERS, ROWS)
    action, log_prob = head.sample_with_log_prob(output, noise)
    (expected,) = torch.autograd.grad((action, log_prob), output, (action_slope, log_prob_slope))
    found = head.sample_slope(output.detach(), noise, action.detach(), action_slope, log_prob_slope)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_huber_by_hand():
    values = torch.tensor([[[1.0, 5.0, -4.0]], [[1.0, 5.0, -4.0]]])
    target, weight = torch.zeros(2, 3), torch.tensor([[0.5, 0.25, 0.25]] * 2)
    loss, slope, size = squared_error(values, target, weight, torch.tensor([2.0, 0.0]))
    # Beyond 2: 2 (|δ| - 1). The second member's errors all count squared.
    assert loss.tolist() == pytest.approx(
        [0.5 * 0.5 + 0.25 * 8 + 0.25 * 6, 0.5 * 0.5 + 0.25 * 12.5 + 0.25 * 8]
    )
    assert slope[:, 0].tolist() == [[0.5, 0.5, -0.5], [0.5, 1.25, -1.0]]
    assert size.tolist() == [[1.0, 5.0, 4.0]] * 2


@pytest.mark.parametrize("body", ["layer_normalized", "normalized"])
def test_one_of_the_networks_alone_does_the_same(body):
    architecture = Architecture(SEEN, None, (8, 6), 3, "tanh", body=body)
    trained = TrainedNetwork(2, architecture, "cpu")
    trained.initialize(torch.tensor([3, 4]), 0)
    trained._parameters.flat.add_(0.1 * torch.randn_like(trained._parameters.flat).abs())
    rows = torch.randn(2, ROWS, SEEN)
    network: StackedNetwork = trained.frozen
    for group in range(2):
        torch.testing.assert_close(
            network.module(group)(rows[group]), network(rows)[group], rtol=1e-4, atol=1e-5
        )


def test_layer_normalization_is_torchs_own():
    trained = TrainedNetwork(
        1, Architecture(SEEN, None, (8,), 3, "relu", body="layer_normalized"), "cpu"
    )
    trained.initialize(torch.tensor([3]), 0)
    module = trained.frozen.module(0)
    assert [type(part) for part in module] == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]
    hidden = module[0](torch.randn(ROWS, SEEN))
    centred = hidden - hidden.mean(1, keepdim=True)
    expected = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(module[1](hidden), expected)
