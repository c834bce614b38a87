"""CrossQ's parts, by hand and beside plain torch: batch renormalization, the joint pass, Adam's
beta, the delay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform
from torch.nn import functional

from podracer_core.networks import BatchNorm, norm_shapes
from support.off_policy import ACTION_SIZE, MEMBERS, ROWS, build, history, make_batch, train

State = dict[str, Tensor]


def renormalization(steps: float, mean: float, variance: float) -> BatchNorm:
    tensors = {
        name: torch.zeros(1, *shape)
        for name, shape in norm_shapes("norm", 1, renormalized=True).items()
    }
    for name, value in {
        "scale": 2.0,
        "shift": 1.0,
        "mean": mean,
        "variance": variance,
        "steps": steps,
    }.items():
        tensors[f"norm.{name}"].fill_(value)
    return BatchNorm(tensors, "norm", 0.0)


@pytest.mark.parametrize(
    ("steps", "mean", "variance", "expected"),
    [
        # The rows 1 and 5 have mean 3 and deviation 2, hence are -1 and 1; scale 2 and shift 1.
        (99_999.0, 2.0, 1.0, [-1.0, 3.0]),
        # r = 2 / 1, d = (3 - 2) / 1: -1 and 3, which is what the running statistics make of 1 and
        # 5.
        (100_000.0, 2.0, 1.0, [-1.0, 7.0]),
        # r = 2 / 0.5 is more than 3, d = (3 - 0) / 0.5 more than 5: 3 * -1 + 5 and 3 + 5.
        (100_000.0, 0.0, 0.25, [5.0, 17.0]),
        # r = 2 / 8 is less than 1 / 3, d = (3 - 83) / 8 less than -5: -1 / 3 - 5 and 1 / 3 - 5.
        (100_000.0, 83.0, 64.0, [2 * (-1 / 3 - 5) + 1, 2 * (1 / 3 - 5) + 1]),
    ],
)
def test_batch_renormalization(steps, mean, variance, expected):
    norm = renormalization(steps, mean, variance)
    result = norm(torch.tensor([[[1.0], [5.0]]]), by_batch=True)
    torch.testing.assert_close(result.flatten(), torch.tensor(expected))
    norm.follow(torch.ones(1, 1, 1, dtype=torch.bool))
    assert norm._steps is not None
    assert norm._steps.item() == steps + 1
    assert norm.mean.item() == pytest.approx(0.99 * mean + 0.01 * 3)


def test_the_slope_of_batch_renormalization_takes_r_and_d_for_constants():
    rows = torch.tensor([[[1.0], [5.0], [4.0]]], requires_grad=True)
    renormalization(100_000.0, 2.0, 1.0)(rows, by_batch=True)[0, 0].sum().backward()
    own, ratio = rows.grad, rows.detach().std(1, correction=0).item()
    rows.grad = None
    (ratio * 2 * functional.batch_norm(rows[0], None, None, training=True, eps=1e-12))[
        0
    ].sum().backward()
    torch.testing.assert_close(own, rows.grad)


def peer(state: State, inputs: Tensor, *, by_batch: bool, index: int | None = None) -> Tensor:
    """One of a member's networks in plain torch."""
    for layer in range(3):
        one = {
            name: state[f"layers.{layer}.{name}"][() if index is None else index]
            for name in ("weight", "bias", "norm.scale", "norm.shift", "norm.mean", "norm.variance")
        }
        inputs = functional.batch_norm(
            inputs.relu() if layer else inputs,
            None if by_batch else one["norm.mean"][0].detach(),
            None if by_batch else one["norm.variance"][0].detach(),
            one["norm.scale"][0],
            one["norm.shift"][0],
            training=by_batch,
            eps=1e-3,
        )
        inputs = inputs @ one["weight"] + one["bias"]
    return inputs


