"""The replay buffer, filled with rows that say who they are: none is lost or doubled, each leads
where it led."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from podracer_core.buffers import Replay, Rollout, allocate_rollout
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import replay_keys
from support.transitions import draw, filled, number, rollouts, told

# Members, environments, steps of a rollout, capacity; the steps do not divide the rows, 7 + 1 and
# so on.
SHAPES = pytest.mark.parametrize(
    "shape", [(3, 4, 5, 26), (2, 3, 3, 24), (1, 2, 1, 14), (3, 1, 8, 10)]
)


def newest(parts: list[Rollout], rows: int) -> dict[str, torch.Tensor]:
    """The last `rows` rows that went in, [T, M, E, …]."""
    names = ("reward", "terminated", "truncated", "action")
    return {name: torch.cat([getattr(part, name) for part in parts])[-rows:] for name in names}


@SHAPES
def test_no_row_is_lost_or_doubled(shape):
    members, envs, horizon, capacity = shape
    parts = list(rollouts(shape, 9))
    replay = Replay(capacity, parts[0])
    rows = max(-(-capacity // envs), 2 * horizon)
    assert replay.rows == rows
    for count in range(1, len(parts) + 1):
        replay.add(parts[count - 1])
        there = min(count * horizon, rows)
        assert len(replay) == there
        assert replay.size.tolist() == [there] * members
        expected = newest(parts[:count], there)
        for member in range(members):
            state = replay.member_state(member)
            for name, tensor in expected.items():
                assert torch.equal(state[name], tensor[:, member])
            assert state["observation"].shape == (there + 1, envs, 2)
            assert torch.equal(state["observation"][-1], parts[count - 1].observation[-1, member])
            assert state["valid"].all()


@SHAPES
def test_everything_that_is_stored_can_be_drawn_and_nothing_else(shape):
    parts = list(rollouts(shape, 9))
    for count in (1, 4, 9):
        replay = filled(shape, parts[:count])
        drawn = draw(replay)
        expected = newest(parts[:count], len(replay))["reward"]
        for member in range(shape[0]):
            assert drawn.reward[member].unique().tolist() == sorted(
                expected[:, member].flatten().tolist()
            )
        assert torch.equal(drawn.observation[..., 0], drawn.reward)
        assert torch.equal(drawn.observation[..., 1], -drawn.reward)
        assert torch.equal(drawn.action[..., 0], drawn.reward)
        assert (drawn.weight == 1).all()


@SHAPES
def test_every_row_leads_to_its_true_successor(shape):
    parts = list(rollouts(shape, 9))
    drawn = draw(filled(shape, parts))
    ends = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("terminated", "truncated")
    }
    member = torch.arange(shape[0]).view(-1, 1).expand_as(drawn.reward)
    step = told(drawn.observation).long()
    environment = (drawn.reward % 100 / 10).long()
    terminated, truncated = (
        ends[name][step, member, environment] for name in ("terminated", "truncated")
    )
    assert torch.equal(drawn.discount, torch.where(terminated, 0.0, 0.5))
    cut_off = truncated & ~terminated
    assert cut_off.any()
    assert (~cut_off & ~terminated).any()
    expected = torch.where(cut_off, step + 0.5, step + 1.0)
    assert torch.equal(told(drawn.next_observation)[~terminated], expected[~terminated])
    same_place = drawn.next_observation[..., 0] % 1000 - torch.where(cut_off, 5.0, 0.0)
    assert torch.equal(same_place[~terminated], (drawn.reward % 1000)[~terminated])


def test_rows_are_drawn_evenly():
    shape = (2, 3, 4, 20)  # 8 rows of 3 environments
    replay = filled(shape, list(rollouts(shape, 5)))
    drawn, cells = 48_000, 24
    counts = torch.stack([row.unique(return_counts=True)[1] for row in draw(replay, drawn).reward])
    assert counts.shape == (2, cells)
    # Chi-square with 23 degrees of freedom: 49.7 is exceeded once in a thousand times.
    deviation = (counts - drawn / cells).square().sum(1) / (drawn / cells)
    assert (deviation < 49.7).all()
    assert (deviation > 7.5).all()


def test_members_draw_independently_and_the_same_numbers_give_the_same_rows():
    shape = (2, 3, 4, 20)
    replay = filled(shape, list(rollouts(shape, 5)))
    first, again = draw(replay), draw(replay)
    assert torch.equal(first.reward, again.reward)
    assert not torch.equal(first.reward, draw(replay, seed=7).reward)
    in_own_terms = first.reward - torch.tensor([[0.0], [100.0]])
    assert not torch.equal(in_own_terms[0], in_own_terms[1])
    # Numbers 100 … 399 of a stream are the same however many are asked for.
    members = torch.arange(2)
    rest = replay.sample(300, replay_keys(members), members * 0 + 100, torch.full((2,), 0.5))
    assert torch.equal(rest.reward, first.reward[:, 100:400])


def test_shared_members_draw_from_everybody():
    shape = (3, 2, 4, 16)
    replay = filled(shape, list(rollouts(shape, 5)), own_part=0.0)
    drawn = draw(replay, 48_000)
    for member in range(3):
        found, counts = drawn.reward[member].unique(return_counts=True)
        assert found.shape == (48,)
        # 47 degrees of freedom, one in a thousand
        assert ((counts - 1000).square().sum() / 1000) < 84.0
    assert not torch.equal(drawn.reward[0], drawn.reward[1])
    live = drawn.discount > 0
    step = told(drawn.next_observation)
    assert (
        (step - told(drawn.observation))[live].unique().sort().values == torch.tensor([0.5, 1.0])
    ).all()
    assert torch.equal(
        (drawn.next_observation[..., 0] % 1000 // 10)[live], (drawn.reward % 1000 // 10)[live]
    )


@pytest.mark.parametrize(("batch_size", "own_rows"), [(8, 4), (7, 4), (1, 1)])
def test_half_of_each_mixed_batch_is_the_members_own(batch_size, own_rows):
    """Rounded up. A row lies at (row * M + member) * E + environment, so that place and reward name
    one transition."""
    members, envs = 3, 2
    shape = (members, envs, 4, 16)
    replay, alone = (filled(shape, list(rollouts(shape, 5)), own_part=part) for part in (0.5, 1.0))
    gamma, batches = torch.full((members,), 0.5), 3000
    arguments = (
        replay_keys(torch.arange(members)),
        torch.zeros(members, dtype=torch.int64),
        gamma,
        1,
        batches,
    )
    drawn, again, own = (each.sample(batch_size, *arguments) for each in (replay, replay, alone))
    assert torch.equal(drawn.reward, again.reward)
    owner = (drawn.reward % 1000).div(100, rounding_mode="floor").long()
    assert torch.equal(owner, drawn.place.div(envs, rounding_mode="floor") % members)
    owner = owner.view(members, batches, batch_size)
    numbers = drawn.reward.view(members, batches, batch_size)
    assert (owner[..., :own_rows] == torch.arange(members).view(-1, 1, 1)).all()
    # The same numbers draw the same transitions of its own as without the others.
    assert torch.equal(numbers[..., :own_rows], own.reward.view_as(numbers)[..., :own_rows])
    for member in range(members):
        if others := batch_size - own_rows:
            _, counts = numbers[member, :, own_rows:].unique(return_counts=True)
            mean = batches * others / 48  # 8 rows, 3 members, 2 environments
            assert counts.shape == (48,)
            # 47 degrees of freedom, one in a thousand
            assert ((counts - mean).square().sum() / mean) < 84.0


def test_a_member_with_few_rows_draws_its_own_half_from_these():
    shape = (2, 3, 4, 60)
    parts = list(rollouts(shape, 3))
    parent = filled(shape, parts)
    replay = Replay(shape[3], parts[0], own_part=0.5)
    replay.load_member_states([None, parent.member_state(1)])
    replay.add(next(rollouts(shape, 1, first=12)))
    drawn = draw(replay, 2000)
    step = told(drawn.observation)
    assert (step[0, :1000] >= 12).all()
    assert step[1, :1000].unique().tolist() == list(range(16))
    assert (drawn.weight[:, :1000] > 0).all()


def test_a_successor_that_was_overwritten_aside_has_no_weight():
    # Everything is cut off: 20 rows of 2 environments, but room aside for 2 rollouts of 4 steps
    # only, 16 rows.
    shape = (1, 2, 4, 40)
    drawn = draw(filled(shape, list(rollouts(shape, 6, terminated=0.0, truncated=1.0))), 2000)
    step = told(drawn.observation)
    assert torch.equal(drawn.weight, (step >= 24 - 8).float())
    kept = drawn.weight > 0
    assert kept.any()
    assert torch.equal(told(drawn.next_observation)[kept], step[kept] + 0.5)


def test_a_row_whose_successor_never_came_has_no_weight_unless_it_ended():
    shape = (2, 3, 4, 60)
    parts = list(rollouts(shape, 2, terminated=0.3, truncated=0.3))
    lost = list(rollouts(shape, 2, first=100))  # as if 92 steps had been lost on the way
    drawn = draw(filled(shape, parts + lost), 2000)
    ended = parts[-1].terminated[-1] | parts[-1].truncated[-1]
    assert ended.any()
    assert not ended.all()
    member = torch.arange(2).view(-1, 1).expand_as(drawn.reward)
    environment = (drawn.reward % 100 / 10).long()
    expected = torch.where(told(drawn.observation) == 7, ended[member, environment].float(), 1.0)
    assert torch.equal(drawn.weight, expected)


def test_rows_that_are_not_valid_have_no_weight():
    """The world of member 1's environment 2 breaks in step 5."""
    shape = (2, 3, 4, 60)
    parts = list(rollouts(shape, 3, terminated=0.0, truncated=0.0))
    parts[1].valid[1, 1, 2] = False
    parts[1].truncated[1, 1, 2] = True
    drawn = draw(filled(shape, parts), 2000)
    broken = drawn.observation[..., 0] == number(5, 1, 2)
    assert broken[1].any()
    assert torch.equal(drawn.weight, (~broken).float())


