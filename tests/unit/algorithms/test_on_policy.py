"""What PPO and A2C have in common on the member axis: members that do not mix, rows that do not
count, state."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import pytest
import torch

from podracer_core.algorithms import PPO, CohortConfig, MemberConfig, OnPolicy, algorithm_class, ppo
from podracer_core.checkpoint import load_checkpoint, save_checkpoint
from podracer_core.errors import InvalidInput
from podracer_core.storage import FolderStore
from support.errors import raises

CASES = [
    *(("ppo", kind) for kind in ("discrete", "box", "multi_discrete", "multi_binary", "image")),
    *(("a2c", kind) for kind in ("discrete", "box")),
]
EVERY = pytest.mark.parametrize(("name", "kind"), CASES)
SOME = pytest.mark.parametrize(
    ("name", "kind"), [("ppo", "discrete"), ("ppo", "box"), ("a2c", "discrete"), ("a2c", "box")]
)
MASKED = pytest.mark.parametrize(
    ("name", "kind"), [("ppo", "discrete"), ("ppo", "multi_discrete"), ("a2c", "discrete")]
)


def weights(algorithm: OnPolicy, member: int) -> torch.Tensor:
    """Everything that is trained, of one member, in one row."""
    state = algorithm.member_state(member)
    return torch.cat(
        [tensor.flatten() for group in ("actor", "critic") for tensor in state[group].values()]
    )


def same_state(first: OnPolicy, member: int, second: OnPolicy, other: int, *leave_out: str) -> bool:
    mine, theirs = first.member_state(member), second.member_state(other)
    return all(
        torch.equal(mine[group][name], theirs[group][name])
        for group in mine
        if group not in leave_out
        for name in mine[group]
    )


@EVERY
def test_a_cohort_gives_what_its_agents_give_alone(
    make_on_policy, make_rollout, member_rollout, name, kind
):
    cohort = make_on_policy(name, kind)
    rollout = make_rollout(cohort.actor)
    alone = [make_on_policy(name, kind, m) for m in range(3)]
    for m in range(3):
        assert torch.equal(weights(cohort, m), weights(alone[m], 0))
    together = cohort.update(rollout)
    for m in range(3):
        metrics = alone[m].update(member_rollout(rollout, m))
        assert_same(weights(alone[m], 0), weights(cohort, m), kind)
        assert metrics.keys() == together.keys()
        for metric, value in metrics.items():
            torch.testing.assert_close(value[0], together[metric][m], rtol=1e-3, atol=1e-5)
    assert not torch.allclose(weights(cohort, 0), weights(cohort, 1))


@EVERY
def test_the_order_and_the_company_of_members_do_not_matter(
    make_on_policy, make_rollout, member_rollout, name, kind
):
    pair, trio = make_on_policy(name, kind, 2, 0), make_on_policy(name, kind)
    rollout = make_rollout(trio.actor)
    trio.update(rollout)
    pair.update(member_rollout(rollout, 2, 0))
    for mine, theirs in ((0, 2), (1, 0)):
        assert_same(weights(pair, mine), weights(trio, theirs), kind)


def assert_same(mine: torch.Tensor, theirs: torch.Tensor, kind: str) -> None:
    """Equal but for rounding. Adam turns that of a gradient of nearly zero into a step: of the
    150,000 weights of an image's network one in a hundred may show it, by a part of the step
    size."""
    differs = ~torch.isclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert differs.float().mean() <= (1e-2 if kind == "image" else 0.0)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)


@EVERY
def test_same_seed_twice_gives_equal_weights_bit_for_bit(make_on_policy, make_rollout, name, kind):
    def train() -> torch.Tensor:
        algorithm = make_on_policy(name, kind)
        for seed in range(3):
            algorithm.update(
                replace(make_rollout(algorithm.actor, seed), policy_version=algorithm.version)
            )
        return torch.stack([weights(algorithm, m) for m in range(3)])

    first = train()
    assert torch.equal(first, train())
    assert first.isfinite().all()


@EVERY
def test_resuming_from_member_states_is_exact(make_on_policy, make_rollout, name, kind):
    through = make_on_policy(name, kind, learning_rate_schedule="linear", schedule_steps=100)
    for seed in range(2):
        through.update(replace(make_rollout(through.actor, seed), policy_version=through.version))
    resumed = make_on_policy(name, kind, learning_rate_schedule="linear", schedule_steps=100)
    for m in range(3):
        resumed.load_member_state(m, through.member_state(m))
    resumed.version = through.version
    rollout = replace(make_rollout(through.actor, 7), policy_version=through.version)
    through.update(rollout)
    resumed.update(rollout)
    assert all(same_state(through, m, resumed, m) for m in range(3))
    for key, tensor in through.actor_state().items():
        assert torch.equal(tensor, resumed.actor_state()[key])


@EVERY
def test_a_checkpoint_holds_all_of_it_and_enough_to_act(
    make_on_policy, make_rollout, spaces, tmp_path, name, kind
):
    algorithm = make_on_policy(name, kind)
    algorithm.update(make_rollout(algorithm.actor))
    store = FolderStore(tmp_path)
    save_checkpoint(store, "checkpoint/", algorithm.member_state(1), {})
    groups = load_checkpoint(store, "checkpoint/").groups
    resumed = make_on_policy(name, kind)
    resumed.load_member_state(1, groups)
    assert same_state(resumed, 1, algorithm, 1)
    alone = type(algorithm).make_actor(
        replace(algorithm.cohort, members=algorithm.cohort.members[1:2]), *spaces(kind)
    )
    alone.load_member_state(0, {group: groups[group] for group in ("actor", "normalizer")})
    observation = make_rollout(algorithm.actor, 3).observation[0, 1:2]
    whole = algorithm.actor.member(1).greedy(observation)
    assert torch.equal(alone.greedy(observation), whole)


@SOME
def test_rows_that_are_not_valid_leave_every_loss(make_on_policy, make_rollout, name, kind):
    def trained(garbage: float, policy_version: int) -> torch.Tensor:
        algorithm = make_on_policy(name, kind)
        rollout = make_rollout(algorithm.actor)
        # A world breaks in the third row and stays broken for one more, another breaks in the last
        # row.
        valid = rollout.valid.clone()
        valid[2:4, 1] = valid[4, 0, 3] = False
        truncated = rollout.truncated | ~valid
        for tensor in (rollout.reward, rollout.log_prob, rollout.final_observation):
            tensor[~valid] = garbage
        rollout.observation[3, 1] = rollout.observation[5, 0, 3] = garbage
        algorithm.update(
            replace(
                rollout,
                valid=valid,
                truncated=truncated,
                terminated=rollout.terminated & valid,
                policy_version=policy_version,
            )
        )
        assert algorithm.active.all()
        assert algorithm.member_state(1)["random"]["transition_count"] == 4 * 5 - 8
        return torch.stack([weights(algorithm, m) for m in range(3)])

    for policy_version in (0, -1):
        clean = trained(0.0, policy_version)
        assert clean.isfinite().all()
        assert torch.equal(clean, trained(torch.nan, policy_version))
        assert torch.equal(clean, trained(1e9, policy_version))


@SOME
def test_a_member_that_diverges_is_frozen_and_reported_and_the_others_go_on(
    make_on_policy, make_rollout, name, kind
):
    healthy, sick = make_on_policy(name, kind), make_on_policy(name, kind)
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
    assert all(
        tensor.isfinite().all()
        for group in sick.member_state(1).values()
        for tensor in group.values()
    )
    sick.update(replace(make_rollout(sick.actor, 1), policy_version=1))
    assert sick.active.tolist() == [True, False, True]
    sick.load_member_state(1, healthy.member_state(1))
    assert sick.active.all()


@SOME
def test_the_entropy_bonus_makes_a_policy_less_certain(make_on_policy, make_rollout, name, kind):
    def entropy_after(coefficient: float) -> torch.Tensor:
        algorithm = make_on_policy(name, kind, 0)
        algorithm.set_hyperparameters(
            0, {"entropy_coefficient": coefficient, "learning_rate": 0.03}
        )
        torch.manual_seed(0)
        algorithm.actor.network.weights[-1].normal_()
        rollout = make_rollout(algorithm.actor)
        for _ in range(10):
            metrics = algorithm.update(replace(rollout, policy_version=algorithm.version))
        return metrics["entropy"]

    assert entropy_after(1.0).item() > entropy_after(0.0).item() + 0.05


@SOME
def test_a_stale_rollout_is_judged_by_the_policy_at_the_start_of_the_update(
    make_on_policy, make_rollout, name, kind
):
    """At lag zero the correction is nothing but rounding."""
    plain, corrected = make_on_policy(name, kind), make_on_policy(name, kind)
    rollout = make_rollout(plain.actor)
    plain.update(rollout)
    corrected.update(replace(rollout, policy_version=-1))
    for m in range(3):
        torch.testing.assert_close(weights(plain, m), weights(corrected, m), rtol=1e-4, atol=1e-5)


@SOME
def test_of_a_stale_rollout_what_the_policy_would_hardly_do_counts_less(
    make_on_policy, make_rollout, name, kind
):
    """A row that an older policy took a million times as often as this one would have hardly any
    weight."""
    algorithm = make_on_policy(name, kind, normalize_rewards=False)
    rollout = make_rollout(algorithm.actor)
    rollout.log_prob[1, :, 2] += 14.0  # exp(-14) = 8e-7
    rows, _ = algorithm._preparation.rows(rollout, algorithm.active, stale=True)
    (minibatch,) = rows.minibatches(rows.count)
    weight = minibatch.weight.view(3, 5, 4)
    assert (weight[:, 1, 2] < 1e-5).all()
    weight[:, 1, 2] = 1.0
    torch.testing.assert_close(weight, torch.ones_like(weight), rtol=0, atol=1e-5)


@MASKED
def test_masks_are_obeyed_and_make_a_difference(
    make_on_policy, make_rollout, member_rollout, name, kind
):
    obeying, ignorant = make_on_policy(name, kind), make_on_policy(name, kind)
    rollout = make_rollout(obeying.actor, masked=kind)
    alone = [make_on_policy(name, kind, m) for m in range(3)]
    obeying.update(rollout)
    ignorant.update(replace(rollout, action_mask=None))
    for m in range(3):
        alone[m].update(member_rollout(rollout, m))
        torch.testing.assert_close(weights(alone[m], 0), weights(obeying, m), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(weights(obeying, m), weights(ignorant, m), rtol=1e-3)


@MASKED
def test_what_was_always_forbidden_gets_no_gradient_at_all(
    make_on_policy, make_rollout, name, kind
):
    algorithm = make_on_policy(name, kind)
    torch.manual_seed(0)
    algorithm.actor.network.weights[-1].normal_()
    assert make_rollout(algorithm.actor, masked=kind).action_mask is not None
    rollout = make_rollout(algorithm.actor, masked=kind)
    assert rollout.action_mask is not None
    rollout.action_mask[..., 1] = False  # never the second action (of the first part)
    bias_before = algorithm.actor.network.biases[-1].clone()
    weight_before = algorithm.actor.network.weights[-1].clone()
    chosen = rollout.action.view(5, 3, 4, -1)[..., 0]
    chosen[chosen == 1] = 0
    rollout.action_mask[..., 0] = True
    for policy_version in (0, -1):
        algorithm.version = 0
        algorithm.update(replace(rollout, policy_version=policy_version))
    changed = algorithm.actor.network.biases[-1][:, 0] != bias_before[:, 0]
    assert not changed[:, 1].any()
    assert changed[:, 0].all()
    assert torch.equal(algorithm.actor.network.weights[-1][..., 1], weight_before[..., 1])


@MASKED
def test_the_first_ratio_is_one_with_masks_too(make_on_policy, make_rollout, name, kind):
    algorithm = make_on_policy(name, kind)
    torch.manual_seed(0)
    algorithm.actor.network.weights[-1].normal_()
    rollout = make_rollout(algorithm.actor, masked=kind)
    assert rollout.action_mask is not None
    observation = algorithm.actor.normalize(rollout.observation[:-1].transpose(0, 1).flatten(1, 2))
    mask = rollout.action_mask[:-1].transpose(0, 1).flatten(1, 2)
    torch.testing.assert_close(
        algorithm._preparation._log_prob(observation, rollout, mask),
        rollout.log_prob,
        rtol=1e-4,
        atol=1e-5,
    )


@EVERY
def test_the_learning_rate_falls_with_the_members_own_transitions(
    make_on_policy, make_rollout, name, kind
):
    """With 20 transitions an update and 40 to fall: full in the first update, half in the second,
    none in the third."""
    falling = make_on_policy(name, kind, learning_rate_schedule="linear", schedule_steps=40)
    constant = make_on_policy(name, kind)
    for update in range(4):
        before = [falling.member_state(m)["actor"]["layers.0.weight"] for m in range(3)]
        rollout = replace(make_rollout(falling.actor, update), policy_version=update)
        falling.update(rollout)
        if update == 0:
            constant.update(rollout)
            assert all(same_state(falling, m, constant, m) for m in range(3))
        for m in range(3):
            stood_still = torch.equal(
                falling.member_state(m)["actor"]["layers.0.weight"], before[m]
            )
            assert stood_still == (update >= 2)
            assert falling.member_state(m)["random"]["transition_count"] == 20 * (update + 1)


def test_a_child_takes_its_parents_state_but_keeps_its_own_randomness(make_on_policy, make_rollout):
    algorithm = make_on_policy("ppo", "box")
    algorithm.update(make_rollout(algorithm.actor))
    own = algorithm.member_state(2)["random"]
    parent = algorithm.member_state(0)
    algorithm.load_member_state(2, {group: parent[group] for group in parent if group != "random"})
    assert same_state(algorithm, 0, algorithm, 2, "random")
    assert torch.equal(algorithm.member_state(2)["random"]["seed"], own["seed"])
    algorithm.perturb_member(2, 0.1, seed=5)
    moved = (
        algorithm.member_state(2)["actor"]["layers.1.weight"] - parent["actor"]["layers.1.weight"]
    )
    assert 0.05 < (moved.std() / parent["actor"]["layers.1.weight"].std()).item() < 0.15
    assert same_state(algorithm, 0, algorithm, 2, "random", "actor")


def test_only_normalization_that_is_asked_for(make_on_policy, make_rollout):
    switches = dict.fromkeys(
        (f"normalize_{what}" for what in ("observations", "values", "rewards", "advantages")), False
    )
    algorithm = make_on_policy("ppo", "discrete", **switches)
    algorithm.update(make_rollout(algorithm.actor))
    state = algorithm.member_state(0)["normalizer"]
    assert state["observation_mean"].tolist() == [0.0] * 6
    assert state["observation_scale"].tolist() == [1.0] * 6
    assert state["values.count"] == 0
    assert not {"observations.count", "rewards.count"} & state.keys()


def test_images_have_no_running_normalizer(make_on_policy, make_rollout):
    algorithm = make_on_policy("ppo", "image", normalize_observations=True)
    algorithm.update(make_rollout(algorithm.actor))
    state = algorithm.member_state(0)["normalizer"]
    assert (state["observation_mean"] == 0).all()
    assert (state["observation_scale"] == 255).all()
    assert "observations.mean" not in state


def test_bad_configurations_are_refused(make_on_policy):
    with pytest.raises(InvalidInput, match="learning_rate"):
        make_on_policy("ppo", "box", lerning_rate=1e-3)
    with pytest.raises(InvalidInput, match="horizon"):
        make_on_policy("a2c", "box", horizon=0)
    with raises(InvalidInput, field="horizon"):
        make_on_policy("a2c", "box").set_hyperparameters(0, {"horizon": 3})
    with pytest.raises(InvalidInput, match="gamma"):
        make_on_policy("ppo", "box").set_hyperparameters(0, {"gamma": 1.5})
    with raises(InvalidInput, field="members"):
        CohortConfig("ppo", ())
    space = gymnasium.spaces.Discrete(3)
    with pytest.raises(InvalidInput, match="Box observations"):
        PPO(CohortConfig("ppo", (MemberConfig("a", 0),)), space, space)
    smaller = make_on_policy("ppo", "box", hidden_sizes=(3,))
    with pytest.raises(InvalidInput, match="expected"):
        smaller.load_member_state(0, make_on_policy("ppo", "box").member_state(0))


def test_the_registry_finds_them_and_names_the_nearest():
    assert algorithm_class("ppo") is PPO
    assert algorithm_class("a2c").__name__ == "A2C"
    with raises(InvalidInput, "UNKNOWN_ALGORITHM"):
        algorithm_class("pop")


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_images_need_no_episode_that_was_cut_off(make_on_policy, make_rollout, name):
    algorithm = make_on_policy(name, "image")
    rollout = make_rollout(algorithm.actor)
    rollout.truncated.zero_()
    assert algorithm.update(rollout)["active"].all()


@pytest.mark.parametrize("target_kl", [0.0, 0.02])
def test_a_broken_member_is_frozen_whether_it_may_stop_early_or_not(
    make_on_policy, make_rollout, target_kl
):
    algorithm = make_on_policy("ppo", "discrete", minibatch_size=1000, target_kl=target_kl)
    rollout = make_rollout(algorithm.actor)
    rollout.observation[2, 1, 0, 0] = torch.nan
    assert algorithm.update(rollout)["active"].tolist() == [True, False, True]


@pytest.mark.parametrize("most", [2048, 3])
def test_without_a_size_a_minibatch_is_a_quarter_of_the_rollout_but_no_larger_than_suits_a_cpu(
    make_on_policy, make_rollout, monkeypatch, most
):
    monkeypatch.setattr(ppo, "_MOST_CPU_ROWS", most)
    automatic = make_on_policy("ppo", "discrete", minibatch_size=0)
    rollout = make_rollout(automatic.actor)
    quarter = min(most, -(-rollout.horizon * rollout.num_envs // 4))
    explicit = make_on_policy("ppo", "discrete", minibatch_size=quarter)
    other = make_on_policy("ppo", "discrete", minibatch_size=quarter + 1)
    losses = [
        algorithm.update(rollout)["policy_loss"] for algorithm in (automatic, explicit, other)
    ]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)
    assert not torch.equal(losses[0], losses[2])
