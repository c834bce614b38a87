"""What the H-term does to the four algorithms that have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch

from podracer_core.algorithms import (
    Algorithm,
    CohortConfig,
    HTerm,
    MemberConfig,
    Windows,
    algorithm_class,
    h_term,
)
from podracer_core.buffers import Rollout, allocate_rollout

FORMS = pytest.mark.parametrize("form", ["segment", "k_step"])
EVERY = pytest.mark.parametrize("name", ["ppo", "sac", "td3", "ddpg"])
OBSERVATIONS = gymnasium.spaces.Box(-10, 10, (6,))
BOX = gymnasium.spaces.Box(-2.0, 2.0, (2,))
ACTION_SPACES = (
    BOX,
    gymnasium.spaces.Discrete(5),
    gymnasium.spaces.MultiDiscrete([3, 4]),
    gymnasium.spaces.MultiBinary(3),
)


def build(
    name: str, form: str = "off", seeds: tuple[int, ...] = (1, 2, 3), space: Any = BOX, **knobs: Any
) -> Any:
    """An algorithm that takes one gradient step for each rollout of 90 steps in 5 environments."""
    shared: dict[str, Any] = {"hidden_sizes": (16, 17), "h_term": form, "horizon": 90}
    if name == "ppo":
        # Without a limit that actor and critic share, the critic's step is its own.
        shared |= {"minibatch_size": 450, "epochs": 1, "max_gradient_norm": 1e6}
    else:
        shared |= {
            "updates_per_step": 1 / 450,
            "learning_starts": 0,
            "batch_size": 40,
            "replay_capacity": 2000,
        }
    # with the usual noise, 0.1, nearly every log-probability is above what is clipped
    if name in ("td3", "ddpg"):
        shared["noise_scale"] = 0.5
    if name == "td3":
        shared["policy_delay"] = 1
    members = tuple(MemberConfig(f"agent-{seed}", seed) for seed in seeds)
    return algorithm_class(name)(CohortConfig(name, members, shared | knobs), OBSERVATIONS, space)


def experience(algorithm: Algorithm, seed: int = 0, steps: int = 90, num_envs: int = 5) -> Rollout:
    """Of an environment of noise, in which the actor acts."""
    generator = torch.Generator().manual_seed(seed)
    head, members = algorithm.actor.head, algorithm.members
    rollout = allocate_rollout(
        steps, members, num_envs, ((6,), torch.float32), (head.action_shape, head.action_dtype)
    )
    rollout.observation.normal_(generator=generator)
    rollout.reward.normal_(generator=generator)
    rollout.truncated.copy_(torch.rand(rollout.reward.shape, generator=generator) < 0.05)
    rollout.final_observation.copy_(rollout.observation[1:])
    keys = torch.arange(members * num_envs).view(-1, num_envs)
    drawn = algorithm.actor.draw_noise(keys, torch.zeros(members, dtype=torch.int64), steps)
    for t in range(steps):
        with torch.no_grad():
            action, log_prob = algorithm.actor.act(rollout.observation[t], drawn[t])
        rollout.action[t].copy_(action)
        rollout.log_prob[t].copy_(log_prob)
    return rollout


def sliced(rollout: Rollout, member: int) -> Rollout:
    part, tensors = slice(member, member + 1), rollout.to_tensors()
    tensors["first_step"] = rollout.first_step[part]
    for name in ("count", "return_sum", "length_sum"):
        tensors[f"episodes.{name}"] = tensors[f"episodes.{name}"][part]
    for name in ("observation", "action", "log_prob", "reward", "terminated", "truncated", "valid"):
        tensors[name] = tensors[name][:, part].clone()
    ended = tensors["terminated"] | tensors["truncated"]
    tensors["final_rows"] = rollout.final_observation[:, part].flatten(0, 2)[ended.flatten()]
    return Rollout.from_tensors(tensors, rollout.policy_version)


def weights(algorithm: Algorithm, member: int, group: str) -> torch.Tensor:
    state: Mapping[str, torch.Tensor] = algorithm.member_state(member)[group]
    return torch.cat([tensor.flatten() for tensor in state.values()])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The H-term acts from the first rollout on."""
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 1)


@pytest.mark.usefixtures("always")
@FORMS
@EVERY
def test_it_moves_the_actor_and_leaves_the_critic_alone(name, form):
    # Adam's first step knows only the signs of the gradient, so it takes some weight to be seen.
    plain, with_term = build(name), build(name, form, h_term_weight=10.0)
    rollout = experience(plain)
    plain.update(rollout)
    with_term.update(rollout)
    for member in range(3):
        assert torch.equal(weights(plain, member, "critic"), weights(with_term, member, "critic"))
        assert not torch.allclose(
            weights(plain, member, "actor"), weights(with_term, member, "actor"), atol=1e-5
        )
    assert with_term.active.all()


@pytest.mark.usefixtures("always")
@FORMS
@EVERY
def test_with_no_weight_it_changes_nothing(name, form):
    plain, weightless = build(name), build(name, form, h_term_weight=0.0)
    rollout = experience(plain)
    for _ in range(2):
        plain.update(rollout)
        weightless.update(rollout)
    for member in range(3):
        assert torch.equal(weights(plain, member, "actor"), weights(weightless, member, "actor"))


@FORMS
@EVERY
def test_below_4096_transitions_it_changes_nothing(name, form):
    plain, waiting = build(name), build(name, form)
    rollout = experience(plain)
    plain.update(rollout)
    waiting.update(rollout)
    for member in range(3):
        assert torch.equal(weights(plain, member, "actor"), weights(waiting, member, "actor"))