def test_images_stay_bytes():
    example = allocate_rollout(3, 2, 4, ((5, 6, 2), torch.uint8), ((), torch.int64))
    example.observation.random_(0, 256, generator=torch.Generator().manual_seed(0))
    example.truncated[1] = True
    replay = Replay(50, example)
    replay.add(example)
    drawn = draw(replay, 20)
    assert drawn.observation.dtype == drawn.next_observation.dtype == torch.uint8
    assert drawn.observation.shape == (2, 20, 5, 6, 2)
    assert drawn.action.dtype == torch.int64
    assert drawn.action.shape == (2, 20)
    assert replay.member_state(0)["observation"].dtype == torch.uint8


def test_a_buffer_that_does_not_fit_into_memory_is_refused_before_anything_is_allocated(
    monkeypatch,
):
    monkeypatch.setattr("podracer_core.device.free_bytes", lambda device: 3 << 30)
    example = next(rollouts((3, 4, 5, 26), 1))
    with pytest.raises(InvalidInput, match="replay_capacity") as caught:
        Replay(100_000_000, example)
    # 3 members * 100,000,000 * (2 numbers seen + 1 done, 4 bytes each, + 15), and a sixteenth of 8
    # bytes aside
    assert "7.7 GiB" in caught.value.message
    assert "3.0 GiB" in caught.value.message
    assert "100,000,000 transitions for each of 3 members" in caught.value.message
    assert caught.value.reason == "REPLAY_TOO_LARGE"
    assert caught.value.violations[0].field == "replay_capacity"
    Replay(1_000_000, example)


