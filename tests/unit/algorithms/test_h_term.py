"""The H-term: both forms by hand, what they are taken over, and what is drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from podracer_core.algorithms import (
    HTerm,
    good_episodes,
    good_segments,
    h_term,
    k_step_loss,
    segment_loss,
)
from podracer_core.buffers import Trajectories
from podracer_core.errors import InvalidInput
from support.experience import rollouts

FORMS = pytest.mark.parametrize("form", ["segment", "k_step"])


def test_segment_loss_by_hand():
    # member 0, lambda 1/8: mean(e^0 * 1, e^1 * 0.5, e^-1 * 0) = (1 + 1.359141) / 3 = 0.786380; *
    # -1/8 member 1, lambda 1/2: 3 is clipped to 2, -20 to -16:
    #   mean(e^2 * 1, e^-16 * 1, e^0.5 * 0.25) = (7.389056 + 0.00000011 + 0.412180) / 3 = 2.600412;
    #   * -1/2
    log_prob = torch.tensor([[0.0, 1.0, -1.0], [3.0, -20.0, 0.5]])
    gain = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 0.25]])
    loss = segment_loss(log_prob, gain, torch.tensor([0.125, 0.5]))
    torch.testing.assert_close(loss, torch.tensor([-0.0982975, -1.300206]))


def test_k_step_loss_by_hand():
    # Log-probabilities of the end step t first, then of t - 1 and t - 2; discount 0.8, lambda 1/8.
    # window 0: h = 1, 1 + 0.5 = 1.5, 1.5 - 2 = -0.5; rewards 1, 0.5, 0.25; c = 1, 0.8, 0.64:
    #   1 * 1 + 1.5 * 0.5 * 0.8 - 0.5 * 0.25 * 0.64 = 1 + 0.6 - 0.08 = 1.52
    # window 1: h = 5, 5 - 25 = -20, -20 + 19 = -1, which the clipped ones would not have led to;
    # clipped: 2, -16, -1
    #   2 * 0.5 - 16 * 1 * 0.8 - 1 * 1 * 0.64 = 1 - 12.8 - 0.64 = -12.44
    # mean -5.46, loss 0.6825; the second member has the discount 0.5 and lambda 1:
    #   1 + 1.5 * 0.5 * 0.5 - 0.5 * 0.25 * 0.25 = 1.34375; 1 - 8 - 0.25 = -7.25; mean -2.953125
    log_prob = torch.tensor([[1.0, 0.5, -2.0], [5.0, -25.0, 19.0]]).expand(2, 2, 3)
    gain = torch.tensor([[1.0, 0.5, 0.25], [0.5, 1.0, 1.0]]).expand(2, 2, 3)
    loss = k_step_loss(log_prob, gain, torch.tensor([0.8, 0.5]), torch.tensor([0.125, 1.0]))
    torch.testing.assert_close(loss, torch.tensor([0.6825, 2.953125]))


def test_gradients_are_those_of_finite_differences_and_zero_where_clipped():
    torch.manual_seed(0)
    members, windows, steps = 2, 5, 3
    log_prob = torch.randn(members, windows, steps, dtype=torch.float64)
    log_prob[0, 0, 0], log_prob[1, 1, 0] = 9.0, -30.0
    log_prob.requires_grad_()
    gain = torch.rand(members, windows, steps, dtype=torch.float64)
    discount, weight = torch.tensor([[0.8, 0.3], [0.125, 2.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h: k_step_loss(h, gain, discount, weight), log_prob)
    assert torch.autograd.gradcheck(
        lambda h: segment_loss(h[..., 0], gain[..., 0], weight), log_prob
    )
    (gradient,) = torch.autograd.grad(
        segment_loss(log_prob[..., 0], gain[..., 0], weight).sum(), log_prob
    )
    assert gradient[0, 0, 0] == gradient[1, 1, 0] == 0
    assert (gradient[..., 0] != 0).sum() == members * windows - 2


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_a_member_without_weight_has_loss_and_gradient_zero(value):
    log_prob = torch.full((2, 5, 3), 0.5)
    log_prob[1] = value
    log_prob.requires_grad_()
    gain, weight = torch.ones(2, 5, 3), torch.tensor([0.125, 0.0])
    for loss in (
        k_step_loss(log_prob, gain, torch.tensor([0.8, 0.8]), weight),
        segment_loss(log_prob[..., 0], gain[..., 0], weight),
    ):
        (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
        assert loss[1] == 0
        assert loss[0] < 0
        assert (gradient[1] == 0).all()
        assert (gradient[0, :, 0] < 0).all()


def test_shapes_that_would_broadcast_are_refused():
    right, weight = torch.zeros(3, 5), torch.zeros(3)
    for log_prob, gain in ((right, right[:, :1]), (right[:1], right), (right[0], right[0])):
        with pytest.raises(InvalidInput, match="fit"):
            segment_loss(log_prob, gain, weight)
    with pytest.raises(InvalidInput, match="fit"):
        segment_loss(right, right, torch.zeros(5))
    with pytest.raises(InvalidInput, match="fit"):
        k_step_loss(right, right, weight, weight)


def remembered(reward: torch.Tensor, ended: torch.Tensor) -> Trajectories:
    (rollout,) = rollouts(reward, ended, reward.shape[0])
    trajectories = Trajectories(rollout, least_rows=reward.shape[0])
    trajectories.add(rollout)
    return trajectories


def test_segments_above_the_members_mean_by_hand():
    # Segments of 2 steps. Member 0: returns 1, 2, 6, 11, mean 5: 6 -> G 0 and 11 -> G 1 are kept.
    # Member 1: 4, 4, 4, 8, mean 5: only 8 is above it, and all that are kept are equal: G 1. Member
    # 2: none is above.
    reward = torch.tensor(
        [
            [0.5, 2, 3],
            [0.5, 2, 3],
            [1, 1, 3],
            [1, 3, 3],
            [2, 2, 3],
            [4, 2, 3],
            [5, 0, 3],
            [6, 8, 3.0],
        ]
    ).unsqueeze(2)
    pieces = remembered(reward, torch.zeros(8, 3, 1, dtype=torch.bool)).segments(2)
    kept, gain = good_segments(pieces)
    assert kept[:, 0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert gain[:, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert kept[:, 1, 0].tolist() == gain[:, 1, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert not kept[:, 2].any()


def test_the_lowest_eighth_of_the_episodes_is_dropped():
    # Episodes of one step in 2 environments: member 0 has 17 (17 // 8 = 2 are dropped), member 1
    # has 7 (none is).
    reward, ended = torch.zeros(9, 2, 2), torch.zeros(9, 2, 2, dtype=torch.bool)
    reward[:, 0, 0] = torch.tensor([5.0, 4, 9, 9, 9, 9, 9, 9, 9])
    reward[:, 0, 1] = torch.tensor([4.0, 4, 9, 9, 9, 9, 9, 9, -50])  # the last one has not ended
    ended[:, 0] = ended[:7, 1, 0] = True
    ended[8, 0, 1] = False
    kept, gain = good_episodes(remembered(reward, ended).episodes())
    # Of the three whose return is 4 the first two: row 0 of environment 1, then row 1 of
    # environment 0.
    assert kept[:, 0, 0].tolist() == [1, 0, 1, 1, 1, 1, 1, 1, 1]
    assert kept[:, 0, 1].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 0]
    # Rewards over what is kept, 4 … 9: (5 - 4) / 5 and 0; -50 does not count.
    assert gain[:2, 0, 0].tolist() == pytest.approx([0.2, 0.0])
    assert gain[1, 0, 1] == 0
    assert (gain[2:, 0, 0] == 1).all()
    # All rewards of member 1 are equal: 1.
    assert kept[:, 1, 0].tolist() == gain[:, 1, 0].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert not kept[:, 1, 1].any()


def make_term(form: str, members: int, steps: int = 4, seed: int = 10) -> HTerm:
    hyperparameters = {
        "h_term_weight": torch.full((members,), 0.125),
        "h_term_discount": torch.full((members,), 0.8),
    }
    return HTerm(form, steps, hyperparameters, torch.arange(members) + seed)


def observed(
    form: str, reward: torch.Tensor, ended: torch.Tensor, horizon: int = 0, **options: Any
) -> HTerm:
    term = make_term(form, reward.shape[1], **options)
    for rollout in rollouts(reward, ended, horizon or reward.shape[0]):
        term.observe(rollout)
    return term


def noise(
    steps: int, members: int, num_envs: int, ends: float = 0.05
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(steps)
    shape = (steps, members, num_envs)
    return torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < ends


def number(members: int, value: int = 0) -> torch.Tensor:
    return torch.full((members,), value)


def test_a_window_ends_where_its_episode_begins(monkeypatch):
    # Two episodes, rows 0 … 2 and 3 … 7, rewards 0 … 7, so that the normalized reward of row r is r
    # / 7.
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 8)
    ended = torch.zeros(8, 1, 1, dtype=torch.bool)
    ended[2] = ended[7] = True
    windows = observed("k_step", torch.arange(8.0).view(8, 1, 1), ended).draw(800, number(1))
    assert windows.gain.shape == (1, 200, 4)
    row = (windows.observation[0, :, 0] / 100).round().long().view(200, 4)
    expected = {
        0: [0, None, None, None],
        1: [1, 0, None, None],
        2: [2, 1, 0, None],
        3: [3, None, None, None],
        4: [4, 3, None, None],
        5: [5, 4, 3, None],
        6: [6, 5, 4, 3],
        7: [7, 6, 5, 4],
    }
    for rows, gains in zip(row.tolist(), windows.gain[0].tolist(), strict=True):
        wanted = expected[rows[0]]
        assert [r for r, w in zip(rows, wanted, strict=True) if w is not None] == [
            w for w in wanted if w is not None
        ]
        assert gains == pytest.approx([0.0 if w is None else w / 7 for w in wanted])
    # Every end step comes about as often as every other: 25 times each.
    assert row[:, 0].bincount(minlength=8).tolist() == pytest.approx([25.0] * 8, abs=15)


@FORMS
def test_draws_are_of_good_experience_only_and_even(form, monkeypatch):
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 1)
    reward, ended = noise(60, 3, 5)
    term = observed(form, reward, ended, steps=1)
    (rollout,) = rollouts(reward, ended, 60)
    trajectories = Trajectories(rollout, least_rows=60)
    trajectories.add(rollout)
    segments = form == "segment"
    kept, gain = (
        good_segments(trajectories.segments(16))
        if segments
        else good_episodes(trajectories.episodes())
    )
    windows = term.draw(30000, number(3))
    for member in range(3):
        drawn = windows.observation[member, :, 0]
        assert (drawn // 10 % 10 == member).all()
        row, environment = (drawn / 100).floor().long(), (drawn % 10).long()
        assert kept[row, member, environment].all()
        torch.testing.assert_close(windows.gain[member, :, 0], gain[row, member, environment])
        count = torch.bincount(row * 5 + environment, minlength=300).view(60, 5)[kept[:, member]]
        even = 30000 / count.numel()
        assert ((count - even).abs() < 6 * even**0.5).all()


@FORMS
def test_nothing_below_4096_transitions(form):
    # 512 steps in 8 environments; member 1 has one broken row: 4,095. One step more, and there are
    # 4,103.
    reward, ended = noise(513, 2, 8)
    valid = torch.ones_like(ended)
    valid[100, 1, 3] = False
    term = make_term(form, 2)
    *most, last = rollouts(reward, ended, 64, valid)
    for rollout in most:
        term.observe(rollout)
    windows = term.draw(32, number(2))
    assert windows.weight.tolist() == [0.125, 0.0]
    assert (windows.observation[1] == 0).all()
    log_prob = torch.full((2, 32), 0.5, requires_grad=True)
    loss = term.loss(windows, log_prob)
    assert loss[0] < 0
    assert loss[1] == 0
    term.observe(last)
    assert term.draw(32, number(2)).weight.tolist() == [0.125, 0.125]


@FORMS
def test_without_good_experience_there_is_no_loss(form, monkeypatch):
    """Segments that are all equal, and episodes of which none has ended; what is stored may even be
    NaN."""
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 1)
    (rollout,) = rollouts(torch.ones(40, 2, 3), torch.zeros(40, 2, 3, dtype=torch.bool), 40)
    rollout.observation.fill_(torch.nan)
    term = make_term(form, 2)
    term.observe(rollout)
    windows = term.draw(32, number(2))
    assert windows.weight.tolist() == [0.0, 0.0]
    assert windows.observation.isfinite().all()
    weight = torch.ones(2, 1, requires_grad=True)
    loss = term.loss(windows, (windows.observation[..., 0] * weight).exp())
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert weight.grad is not None
    assert (weight.grad == 0).all()


@FORMS
@pytest.mark.parametrize("horizon", [3, 90])
def test_a_cohort_draws_what_its_members_draw_alone(form, horizon, monkeypatch):
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 1)
    reward, ended = noise(90, 3, 5)
    together = observed(form, reward, ended, horizon).draw(20, torch.tensor([4, 5, 6]))
    for member in range(3):
        part = slice(member, member + 1)
        term = observed(form, reward[:, part], ended[:, part], horizon, seed=10 + member)
        alone = term.draw(20, torch.tensor([4 + member]))
        assert torch.equal(alone.gain, together.gain[part])
        assert torch.equal(alone.weight, together.weight[part])
        # Observations carry the member's number, which is 0 alone.
        assert torch.equal(
            alone.observation[..., 0], together.observation[part, :, 0] - 10.0 * member
        )


@FORMS
def test_every_draw_is_another_and_can_be_repeated(form, monkeypatch):
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 1)
    term = observed(form, *noise(90, 2, 5))
    first, second, again = (term.draw(40, number(2, count)) for count in (0, 1, 0))
    assert torch.equal(first.observation, again.observation)
    assert not torch.equal(first.observation, second.observation)
    other = observed(form, *noise(90, 2, 5), seed=77).draw(40, number(2))
    assert not torch.equal(first.observation, other.observation)


def test_what_was_found_is_renewed_before_it_is_overwritten(monkeypatch):
    """Several times round the ring, one row at a time: a window is always K consecutive steps of
    one environment."""
    monkeypatch.setattr(h_term, "LEAST_TRANSITIONS", 1)
    monkeypatch.setattr(h_term, "Trajectories", lambda rollout: Trajectories(rollout, 128 * 3, 128))
    reward, ended = noise(500, 2, 3)
    term = make_term("k_step", 2, steps=3)
    for step, rollout in enumerate(rollouts(reward, ended, 1)):
        term.observe(rollout)
        windows = term.draw(30, number(2, step))
        numbers = windows.observation[..., 0].view(2, 10, 3)
        row, environment = (numbers / 100).floor().long(), (numbers % 10).long()
        for member in range(2):
            if not windows.weight[member]:
                continue
            assert (row[member, :, 0] > step - 128 - 3).all()
            later = windows.gain[member] != 0
            assert (environment[member] == environment[member, :, :1]).all()
            consecutive = row[member] == row[member, :, :1] - torch.arange(3)
            assert (consecutive | ~later).all()
    assert windows.weight.all()


def test_an_unknown_form_and_a_draw_from_nothing_are_refused():
    with pytest.raises(InvalidInput, match="k_step, not 'v1'"):
        make_term("v1", 2)
    with pytest.raises(InvalidInput, match="observed none"):
        make_term("k_step", 2).draw(8, number(2))
