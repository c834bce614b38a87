"""Advantages worked out by hand, across both ways in which an episode ends."""

from __future__ import annotations

import torch

from podracer_core.algorithms import generalized_advantages, normalized_advantages

GAMMA, LAMBDA = 0.5, 0.5


def column(*values: float) -> torch.Tensor:
    """[T, 1, 1]"""
    return torch.tensor(values).view(-1, 1, 1)


def flags(*values: int) -> torch.Tensor:
    return column(*values).bool()


def advantages(
    terminated: torch.Tensor, truncated: torch.Tensor, valid: torch.Tensor, **more: torch.Tensor
) -> list[float]:
    """r = 1, 2, 3; V(s) = 10, 20, 30; V(s') = 20, 30, 40 unless an episode ended there, then 8"""
    next_value = torch.where(terminated | truncated, 8.0, column(20.0, 30.0, 40.0))
    result = generalized_advantages(
        column(1.0, 2.0, 3.0),
        column(10.0, 20.0, 30.0),
        next_value,
        terminated,
        truncated,
        valid,
        torch.tensor([GAMMA]),
        torch.tensor([LAMBDA]),
        **more,
    )
    return result.flatten().tolist()


NEVER, ALWAYS = flags(0, 0, 0), flags(1, 1, 1)


def test_no_episode_ends():
    # delta = 1 + 0.5 * 20 - 10, 2 + 0.5 * 30 - 20, 3 + 0.5 * 40 - 30 = 1, -3, -7; A = delta + 0.25
    # * next A A[2] = -7, A[1] = -3 - 1.75 = -4.75, A[0] = 1 - 1.1875 = -0.1875
    assert advantages(NEVER, NEVER, ALWAYS) == [-0.1875, -4.75, -7.0]


def test_a_terminated_episode_has_no_future():
    # delta[1] = 2 - 20 = -18 and nothing of A[2] comes before it; A[0] = 1 + 0.25 * -18 = -3.5
    assert advantages(flags(0, 1, 0), NEVER, ALWAYS) == [-3.5, -18.0, -7.0]


def test_a_truncated_episode_bootstraps_from_where_it_was_cut_off():
    # delta[1] = 2 + 0.5 * 8 - 20 = -14; A[0] = 1 + 0.25 * -14 = -2.5
    assert advantages(NEVER, flags(0, 1, 0), ALWAYS) == [-2.5, -14.0, -7.0]


def test_terminated_at_the_time_limit_counts_as_terminated():
    assert advantages(flags(0, 1, 0), flags(0, 1, 0), ALWAYS) == [-3.5, -18.0, -7.0]


def test_the_end_of_the_rollout_is_no_end_of_the_episode():
    # delta[2] = 3 + 0.5 * 8 - 30 = -23 where it was cut off, 3 - 30 = -27 where it terminated
    assert advantages(NEVER, flags(0, 0, 1), ALWAYS)[2] == -23.0
    assert advantages(flags(0, 0, 1), NEVER, ALWAYS)[2] == -27.0


def test_advantages_end_at_an_invalid_row():
    assert advantages(NEVER, flags(0, 1, 0), flags(1, 0, 1)) == [1.0, 0.0, -7.0]


def test_lambda_one_and_zero():
    """The two ends of the family: the observed return, and the one-step error (equations 17 and
    18)."""
    torch.manual_seed(0)
    reward, value = torch.randn(2, 5, 2, 3)
    next_value = torch.cat([value[1:], torch.randn(1, 2, 3)])
    no, yes = torch.zeros(5, 2, 3).bool(), torch.ones(5, 2, 3).bool()
    gamma = torch.tensor([0.9, 0.5])
    both = [
        generalized_advantages(reward, value, next_value, no, no, yes, gamma, torch.full((2,), x))
        for x in (0.0, 1.0)
    ]
    discount = gamma.view(-1, 1)
    torch.testing.assert_close(both[0], reward + discount * next_value - value)
    returns = next_value[-1]
    for t in reversed(range(5)):
        returns = reward[t] + discount * returns
        torch.testing.assert_close(both[1][t], returns - value[t])


