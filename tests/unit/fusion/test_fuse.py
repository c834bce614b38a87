"""Fusions against exact arithmetic, and what does not count in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.fusion import (
    Contribution,
    Fusion,
    FusionOptions,
    Mean,
    Outer,
    Parameters,
    Stack,
    Weighted,
    fuse,
    outer_step,
)
from support.errors import raises
from support.fusion import make_contribution

SAMPLES = (7, 500, 3, 1000, 2)


def exactly(value: Fraction) -> float:
    """The float32 nearest to it, of two equally near ones the even one."""
    near = torch.tensor(float(value), dtype=torch.float32)
    around = torch.stack(
        [near] + [torch.nextafter(near, torch.tensor(end)) for end in (-torch.inf, torch.inf)]
    )
    return min(around.tolist(), key=lambda candidate: abs(Fraction(candidate) - value))


def exact_mean(tensors: Sequence[Tensor], weights: Sequence[int]) -> Tensor:
    """In rational numbers, rounded once."""
    columns = zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
    means = [
        sum((Fraction(w) * Fraction(x) for w, x in zip(weights, xs, strict=True)), Fraction())
        / sum(weights)
        for xs in columns
    ]
    return torch.tensor([exactly(mean) for mean in means]).view_as(tensors[0])


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_a_mean_is_the_exact_one_rounded_once(state, learners):
    brought = [make_contribution(rank, samples=SAMPLES[rank]) for rank in range(learners)]
    plain, weighted = (fuse(kind(FusionOptions()), state, brought) for kind in (Mean, Weighted))
    for name in state.parameters:
        tensors = [one.growth.parameters[name] for one in brought]
        assert torch.equal(plain.parameters[name], exact_mean(tensors, [1] * learners))
        assert torch.equal(weighted.parameters[name], exact_mean(tensors, SAMPLES[:learners]))
    assert plain.transitions.tolist() == [sum(samples // 2 for samples in SAMPLES[:learners])] * 2


def test_equal_samples_weigh_as_none_at_all(state):
    for samples in (0, 1, 3 * 2**40 + 1):
        brought = [make_contribution(rank, samples=samples) for rank in range(3)]
        plain, weighted = (fuse(kind(FusionOptions()), state, brought) for kind in (Mean, Weighted))
        assert all(
            torch.equal(plain.parameters[name], weighted.parameters[name])
            for name in state.parameters
        )


@pytest.mark.parametrize("kind", [Mean, Weighted, Outer])
def test_the_order_of_arrival_changes_nothing(state, kind):
    brought = [make_contribution(rank, samples=SAMPLES[rank]) for rank in range(4)]
    results = [
        fuse(kind(FusionOptions(0.7, 0.9)), state, order)
        for order in itertools.permutations(brought)
    ]
    for other in results[1:]:
        for name in state.parameters:
            assert torch.equal(other.parameters[name], results[0].parameters[name])
        for key, tensor in results[0].statistics["observations"].tensors().items():
            assert torch.equal(other.statistics["observations"].tensors()[key], tensor)


def test_an_outer_step_of_one_without_momentum_is_the_mean_exactly(state):
    outer, mean = Outer(FusionOptions(1.0, 0.0)), Mean(FusionOptions())
    present = state
    for epoch in range(1, 4):
        brought = [make_contribution(rank, epoch) for rank in range(3)]
        stepped, averaged = fuse(outer, present, brought), fuse(mean, present, brought)
        assert all(
            torch.equal(stepped.parameters[name], averaged.parameters[name])
            for name in state.parameters
        )
        present = stepped


def test_outer_steps_are_those_of_torch():
    generator = torch.Generator().manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(5, dtype=torch.float64, generator=generator))
    optimizer = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    position, velocity = weight.detach().clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(4):
        mean = position + torch.randn(5, dtype=torch.float64, generator=generator)
        weight.grad = weight.detach() - mean
        optimizer.step()
        position, velocity = outer_step(position, mean, velocity, 0.7, 0.9)
        torch.testing.assert_close(position, weight.detach(), rtol=1e-14, atol=1e-14)


def test_the_outer_optimizer_moves_as_written_out(state):
    fusion, name = Outer(FusionOptions(0.5, 0.5)), "log_std"
    first = fuse(fusion, state, [make_contribution(rank, 1) for rank in range(2)])
    second = fuse(fusion, first, [make_contribution(rank, 2) for rank in range(2)])

    def mean(epoch: int) -> Tensor:
        return (
            torch.stack(
                [make_contribution(rank, epoch).growth.parameters[name] for rank in range(2)]
            )
            .double()
            .mean(0)
        )

    start = state.parameters[name].double()
    gradient = start - mean(1)
    torch.testing.assert_close(first.parameters[name], (start - 0.5 * (1 + 0.5) * gradient).float())
    velocity, gradient = gradient, first.parameters[name].double() - mean(2)
    velocity = 0.5 * velocity + gradient
    expected = first.parameters[name].double() - 0.5 * (gradient + 0.5 * velocity)
    torch.testing.assert_close(second.parameters[name], expected.float())


def broken(contribution: Contribution, member: int, value: float = torch.nan) -> Contribution:
    parameters = {name: tensor.clone() for name, tensor in contribution.growth.parameters.items()}
    parameters["log_std"][member, 1] = value
    return replace(contribution, growth=replace(contribution.growth, parameters=parameters))


@pytest.mark.parametrize("kind", [Mean, Weighted, Outer])
@pytest.mark.parametrize("how", ["inactive", "nan", "infinite", "statistics"])
def test_a_learner_whose_member_has_diverged_is_left_out_for_that_member(state, kind, how):
    sound = [make_contribution(0), make_contribution(2, samples=30)]
    bad = make_contribution(1, active=(True, how != "inactive"))
    if how == "statistics":
        bad.growth.statistics["observations"].squares[1, 0] = torch.nan
    elif how != "inactive":
        bad = broken(bad, 1, torch.nan if how == "nan" else torch.inf)
    options = FusionOptions(0.7, 0.9)
    fused = fuse(kind(options), state, [*sound, bad])
    without = fuse(kind(options), state, sound)
    among_all = fuse(kind(options), state, [*sound, make_contribution(1)])
    for name in state.parameters:
        assert torch.equal(fused.parameters[name][1], without.parameters[name][1])
        assert torch.equal(fused.parameters[name][0], among_all.parameters[name][0])
    statistics, less, all_of_them = (
        one.statistics["observations"] for one in (fused, without, among_all)
    )
    for key, tensor in statistics.tensors().items():
        assert torch.equal(tensor[1], less.tensors()[key][1])
        assert torch.equal(tensor[0], all_of_them.tensors()[key][0])
    assert fused.active.tolist() == [True, True]
    assert torch.equal(fused.transitions, among_all.transitions)


@pytest.mark.parametrize("kind", [Mean, Weighted, Outer])
def test_a_member_that_has_diverged_everywhere_keeps_what_it_had(state, kind):
    fusion = kind(FusionOptions(0.7, 0.9))
    brought = [broken(make_contribution(rank, active=(True, rank == 1)), 1) for rank in range(3)]
    fused = fuse(fusion, state, brought)
    assert fused.active.tolist() == [True, False]
    for name, before in state.parameters.items():
        assert torch.equal(fused.parameters[name][1], before[1])
        assert not torch.equal(fused.parameters[name][0], before[0])
    again = fuse(fusion, fused, [make_contribution(rank, 2) for rank in range(2)])
    assert again.active.tolist() == [True, True]
    assert all(tensor.isfinite().all() for tensor in again.parameters.values())


class Overflowing(Fusion):
    """Its second member ends beyond what a float32 can hold."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        return {
            name: tensor * torch.tensor([1.0, 1e300]).view(-1, *[1] * (tensor.dim() - 1))
            for name, tensor in previous.items()
        }


