"""One gradient step of each algorithm against the same in plain torch: one agent, its own networks,
autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, TanhTransform

from podracer_core.algorithms import Batch
from podracer_core.random_numbers import permutation, subset_keys
from support.off_policy import (
    ACTION_SIZE,
    MEMBERS,
    ROWS,
    build,
    make_batch,
    plain_gradient,
    plain_network,
)

State = dict[str, dict[str, Tensor]]


@dataclass
class Agent:
    """What one agent's step depends on: its state before it and after it (of which the actor sees
    the new critic), its rows of the batch, [B, …] each, its random numbers and its
    hyperparameters."""

    before: State
    after: State
    batch: Batch
    noise: Tensor
    hyper: dict[str, float]
    subset: list[int]

    def critics(
        self, *, new: bool = False, target: bool = False, count: int = 2
    ) -> list[nn.Sequential]:
        state = (self.after if new else self.before)["critic"]
        return [
            plain_network(state, None if count == 1 else index, target) for index in range(count)
        ]

    def actor(self, *, target: bool = False) -> nn.Sequential:
        return plain_network(self.before["actor"], target=target)

    def target(self, next_value: Tensor) -> Tensor:
        return (self.batch.reward + self.batch.discount * next_value).detach()

    def mean(self, rows: Tensor) -> Tensor:
        return (self.batch.weight * rows).sum()


def seen_with(observation: Tensor, action: Tensor) -> Tensor:
    return torch.cat([observation, action], 1)


def q_values(critics: list[nn.Sequential], observation: Tensor, action: Tensor) -> Tensor:
    """[N, B]"""
    return torch.stack([critic(seen_with(observation, action)).squeeze(1) for critic in critics])


def critic_loss(agent: Agent, values: Tensor, next_value: Tensor) -> Tensor:
    return sum(agent.mean(0.5 * (row - agent.target(next_value)) ** 2) for row in values)


def dqn(agent: Agent, *, dueling: bool = False, double: bool = False) -> dict[str, Tensor]:
    learned, slow = agent.actor(), agent.actor(target=True)

    def q(network: nn.Sequential, observation: Tensor) -> Tensor:
        output = network(observation)
        if not dueling:
            return output
        return output[:, :1] + output[:, 1:] - output[:, 1:].mean(1, keepdim=True)

    following = q(slow, agent.batch.next_observation)
    best = q(learned, agent.batch.next_observation).argmax(1) if double else following.argmax(1)
    rows = torch.arange(ROWS)
    values = q(learned, agent.batch.observation)[rows, agent.batch.action]
    critic_loss(agent, values.unsqueeze(0), following[rows, best]).backward()
    return {"actor": plain_gradient(learned)}


def d3qn(agent: Agent) -> dict[str, Tensor]:
    return dqn(agent, dueling=True, double=True)


def ddpg(agent: Agent) -> dict[str, Tensor]:
    batch, critics, actor = agent.batch, agent.critics(count=1), agent.actor()
    next_action = agent.actor(target=True)(batch.next_observation).tanh()
    next_value = q_values(agent.critics(target=True, count=1), batch.next_observation, next_action)[
        0
    ]
    critic_loss(agent, q_values(critics, batch.observation, batch.action), next_value).backward()
    climbed = q_values(
        agent.critics(new=True, count=1), batch.observation, actor(batch.observation).tanh()
    )[0]
    agent.mean(-climbed).backward()
    return {"critic": plain_gradient(*critics), "actor": plain_gradient(actor)}


def td3(agent: Agent) -> dict[str, Tensor]:
    batch, critics, actor = agent.batch, agent.critics(), agent.actor()
    limit = agent.hyper["target_noise_clip"]
    noise = (agent.noise.view(ROWS, ACTION_SIZE) * agent.hyper["target_noise"]).clamp(-limit, limit)
    next_action = (agent.actor(target=True)(batch.next_observation).tanh() + noise).clamp(-1, 1)
    next_value = (
        q_values(agent.critics(target=True), batch.next_observation, next_action).min(0).values
    )
    critic_loss(agent, q_values(critics, batch.observation, batch.action), next_value).backward()
    climbed = q_values(agent.critics(new=True), batch.observation, actor(batch.observation).tanh())[
        0
    ]
    agent.mean(-climbed).backward()
    return {"critic": plain_gradient(*critics), "actor": plain_gradient(actor)}


def squashed(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action and its log-probability, by torch.distributions."""
    mean, log_std = output.chunk(2, 1)
    policy, squash = Normal(mean, log_std.exp()), TanhTransform()
    raw = mean + log_std.exp() * noise
    action = squash(raw)
    return action, (policy.log_prob(raw) - squash.log_abs_det_jacobian(raw, action)).sum(1)


