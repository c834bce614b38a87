"""FlashSAC's parts, by hand and beside plain torch: distributions, normalization, projections, the
scale of rewards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from podracer_core.algorithms import ReturnScale, ValueBins
from podracer_core.errors import InvalidInput
from podracer_core.networks import Architecture, StackedNetwork, StackedParameters
from support.off_policy import ROWS, build, cut, history, make_batch, train

MEMBERS = 3


def test_a_target_is_shared_by_its_two_neighbours():
    bins = ValueBins(2.0, 5)  # -2, -1, 0, 1, 2
    weights = torch.tensor(
        [[[0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]]
    )
    reward = torch.tensor([[0.25, 0.0, 9.0]])
    discount = torch.tensor([[0.5, 0.5, 1.0]])
    bonus = torch.zeros(1, 3)
    projected = bins.project(weights, reward, discount, bonus)
    # 0.25 + 0.5 * 0 lies a quarter of the way from 0 to 1; ±0.5 halfway between their neighbours;
    # 11 is beyond the end.
    expected = [[0.0, 0.0, 0.75, 0.25, 0.0], [0.0, 0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    torch.testing.assert_close(projected, torch.tensor([expected]))
    # With the bonus: 0.25 + 0.5 * (0 - 1) = -0.25.
    lowered = bins.project(weights[:, :1], reward[:, :1], discount[:, :1], torch.ones(1, 1))
    torch.testing.assert_close(lowered, torch.tensor([[[0.0, 0.25, 0.75, 0.0, 0.0]]]))


def test_nothing_follows_an_end_and_the_mean_stays():
    bins = ValueBins(5.0, 101)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, ROWS, 101, generator=generator).softmax(-1)
    reward = torch.randn(2, ROWS, generator=generator)
    bonus = torch.rand(2, ROWS, generator=generator)
    ended = bins.project(weights, reward, torch.zeros(2, ROWS), bonus)
    torch.testing.assert_close(ended @ bins.values, reward, rtol=1e-4, atol=1e-5)
    discount = torch.full((2, ROWS), 0.3)
    following = bins.project(weights, reward, discount, bonus)
    torch.testing.assert_close(
        following @ bins.values, reward + discount * (weights @ bins.values - bonus)
    )
    torch.testing.assert_close(following.sum(-1), torch.ones(2, ROWS))


def test_the_critic_with_the_smaller_mean_gives_each_rows_distribution():
    bins = ValueBins(1.0, 3)
    low, high = torch.tensor([4.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 4.0])
    # [1, 2 critics, 2 rows, 3]
    logits = torch.stack([torch.stack([low, high]), torch.stack([high, low])]).unsqueeze(0)
    torch.testing.assert_close(bins.pessimistic(logits), low.softmax(0).expand(1, 2, 3))


def test_the_cross_entropys_slope_is_autograds():
    bins = ValueBins(5.0, 11)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(MEMBERS, 2, ROWS, 11, generator=generator, requires_grad=True)
    target = torch.randn(MEMBERS, ROWS, 11, generator=generator).softmax(-1)
    weight = torch.rand(MEMBERS, ROWS, generator=generator)
    loss, slope, error = bins.cross_entropy(logits, target, weight)
    own = (
        (-(target.unsqueeze(1) * logits.log_softmax(-1)).sum(-1) * weight.unsqueeze(1))
        .sum(2)
        .mean(1)
    )
    own.sum().backward()
    torch.testing.assert_close(loss, own.detach())
    torch.testing.assert_close(slope, logits.grad)
    assert error.shape == (MEMBERS, ROWS)
    with pytest.raises(InvalidInput, match="fit targets"):
        bins.cross_entropy(logits, target[:, 1:], weight)


def residual(groups: int = 2) -> tuple[StackedNetwork, StackedParameters]:
    architecture = Architecture(6, None, (8, 8), 3, "relu", body="residual")
    parameters = StackedParameters(groups, architecture.shapes())
    network = StackedNetwork.of(architecture, parameters)
    network.initialize(torch.arange(groups), 0, "fan_in")
    return network, parameters


def test_joint_statistics_are_those_of_batch_norm():
    network, parameters = residual()
    rows = 3.0 + 2.0 * torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(2))
    output = network(rows, by_batch=True)
    network.normalized.settle(torch.tensor([True, False]))
    for group in range(2):
        state = parameters.group_state(group)

        def norm(
            inputs: torch.Tensor, name: str, state: dict[str, torch.Tensor] = state
        ) -> torch.Tensor:
            return functional.batch_norm(
                inputs,
                None,
                None,
                state[f"{name}.scale"][0],
                state[f"{name}.shift"][0],
                training=True,
            )

        hidden = norm(rows[group], "embed.norm") @ state["embed.weight"]
        for block in range(2):
            rise, fall = f"blocks.{block}.rise", f"blocks.{block}.fall"
            inner = norm(hidden @ state[f"{rise}.weight"], f"{rise}.norm").relu()
            hidden = hidden + norm(inner @ state[f"{fall}.weight"], f"{fall}.norm").relu()
        hidden = functional.rms_norm(hidden, (8,), state["last.norm.scale"][0], eps=1e-6)
        torch.testing.assert_close(
            output[group], hidden @ state["last.weight"] + state["last.bias"]
        )
    mean, variance = (parameters[f"embed.norm.{name}"][:, 0] for name in ("mean", "variance"))
    torch.testing.assert_close(mean[0], 0.01 * rows[0].mean(0))
    torch.testing.assert_close(variance[0], 0.99 + 0.01 * rows[0].var(0))
    assert (mean[1] == 0).all()
    assert (variance[1] == 1).all()


def test_weights_have_norm_one_and_so_have_scales_after_each_step():
    algorithm = build("flash_sac")
    train(algorithm, history(algorithm, 15))
    assert algorithm.gradient_steps > 2
    for trained in (algorithm.policy, algorithm.critic):
        body = trained.network.normalized
        for weight in body.weights:
            torch.testing.assert_close(
                weight.square().sum(1), torch.ones_like(weight[:, 0]), rtol=1e-4, atol=1e-4
            )
        state = trained.member_state(0)
        own = [name for name in state if name.endswith(".shift") and not name.startswith("target.")]
        for name in (name.removesuffix(".shift") for name in own):
            squares = (state[f"{name}.scale"].square() + state[f"{name}.shift"].square()).sum(-1)
            torch.testing.assert_close(
                squares, torch.full_like(squares, float(state[f"{name}.scale"].shape[-1]))
            )


def test_blocks_of_different_widths_are_refused():
    with pytest.raises(InvalidInput, match="each block"):
        build("flash_sac", hidden_sizes=(8, 16))


def test_rewards_are_divided_by_the_running_return():
    algorithm = build("flash_sac", 0)
    rollout = cut(history(algorithm, 3, envs=1), 0, 3)
    rollout.reward[:, 0, 0] = torch.tensor([1.0, 2.0, 30.0])
    rollout.terminated.zero_()
    rollout.truncated.zero_()
    rollout.terminated[1] = True
    scale = ReturnScale(1, 5.0, drops_last=True)
    scale.begin(rollout)
    scale.update(rollout, torch.tensor([0.5]), torch.tensor([True]))
    # G: 1, then 2 (an episode's last step leaves out what came before, as in the authors' code),
    # then 0.5 * 2 + 30.
    deviation = torch.tensor([1.0, 2.0, 31.0]).std(correction=0).item()
    torch.testing.assert_close(scale.divisor(), torch.tensor([max(deviation, 31.0 / 5.0)]))
    scale.update(rollout, torch.tensor([0.5]), torch.tensor([False]))
    torch.testing.assert_close(scale.divisor(), torch.tensor([max(deviation, 31.0 / 5.0)]))


def test_the_target_entropy_is_a_gaussians():
    algorithm = build("flash_sac", 0)
    expected = 2 * 0.5 * math.log(2 * math.pi * math.e * 0.15**2)
    torch.testing.assert_close(algorithm.target_entropy, torch.tensor([expected]))


def test_the_rate_falls_to_half_of_it():
    algorithm: Any = build("flash_sac", 0, alike=True, schedule_updates=100)
    rates = []
    for count in (0, 50, 100, 1000):
        algorithm.update_count.fill_(count)
        rates.append(algorithm._rate(1).item() / 3e-4)
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.5], rel=1e-5)


def test_the_actor_and_the_temperature_move_every_second_time():
    algorithm = build("flash_sac")
    for step in range(1, 6):
        with torch.no_grad():
            algorithm.learn(make_batch(algorithm, seed=step))
        algorithm.gradient_steps += 1
        assert algorithm.optimizers["critic"].step_count.tolist() == [step] * 3
        assert algorithm.optimizers["actor"].step_count.tolist() == [step // 2] * 3
        assert algorithm.optimizers["temperature"].step_count.tolist() == [step // 2] * 3