class Foreign(Fusion):
    """Returns something unexpected."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        return {name: tensor[:1] for name, tensor in previous.items()}


class Raising(Fusion):
    """Does not get that far."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        raise ZeroDivisionError("no learners")


def test_what_a_fusion_breaks_stays_as_it_was(state):
    fused = fuse(Overflowing(FusionOptions()), state, [make_contribution(0), make_contribution(1)])
    assert fused.active.tolist() == [True, False]
    assert all(
        torch.equal(fused.parameters[name], state.parameters[name]) for name in state.parameters
    )
    assert fused.statistics["observations"].count.tolist() == [5, 0]


def test_a_fusion_that_does_not_keep_its_contract_is_refused(state):
    with raises(InvalidInput, "BROKEN_FUSION", match=r"shape \[1, 4, 3\], expected \[2, 4, 3\]"):
        fuse(Foreign(FusionOptions()), state, [make_contribution(0)])
    with raises(InvalidInput, "BROKEN_FUSION", match="Raising raised"):
        fuse(Raising(FusionOptions()), state, [make_contribution(0)])


def test_contributions_of_another_cohort_are_refused(state):
    other = make_contribution(1)
    fewer = {"log_std": other.growth.parameters["log_std"]}
    with raises(InvalidInput, "COHORT_MISMATCH"):
        fuse(
            Mean(FusionOptions()),
            state,
            [make_contribution(0), replace(other, growth=replace(other.growth, parameters=fewer))],
        )


@pytest.mark.parametrize(
    ("learning_rate", "momentum"), [(0.0, 0.0), (float("nan"), 0.0), (1.0, 1.0), (1.0, -0.1)]
)
def test_options_out_of_range_are_refused(learning_rate, momentum):
    with pytest.raises(InvalidInput, match="expected"):
        FusionOptions(learning_rate, momentum)
