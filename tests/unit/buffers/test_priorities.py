"""Prioritized sampling: the tree of sums, and the probabilities and weights of the replay
buffer."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers import PriorityTree, Replay, Rollout, Transitions, allocate_rollout
from podracer_core.random_numbers import replay_keys

# One node, two and three levels, the last with a root that is not full.
LEAVES = pytest.mark.parametrize("leaves", [5, 64, 65, 4096, 5000])


def counted(tree: PriorityTree, total: int, members: int) -> torch.Tensor:
    """How often each leaf is found where whole priorities add up to `total`, asked once in each of
    its units."""
    part = ((torch.arange(total) + 0.5) / total).expand(members, -1)
    leaf, _ = tree.find(part)
    return torch.stack([row.bincount(minlength=int(leaf.max()) + 1) for row in leaf])


def whole(members: int, leaves: int) -> torch.Tensor:
    """Priorities 0 … 4, the same sum for every member."""
    generator = torch.Generator().manual_seed(leaves)
    priority = torch.randint(5, (leaves,), generator=generator).float()
    priority[0] = priority[-1] = 0.0
    priority[1] = 3.0
    return torch.stack(
        [priority[torch.randperm(leaves, generator=generator)] for _ in range(members)]
    )


@LEAVES
def test_leaves_are_found_in_exact_proportion_to_their_priorities(leaves):
    priority = whole(3, leaves)
    tree = PriorityTree(3, leaves)
    tree.set(torch.arange(leaves).expand(3, -1), priority)
    total = int(priority[0].sum())
    found = torch.nn.functional.pad(counted(tree, total, 3), (0, leaves))[:, :leaves]
    assert torch.equal(found, priority.long())
    leaf, probability = tree.find(torch.rand(3, 1000, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(probability, priority.gather(1, leaf) / total)


@LEAVES
def test_what_has_no_priority_is_never_found(leaves):
    tree = PriorityTree(2, leaves)
    some = torch.tensor([[leaves // 2, 1], [leaves - 2, 3]])
    tree.set(some, torch.tensor([[0.3, 0.7], [1e-6, 1e6]]))
    edges = torch.tensor([0.0, 2.0**-24, 0.3, 0.5, 1 - 2.0**-24])
    leaf, probability = tree.find(torch.cat([edges, torch.rand(2000)]).expand(2, -1))
    assert (probability > 0).all()
    for member in range(2):
        assert set(leaf[member].tolist()) <= set(some[member].tolist())
    assert set(leaf[0].tolist()) == set(some[0].tolist())


def test_a_tree_of_nothing_finds_probability_zero():
    _, probability = PriorityTree(2, 70).find(torch.rand(2, 9))
    assert (probability == 0).all()


def test_thousands_of_updates_leave_no_error_in_the_sums():
    """Sums that are carried along instead would be off by all that has been rounded away."""
    leaves, generator = 5000, torch.Generator().manual_seed(0)
    tree, present = PriorityTree(2, leaves), torch.zeros(2, leaves)
    for step in range(1000):
        leaf = torch.stack([torch.randperm(leaves, generator=generator)[:32] for _ in range(2)])
        priority = 10 ** (12 * torch.rand(2, 32, generator=generator) - 6)
        tree.set(leaf, priority)
        present.scatter_(1, leaf, priority)
        if step % 200 == 0:
            tree.clear(leaf[0])
            present[:, leaf[0]] = 0.0
    final = whole(2, leaves)
    tree.set(torch.arange(leaves).expand(2, -1), final)
    assert torch.equal(tree._levels[-1].sum(1), final.sum(1))
    tree.set(torch.arange(leaves).expand(2, -1), present)
    for below, above in zip(tree._levels[:-1], tree._levels[1:], strict=True):
        expected = below.unflatten(1, (-1, 64)).sum(-1)
        torch.testing.assert_close(above[:, : expected.shape[1]], expected, rtol=1e-6, atol=0)


def test_new_leaves_get_the_greatest_priority_so_far_of_their_member():
    tree = PriorityTree(2, 200)
    tree.set_newest(torch.tensor([3]), torch.ones(2, 1, dtype=torch.bool))
    _, probability = tree.find(torch.zeros(2, 1))
    assert probability.flatten().tolist() == [1.0, 1.0]
    tree.set(torch.tensor([[3], [3]]), torch.tensor([[4.0], [0.5]]))
    tree.set(torch.tensor([[3], [3]]), torch.tensor([[2.0], [0.25]]))
    tree.set_newest(torch.tensor([150, 151]), torch.ones(2, 2, dtype=torch.bool))
    # Member 0 has had 4; member 1 never more than the 1 that the first leaf got.
    sums = counted(tree, 10, 2)
    assert sums[0].nonzero().flatten().tolist() == [3, 150, 151]
    assert sums[0][[3, 150, 151]].tolist() == [2, 4, 4]
    _, probability = tree.find(torch.tensor([[0.0, 0.99]] * 2))
    torch.testing.assert_close(probability[1], torch.tensor([0.25 / 2.25, 1 / 2.25]))


def test_a_leaf_set_twice_at_once_counts_once_by_the_greater_priority():
    """Which was written last is chance on a GPU."""
    tree = PriorityTree(1, 100)
    tree.set(torch.tensor([[7, 7, 70]]), torch.tensor([[4.0, 9.0, 5.0]]))
    tree.set(torch.tensor([[7, 7, 70]]), torch.tensor([[3.0, 2.0, 5.0]]))
    _, probability = tree.find(torch.tensor([[0.0, 0.99]]))
    torch.testing.assert_close(probability, torch.tensor([[3 / 8, 5 / 8]]))


# In the replay buffer

MEMBERS, ENVS, HORIZON = 3, 2, 4
GAMMA = torch.full((MEMBERS,), 0.5)


def replay(capacity: int = 16) -> Replay:
    """Room for 8 rows of 2 environments, of which 4 are there: rewards 0 … 7, plus 100 a member."""
    made = Replay(capacity, rollout(0), prioritized=True)
    made.add(rollout(0))
    return made


def rollout(start: int) -> Rollout:
    made = allocate_rollout(HORIZON, MEMBERS, ENVS, ((1,), torch.float32), ((), torch.int64))
    number = torch.arange(start * ENVS, (start + HORIZON) * ENVS).view(HORIZON, 1, ENVS)
    made.reward.copy_(number + 100 * torch.arange(MEMBERS).view(-1, 1))
    step = torch.arange(start, start + HORIZON + 1.0).view(-1, 1, 1, 1)
    made.observation.copy_(step.expand_as(made.observation))
    made.final_observation.copy_(made.observation[1:])
    return made


def draw(buffer: Replay, rows: int, exponent: float = 0.5) -> Transitions:
    members = torch.arange(MEMBERS)
    exponents = torch.full((MEMBERS,), exponent)
    return buffer.sample_prioritized(rows, replay_keys(members), members * 0, GAMMA, 1, exponents)


def prioritize(buffer: Replay, priority: torch.Tensor) -> None:
    """priority [M, 8] of rewards 0 … 7."""
    drawn = draw(buffer, 200)
    for member in range(MEMBERS):
        assert drawn.reward[member].unique().shape == (8,)
    buffer.set_priorities(drawn.place, priority.gather(1, own_number(drawn)))


def own_number(drawn: Transitions) -> torch.Tensor:
    return (drawn.reward - 100 * torch.arange(MEMBERS).view(-1, 1)).long()


def test_probabilities_and_importance_weights_by_hand():
    # Priorities 1 … 8 of N = 8 transitions: P(i) = i / 36, (N P(i))^-0.5 over its greatest, that of
    # i = 1: i^-0.5
    buffer = replay()
    priority = torch.stack([torch.arange(1.0, 9), torch.arange(8.0, 0, -1), torch.full((8,), 0.3)])
    prioritize(buffer, priority)
    drawn = draw(buffer, 3600)
    number = own_number(drawn)
    counts = torch.stack([row.bincount(minlength=8) for row in number]).float()
    torch.testing.assert_close(
        counts, 3600 * priority / priority.sum(1, keepdim=True), rtol=0, atol=1.001
    )
    torch.testing.assert_close(drawn.weight[:2], priority[:2].gather(1, number[:2]).rsqrt())
    torch.testing.assert_close(drawn.weight[2], torch.ones(3600))


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_with_the_full_exponent_the_weights_undo_the_priorities(exponent):
    buffer = replay()
    prioritize(buffer, torch.tensor([[0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8]] * MEMBERS))
    drawn = draw(buffer, 5_100, exponent)
    weighted = torch.stack(
        [drawn.weight[:, number == own_number(drawn)[0]].sum(1) for number in range(8)], 1
    )
    share = weighted[0] / weighted[0].sum()
    expected = torch.tensor([2.0**i for i in range(8)]).pow(1 - exponent)
    torch.testing.assert_close(share, expected / expected.sum(), rtol=0.03, atol=0)


def test_every_part_of_a_batch_is_drawn_from():
    """One draw from each of B equal parts: with B = 8 equal priorities every transition is there
    once."""
    drawn = draw(replay(), 8)
    for member in range(MEMBERS):
        assert own_number(drawn)[member].sort().values.tolist() == list(range(8))


def test_new_transitions_come_with_the_greatest_priority_and_old_ones_go():
    buffer = replay()
    prioritize(buffer, torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 5]] * MEMBERS))
    buffer.add(rollout(4))
    # 8 rows of 2: the first eight priorities, 12 in sum, and eight new ones of 5
    counts = torch.stack([row.bincount(minlength=16) for row in own_number(draw(buffer, 520))])
    expected = torch.tensor([10.0] * 7 + [50.0] * 9)
    torch.testing.assert_close(counts.float(), expected.expand(MEMBERS, -1), rtol=0, atol=1.001)
    buffer.add(rollout(8))  # the first four rows are overwritten, and with them their priorities
    counts = torch.stack([row.bincount(minlength=24) for row in own_number(draw(buffer, 1600))])
    assert (counts[:, :8] == 0).all()
    torch.testing.assert_close(
        counts[:, 8:].float(), torch.full((MEMBERS, 16), 100.0), rtol=0, atol=1.001
    )


def test_rows_whose_successor_a_lost_worker_took_with_it_are_not_drawn():
    buffer = replay(capacity=40)
    ended = rollout(4)
    ended.terminated[-1, 0] = True
    buffer.add(ended)
    buffer.add(rollout(100))
    drawn = draw(buffer, 2400)
    last = drawn.observation[..., 0] == 7
    assert (drawn.weight == 1).all()
    assert last[0].any()  # of member 0, which had come to an end
    assert not last[1:].any()


def test_an_unfinished_buffer_gives_only_what_is_there():
    buffer = replay(capacity=9000)
    drawn = draw(buffer, 500)
    assert own_number(drawn).unique().tolist() == list(range(8))
    assert (drawn.weight == 1).all()


def test_transitions_that_are_loaded_keep_their_priorities():
    buffer = replay()
    priority = torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 5], [1.0] * 8, [8.0, 1, 1, 1, 1, 1, 1, 1]])
    prioritize(buffer, priority)
    loaded = Replay(16, rollout(0), prioritized=True)
    loaded.load_member_states([buffer.member_state(0), None, buffer.member_state(2)])
    drawn = draw(loaded, 1200)
    for member in (0, 2):
        counts = own_number(drawn)[member].bincount(minlength=8).float()
        torch.testing.assert_close(
            counts, 1200 * priority[member] / priority[member].sum(), rtol=0, atol=1.001
        )
    assert (drawn.weight[1] == 0).all()
    loaded.add(rollout(4))  # what is new comes with the greatest that the member ever had
    counts = own_number(draw(loaded, 520))[0].bincount(minlength=16).float()
    torch.testing.assert_close(counts, torch.tensor([10.0] * 7 + [50.0] * 9), rtol=0, atol=1.001)


def test_transitions_without_priorities_begin_alike():
    state = {
        name: value for name, value in replay().member_state(0).items() if "priority" not in name
    }
    loaded = Replay(16, rollout(0), prioritized=True)
    loaded.load_member_states([state, None, None])
    assert own_number(draw(loaded, 8))[0].sort().values.tolist() == list(range(8))