def test_importance_of_one_changes_nothing_and_less_cuts_the_trace():
    assert advantages(NEVER, NEVER, ALWAYS, importance=column(1.0, 1.0, 1.0)) == [
        -0.1875,
        -4.75,
        -7.0,
    ]
    # delta = 1, -3, -7 and rho[1] = 0.5: A[1] = -3 + 0.25 * -7 = -4.75, A[0] = 1 + 0.25 * 0.5 *
    # -4.75
    assert advantages(NEVER, NEVER, ALWAYS, importance=column(1.0, 0.5, 1.0)) == [
        0.40625,
        -4.75,
        -7.0,
    ]


def test_importance_gives_the_targets_and_gradients_of_v_trace():
    """Espeholt et al., 2018: v[s] = V[s] + sum over t >= s of gamma^(t-s) (c[s] … c[t-1])
    delta_V[t] with delta_V = rho (r + gamma V' - V) and c = lambda rho; the policy's gradient has
    rho (r + gamma v' - V) (lambda 1)."""
    torch.manual_seed(0)
    horizon, gamma = 6, 0.9
    reward, value = torch.randn(2, horizon, 1, 1)
    next_value = torch.cat([value[1:], torch.randn(1, 1, 1)])
    importance = torch.rand(horizon, 1, 1)
    no, yes = torch.zeros(horizon, 1, 1).bool(), torch.ones(horizon, 1, 1).bool()
    error = importance * (reward + gamma * next_value - value)
    for lam in (1.0, 0.7):
        target = value.clone()
        for s in range(horizon):
            product = 1.0
            for t in range(s, horizon):
                target[s] += gamma ** (t - s) * product * error[t]
                product = product * lam * importance[t]
        mine = generalized_advantages(
            reward,
            value,
            next_value,
            no,
            no,
            yes,
            torch.tensor([gamma]),
            torch.tensor([lam]),
            importance,
        )
        torch.testing.assert_close(value + importance * mine, target)
        if lam == 1.0:
            next_target = torch.cat([target[1:], next_value[-1:]])
            torch.testing.assert_close(mine, reward + gamma * next_target - value)


def test_what_is_not_valid_has_no_importance_that_matters():
    broken = column(1.0, torch.nan, 1.0)
    assert advantages(NEVER, flags(0, 1, 0), flags(1, 0, 1), importance=broken) == [1.0, 0.0, -7.0]


def test_members_do_not_mix():
    torch.manual_seed(0)
    reward, value, next_value = torch.randn(3, 7, 3, 2)
    terminated, truncated = torch.rand(2, 7, 3, 2) < 0.2
    valid = torch.rand(7, 3, 2) < 0.9
    gamma, lam = torch.tensor([0.9, 0.99, 0.5]), torch.tensor([0.95, 0.8, 1.0])
    together = generalized_advantages(
        reward, value, next_value, terminated, truncated, valid, gamma, lam
    )
    for m in range(3):
        part = slice(m, m + 1)
        rows = (
            tensor[:, part] for tensor in (reward, value, next_value, terminated, truncated, valid)
        )
        assert torch.equal(together[:, part], generalized_advantages(*rows, gamma[part], lam[part]))


def test_normalization_is_per_member_and_ignores_invalid_rows():
    values = torch.tensor([[1.0, 3.0, torch.nan], [10.0, 20.0, 30.0]])
    valid = torch.tensor([[True, True, False], [True, True, True]])
    normalized = normalized_advantages(values, valid)
    torch.testing.assert_close(normalized[0], torch.tensor([-1.0, 1.0, 0.0]))
    torch.testing.assert_close(normalized[1], torch.tensor([-(1.5**0.5), 0.0, 1.5**0.5]))
