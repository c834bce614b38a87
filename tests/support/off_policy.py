"""Small off-policy algorithms and what they learn from. All sizes differ, so that nothing can
broadcast unnoticed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.algorithms import Batch, CohortConfig, MemberConfig, OffPolicy, algorithm_class
from podracer_core.buffers import EpisodeStatistics, Rollout, allocate_rollout
from podracer_core.catalogue import BUILT_IN_ALGORITHMS
from podracer_core.networks import StackedNetwork

MEMBERS, ENVS, HORIZON, ROWS, OBSERVATIONS, ACTIONS, ACTION_SIZE = 3, 4, 5, 7, 6, 5, 2
OBSERVATION_SPACE = gymnasium.spaces.Box(-10, 10, (OBSERVATIONS,))
IMAGE_SPACE = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
DISCRETE = gymnasium.spaces.Discrete(ACTIONS)
BOX = gymnasium.spaces.Box(-2.0, 2.0, (ACTION_SIZE,))

EVERY = tuple(name for name, info in BUILT_IN_ALGORITHMS.items() if not info.on_policy)
DISTINCT = tuple(name for name in EVERY if name not in ("double_dqn", "dueling_dqn"))
"""Those with code of their own: D3QN does what these two do."""
VALUE_BASED = ("dqn", "double_dqn", "dueling_dqn", "d3qn", "qr_dqn")
CONTINUOUS = ("ddpg", "td3", "sac", "modsac", "redq", "crossq", "flash_sac")

# Two gradient steps for each rollout of 5 steps in 4 environments.
SHARED = {
    "hidden_sizes": (8, 9), "batch_size": ROWS, "horizon": HORIZON, "learning_starts": 0,
    "replay_capacity": 64, "updates_per_step": 0.1,
}  # fmt: skip
OWN_SHARED: dict[str, dict[str, Any]] = {
    "redq": {"ensemble_size": 4, "subset_size": 2},
    "qr_dqn": {"quantiles": 4},
    "crossq": {"actor_hidden_sizes": (8, 9)},
    "flash_sac": {"hidden_sizes": (8, 8), "value_bins": 11},
}
# Every hyperparameter differs from member to member.
HYPERPARAMETERS: tuple[dict[str, float], ...] = (
    {
        "learning_rate": 1e-3, "gamma": 0.9, "target_rate": 0.1, "max_gradient_norm": 0.0,
        "noise_scale": 0.1, "initial_temperature": 0.2, "target_entropy_scale": 1.0,
        "target_noise": 0.2, "reliability_rate": 0.1, "final_exploration": 0.1,
        "actor_learning_rate_scale": 1.0,
    },
    {
        "learning_rate": 3e-3, "gamma": 0.99, "target_rate": 0.01, "max_gradient_norm": 0.05,
        "noise_scale": 0.3, "initial_temperature": 1.0, "target_entropy_scale": 0.5,
        "target_noise_clip": 0.1, "reliability_rate": 0.5, "final_exploration": 0.0,
        "actor_learning_rate_scale": 0.3,
    },
    {
        "learning_rate": 1e-2, "gamma": 0.5, "target_rate": 0.5, "max_gradient_norm": 1.0,
        "noise_scale": 0.0, "initial_temperature": 0.01, "target_entropy_scale": 0.9,
        "target_noise": 0.0, "reliability_rate": 1.0, "final_exploration": 0.5,
        "actor_learning_rate_scale": 3.0,
    },
)  # fmt: skip


def build(name: str, *members: int, image: bool = False, alike: bool = False, **shared: Any) -> Any:
    """The members with these numbers, all three by default, each with hyperparameters of its own
    unless `alike`."""
    info = BUILT_IN_ALGORITHMS[name]
    known = info.defaults("member")
    cohort = CohortConfig(
        name,
        tuple(
            MemberConfig(
                f"agent-{m}",
                10 + m,
                {} if alike else {k: v for k, v in HYPERPARAMETERS[m].items() if k in known},
            )
            for m in members or range(MEMBERS)
        ),
        SHARED | OWN_SHARED.get(name, {}) | shared,
    )
    action_space = BOX if name in CONTINUOUS else DISCRETE
    return algorithm_class(name)(cohort, IMAGE_SPACE if image else OBSERVATION_SPACE, action_space)


def history(algorithm: OffPolicy, steps: int, seed: int = 0, envs: int = ENVS) -> Rollout:
    """One long rollout of noise with ends of all kinds; the final observation of an end is not the
    next episode's."""
    generator = torch.Generator().manual_seed(seed)
    head, members = algorithm.actor.head, algorithm.members
    image = algorithm.policy.network.architecture.image is not None
    observation = (IMAGE_SPACE.shape, torch.uint8) if image else ((OBSERVATIONS,), torch.float32)
    rollout = allocate_rollout(
        steps, members, envs, observation, (head.action_shape, head.action_dtype)
    )
    for tensor in (rollout.observation, rollout.final_observation):
        if image:
            tensor.random_(0, 256, generator=generator)
        else:
            tensor.normal_(generator=generator)
    if head.action_dtype == torch.int64:
        rollout.action.random_(0, ACTIONS, generator=generator)
    else:
        rollout.action.uniform_(-1, 1, generator=generator)
    rollout.reward.normal_(generator=generator)
    for end in (rollout.terminated, rollout.truncated):
        end.copy_(torch.rand(end.shape, generator=generator) < 0.1)
    ended = rollout.terminated | rollout.truncated
    rollout.final_observation[~ended] = rollout.observation[1:][~ended]
    return rollout


