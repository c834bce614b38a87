"""The stacked Adam against torch's own, member by member."""

from __future__ import annotations

import torch

from podracer_core.optimizers import StackedAdam, clip_gradient_

MEMBERS, SIZE, STEPS = 3, 7, 20


def gradients() -> torch.Tensor:
    return torch.randn(STEPS, MEMBERS, SIZE, generator=torch.Generator().manual_seed(1))


def test_equals_torch_adam_with_a_rate_for_each_member():
    start = torch.randn(MEMBERS, SIZE, generator=torch.Generator().manual_seed(0))
    rates = [1e-3, 1e-2, 1e-1]
    parameters, gradient = start.clone(), torch.zeros(MEMBERS, SIZE)
    stacked = StackedAdam(parameters, gradient, epsilon=1e-5)
    singles = [torch.nn.Parameter(row.clone()) for row in start]
    peers = [
        torch.optim.Adam([p], lr=rate, eps=1e-5) for p, rate in zip(singles, rates, strict=True)
    ]
    for step in gradients():
        gradient.copy_(step)
        stacked.step(torch.tensor(rates), torch.ones(MEMBERS, dtype=torch.bool))
        for single, peer, row in zip(singles, peers, step, strict=True):
            single.grad = row.clone()
            peer.step()
    torch.testing.assert_close(
        parameters, torch.stack([p.detach() for p in singles]), rtol=1e-5, atol=1e-7
    )


def test_a_frozen_member_keeps_every_bit_even_with_nan_gradients():
    parameters, gradient = torch.ones(MEMBERS, SIZE), torch.zeros(MEMBERS, SIZE)
    adam = StackedAdam(parameters, gradient)
    rate, everyone = torch.full((MEMBERS,), 0.1), torch.ones(MEMBERS, dtype=torch.bool)
    gradient.copy_(gradients()[0])
    adam.step(rate, everyone)
    before = {name: tensor.clone() for name, tensor in adam.member_state(1).items()} | {
        "p": parameters[1].clone()
    }
    gradient.copy_(gradients()[1])
    gradient[1] = torch.nan
    adam.step(rate, torch.tensor([True, False, True]))
    after = adam.member_state(1) | {"p": parameters[1]}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert adam.step_count.tolist() == [2, 1, 2]
    assert parameters.isfinite().all()


def test_a_member_that_rested_goes_on_as_if_nothing_had_happened():
    def train(active: list[bool]) -> torch.Tensor:
        parameters, gradient = torch.ones(1, SIZE), torch.zeros(1, SIZE)
        adam = StackedAdam(parameters, gradient)
        fresh = iter(gradients()[:, :1])
        for moving in active:
            gradient.copy_(next(fresh) if moving else torch.full((1, SIZE), 9.0))
            adam.step(torch.tensor([0.01]), torch.tensor([moving]))
        return parameters

    assert torch.equal(train([True, True, True]), train([True, False, True, False, True]))


def test_clipping_is_per_member():
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    norm = clip_gradient_(gradient, torch.tensor([1.0, 1.0, 1.0]))
    torch.testing.assert_close(norm, torch.tensor([5.0, 0.5, 0.0]))
    torch.testing.assert_close(gradient, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    gradient = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    clip_gradient_(gradient, torch.tensor([10.0, 2.5]))
    torch.testing.assert_close(gradient, torch.tensor([[3.0, 4.0], [1.5, 2.0]]))


def test_state_goes_from_one_member_to_another():
    adam = StackedAdam(torch.zeros(MEMBERS, SIZE), gradients()[0].clone())
    adam.step(torch.full((MEMBERS,), 0.1), torch.tensor([True, True, False]))
    adam.load_member_state(2, adam.member_state(0))
    assert torch.equal(adam.first_moment[2], adam.first_moment[0])
    assert torch.equal(adam.second_moment[2], adam.second_moment[0])
    assert adam.step_count.tolist() == [1, 1, 1]
