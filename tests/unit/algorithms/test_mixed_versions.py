"""A rollout whose parts were collected by policies of different versions: every row is weighed by
its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_each_row_has_the_importance_of_the_policy_that_acted(make_on_policy, make_rollout, kind):
    """Half of the environments come from an older worker: mu is another policy there, the present
    one elsewhere."""
    algorithm = make_on_policy("ppo", kind, 0, 1, normalize_rewards=False)
    rollout = make_rollout(algorithm.actor)
    old = rollout.num_envs // 2
    log_prob = rollout.log_prob.clone()
    shift = torch.linspace(-0.5, 0.5, log_prob[:, :, :old].numel()).view_as(log_prob[:, :, :old])
    log_prob[:, :, :old] += shift
    mixed = replace(rollout, log_prob=log_prob, policy_version=algorithm.version - 2)
    rows, _ = algorithm._preparation.rows(mixed, algorithm.active, stale=True)
    (minibatch,) = rows.minibatches(rows.count)
    horizon, members, num_envs = rollout.reward.shape
    weight = minibatch.weight.view(members, horizon, num_envs).transpose(0, 1)
    assert torch.allclose(weight[:, :, :old], (-shift).exp().clamp(max=1.0), atol=1e-5)
    assert torch.allclose(weight[:, :, old:], torch.ones(()), atol=1e-5), (
        "rows of the present policy count in full"
    )
    proximal = minibatch.log_prob.view(members, horizon, num_envs).transpose(0, 1)
    assert torch.allclose(proximal, rollout.log_prob, atol=1e-5), (
        "there is one proximal policy, whichever acted"
    )
