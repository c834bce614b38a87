"""Wide layers take another way through a CPU: results and gradients are those of the usual one."""

from __future__ import annotations

import itertools

import pytest
import torch

from podracer_core.networks import (
    StackedMLP,
    StackedParameters,
    is_wide,
    mlp_shapes,
    stacked_mlp,
)

GROUPS, ROWS, INPUTS, OUTPUTS = 3, 140, 5, 2
WIDTHS = pytest.mark.parametrize("width", [128, 160, 256])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
X = torch.randn(GROUPS, ROWS, INPUTS, generator=torch.Generator().manual_seed(0))


def build(sizes: tuple[int, ...], activation: str = "relu") -> tuple[StackedParameters, StackedMLP]:
    torch.manual_seed(0)
    parameters = StackedParameters(GROUPS, mlp_shapes(sizes))
    layers = range(len(sizes) - 1)
    for layer, inputs in zip(layers, sizes[:-1], strict=True):
        parameters[f"layers.{layer}.weight"].detach().normal_(std=inputs**-0.5)
        parameters[f"layers.{layer}.bias"].detach().normal_(std=0.3)
    weights = tuple(parameters[f"layers.{layer}.weight"] for layer in layers)
    biases = tuple(parameters[f"layers.{layer}.bias"] for layer in layers)
    return parameters, StackedMLP(weights, biases, activation)


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`usual.setattr(stacked_mlp, "is_wide", never)` takes the usual way from then on."""
    if stacked_mlp._linear is None:
        pytest.skip("this machine's torch has no other way for wide layers")
    monkeypatch.setattr(stacked_mlp, "_IS_FASTER", True)  # also on a processor where it is not
    return monkeypatch


def never(*_: object) -> bool:
    return False


def both(
    parameters: StackedParameters,
    network: StackedMLP,
    inputs: torch.Tensor,
    usual: pytest.MonkeyPatch,
) -> list[tuple[torch.Tensor, ...]]:
    """Output, gradient in the parameters and in the inputs, the wide way and the usual one."""
    upstream = torch.randn(
        *inputs.shape[:2], network.weights[-1].shape[2], generator=torch.Generator().manual_seed(1)
    )
    found = []
    assert is_wide(inputs, network.weights)
    for way in ("wide", "usual"):
        if way == "usual":
            usual.setattr(stacked_mlp, "is_wide", never)
        own = inputs.clone().requires_grad_()
        parameters.zero_gradient()
        output = network(own)
        output.backward(upstream)
        parameters.gather_gradient()
        assert own.grad is not None
        found.append((output.detach(), parameters.gradient.clone(), own.grad))
    return found


def close(wide: tuple[torch.Tensor, ...], usual: tuple[torch.Tensor, ...]) -> None:
    for mine, expected in zip(wide, usual, strict=True):
        torch.testing.assert_close(
            mine, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item()
        )


@WIDTHS
@ACTIVATIONS
def test_results_and_gradients_equal_the_usual_ones(usual, width, activation):
    parameters, network = build((INPUTS, width, width, OUTPUTS), activation)
    wide, expected = both(parameters, network, X, usual)
    assert all(tensor.abs().sum() > 0 for tensor in wide)
    close(wide, expected)


def test_layers_of_all_widths_in_one_network(usual):
    parameters, network = build((INPUTS, 200, 130, 7, 256, 128, OUTPUTS), "tanh")
    close(*both(parameters, network, X, usual))


def test_a_wide_first_and_a_wide_last_layer(usual):
    parameters, network = build((256, 192, 130), "elu")
    inputs = torch.randn(GROUPS, ROWS, 256, generator=torch.Generator().manual_seed(2))
    close(*both(parameters, network, inputs, usual))


@ACTIVATIONS
def test_frozen_weights_let_the_gradient_through_to_the_input(usual, activation):
    parameters, network = build((INPUTS, 160, 160, OUTPUTS), activation)
    frozen = StackedMLP(
        tuple(weight.detach() for weight in network.weights),
        tuple(bias.detach() for bias in network.biases),
        activation,
    )
    wide, expected = both(parameters, network, X, usual)
    parameters.zero_gradient()
    usual.undo()
    inputs = X.clone().requires_grad_()
    output = frozen(inputs)
    upstream = torch.randn(GROUPS, ROWS, OUTPUTS, generator=torch.Generator().manual_seed(1))
    output.backward(upstream)
    assert torch.equal(output, wide[0])
    torch.testing.assert_close(inputs.grad, wide[2], rtol=1e-6, atol=1e-6)
    close((output.detach(), inputs.grad), (expected[0], expected[2]))
    assert all(weight.grad is None for weight in (*network.weights, *network.biases))


def test_inputs_need_no_gradient_and_nothing_is_changed_in_place(usual):
    parameters, network = build((INPUTS, 160, 160, OUTPUTS))
    inputs, upstream = X.clone(), torch.ones(GROUPS, ROWS, OUTPUTS)
    before = parameters.flat.clone()
    for _ in range(2):
        parameters.zero_gradient()
        network(inputs).backward(upstream)
        parameters.gather_gradient()
    first = parameters.gradient.clone()
    usual.setattr(stacked_mlp, "is_wide", never)
    parameters.zero_gradient()
    network(inputs).backward(upstream)
    parameters.gather_gradient()
    torch.testing.assert_close(first, parameters.gradient, rtol=1e-4, atol=1e-3)
    assert torch.equal(inputs, X)
    assert (upstream == 1).all()
    assert torch.equal(parameters.flat, before)


def test_results_are_the_same_with_and_without_gradients(usual):
    for activation in ("relu", "tanh", "elu"):
        _, network = build((INPUTS, 160, 160, OUTPUTS), activation)
        with torch.no_grad():
            plain = network(X)
        assert torch.equal(plain, network(X))


def test_two_forward_passes_before_a_backward_pass(usual):
    parameters, network = build((INPUTS, 160, 160, OUTPUTS), "tanh")

    def gradient(*inputs: torch.Tensor) -> torch.Tensor:
        parameters.zero_gradient()
        outputs = [network(x) for x in inputs]
        sum(output.square().sum() for output in outputs).backward()
        parameters.gather_gradient()
        return parameters.gradient.clone()

    first, second = X, X.flip(1) * 0.5
    torch.testing.assert_close(
        gradient(first, second), gradient(first) + gradient(second), rtol=1e-4, atol=1e-2
    )


def test_one_networks_nan_does_not_reach_another(usual):
    parameters, network = build((INPUTS, 160, 160, OUTPUTS))
    inputs = X.clone()
    inputs[1] = torch.nan
    network(inputs).sum().backward()
    parameters.gather_gradient()
    assert parameters.gradient[1].isnan().any()
    assert parameters.gradient[::2].isfinite().all()


@pytest.mark.parametrize(("rows", "sizes", "expected"), [
    (140, (5, 128, 128, 2), True),
    (127, (5, 128, 128, 2), False),  # less than 2^21 multiplications in its largest layer
    (128, (5, 128, 128, 2), True),
    (4000, (5, 127, 127, 2), False),
    (4000, (5, 128, 127, 2), False),
    (4000, (5, 1000, 2), False),
    (32, (5, 256, 256, 2), True),
])  # fmt: skip
def test_what_counts_as_wide(usual, rows, sizes, expected):
    weights = [torch.empty(2, *pair) for pair in itertools.pairwise(sizes)]
    assert is_wide(torch.empty(2, rows, 5), weights) == expected
    assert not is_wide(torch.empty(2, rows, 5, dtype=torch.float64), weights)
