"""PPO's own formulas: its two clipped objectives, their gradients, its minibatches and its early
stop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from podracer_core.algorithms import (
    Minibatch,
    ReturnScale,
    RolloutRows,
    clipped_surrogate,
    clipped_value_error,
)

SIZE = 11
ROWS = ("reward", "terminated", "truncated", "valid")
BOTH = pytest.mark.parametrize("kind", ["discrete", "box"])


def test_surrogate_by_hand_and_its_gradient_is_zero_where_it_clips():
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


def test_value_clip_by_hand_and_its_gradient_is_zero_where_it_clips():
    # value, old, target -> loss and derivative in the value, with a clip range of 0.5
    cases = [
        (1.0, 1.0, 3.0, 2.0, -2.0),
        # moved to the target by more than 0.5: (1.5 - 3)^2 / 2 is the larger error
        (2.0, 1.0, 3.0, 1.125, 0.0),
        # moved away from it: its own error is the larger one, and pulls it back
        (0.0, 1.0, 3.0, 4.5, -3.0),
        (4.0, 1.0, 3.0, 1.125, 0.0),  # past the target, whose far side it may not see
        (9.0, 1.0, 3.0, 18.0, 6.0),  # so far past that its own error is the larger one
        (1.4, 1.0, 3.0, 1.28, -1.6),  # within the range
    ]
    value, old, target, expected, slope = torch.tensor(cases).t().unsqueeze(1)
    value = value.clone().requires_grad_()
    loss, derivative = clipped_value_error(value, old, target, torch.tensor([0.5]))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(derivative, slope)
    loss.sum().backward()
    torch.testing.assert_close(value.grad, slope)


def test_a_value_clip_range_of_zero_never_clips_and_members_have_their_own():
    torch.manual_seed(0)
    value, old, target = torch.randn(3, 2, SIZE)
    loss, derivative = clipped_value_error(value, old, target, torch.tensor([0.0, 0.3]))
    torch.testing.assert_close(loss[0], 0.5 * (value[0] - target[0]).square())
    assert torch.equal(derivative[0], value[0] - target[0])
    assert (derivative[1] == 0).any()
    alone, _ = clipped_value_error(value[1:], old[1:], target[1:], torch.tensor([0.3]))
    assert torch.equal(alone[0], loss[1])


def test_within_its_range_a_value_keeps_its_gradient_whatever_the_rounding():
    torch.manual_seed(0)
    old, target = 100 * torch.randn(2, 1, 1000)
    value = old + 0.1 * torch.randn(1, 1000)  # old + (value - old) is rarely value
    _, derivative = clipped_value_error(value, old, target, torch.tensor([1.0]))
    assert torch.equal(derivative, value - target)


def test_what_is_not_a_number_stays_so_in_both_objectives():
    broken, fine, limit = torch.full((1, 2), torch.nan), torch.ones(1, 2), torch.tensor([0.2])
    for result in (
        *clipped_surrogate(broken, fine, limit),
        *clipped_surrogate(fine, broken, limit),
        *clipped_value_error(broken, fine, fine, limit),
        *clipped_value_error(fine, fine, broken, limit),
    ):
        assert result.isnan().all()


@pytest.mark.parametrize(
    ("kind", "masked"),
    [(kind, False) for kind in ("discrete", "box", "multi_discrete", "multi_binary")]
    + [(kind, True) for kind in ("discrete", "multi_discrete")],
)
def test_backward_is_the_gradient_of_the_papers_loss(make_on_policy, densities, kind, masked):
    """The written-out derivatives against autograd through torch.distributions (equation 9, to be
    minimized)."""
    algorithm = make_on_policy("ppo", kind, value_clip_range=0.4)
    torch.manual_seed(0)
    networks, head = algorithm._networks, algorithm._networks.head
    parameters = networks.parameters
    parameters.flat.normal_(std=0.4)
    mask = None
    if masked:
        mask = torch.rand(3, SIZE, head.output_size) < 0.6
        mask[..., [0] if kind == "discrete" else [0, 3, 5]] = True
    output = networks(observation := torch.randn(3, SIZE, 6)).detach()[:, 0]
    noise = head.draw_noise(torch.arange(3 * SIZE).view(3, SIZE), torch.zeros(3).long(), 1)[0]
    allowed = output if mask is None else head.allow(output, mask)
    action, log_prob = head.sample(allowed, networks.settings, noise, observation)
    advantage, target, value = torch.randn(3, 3, SIZE)
    weight = torch.rand(3, SIZE).softmax(1)
    batch = Minibatch(
        observation,
        action,
        mask,
        log_prob + 0.3 * torch.randn(3, SIZE),
        advantage,
        target,
        value,
        weight,
    )
    with torch.no_grad():
        _, log_std_gradient = algorithm._backward(batch)
    networks.parameters.gather_gradient()
    networks.gather_settings(log_std_gradient)
    mine = parameters.gradient.clone()

    parameters.zero_gradient()
    output = networks(observation)
    log_std = parameters["log_std"][0::2] if head.log_std_size else torch.empty(3, 0)
    density = densities(kind, output[:, 0], log_std, mask)
    ratio = (density.log_prob(action) - batch.log_prob).exp()
    hyper = {name: value.unsqueeze(1) for name, value in algorithm._hyperparameters.items()}
    clipped = ratio.clamp(1 - hyper["clip_range"], 1 + hyper["clip_range"])
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    mine_value = output[:, 1, :, 0]
    held = value + (mine_value - value).clamp(-0.4, 0.4)
    value_error = torch.maximum((mine_value - target).square(), (held - target).square())
    loss = (
        -surrogate
        + hyper["value_coefficient"] * 0.5 * value_error
        - hyper["entropy_coefficient"] * density.entropy()
    )
    (weight * loss).sum().backward()
    parameters.gather_gradient()
    assert (ratio != clipped).any()
    assert (ratio == clipped).any()
    assert (held != mine_value).any()
    torch.testing.assert_close(mine, parameters.gradient, rtol=1e-4, atol=1e-6)


@BOTH
def test_a_value_clip_range_changes_the_critic_of_its_member_alone(
    make_on_policy, make_rollout, kind
):
    free, clipped = make_on_policy("ppo", kind, epochs=6), make_on_policy("ppo", kind, epochs=6)
    clipped.set_hyperparameters(2, {"value_clip_range": 0.05})
    rollout = make_rollout(free.actor)
    free.update(rollout)
    clipped.update(rollout)
    for member, group, equal in (
        (0, "critic", True),
        (1, "critic", True),
        (2, "critic", False),
        (0, "actor", True),
    ):
        mine, theirs = (algorithm.member_state(member)[group] for algorithm in (clipped, free))
        # Who has no range of its own gets the same numbers, to the last bit, by another way.
        assert all(torch.equal(mine[name], theirs[name]) for name in mine) == equal


@BOTH
def test_values_are_clipped_around_those_of_the_start_of_the_update(
    make_on_policy, make_rollout, kind
):
    """Whether or not the normalizer of the targets has just changed."""
    algorithm = make_on_policy("ppo", kind, normalize_rewards=False)
    for update in range(2):
        rollout = replace(make_rollout(algorithm.actor, update), policy_version=update)
        rows, _ = algorithm._preparation.rows(rollout, algorithm.active, stale=False)
        (batch,) = rows.minibatches(rows.count)
        value = algorithm._networks.critic(batch.observation)[..., 0]
        torch.testing.assert_close(value, batch.value, rtol=1e-4, atol=1e-5)
        algorithm.update(rollout)


def test_every_row_is_in_one_minibatch_in_its_members_own_order():
    rows, members = 20, 3
    number = torch.arange(members * rows, dtype=torch.float32).view(members, rows)
    order = torch.stack(
        [torch.randperm(rows, generator=torch.Generator().manual_seed(m)) for m in range(members)]
    )

    class Head:
        action_shape, action_dtype = (2,), torch.int64

    columns = number.unsqueeze(-1)
    for pixels in (False, True):
        observation = columns.expand(-1, -1, 6).to(torch.uint8 if pixels else torch.float32)
        stacked = RolloutRows(
            Head(),  # type: ignore[arg-type]
            observation,
            columns.expand(-1, -1, 2).long(),
            columns.expand(-1, -1, 3) % 2 == 0,
            [number, number + 100, number + 200, number + 300, number + 400],
            torch.ones(members, rows).bool(),
        )
        minibatches = stacked.minibatches(7, order)
        assert [m.weight.shape for m in minibatches] == [(3, 7), (3, 7), (3, 6)]
        for minibatch in minibatches:
            own = minibatch.log_prob
            assert minibatch.action.shape == (3, own.shape[1], 2)
            assert minibatch.observation.dtype == observation.dtype
            assert torch.equal(minibatch.observation.float(), own.unsqueeze(-1).expand(-1, -1, 6))
            assert torch.equal(minibatch.action.float(), own.unsqueeze(-1).expand(-1, -1, 2))
            assert minibatch.action_mask is not None
            assert torch.equal(
                minibatch.action_mask, (own % 2 == 0).unsqueeze(-1).expand(-1, -1, 3)
            )
            numbers = (minibatch.advantage, minibatch.target, minibatch.value, minibatch.weight)
            for index, column in enumerate(numbers, start=1):
                assert torch.equal(column, own + 100 * index)
        seen = torch.cat([minibatch.log_prob for minibatch in minibatches], 1)
        assert torch.equal(seen, number.gather(1, order))
        (whole,) = stacked.minibatches(rows)
        assert torch.equal(whole.log_prob, number)


@BOTH
def test_parts_of_a_minibatch_add_up_to_its_gradient(make_on_policy, make_rollout, kind):
    whole, parts = make_on_policy("ppo", kind), make_on_policy("ppo", kind)
    parts._preparation.part_rows = 3
    rollout = make_rollout(whole.actor)
    whole.update(rollout)
    parts.update(rollout)
    for m in range(3):
        for group in ("actor", "critic"):
            mine, theirs = whole.member_state(m)[group], parts.member_state(m)[group]
            for name in mine:
                torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-5)


@BOTH
def test_a_member_can_stop_its_update_early(make_on_policy, make_rollout, kind):
    free, bounded = make_on_policy("ppo", kind, epochs=8), make_on_policy("ppo", kind, epochs=8)
    bounded.set_hyperparameters(2, {"target_kl": 1e-4})
    rollout = make_rollout(free.actor)
    free.update(rollout)
    bounded.update(rollout)
    steps = [
        algorithm.member_state(m)["optimizer"]["step_count"]
        for algorithm in (free, bounded)
        for m in (0, 2)
    ]
    assert steps[0] == steps[1] == steps[2] == 24
    assert 0 < steps[3] < 24
    mine, theirs = free.member_state(0)["actor"], bounded.member_state(0)["actor"]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert bounded.active.all()


@BOTH
def test_each_member_adapts_its_own_learning_rate(make_on_policy, make_rollout, kind):
    """Six steps: the first says nothing, as the policy has not moved. Member 0 moves too far in
    each of the others, member 1 does as it would alone, member 2 never moves far enough but is at
    its greatest rate from the start."""
    plain, adaptive, resumed = (make_on_policy("ppo", kind) for _ in range(3))
    wishes = {0: {"desired_kl": 1e-9}, 2: {"desired_kl": 9.0}}
    for member, wish in wishes.items():
        adaptive.set_hyperparameters(member, wish)
        resumed.set_hyperparameters(member, wish)
    rollout = make_rollout(plain.actor)
    assert "rate_factor" not in plain.update(rollout)
    factor = adaptive.update(rollout)["rate_factor"]
    torch.testing.assert_close(factor, torch.tensor([1.5**-5, 1.0, 1.0]))
    mine, theirs = adaptive.member_state(1)["actor"], plain.member_state(1)["actor"]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for member in range(3):
        resumed.load_member_state(member, adaptive.member_state(member))
    resumed.version = adaptive.version
    rollout = replace(make_rollout(adaptive.actor, 1), policy_version=1)
    assert torch.equal(
        adaptive.update(rollout)["rate_factor"], resumed.update(rollout)["rate_factor"]
    )
    for member in range(3):
        mine, theirs = adaptive.member_state(member)["actor"], resumed.member_state(member)["actor"]
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    parent = {
        group: tensors for group, tensors in adaptive.member_state(0).items() if group != "random"
    }
    resumed.load_member_state(0, parent)
    assert resumed.member_state(0)["random"]["rate_factor"] == 1, (
        "a child begins with its own learning rate"
    )
    for member in wishes:
        adaptive.set_hyperparameters(member, {"desired_kl": 0.0})
    assert adaptive.member_state(0)["random"]["rate_factor"] == 1
    assert "rate_factor" not in adaptive.update(replace(rollout, policy_version=adaptive.version))


@BOTH
def test_a_tiny_step_keeps_the_first_ratio_at_one_for_any_lag(make_on_policy, make_rollout, kind):
    old = make_on_policy("ppo", kind, epochs=1)
    rollout = make_rollout(old.actor)
    old.actor.network.weights[-1].mul_(50.0)
    for m in range(3):
        old.set_hyperparameters(m, {"learning_rate": 1e-7})
    metrics = old.update(replace(rollout, policy_version=-1))
    assert metrics["kl"].abs().max() < 1e-6
    assert metrics["clip_fraction"].max() == 0


def test_normalizing_values_changes_no_prediction(make_on_policy, make_rollout):
    algorithm = make_on_policy("ppo", "box", normalize_values=True, normalize_rewards=False)
    rollout = make_rollout(algorithm.actor)
    algorithm.update(rollout)
    before = algorithm._preparation.values(rollout.observation)
    target, value = 100 * torch.randn(3, 20) + 50, torch.randn(3, 20)
    algorithm._preparation.values.renew(target, value, torch.ones(3, 20).bool(), algorithm.active)
    torch.testing.assert_close(
        algorithm._preparation.values(rollout.observation), before, rtol=1e-4, atol=1e-3
    )


def test_rewards_are_divided_by_the_deviation_of_returns(make_on_policy, make_rollout):
    algorithm = make_on_policy("ppo", "box")
    gamma, scale = algorithm._hyperparameters["gamma"], algorithm._preparation.values.rewards
    rollout = make_rollout(algorithm.actor)
    for rows in (rollout.terminated, rollout.truncated):
        rows.zero_()
    returns, running = [], torch.zeros_like(rollout.reward[0])
    for reward in rollout.reward:
        running = gamma.unsqueeze(1) * running + reward
        returns.append(running)
    scale.begin(rollout)
    learned = scale.scaled(rollout, gamma, algorithm.active)
    deviation = torch.stack(returns).transpose(0, 1).flatten(1).std(1, correction=0)
    torch.testing.assert_close(learned, (rollout.reward / deviation[:, None]).clamp(-10, 10))
    # The next rollout goes on where this one ended.
    first = scale.running(0)["running_return"].clone()
    torch.testing.assert_close(first, returns[-1][0])


@pytest.mark.parametrize(
    ("rewards", "returns"),
    # two rollouts of three rows with gamma 0.5; "|" ends an episode, "x" is a row that is not valid
    [
        # a landing: with its way, and it does not leak
        ("-8 4 100| 2 -8 -100|", [-8, 0, 100, 2, -7, -103.5]),
        ("0 0 1| 0 0 0", [0, 0, 1, 0, 0, 0]),  # a goal, at the end of a rollout
        ("0 1| 4 2 0 1|", [0, 1, 4, 4, 2, 2]),  # an episode goes on in the next rollout
        ("8 x 4 2 x 2", [8, 4, 4, 2]),  # what follows a row that is not valid begins with 0
    ],
)
def test_returns_are_those_of_vec_normalize(rewards, returns, make_on_policy, make_rollout):
    """VecNormalize takes G = gamma G + r into its statistics at each step, and then sets G to 0
    where one ended."""
    scale, rows = ReturnScale(3, math.inf), rewards.split()
    for part in (rows[:3], rows[3:]):
        rollout = make_rollout(make_on_policy("ppo", "box").actor)
        rollout = replace(rollout, **{name: getattr(rollout, name)[:3] for name in ROWS})
        ends = torch.tensor([row.endswith("|") for row in part])[:, None, None].expand_as(
            rollout.valid
        )
        rollout.terminated.copy_(ends)
        rollout.truncated.zero_()
        for step, row in enumerate(part):
            rollout.valid[step] = row != "x"
            rollout.reward[step] = math.nan if row == "x" else float(row.rstrip("|"))
        scale.begin(rollout)
        scale.update(rollout, torch.full((3,), 0.5), torch.ones(3, dtype=torch.bool))
    expected = torch.tensor(returns, dtype=torch.float32).std(correction=0).expand(3)
    torch.testing.assert_close(scale.divisor(), expected)


def test_learning_does_not_depend_on_the_unit_of_rewards(make_on_policy, make_rollout):
    """Clipping apart: a thousandth or a thousand is the same task."""
    small, large = (make_on_policy("ppo", "box") for _ in range(2))
    for seed in range(2):
        rollout = replace(make_rollout(small.actor, seed), policy_version=seed)
        small.update(replace(rollout, reward=0.01 * rollout.reward))
        large.update(replace(rollout, reward=100.0 * rollout.reward))
    for one, other in zip(small.actor.network.weights, large.actor.network.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_critic_that_was_normalized_before_predicts_the_same(make_on_policy, make_rollout):
    before = make_on_policy("ppo", "box", normalize_values=True, normalize_rewards=False)
    after = make_on_policy("ppo", "box", normalize_values=False, normalize_rewards=False)
    rollout = make_rollout(before.actor)
    before.update(replace(rollout, reward=10.0 * rollout.reward + 5.0))
    for member in range(3):
        after.load_member_state(member, before.member_state(member))
    torch.testing.assert_close(
        after._preparation.values(rollout.observation),
        before._preparation.values(rollout.observation),
    )
    assert after._preparation.values.statistics.count.eq(0).all()


def test_rewards_of_another_unit_begin_the_statistics_of_values(make_on_policy, make_rollout):
    """A checkpoint of 0.1 has targets of 500, which are 5 now: the critic's output is a deviation
    of both."""
    before = make_on_policy("ppo", "box", normalize_rewards=False)
    after = make_on_policy("ppo", "box")
    for update in range(2):
        rollout = make_rollout(before.actor, update)
        before.update(
            replace(rollout, reward=100.0 * rollout.reward + 100.0, policy_version=update)
        )
    for member in range(3):
        after.load_member_state(member, before.member_state(member))
    after.update(replace(rollout, reward=100.0 * rollout.reward + 100.0))
    torch.testing.assert_close(
        after._preparation.values.statistics.scale(), torch.ones(3, 1).double(), rtol=0.0, atol=0.9
    )
    assert after._preparation.values.statistics.mean.abs().max() < 10.0