def test_an_automatic_capacity_depends_on_the_size_of_a_transition_alone():
    for members, num_envs in ((1, 4), (3, 4)):
        example = next(rollouts((members, num_envs, 5, 26), 1))
        assert Replay(0, example).rows * num_envs == 1_000_000
    image = torch.zeros(6, 1, 4, 84, 84, 12, dtype=torch.uint8)
    small = next(rollouts((1, 4, 5, 26), 1))
    capacity = Replay(0, replace(small, observation=image)).rows * 4
    assert capacity == pytest.approx((1 << 28) / (84 * 84 * 12 + 4 + 15), abs=4)


def test_rollouts_of_another_shape_are_refused():
    shape = (3, 4, 5, 26)
    replay = filled(shape, list(rollouts(shape, 1)))
    for other in ((2, 4, 5, 26), (3, 5, 5, 26)):
        with pytest.raises(InvalidInput, match=f"{other[0]} x {other[1]} environments .* 3 x 4"):
            replay.add(next(rollouts(other, 1)))
    with pytest.raises(InvalidInput, match=r"20 steps .* 10 rows"):
        replay.add(next(rollouts((3, 4, 20, 26), 1)))
    replay.add(next(rollouts((3, 4, 2, 26), 1, first=5)))  # a shorter one is welcome
    assert len(replay) == 7
