"""Pixels: convolutions over the member axis in front of the same losses."""

from __future__ import annotations

import pytest
import torch

from support.off_policy import build, cut, history, same_state, select, weights

NAMES = pytest.mark.parametrize("name", ["dqn", "sac", "discrete_sac"])
SMALL = {"batch_size": 3, "horizon": 3, "updates_per_step": 1 / 3, "replay_capacity": 20}


@NAMES
def test_a_cohort_gives_what_its_agents_give_alone(name):
    """Adam divides by a gradient's own size: of a few in 10,000, that are next to nothing, the
    rounding is seen."""
    cohort = build(name, image=True, **SMALL | {"updates_per_step": 1 / 6})
    rollout = history(cohort, 3, envs=2)
    start = [weights(cohort, m) for m in range(3)]
    assert cohort.update(rollout)["critic_loss"].isfinite().all()
    assert cohort.gradient_steps == 1
    assert cohort.replay is not None
    assert cohort.replay.member_state(0)["observation"].dtype == torch.uint8
    for m in range(3):
        alone = build(name, m, image=True, **SMALL | {"updates_per_step": 1 / 6})
        assert torch.equal(weights(alone, 0), start[m])
        alone.update(select(rollout, m))
        for network in cohort.networks:
            mine = cohort.optimizers[network].gradient[m]
            own = alone.optimizers[network].gradient[0]
            torch.testing.assert_close(mine, own, rtol=1e-5, atol=1e-6 * own.abs().max().item())
        close = weights(alone, 0).isclose(weights(cohort, m), rtol=1e-5, atol=1e-6)
        assert close.float().mean() > 0.999
        convolution = cohort.networks["actor"].member_state(m)["convolutions.0.weight"]
        assert not torch.equal(convolution, start[m][: convolution.numel()].view_as(convolution))


@NAMES
def test_pixels_become_zero_to_one_and_are_not_normalized(name):
    algorithm = build(name, image=True, normalize_observations=True, **SMALL)
    rollout = history(algorithm, 3, envs=2)
    algorithm.update(rollout)
    batch = next(algorithm.batches(1))
    assert batch.observation.shape == (3, 3, 36 * 36 * 3)
    assert batch.observation.min() == 0
    assert batch.observation.max() == 1
    assert torch.equal(batch.observation * 255, (batch.observation * 255).round())


def test_a_member_that_diverges_leaves_the_others_convolutions_alone():
    healthy, sick = build("dqn", image=True, **SMALL), build("dqn", image=True, **SMALL)
    rollout = history(healthy, 3, envs=2)
    bad = select(rollout, 0, 1, 2)
    bad.reward[:, 1] = torch.inf
    before = weights(sick, 1)
    healthy.update(rollout)
    assert sick.update(bad)["active"].tolist() == [True, False, True]
    assert torch.equal(weights(sick, 1), before)
    assert same_state(sick, 0, healthy, 0)
    assert same_state(sick, 2, healthy, 2)


def test_resuming_from_pixels_is_exact():
    through = build("discrete_sac", image=True, **SMALL)
    resumed = build("discrete_sac", image=True, **SMALL)
    rollout = history(through, 6, envs=2)
    through.update(cut(rollout, 0, 3))
    for m in range(3):
        resumed.load_member_state(m, through.member_state(m))
    resumed.load_replay_states([through.replay_state(m) for m in range(3)])
    for algorithm in (through, resumed):
        algorithm.update(cut(rollout, 3, 6))
    assert all(same_state(through, m, resumed, m) for m in range(3))
