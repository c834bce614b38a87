"""The stacked network is many single ones: same results, same gradients, nothing shared."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from podracer_core.errors import InvalidInput
from podracer_core.networks import StackedMLP, StackedParameters, mlp_shapes, stacked_mlp

GROUPS, ROWS, SIZES = 3, 11, (5, 8, 6, 2)
MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def stacked(activation: str) -> tuple[StackedParameters, StackedMLP]:
    torch.manual_seed(0)
    parameters = StackedParameters(GROUPS, mlp_shapes(SIZES))
    parameters.flat.normal_()
    layers = range(len(SIZES) - 1)
    weights = tuple(parameters[f"layers.{layer}.weight"] for layer in layers)
    biases = tuple(parameters[f"layers.{layer}.bias"] for layer in layers)
    return parameters, StackedMLP(weights, biases, activation)


def single(network: StackedMLP, group: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for (inputs, outputs), weight, bias in zip(
        itertools.pairwise(SIZES), network.weights, network.biases, strict=True
    ):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data.copy_(weight[group].detach().t())
        linear.bias.data.copy_(bias[group, 0].detach())
        layers += [linear, MODULES[network.activation]()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("parts", [1, 4])  # 11 rows: 4 parts of 2, and 3 rows more
@pytest.mark.parametrize("activation", MODULES)
def test_results_and_gradients_equal_single_networks(activation, parts, monkeypatch):
    monkeypatch.setattr(stacked_mlp, "_parts", lambda rows: parts)
    parameters, network = stacked(activation)
    inputs = torch.randn(GROUPS, ROWS, SIZES[0], requires_grad=True)
    upstream = torch.randn(GROUPS, ROWS, SIZES[-1])
    output = network(inputs)
    output.backward(upstream)
    parameters.gather_gradient()
    assert inputs.grad is not None
    for group in range(GROUPS):
        peer, peer_inputs = single(network, group), inputs[group].detach().clone().requires_grad_()
        peer_output = peer(peer_inputs)
        peer_output.backward(upstream[group])
        torch.testing.assert_close(output[group], peer_output, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(inputs.grad[group], peer_inputs.grad, rtol=1e-5, atol=1e-5)
        linears = [layer for layer in peer if isinstance(layer, nn.Linear)]
        for index, linear in enumerate(linears):
            assert linear.weight.grad is not None
            weight_gradient = parameters.gradient_of(f"layers.{index}.weight")[group]
            bias_gradient = parameters.gradient_of(f"layers.{index}.bias")[group, 0]
            torch.testing.assert_close(
                weight_gradient, linear.weight.grad.t(), rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(bias_gradient, linear.bias.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((2, 131_072, 4), 64), ((64, 131_072, 4), 2), ((128, 131_072, 4), 1), ((2, 5_000, 4), 4)],
)
def test_a_gpu_splits_products_of_few_networks_with_many_rows(shape, parts):
    assert stacked_mlp._parts(torch.empty(shape, device="meta")) == parts
    assert stacked_mlp._parts(torch.empty(2, 131_072, 4)) == 1, (
        "a CPU works through the rows in parts anyway"
    )


def test_no_gradient_leaks_from_one_network_to_another():
    parameters, network = stacked("tanh")
    network(torch.randn(GROUPS, ROWS, SIZES[0]))[1].sum().backward()
    parameters.gather_gradient()
    assert parameters.gradient[1].abs().sum() > 0
    assert parameters.gradient[0].abs().sum() == 0
    assert parameters.gradient[2].abs().sum() == 0


def test_two_forward_passes_before_a_backward_pass_do_not_share_buffers():
    parameters, network = stacked("tanh")
    first, second = torch.randn(2, GROUPS, ROWS, SIZES[0])

    def gradient(*inputs: torch.Tensor) -> torch.Tensor:
        parameters.zero_gradient()
        outputs = [network(x) for x in inputs]
        sum(output.square().sum() for output in outputs).backward()
        parameters.gather_gradient()
        return parameters.gradient.clone()

    gradient(first)  # fills the pool of buffers
    torch.testing.assert_close(
        gradient(first, second), gradient(first) + gradient(second), rtol=1e-4, atol=1e-4
    )


def free_buffers(pool: stacked_mlp._Buffers) -> list[torch.Tensor]:
    return [
        buffer
        for shapes in (pool._free, pool._unused)
        for free in shapes.values()
        for buffer in free
    ]


def test_buffers_of_rows_that_do_not_come_any_more_are_released(monkeypatch):
    monkeypatch.setattr(stacked_mlp, "_buffers", pool := stacked_mlp._Buffers())
    monkeypatch.setattr(stacked_mlp, "_LIFETIME", 16)
    _, network = stacked("tanh")
    for rows in range(ROWS, ROWS + 9):
        for _ in range(10):  # forward and backward take a buffer for each of two hidden layers
            network(torch.randn(GROUPS, rows, SIZES[0])).sum().backward()
    assert {buffer.shape[1] for buffer in free_buffers(pool)} == {ROWS + 8}
    assert len(free_buffers(pool)) <= 4


def test_buffers_are_kept_on_a_cpu_alone(monkeypatch):
    monkeypatch.setattr(stacked_mlp, "_buffers", pool := stacked_mlp._Buffers())
    _, network = stacked("elu")
    weights, biases = (
        tuple(tensor.detach().to("meta").requires_grad_() for tensor in tensors)
        for tensors in (network.weights, network.biases)
    )
    StackedMLP(weights, biases, "elu")(
        torch.randn(GROUPS, ROWS, SIZES[0], device="meta")
    ).sum().backward()
    assert not free_buffers(pool)


def test_results_are_the_same_with_and_without_gradients():
    _, network = stacked("tanh")
    inputs = torch.randn(GROUPS, ROWS, SIZES[0])
    with torch.no_grad():
        plain = network(inputs)
    assert torch.equal(plain, network(inputs))


def test_group_state_round_trip_and_refusals():
    parameters, network = stacked("tanh")
    state = parameters.group_state(0)
    assert state["layers.1.weight"].shape == (8, 6)
    parameters.load_group_state(2, state)
    assert torch.equal(parameters.flat[2], parameters.flat[0])
    with pytest.raises(InvalidInput, match=r"layers\.0\.weight"):
        parameters.load_group_state(2, state | {"layers.0.weight": torch.zeros(5, 9)})
    with pytest.raises(InvalidInput, match="expected"):
        parameters.load_group_state(2, {})
    with pytest.raises(InvalidInput, match="sigmoid"):
        StackedMLP(network.weights, network.biases, "sigmoid")