def sac(agent: Agent, count: int = 2, *, mean: bool = False) -> dict[str, Tensor]:
    batch, critics, actor = agent.batch, agent.critics(count=count), agent.actor()
    noise, next_noise = agent.noise.view(2, ROWS, ACTION_SIZE)
    alpha = agent.before["algorithm"]["log_temperature"].exp()
    next_action, next_log_prob = squashed(actor(batch.next_observation), next_noise)
    following = q_values(
        agent.critics(target=True, count=count), batch.next_observation, next_action
    )
    next_value = following[agent.subset].min(0).values - alpha * next_log_prob
    critic_loss(agent, q_values(critics, batch.observation, batch.action), next_value).backward()
    actor.zero_grad()
    action, log_prob = squashed(actor(batch.observation), noise)
    climbed = q_values(agent.critics(new=True, count=count), batch.observation, action)
    agent.mean(alpha * log_prob - (climbed.mean(0) if mean else climbed.min(0).values)).backward()
    return {"critic": plain_gradient(*critics), "actor": plain_gradient(actor)}


def redq(agent: Agent) -> dict[str, Tensor]:
    return sac(agent, 4, mean=True)


def discrete_sac(agent: Agent) -> dict[str, Tensor]:
    batch, critics, actor = agent.batch, agent.critics(), agent.actor()
    alpha = agent.before["algorithm"]["log_temperature"].exp()
    following = Categorical(logits=actor(batch.next_observation))
    next_values = (
        torch.stack([slow(batch.next_observation) for slow in agent.critics(target=True)])
        .min(0)
        .values
    )
    next_value = (following.probs * next_values).sum(1) + alpha * following.entropy()
    rows = torch.arange(ROWS)
    values = torch.stack([critic(batch.observation)[rows, batch.action] for critic in critics])
    critic_loss(agent, values, next_value).backward()
    actor.zero_grad()
    policy = Categorical(logits=actor(batch.observation))
    climbed = (
        torch.stack([critic(batch.observation) for critic in agent.critics(new=True)])
        .min(0)
        .values.detach()
    )
    agent.mean(-alpha * policy.entropy() - (policy.probs * climbed).sum(1)).backward()
    return {"critic": plain_gradient(*critics), "actor": plain_gradient(actor)}


# Of each algorithm: itself in plain torch, and the random numbers that a step takes.
PEERS: dict[str, tuple[Callable[[Agent], dict[str, Tensor]], tuple[int, ...]]] = {
    "dqn": (dqn, (1,)),
    "d3qn": (d3qn, (1,)),
    "ddpg": (ddpg, (1,)),
    "td3": (td3, (ROWS, ACTION_SIZE)),
    "sac": (sac, (2, ROWS, ACTION_SIZE)),
    "redq": (redq, (2, ROWS, ACTION_SIZE)),
    "discrete_sac": (discrete_sac, (1,)),
}


def states(algorithm: Any) -> list[State]:
    return [algorithm.member_state(member) for member in range(MEMBERS)]


@pytest.mark.parametrize("name", PEERS)
def test_a_gradient_step_is_that_of_plain_torch(name):
    """The second step, when targets and networks are no longer equal; the actor's is taken on the
    new critic."""
    peer, noise_shape = PEERS[name]
    algorithm = build(name, policy_delay=1) if name == "td3" else build(name)
    for member in range(MEMBERS):
        algorithm.set_hyperparameters(member, {"max_gradient_norm": 0.0})
    with torch.no_grad():
        algorithm.learn(make_batch(algorithm, seed=1))
    algorithm._streams.count += 1
    batch, before, noise = make_batch(algorithm), states(algorithm), algorithm.noise(*noise_shape)
    subset = [[0, 1]] * MEMBERS
    if name == "redq":
        subset = permutation(subset_keys(algorithm.seeds), algorithm.update_count, 4)[
            :, :2
        ].tolist()
    with torch.no_grad():
        algorithm.learn(batch)
    after = states(algorithm)
    for member in range(MEMBERS):
        rows = Batch(**{field: getattr(batch, field)[member] for field in Batch.__slots__})
        hyper = {key: value[member].item() for key, value in algorithm.hyperparameters.items()}
        expected = peer(
            Agent(before[member], after[member], rows, noise[member], hyper, subset[member])
        )
        assert expected.keys() == algorithm.networks.keys()
        for network, gradient in expected.items():
            mine = algorithm.optimizers[network].gradient[member]
            assert gradient.abs().max() > 1e-3
            torch.testing.assert_close(mine, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PEERS)
def test_every_network_takes_adams_step_at_its_members_rate(name):
    algorithm = build(name, policy_delay=1) if name == "td3" else build(name)
    before = states(algorithm)
    with torch.no_grad():
        algorithm.learn(make_batch(algorithm))
    after = states(algorithm)
    for network in algorithm.networks:
        for member in range(MEMBERS):
            rate = (1e-3, 3e-3, 1e-2)[member]
            if network == "actor" and "actor_learning_rate_scale" in algorithm.hyperparameters:
                rate *= (1.0, 0.3, 3.0)[member]
            gradient = algorithm.optimizers[network].gradient[member]
            own = [key for key in before[member][network] if key.startswith("layers.")]
            count = algorithm.networks[network].count
            step = torch.cat([
                (after[member][network][key] - before[member][network][key]).view(count, -1) for key in own
            ], 1)  # fmt: skip
            expected = -rate * gradient / (gradient.abs() + 1e-8)
            torch.testing.assert_close(step.flatten(), expected, rtol=1e-3, atol=2e-3 * rate)
