"""What large networks on a CPU take instead: Adam in one pass over each member's memory. It is the
same Adam."""

from __future__ import annotations

import pytest
import torch

from podracer_core import optimizers
from podracer_core.optimizers import StackedAdam

MEMBERS, SIZE, STEPS = 3, 1000, 12
RATES = torch.tensor([1e-3, 1e-2, 1e-1])
EVERYONE = torch.ones(MEMBERS, dtype=torch.bool)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size counts as large."""
    monkeypatch.setattr(optimizers, "_FUSED_SIZE", 1)


def trained(active: list[torch.Tensor], epsilon: float = 1e-8) -> StackedAdam:
    adam = StackedAdam(numbers(MEMBERS, SIZE), torch.zeros(MEMBERS, SIZE), epsilon=epsilon)
    for gradient, moving in zip(numbers(len(active), MEMBERS, SIZE), active, strict=True):
        # The first column's gradients are tiny: there epsilon counts.
        adam.gradient.copy_(gradient * torch.where(torch.arange(SIZE) == 0, 1e-7, 1.0))
        adam.step(RATES, moving)
    return adam


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("epsilon", [1e-8, 1e-5])
def test_equals_torch_adam_with_a_rate_for_each_member(epsilon):
    stacked = trained([EVERYONE] * STEPS, epsilon)
    singles = [torch.nn.Parameter(row.clone()) for row in numbers(MEMBERS, SIZE)]
    peers = [
        torch.optim.Adam([p], lr=rate, eps=epsilon)
        for p, rate in zip(singles, RATES.tolist(), strict=True)
    ]
    for gradient in numbers(STEPS, MEMBERS, SIZE):
        for single, peer, row in zip(singles, peers, gradient, strict=True):
            single.grad = row * torch.where(torch.arange(SIZE) == 0, 1e-7, 1.0)
            peer.step()
    expected = torch.stack([single.detach() for single in singles])
    torch.testing.assert_close(stacked.parameters, expected, rtol=1e-5, atol=1e-6)
    assert stacked.step_count.tolist() == [STEPS] * MEMBERS


def test_equals_the_stacked_path(monkeypatch):
    active = [EVERYONE, torch.tensor([True, False, True]), torch.tensor([False, False, True])] * 4
    stacked = trained(active)
    monkeypatch.setattr(optimizers, "_FUSED_SIZE", 1)
    fused = trained(active)
    assert stacked.step_count.tolist() == fused.step_count.tolist() == [8, 4, 12]
    for name in ("parameters", "first_moment", "second_moment"):
        torch.testing.assert_close(
            getattr(fused, name), getattr(stacked, name), rtol=1e-5, atol=1e-6
        )


@pytest.mark.usefixtures("fused")
def test_a_frozen_member_keeps_every_bit_even_with_nan_gradients():
    adam = trained([EVERYONE] * 2)
    before = {name: tensor.clone() for name, tensor in adam.member_state(1).items()}
    row = adam.parameters[1].clone()
    adam.gradient[1] = torch.nan
    adam.step(RATES, torch.tensor([True, False, True]))
    assert all(torch.equal(before[name], tensor) for name, tensor in adam.member_state(1).items())
    assert torch.equal(adam.parameters[1], row)
    assert adam.step_count.tolist() == [3, 2, 3]
    assert adam.parameters.isfinite().all()


@pytest.mark.usefixtures("fused")
def test_no_parameter_moves_without_an_active_member():
    adam = trained([torch.zeros(MEMBERS, dtype=torch.bool)])
    assert torch.equal(adam.parameters, numbers(MEMBERS, SIZE))
    assert adam.step_count.sum() == 0


def test_only_large_members_go_through_it_and_may_be_views(monkeypatch):
    calls: list[StackedAdam] = []
    step_fused = StackedAdam._step_fused

    def counted(adam: StackedAdam, rate: torch.Tensor, active: torch.Tensor) -> None:
        calls.append(adam)
        step_fused(adam, rate, active)

    monkeypatch.setattr(StackedAdam, "_step_fused", counted)
    for size, many in ((optimizers._FUSED_SIZE - 1, False), (optimizers._FUSED_SIZE, True)):
        calls.clear()
        wide = torch.zeros(2, size + 5)
        adam = StackedAdam(wide[:, 5:], torch.ones(2, size))
        adam.step(torch.tensor([0.1, 0.2]), torch.tensor([True, True]))
        assert bool(calls) == many
        torch.testing.assert_close(
            wide[:, 5:], torch.tensor([[-0.1], [-0.2]]).expand(-1, size), rtol=1e-4, atol=0
        )
        assert (wide[:, :5] == 0).all()