@pytest.mark.usefixtures("always")
@FORMS
@EVERY
def test_a_cohort_agrees_with_its_members_alone_and_twice_is_the_same(name, form):
    cohort, again = build(name, form), build(name, form)
    rollout = experience(cohort)
    singles = [build(name, form, (seed,)) for seed in (1, 2, 3)]
    cohort.update(rollout)
    again.update(rollout)
    for member, single in enumerate(singles):
        single.update(sliced(rollout, member))
        mine = weights(cohort, member, "actor")
        assert torch.equal(mine, weights(again, member, "actor"))
        torch.testing.assert_close(weights(single, 0, "actor"), mine, rtol=1e-5, atol=1e-6)


def normalized_windows(algorithm: Any, windows: Windows) -> torch.Tensor:
    normalized: torch.Tensor = algorithm.actor.normalize(windows.observation)
    return normalized


@pytest.mark.usefixtures("always")
@FORMS
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_the_density_is_the_actors_own(name, form):
    """SAC's squashed Gaussian, and Normal(tanh mu, exploration sigma) of a deterministic actor."""
    knobs = {"noise_scale": 0.3} if name == "td3" else {}
    algorithm = build(name, form, **knobs)
    algorithm.update(experience(algorithm))
    term = algorithm._h_term
    windows = term.draw(40, algorithm.update_count)
    output = algorithm.policy.network(normalized_windows(algorithm, windows))
    if name == "td3":
        density: Any = torch.distributions.Normal(output.tanh(), 0.3)
    else:
        mean, log_std = output.chunk(2, -1)
        squash = torch.distributions.transforms.TanhTransform()
        density = torch.distributions.TransformedDistribution(
            torch.distributions.Normal(mean, log_std.exp()), squash
        )
    expected = term.loss(windows, density.log_prob(windows.action).sum(-1))
    torch.testing.assert_close(algorithm.h_term_loss(), expected, rtol=1e-4, atol=1e-6)
    assert (expected != 0).all()


@pytest.mark.usefixtures("always")
@FORMS
def test_a_deterministic_actor_without_noise_survives(form):
    algorithm = build("ddpg", form, noise_scale=0.0)
    algorithm.update(experience(algorithm))
    assert algorithm.active.all()


@pytest.mark.usefixtures("always")
@FORMS
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_ppos_written_out_gradient_is_that_of_autograd(form, space):
    algorithm = build("ppo", form, space=space)
    torch.manual_seed(0)
    networks = algorithm._networks
    algorithm.update(experience(algorithm))
    networks.parameters.flat.normal_(std=0.3)
    networks.parameters.zero_gradient()
    (log_std_gradient,) = algorithm._further_gradients(40)
    networks.parameters.gather_gradient()
    networks.gather_settings(log_std_gradient)
    mine = networks.parameters.gradient.clone()

    networks.parameters.zero_gradient()
    windows = algorithm._h_term.draw(40, algorithm._optimizer.step_count.long())
    output = networks(normalized_windows(algorithm, windows))[:, 0]
    action = windows.action
    match space:
        case gymnasium.spaces.Box():
            std = networks.parameters["log_std"][0::2].exp().unsqueeze(1)
            log_prob = torch.distributions.Normal(output, std).log_prob(action).sum(-1)
        case gymnasium.spaces.Discrete():
            log_prob = torch.distributions.Categorical(logits=output).log_prob(action)
        case gymnasium.spaces.MultiDiscrete():
            first, second = output.split([3, 4], -1)
            log_prob = torch.distributions.Categorical(logits=first).log_prob(action[..., 0])
            log_prob = log_prob + torch.distributions.Categorical(logits=second).log_prob(
                action[..., 1]
            )
        case _:
            log_prob = torch.distributions.Bernoulli(logits=output).log_prob(action.float()).sum(-1)
    algorithm._h_term.loss(windows, log_prob).sum().backward()
    networks.parameters.gather_gradient()
    torch.testing.assert_close(mine, networks.parameters.gradient, rtol=1e-4, atol=1e-7)
    assert mine[0::2].abs().sum() > 0
    assert (mine[1::2] == 0).all()


@pytest.mark.usefixtures("always")
@FORMS
def test_ppos_density_knows_which_actions_were_allowed(form):
    algorithm = build("ppo", form, space=gymnasium.spaces.Discrete(5))
    rollout = experience(algorithm)
    allowed = torch.rand(91, 3, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.4
    allowed[:-1].scatter_(-1, rollout.action.unsqueeze(-1), True)
    algorithm.update(replace(rollout, action_mask=allowed))
    seen: list[torch.Tensor] = []
    algorithm._h_term.slope = lambda windows, log_prob: (
        seen.append(log_prob) or torch.zeros_like(log_prob)
    )
    algorithm._further_gradients(40)
    windows = algorithm._h_term.draw(40, algorithm._optimizer.step_count.long())
    output = algorithm.actor.output(normalized_windows(algorithm, windows))
    density = torch.distributions.Categorical(
        logits=output.masked_fill(~windows.action_mask, -torch.inf)
    )
    torch.testing.assert_close(seen[0], density.log_prob(windows.action))
    assert not windows.action_mask.all()


@pytest.mark.usefixtures("always")
@EVERY
def test_every_rollout_is_remembered(name):
    algorithm = build(name, "segment")
    for seed in range(3):
        algorithm.update(experience(algorithm, seed))
    # What comes does not go on from what was: the newest rows break off, but for those that ended
    # an episode.
    assert (algorithm._h_term._trajectories.count > 3 * 450 - 2 * 5 - 1).all()


def test_it_is_off_unless_asked_for():
    assert HTerm.of({}, {}, torch.zeros(1)) is None
    for name in ("ppo", "sac", "td3", "ddpg"):
        assert build(name)._h_term is None