def squashed(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = output.chunk(2, 1)
    raw, squash = mean + log_std.exp() * noise, TanhTransform()
    action = squash(raw)
    return action, (
        Normal(mean, log_std.exp()).log_prob(raw) - squash.log_abs_det_jacobian(raw, action)
    ).sum(1)


def gradient(state: State) -> Tensor:
    """As a `TrainedNetwork` has it: network by network, all tensors in their order."""
    parts = [
        (torch.zeros_like(tensor) if tensor.grad is None else tensor.grad).reshape(
            2 if state["layers.0.weight"].dim() == 3 else 1, -1
        )
        for tensor in state.values()
    ]
    return torch.cat(parts, 1).flatten()


def test_a_gradient_step_is_that_of_plain_torch():
    algorithm: Any = build("crossq", policy_delay=1)
    for member in range(MEMBERS):
        algorithm.set_hyperparameters(member, {"max_gradient_norm": 0.0})
    train(algorithm, history(algorithm, 10))
    batch, noises = make_batch(algorithm), algorithm.noise(2, ROWS, ACTION_SIZE)
    batch.weight[:, 1] = 0.1  # a row that does not count would be replaced by another
    before = [algorithm.member_state(member) for member in range(MEMBERS)]
    with torch.no_grad():
        algorithm.learn(batch)
    for member in range(MEMBERS):
        after = algorithm.member_state(member)["critic"]
        actor, critic = (
            {k: v.requires_grad_() for k, v in before[member][n].items()}
            for n in ("actor", "critic")
        )
        seen, following, action = (
            getattr(batch, n)[member] for n in ("observation", "next_observation", "action")
        )
        alpha = before[member]["algorithm"]["log_temperature"].exp().detach()
        weight = batch.weight[member]
        next_action, next_log_prob = squashed(
            peer(actor, following, by_batch=False), noises[member, 1]
        )
        joint = torch.cat(
            [torch.cat([seen, action], 1), torch.cat([following, next_action.detach()], 1)]
        )
        values = torch.stack(
            [peer(critic, joint, by_batch=True, index=index)[:, 0] for index in range(2)]
        )
        next_value = values[:, ROWS:].detach().min(0).values - alpha * next_log_prob.detach()
        target = batch.reward[member] + batch.discount[member] * next_value
        (0.5 * (values[:, :ROWS] - target).square() * weight).sum().backward()
        settings = algorithm.actor.settings
        own = {name: tensor for name, tensor in actor.items() if name not in settings}
        mine, drawn_log_prob = squashed(peer(own, seen, by_batch=True), noises[member, 0])
        inputs = torch.cat([seen, mine], 1)
        climbed = torch.stack(
            [peer(after, inputs, by_batch=False, index=index)[:, 0] for index in range(2)]
        )
        ((alpha * drawn_log_prob - climbed.min(0).values) * weight).sum().backward()
        for name, state in (("critic", critic), ("actor", own)):
            assert gradient(state).abs().max() > 1e-3
            torch.testing.assert_close(
                algorithm.optimizers[name].gradient[member], gradient(state), rtol=1e-3, atol=1e-5
            )


def test_there_are_no_targets_and_adam_forgets_by_half():
    algorithm: Any = build("crossq", policy_delay=1)
    with torch.no_grad():
        algorithm.learn(make_batch(algorithm))
    assert not any(name.startswith("target.") for name in algorithm.member_state(0)["critic"])
    for name, share in (("critic", 0.5), ("actor", 0.5), ("temperature", 0.1)):
        optimizer = algorithm.optimizers[name]
        torch.testing.assert_close(optimizer.first_moment, share * optimizer.gradient)


def test_the_actor_and_the_temperature_move_every_third_time():
    algorithm: Any = build("crossq")
    for step in range(1, 7):
        with torch.no_grad():
            algorithm.learn(make_batch(algorithm, seed=step))
        algorithm.gradient_steps += 1
        assert algorithm.optimizers["critic"].step_count.tolist() == [step] * 3
        assert algorithm.optimizers["actor"].step_count.tolist() == [step // 3] * 3
        assert algorithm.optimizers["temperature"].step_count.tolist() == [step // 3] * 3


def test_the_actor_has_sizes_of_its_own():
    algorithm: Any = build("crossq", actor_hidden_sizes=(12,))
    assert [weight.shape[2] for weight in algorithm.policy.network.weights] == [12, 2 * ACTION_SIZE]
    assert [weight.shape[2] for weight in algorithm.critic.network.weights] == [8, 9, 1]
