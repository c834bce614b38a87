"""Episode statistics against a plain loop."""

from __future__ import annotations

import torch

from podracer_core.collect import EpisodeTracker

HORIZON, MEMBERS, ENVS, ROLLOUTS = 5, 2, 3, 9


def test_equals_a_loop_over_steps_and_environments():
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
                        expected[m] = [
                            x + y
                            for x, y in zip(expected[m], (1, episode[0], episode[1]), strict=True)
                        ]
                    running[m, e] = [0.0, 0, True]
        statistics = tracker.update(reward, ended, valid)
        finished += int(statistics.count.sum())
        assert statistics.count.tolist() == [row[0] for row in expected]
        assert statistics.length_sum.tolist() == [row[2] for row in expected]
        torch.testing.assert_close(
            statistics.return_sum,
            torch.tensor([row[1] for row in expected], dtype=torch.float64),
            rtol=1e-6,
            atol=1e-6,
        )
    assert finished > 20


def test_state_round_trip_and_reset():
    tracker, other = EpisodeTracker(MEMBERS, ENVS), EpisodeTracker(MEMBERS, ENVS)
    never = torch.zeros(HORIZON, MEMBERS, ENVS).bool()
    always = torch.ones(HORIZON, MEMBERS, ENVS).bool()
    reward = torch.ones(HORIZON, MEMBERS, ENVS)
    tracker.update(reward, never, always)
    other.load_state(tracker.state())
    assert (
        other.update(reward, always, always).return_sum.tolist()
        == [ENVS * (HORIZON + HORIZON)] * MEMBERS
    )
    tracker.reset()
    assert tracker.update(reward, always, always).return_sum.tolist() == [ENVS * HORIZON] * MEMBERS


def test_an_aged_episode_counts_only_if_it_ends_before_it_is_cut_off():
    tracker = EpisodeTracker(1, 4)
    tracker.begin_aged(torch.tensor([[True, True, True, False]]))
    reward, valid = torch.ones(2, 1, 4), torch.ones(2, 1, 4).bool()
    ended = torch.tensor([[[True, True, False, True]], [[False, True, True, False]]])
    terminated = torch.tensor([[[True, False, False, False]], [[False, False, False, False]]])
    other = EpisodeTracker(1, 4)
    other.load_state(tracker.state())
    # Whole: environment 0's failure, environment 1's second episode, environment 3's first.
    assert tracker.update(reward, ended, valid, terminated).length_sum.tolist() == [3]
    # Environment 2's second episode ends, and environment 0's.
    later = torch.tensor([[[True, False, True, False]]])
    statistics = tracker.update(reward[:1], later, valid[:1], torch.zeros_like(later))
    assert (statistics.count.tolist(), statistics.length_sum.tolist()) == ([2], [3])
    assert other.update(reward, ended, valid, terminated).count.tolist() == [3]
