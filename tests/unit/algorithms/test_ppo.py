"""PPO on the member axis: its formulas, its members' independence, its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.ppo import PPO, Minibatch
from podracer_core.algorithms.registry import algorithm_class
from podracer_core.algorithms.surrogate import clipped_surrogate
from podracer_core.buffers import Rollout
from podracer_core.errors import InvalidInput

MakePPO = Callable[..., PPO]
MakeRollout = Callable[..., Rollout]
KINDS = ("discrete", "box")
BOTH = pytest.mark.parametrize("kind", KINDS)


def weights(algorithm: PPO, member: int) -> torch.Tensor:
    """Everything that is trained, of one member, in one row."""
    state = algorithm.member_state(member)
    return torch.cat([tensor.flatten() for group in ("actor", "critic") for tensor in state[group].values()])


def same_state(first: PPO, member: int, second: PPO, other: int, *leave_out: str) -> bool:
    mine, theirs = first.member_state(member), second.member_state(other)
    return all(
        torch.equal(mine[group][name], theirs[group][name])
        for group in mine
        if group not in leave_out
        for name in mine[group]
    )


def test_surrogate_by_hand_and_its_gradient_is_zero_where_it_clips() -> None:
    # ratio, advantage -> surrogate and derivative in log ratio, with a clip range of 0.2
    cases = [
        (1.0, 2.0, 2.0, 2.0),
        (1.5, 2.0, 2.4, 0.0),  # good and already 50 % likelier: clipped
        (0.5, 2.0, 1.0, 1.0),  # good but less likely than before: pulled back
        (0.5, -2.0, -1.6, 0.0),  # bad and already half as likely: clipped
        (1.5, -2.0, -3.0, -3.0),  # bad but likelier than before: pulled back
        (1.1, -2.0, -2.2, -2.2),
    ]
    ratio, advantage, expected, slope = torch.tensor(cases).t().unsqueeze(1)
    log_ratio = ratio.log().requires_grad_()
    surrogate, derivative = clipped_surrogate(log_ratio, advantage, torch.tensor([0.2]))
    torch.testing.assert_close(surrogate, expected)
    torch.testing.assert_close(derivative, slope)
    surrogate.sum().backward()
    torch.testing.assert_close(log_ratio.grad, slope)


@BOTH
def test_backward_is_the_gradient_of_the_papers_loss(make_ppo: MakePPO, kind: str) -> None:
    """The written-out derivatives against autograd through torch.distributions (equation 9, to be minimized)."""
    algorithm = make_ppo(kind)
    torch.manual_seed(0)
    networks, head, size = algorithm._networks, algorithm.actor.head, 11
    parameters = networks.parameters
    parameters.flat.normal_(std=0.4)
    action = torch.randint(7, (3, size)) if kind == "discrete" else torch.randn(3, size, 2)
    log_prob, advantage, target = torch.randn(3, 3, size)
    weight = torch.rand(3, size).softmax(1)
    batch = Minibatch(torch.randn(3, size, 6), action, log_prob - 2, advantage, target, weight)
    with torch.no_grad():
        _, log_std_gradient = algorithm._backward(batch)
    parameters.gather_gradient()
    networks.log_std_gradient.copy_(log_std_gradient)
    mine = parameters.gradient.clone()

    parameters.zero_gradient()
    output = networks(batch.observation)
    if head.log_std_size:
        std = parameters["log_std"][0::2].exp().unsqueeze(1)
        density: Any = torch.distributions.Independent(torch.distributions.Normal(output[:, 0], std), 1)
    else:
        density = torch.distributions.Categorical(logits=output[:, 0])
    ratio = (density.log_prob(action) - batch.log_prob).exp()
    hyper = {name: value.unsqueeze(1) for name, value in algorithm._hyperparameters.items()}
    clipped = ratio.clamp(1 - hyper["clip_range"], 1 + hyper["clip_range"])
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    value_error = (output[:, 1, :, 0] - target).square()
    loss = (
        -surrogate + hyper["value_coefficient"] * 0.5 * value_error - hyper["entropy_coefficient"] * density.entropy()
    )
    (weight * loss).sum().backward()
    parameters.gather_gradient()
    assert (ratio != clipped).any()
    assert (ratio == clipped).any()
    torch.testing.assert_close(mine, parameters.gradient, rtol=1e-4, atol=1e-6)


@BOTH
def test_the_entropy_bonus_makes_a_policy_less_certain(make_ppo: MakePPO, make_rollout: MakeRollout, kind: str) -> None:
    def entropy_after(coefficient: float) -> torch.Tensor:
        algorithm = make_ppo(kind, 0, learning_rate=0.01, epochs=20)
        algorithm.set_hyperparameters(0, {"entropy_coefficient": coefficient, "learning_rate": 0.01})
        torch.manual_seed(0)
        algorithm.actor.network.weights[-1].normal_()
        rollout = make_rollout(algorithm.actor)
        algorithm.update(rollout)
        algorithm.set_hyperparameters(0, {"learning_rate": 1e-7})
        return algorithm.update(replace(rollout, policy_version=1))["entropy"]

    assert entropy_after(1.0).item() > entropy_after(0.0).item() + 0.05


@BOTH
def test_a_cohort_gives_what_its_agents_give_alone(
    make_ppo: MakePPO, make_rollout: MakeRollout, member_rollout: MakeRollout, kind: str
) -> None:
    cohort = make_ppo(kind)
    rollout = make_rollout(cohort.actor)
    alone = [make_ppo(kind, m) for m in range(3)]
    for m in range(3):
        assert torch.equal(weights(cohort, m), weights(alone[m], 0))
    together = cohort.update(rollout)
    for m in range(3):
        metrics = alone[m].update(member_rollout(rollout, m))
        torch.testing.assert_close(weights(alone[m], 0), weights(cohort, m), rtol=1e-5, atol=1e-6)
        for name, value in metrics.items():
            torch.testing.assert_close(value[0], together[name][m], rtol=1e-3, atol=1e-5)
    assert not torch.allclose(weights(cohort, 0), weights(cohort, 1))


@BOTH
def test_the_order_and_the_company_of_members_do_not_matter(
    make_ppo: MakePPO, make_rollout: MakeRollout, member_rollout: MakeRollout, kind: str
) -> None:
    pair, trio = make_ppo(kind, 2, 0), make_ppo(kind)
    rollout = make_rollout(trio.actor)
    parts = [member_rollout(rollout, m) for m in (2, 0)]
    names = ("observation", "final_observation", "action", "log_prob", "reward", "terminated", "truncated", "valid")
    joined = replace(
        parts[0],
        **{name: torch.cat([getattr(part, name) for part in parts], 1) for name in names},
        first_step=torch.zeros(2, dtype=torch.int64),
    )
    trio.update(rollout)
    pair.update(joined)
    torch.testing.assert_close(weights(pair, 0), weights(trio, 2), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights(pair, 1), weights(trio, 0), rtol=1e-5, atol=1e-6)


@BOTH
def test_same_seed_twice_gives_equal_weights_bit_for_bit(
    make_ppo: MakePPO, make_rollout: MakeRollout, kind: str
) -> None:
    def train() -> torch.Tensor:
        algorithm = make_ppo(kind)
        for seed in range(3):
            algorithm.update(replace(make_rollout(algorithm.actor, seed), policy_version=algorithm.version))
        return torch.stack([weights(algorithm, m) for m in range(3)])

    first = train()
    assert torch.equal(first, train())
    assert first.isfinite().all()


@BOTH
def test_minibatches_hold_every_row_once_in_the_members_own_order(make_ppo: MakePPO, kind: str) -> None:
    algorithm = make_ppo(kind)
    action_size = 1 if kind == "discrete" else 2
    rows, columns = 20, 6 + action_size + 4
    batch = torch.arange(3 * rows, dtype=torch.float32).view(3, rows, 1).expand(-1, -1, columns).contiguous()
    order = torch.stack([torch.randperm(rows, generator=torch.Generator().manual_seed(m)) for m in range(3)])
    minibatches = algorithm._minibatches(batch, order)
    assert [m.weight.shape for m in minibatches] == [(3, 7), (3, 7), (3, 6)]
    for minibatch in minibatches:
        assert minibatch.observation.shape[2] == 6
        for column in (minibatch.log_prob, minibatch.advantage, minibatch.target, minibatch.observation[..., 5]):
            assert torch.equal(column, minibatch.weight)
        assert torch.equal(minibatch.action.reshape(*minibatch.weight.shape, -1)[..., 0].float(), minibatch.weight)
    seen = torch.cat([minibatch.weight for minibatch in minibatches], 1)
    assert torch.equal(seen, batch[..., 0].gather(1, order))
    assert torch.equal(seen.sort(1).values, batch[..., 0])


@BOTH
def test_rows_that_are_not_valid_leave_every_loss(make_ppo: MakePPO, make_rollout: MakeRollout, kind: str) -> None:
    def trained(garbage: float) -> torch.Tensor:
        algorithm = make_ppo(kind)
        rollout = make_rollout(algorithm.actor)
        # A world breaks in the third row and stays broken for one more, another breaks in the last row.
        valid = rollout.valid.clone()
        valid[2:4, 1] = valid[4, 0, 3] = False
        truncated = rollout.truncated | ~valid
        for tensor in (rollout.reward, rollout.log_prob, rollout.final_observation):
            tensor[~valid] = garbage
        rollout.observation[3, 1] = rollout.observation[5, 0, 3] = garbage
        rollout = replace(rollout, valid=valid, truncated=truncated, terminated=rollout.terminated & valid)
        algorithm.update(rollout)
        assert algorithm.active.all()
        return torch.stack([weights(algorithm, m) for m in range(3)])

    clean = trained(0.0)
    assert clean.isfinite().all()
    assert torch.equal(clean, trained(torch.nan))
    assert torch.equal(clean, trained(1e9))


@BOTH
def test_a_member_that_diverges_is_frozen_and_reported_and_the_others_go_on(
    make_ppo: MakePPO, make_rollout: MakeRollout, kind: str
) -> None:
    healthy, sick = make_ppo(kind), make_ppo(kind)
    rollout = make_rollout(healthy.actor)
    healthy.update(rollout)
    before = weights(sick, 1)
    reward = rollout.reward.clone()
    reward[1, 1, 0] = torch.nan
    metrics = sick.update(replace(rollout, reward=reward))
    assert metrics["active"].tolist() == [True, False, True]
    assert same_state(sick, 0, healthy, 0)
    assert same_state(sick, 2, healthy, 2)
    assert torch.equal(weights(sick, 1), before)
    assert all(tensor.isfinite().all() for group in sick.member_state(1).values() for tensor in group.values())
    sick.update(replace(make_rollout(sick.actor, 1), policy_version=1))
    assert sick.active.tolist() == [True, False, True]
    sick.load_member_state(1, healthy.member_state(1))
    assert sick.active.all()


@BOTH
def test_a_member_can_stop_its_update_early(make_ppo: MakePPO, make_rollout: MakeRollout, kind: str) -> None:
    free, bounded = make_ppo(kind, epochs=8), make_ppo(kind, epochs=8)
    bounded.set_hyperparameters(2, {"target_kl": 1e-4})
    rollout = make_rollout(free.actor)
    free.update(rollout)
    bounded.update(rollout)
    steps = [algorithm.member_state(m)["optimizer"]["step_count"] for algorithm in (free, bounded) for m in (0, 2)]
    assert steps[0] == steps[1] == steps[2] == 24
    assert 0 < steps[3] < 24
    assert same_state(free, 0, bounded, 0)
    assert bounded.active.all()


@BOTH
def test_resuming_from_member_states_is_exact(make_ppo: MakePPO, make_rollout: MakeRollout, kind: str) -> None:
    through = make_ppo(kind)
    for seed in range(2):
        through.update(replace(make_rollout(through.actor, seed), policy_version=through.version))
    resumed = make_ppo(kind)
    for m in range(3):
        resumed.load_member_state(m, through.member_state(m))
    resumed.version = through.version
    rollout = replace(make_rollout(through.actor, 7), policy_version=through.version)
    through.update(rollout)
    resumed.update(rollout)
    assert all(same_state(through, m, resumed, m) for m in range(3))
    for name, tensor in through.actor_state().items():
        assert torch.equal(tensor, resumed.actor_state()[name])


def test_a_child_takes_its_parents_state_but_keeps_its_own_randomness(
    make_ppo: MakePPO, make_rollout: MakeRollout
) -> None:
    algorithm = make_ppo("box")
    algorithm.update(make_rollout(algorithm.actor))
    own = algorithm.member_state(2)["random"]
    parent = algorithm.member_state(0)
    algorithm.load_member_state(2, {group: parent[group] for group in parent if group != "random"})
    assert same_state(algorithm, 0, algorithm, 2, "random")
    assert torch.equal(algorithm.member_state(2)["random"]["seed"], own["seed"])
    algorithm.perturb_member(2, 0.1, seed=5)
    moved = algorithm.member_state(2)["actor"]["layers.1.weight"] - parent["actor"]["layers.1.weight"]
    assert 0.05 < (moved.std() / parent["actor"]["layers.1.weight"].std()).item() < 0.15
    assert same_state(algorithm, 0, algorithm, 2, "random", "actor")


@BOTH
def test_a_stale_rollout_is_judged_against_the_policy_at_the_start_of_the_update(
    make_ppo: MakePPO, make_rollout: MakeRollout, kind: str
) -> None:
    """At lag zero the correction is exactly nothing; a tiny step keeps the first ratio at one for any lag."""
    plain, corrected = make_ppo(kind), make_ppo(kind)
    rollout = make_rollout(plain.actor)
    plain.update(rollout)
    corrected.update(replace(rollout, policy_version=-1))
    for m in range(3):
        torch.testing.assert_close(weights(plain, m), weights(corrected, m), rtol=1e-4, atol=1e-5)
    old = make_ppo(kind, epochs=1)
    rollout = make_rollout(old.actor)
    old.actor.network.weights[-1].mul_(50.0)
    for m in range(3):
        old.set_hyperparameters(m, {"learning_rate": 1e-7})
    metrics = old.update(replace(rollout, policy_version=-1))
    assert metrics["kl"].abs().max() < 1e-6
    assert metrics["clip_fraction"].max() == 0


def test_normalizing_values_changes_no_prediction(make_ppo: MakePPO, make_rollout: MakeRollout) -> None:
    algorithm = make_ppo("box")
    rollout = make_rollout(algorithm.actor)
    algorithm.update(rollout)
    before = algorithm._value(rollout.observation)
    algorithm._renew_value_normalizer(100 * torch.randn(3, 20, 1) + 50, torch.ones(3, 20).bool())
    torch.testing.assert_close(algorithm._value(rollout.observation), before, rtol=1e-4, atol=1e-3)


def test_only_normalization_that_is_asked_for(make_ppo: MakePPO, make_rollout: MakeRollout) -> None:
    switches = {"normalize_observations": False, "normalize_values": False, "normalize_advantages": False}
    algorithm = make_ppo("discrete", **switches)
    algorithm.update(make_rollout(algorithm.actor))
    state = algorithm.member_state(0)["normalizer"]
    assert state["observation_mean"].tolist() == [0.0] * 6
    assert state["observation_scale"].tolist() == [1.0] * 6
    assert state["values.count"] == 0


def test_bad_configurations_are_refused(make_ppo: MakePPO, make_rollout: MakeRollout) -> None:
    with pytest.raises(InvalidInput, match="learning_rate"):
        make_ppo("box", lerning_rate=1e-3)
    with pytest.raises(InvalidInput, match="horizon"):
        make_ppo("box", horizon=0)
    with pytest.raises(InvalidInput, match="one for the whole cohort"):
        make_ppo("box").set_hyperparameters(0, {"horizon": 3})
    with pytest.raises(InvalidInput, match="gamma"):
        make_ppo("box").set_hyperparameters(0, {"gamma": 1.5})
    with pytest.raises(InvalidInput, match="at least one member"):
        CohortConfig("ppo", ())
    space = gymnasium.spaces.Discrete(3)
    with pytest.raises(InvalidInput, match="Box observations"):
        PPO(CohortConfig("ppo", (MemberConfig("a", 0),)), space, space)
    smaller = make_ppo("box", hidden_sizes=(3,))
    with pytest.raises(InvalidInput, match="expected"):
        smaller.load_member_state(0, make_ppo("box").member_state(0))


def test_the_registry_finds_ppo_and_names_the_nearest() -> None:
    assert algorithm_class("ppo") is PPO
    with pytest.raises(InvalidInput, match="did you mean ppo"):
        algorithm_class("pop")
