"""Episode statistics against a plain loop."""

from __future__ import annotations

import torch

from podracer_core.collect.episodes import EpisodeTracker

HORIZON, MEMBERS, ENVS, ROLLOUTS = 5, 2, 3, 9


def test_equals_a_loop_over_steps_and_environments() -> None:
    generator = torch.Generator().manual_seed(0)
    tracker = EpisodeTracker(MEMBERS, ENVS)
    running = {(m, e): [0.0, 0, True] for m in range(MEMBERS) for e in range(ENVS)}
    finished = 0
    for _ in range(ROLLOUTS):
        reward = torch.randn(HORIZON, MEMBERS, ENVS, generator=generator)
        ended = torch.rand(HORIZON, MEMBERS, ENVS, generator=generator) < 0.2
        valid = torch.rand(HORIZON, MEMBERS, ENVS, generator=generator) < 0.95
        expected = [[0, 0.0, 0] for _ in range(MEMBERS)]
        for t in range(HORIZON):
            for (m, e), episode in running.items():
                if valid[t, m, e]:
                    episode[0] += reward[t, m, e].item()
                episode[1] += 1
                episode[2] &= bool(valid[t, m, e])
                if ended[t, m, e]:
                    if episode[2]:
                        expected[m] = [x + y for x, y in zip(expected[m], (1, episode[0], episode[1]), strict=True)]
                    running[m, e] = [0.0, 0, True]
        statistics = tracker.update(reward, ended, valid)
        finished += int(statistics.count.sum())
        assert statistics.count.tolist() == [row[0] for row in expected]
        assert statistics.length_sum.tolist() == [row[2] for row in expected]
        torch.testing.assert_close(
            statistics.return_sum, torch.tensor([row[1] for row in expected], dtype=torch.float64), rtol=1e-6, atol=1e-6
        )
    assert finished > 20


def test_state_round_trip_and_reset() -> None:
    tracker, other = EpisodeTracker(MEMBERS, ENVS), EpisodeTracker(MEMBERS, ENVS)
    never, always = torch.zeros(HORIZON, MEMBERS, ENVS).bool(), torch.ones(HORIZON, MEMBERS, ENVS).bool()
    reward = torch.ones(HORIZON, MEMBERS, ENVS)
    tracker.update(reward, never, always)
    other.load_state(tracker.state())
    assert other.update(reward, always, always).return_sum.tolist() == [ENVS * (HORIZON + HORIZON)] * MEMBERS
    tracker.reset()
    assert tracker.update(reward, always, always).return_sum.tolist() == [ENVS * HORIZON] * MEMBERS