def cut(rollout: Rollout, start: int, stop: int) -> Rollout:
    """Steps start … stop - 1 of a rollout."""
    names = (
        "action",
        "final_observation",
        "log_prob",
        "reward",
        "terminated",
        "truncated",
        "valid",
    )
    rows = {name: getattr(rollout, name)[start:stop] for name in names}
    observation = rollout.observation[start : stop + 1]
    return replace(rollout, **rows, observation=observation, first_step=rollout.first_step + start)


def pieces(rollout: Rollout, horizon: int = HORIZON) -> Iterator[Rollout]:
    """A long rollout as a collector would have given it."""
    for start in range(0, rollout.horizon, horizon):
        yield cut(rollout, start, min(start + horizon, rollout.horizon))


def train(algorithm: OffPolicy, rollout: Rollout) -> OffPolicy:
    """Update on all pieces of a long rollout; returns the algorithm."""
    for piece in pieces(rollout, algorithm.horizon):
        algorithm.update(piece)
    return algorithm


def select(rollout: Rollout, *members: int) -> Rollout:
    """Some members of a rollout, in this order."""
    which = list(members)
    names = (
        "observation",
        "final_observation",
        "action",
        "log_prob",
        "reward",
        "terminated",
        "truncated",
        "valid",
    )
    statistics = {
        field.name: getattr(rollout.episodes, field.name)[which]
        for field in fields(EpisodeStatistics)
    }
    return replace(
        rollout,
        **{name: getattr(rollout, name)[:, which] for name in names},
        first_step=rollout.first_step[which],
        episodes=EpisodeStatistics(**statistics),
    )


def make_batch(algorithm: OffPolicy, rows: int = ROWS, seed: int = 0) -> Batch:
    """Noise, with a row of no weight and one from which nothing follows."""
    generator = torch.Generator().manual_seed(seed)
    shape = (algorithm.members, rows)
    head = algorithm.actor.head
    weight = torch.rand(shape, generator=generator)
    weight[:, 1] = 0.0
    discount = torch.rand(shape, generator=generator)
    discount[:, 2] = 0.0
    if head.action_dtype == torch.int64:
        action = torch.randint(ACTIONS, shape, generator=generator)
    else:
        action = 2 * torch.rand(*shape, ACTION_SIZE, generator=generator) - 1
    observation, next_observation = torch.randn(2, *shape, OBSERVATIONS, generator=generator)
    return Batch(
        observation=observation,
        action=action,
        reward=torch.randn(shape, generator=generator),
        discount=discount,
        next_observation=next_observation,
        weight=weight / weight.sum(1, keepdim=True),
        place=torch.zeros(shape, dtype=torch.int64),
    )


def set_outputs(network: StackedNetwork, values: Sequence[Sequence[float]]) -> None:
    """From now on network g answers values[g] to everything, up to what it learns."""
    network.weights[-1].detach().zero_()
    network.biases[-1].detach()[:, 0].copy_(torch.tensor(values))


def weights(algorithm: OffPolicy, member: int) -> Tensor:
    """What one member has learned, targets included, in one row."""
    learned = [network.member_state(member) for network in algorithm.networks.values()]
    if "log_temperature" in algorithm.memory:
        learned.append({"log_temperature": algorithm.memory["log_temperature"][member]})
    return torch.cat([tensor.flatten() for tensors in learned for tensor in tensors.values()])


def same_state(
    first: OffPolicy, member: int, second: OffPolicy, other: int, *leave_out: str
) -> bool:
    """Whether two members have the same state, bit for bit, but for some groups."""
    mine, theirs = first.member_state(member), second.member_state(other)
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[group][name], theirs[group][name])
        for group in mine
        if group not in leave_out
        for name in mine[group]
    )


def plain_network(
    state: dict[str, Tensor], index: int | None = None, target: bool = False
) -> nn.Sequential:
    """A copy of one network out of a member's state, made of torch's own layers; `index` of an
    ensemble's."""
    prefix = "target." if target else ""
    layers: list[nn.Module] = []
    for layer in range(sum(name.startswith(f"{prefix}layers.") for name in state) // 2):
        weight, bias = (state[f"{prefix}layers.{layer}.{kind}"] for kind in ("weight", "bias"))
        if index is not None:
            weight, bias = weight[index], bias[index]
        linear = nn.Linear(*weight.shape)
        linear.weight.data.copy_(weight.t())
        linear.bias.data.copy_(bias[0])
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def plain_gradient(*networks: nn.Module) -> Tensor:
    """The gradients of such copies in one row, as a `TrainedNetwork` has them."""
    linears = [
        layer for network in networks for layer in network.modules() if isinstance(layer, nn.Linear)
    ]
    rows: list[Tensor] = []
    for linear in linears:
        for parameter in (linear.weight, linear.bias):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            rows.append(gradient.t().flatten())
    return torch.cat(rows)


def set_linear(
    network: StackedNetwork, constant: Sequence[float], slope: Sequence[Sequence[float]]
) -> None:
    """Critic g answers constant[g] + slope[g] * action to every action of ACTION_SIZE numbers in
    [-1, 1].

    Its hidden layers pass the action on, moved by ten, where relu changes nothing.
    """
    first, *others = (weight.detach() for weight in network.weights)
    for tensor in (*network.weights, *network.biases):
        tensor.detach().zero_()
    numbers = range(ACTION_SIZE)
    for number in numbers:
        first[:, first.shape[1] - ACTION_SIZE + number, number] = 1.0
        network.biases[0].detach()[:, 0, number] = 10.0
        for weight in others[:-1]:
            weight[:, number, number] = 1.0
    slopes = torch.tensor(slope)
    others[-1][:, :ACTION_SIZE, 0] = slopes
    network.biases[-1].detach()[:, 0, 0] = torch.tensor(constant) - 10 * slopes.sum(1)
