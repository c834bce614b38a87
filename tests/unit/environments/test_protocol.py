"""What every environment promises (see `VecEnvironment` and `Step`), shown on one of each kind.

An environment is made once for every size and time limit; each example starts with a reset, so that
what an earlier one left behind would show."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import gymnasium
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from podracer_core.environments import Step, VecEnvironment, action_mask_size, allocate_step
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key
from support.vec_environments import CASES, Case, assert_same, explore, random_action, run, values

SIZES, LIMITS = (1, 2, 7), (None, 1, 5)
Shared = Callable[[Case, int, int | None], VecEnvironment]


def examples(count: int) -> settings:
    """Always the same ones, however long they take."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """`shared(case, num_envs, limit)`: the environment of this size that all examples use, one
    after the other."""
    made: list[VecEnvironment] = []

    @functools.cache
    def make(case: Case, num_envs: int, limit: int | None) -> VecEnvironment:
        made.append(case.make(num_envs, limit))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
sizes, limits = st.sampled_from(SIZES), st.sampled_from(LIMITS)
numbers = st.integers(0, 2**32 - 1)
lengths = st.integers(1, 12)


def seeds_of(draw: st.DataObject, num_envs: int) -> Tensor:
    """Any int64, some twice."""
    each = st.one_of(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1))
    return torch.tensor(
        draw.draw(st.lists(each, min_size=num_envs, max_size=num_envs), label="seeds")
    )


@every_case
@examples(12)
@given(
    data=st.data(), num_envs=sizes, limit=limits, seed=numbers, steps=lengths, wild=st.booleans()
)
def test_steps(case, shared, data, num_envs, limit, seed, steps, wild):
    """Shapes, types and bounds; both ends of an episode; the time limit to the step; nothing broken
    shows."""
    environment = shared(case, num_envs, limit)
    assert environment.num_envs == num_envs
    limit = limit if limit is not None else environment.max_episode_steps
    assert environment.max_episode_steps == limit
    observation = environment.reset(seeds_of(data, num_envs))
    check_observation(environment, observation)
    elapsed, episode = torch.zeros(2, num_envs, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        check_mask(environment, environment.action_mask)
        step = environment.step(random_action(environment, generator, wild))
        elapsed += 1
        check_step(environment, step, wild)
        assert step.action_mask is None or torch.equal(step.action_mask, environment.action_mask)
        at_limit = elapsed >= limit if limit is not None else torch.zeros_like(step.truncated)
        assert torch.equal(step.truncated, at_limit | ~step.valid)
        done = step.terminated | step.truncated
        elapsed[done] = 0
        episode += done
        assert torch.equal(environment.state()["episode"], episode)
        assert torch.equal(step.observation[~done], step.final_observation[~done])


@every_case
def test_an_aged_episode_is_cut_off_the_sooner(case, shared):
    environment = shared(case, 7, 5)
    environment.reset(torch.arange(7))
    ages = torch.tensor([0, 1, 2, 3, 4, 0, 2])
    assert environment.set_ages(ages)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        step = environment.step(random_action(environment, generator))
        ages += 1
        assert torch.equal(step.truncated, ages >= 5)
        ages[step.terminated | step.truncated] = 0


def check_step(environment: VecEnvironment, step: Step, wild: bool) -> None:
    """What is true of every step by itself."""
    count = environment.num_envs
    check_observation(environment, step.observation)
    check_observation(environment, step.final_observation, step.valid)
    assert (step.reward.shape, step.reward.dtype) == ((count,), torch.float32)
    assert step.reward.isfinite().all()
    for name in ("terminated", "truncated", "valid"):
        flag = getattr(step, name)
        assert (name, flag.shape, flag.dtype) == (name, (count,), torch.bool)
    broken = ~step.valid
    assert wild or not broken.any()
    assert step.truncated[broken].all()
    assert not step.terminated[broken].any()
    assert not step.reward[broken].any()
    for field in fields(step):
        value = getattr(step, field.name)
        assert value is None or value.device == environment.device, field.name
    check_mask(environment, step.action_mask)


def check_observation(
    environment: VecEnvironment, observation: Tensor, valid: Tensor | None = None
) -> None:
    """As the space says, for the rows that are valid."""
    space = environment.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    assert observation.shape == (environment.num_envs, *space.shape)
    assert observation.dtype == getattr(torch, space.dtype.name)
    assert observation.double().isfinite().all()
    rows = observation if valid is None else observation[valid]
    low, high = torch.as_tensor(space.low).double(), torch.as_tensor(space.high).double()
    assert (rows >= low - 1e-6 * low.abs()).all()
    assert (rows <= high + 1e-6 * high.abs()).all()


def check_mask(environment: VecEnvironment, mask: Tensor | None) -> None:
    """Always or never, and something is allowed (the Discrete ones only: one part)."""
    assert (mask is not None) == environment.has_action_mask
    if mask is not None:
        assert mask.shape == (environment.num_envs, action_mask_size(environment.action_space))
        assert mask.dtype == torch.bool
        assert mask.any(1).all()


@every_case
@examples(4)
@given(data=st.data(), seed=numbers)
def test_the_final_observation_is_what_would_have_been_seen(case, shared, data, seed):
    """Without the time limit the same step shows as its observation what with it is the final
    one."""
    limited, free = shared(case, 7, 5), shared(case, 7, None)
    seeds = seeds_of(data, 7)
    limited.reset(seeds)
    generator = torch.Generator().manual_seed(seed)
    actions: list[Tensor] = []
    in_first_episode = torch.ones(7, dtype=torch.bool)
    for _ in range(5):
        before = limited.state()
        actions.append(random_action(limited, generator))
        step = values(limited.step(actions[-1]))
        if case.in_processes:  # their state cannot be restored
            free.reset(seeds)
            longer, rows = run(free, actions)[-1], in_first_episode
        else:
            after = limited.state()
            limited.load_state(before | {"elapsed": torch.zeros_like(before["elapsed"])})
            longer, rows = values(limited.step(actions[-1])), torch.ones_like(in_first_episode)
            limited.load_state(after)
        assert torch.equal(step["final_observation"][rows], longer["final_observation"][rows])
        cut = rows & step["truncated"] & ~step["terminated"]
        assert not longer["truncated"][cut].any()
        assert torch.equal(step["final_observation"][cut], longer["observation"][cut])
        in_first_episode &= ~(step["truncated"] | step["terminated"])


@every_case
@examples(6)
@given(data=st.data(), num_envs=sizes, limit=limits, seed=numbers, steps=lengths)
def test_outputs_live_until_the_next_step(case, shared, data, num_envs, limit, seed, steps):
    """Neither asking nor another environment's steps change them, and what their holder does to
    slots has no effect."""
    environment = shared(case, num_envs, limit)
    other = shared(case, 7 if num_envs < 7 else 2, limit)
    seeds = seeds_of(data, num_envs)
    first = environment.reset(seeds).clone()
    actions, expected = explore(environment, steps, seed)
    other.reset(torch.arange(other.num_envs))
    observation = environment.reset(seeds)
    for action, right in zip(actions, expected, strict=True):
        explore(other, 1, seed)
        environment.state()
        assert torch.equal(observation, first)
        step = environment.step(action)
        explore(other, 1, seed)
        environment.state()
        assert_same(values(step), right)
        observation, first = step.observation, right["observation"]


@every_case
@examples(6)
@given(data=st.data(), num_envs=sizes, limit=limits, seed=numbers, steps=lengths)
def test_slots(case, shared, data, num_envs, limit, seed, steps):
    """`out` gets the same as one would without it; slots stay as they are, and may be written
    over."""
    environment = shared(case, num_envs, limit)
    seeds = seeds_of(data, num_envs)
    environment.reset(seeds)
    actions, expected = explore(environment, steps, seed)
    for scribbled in (False, True):
        environment.reset(seeds)
        slots = []
        for index, action in enumerate(actions):
            slot = allocate_step(environment)
            scribble(slot)
            tensors = [getattr(slot, field.name) for field in fields(slot)]
            # what comes back without a slot is the environment's own
            out = slot if index % 3 != 2 else None
            step = environment.step(action, out=out)
            assert step is out or out is None
            assert all(
                getattr(slot, f.name) is tensor
                for f, tensor in zip(fields(slot), tensors, strict=True)
            )
            assert_same(values(step), expected[index], f"in step {index}")
            if out is not None:
                slots.append((index, slot))
                if scribbled:
                    scribble(slot)
        for index, slot in slots if not scribbled else []:
            assert_same(values(slot), expected[index], f"of step {index}, afterwards")


def scribble(slot: Step) -> None:
    """Fill with what no step would give."""
    for field in fields(slot):
        value = getattr(slot, field.name)
        if value is not None:
            value.fill_(torch.nan if value.is_floating_point() else field.name != "valid")


@every_case
@examples(4)
@given(data=st.data(), num_envs=sizes, limit=limits, seed=numbers, wild=st.booleans())
def test_the_seeds_decide(case, shared, data, num_envs, limit, seed, wild):
    """An environment that has been used and started anew is like one that is new."""
    used, seeds = shared(case, num_envs, limit), seeds_of(data, num_envs)
    used.reset(seeds + 1)
    explore(used, 9, seed + 1, wild)
    first = used.reset(seeds).clone()
    actions, expected = explore(used, 9, seed, wild)
    # Starting processes takes a while: there a second reset has to do.
    new = used if case.in_processes else case.make(num_envs, limit)
    assert torch.equal(new.reset(seeds), first)
    for found, right in zip(run(new, actions), expected, strict=True):
        assert_same(found, right)
    if new is not used:
        new.close()


@every_case
@examples(5)
@given(data=st.data(), limit=limits, seed=numbers)
def test_neighbours_do_not_matter(case, shared, data, limit, seed):
    """A seed gives the same in another place, alone or among others."""
    many = shared(case, 7, limit)
    seeds = seeds_of(data, 7)
    whole = many.reset(seeds).clone()
    actions, expected = explore(many, 9, seed)
    for count in SIZES[:2]:
        rows = data.draw(st.permutations(range(7)), label="rows")[:count]
        few = shared(case, count, limit)
        close(few.reset(seeds[rows]), whole[rows])
        for found, right in zip(
            run(few, [action[rows] for action in actions]), expected, strict=True
        ):
            for name, value in found.items():
                close(value, right[name][rows])


def close(found: Tensor, expected: Tensor) -> None:
    """The vector and the scalar functions of a CPU may differ in the last bit."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@every_case
@examples(5)
@given(data=st.data(), num_envs=sizes, limit=limits, seed=numbers, before=lengths, after=lengths)
def test_state_and_load_state(case, shared, data, num_envs, limit, seed, before, after):
    """It goes on bit by bit in the middle of an episode; in processes the next episode starts."""
    environment = shared(case, num_envs, limit)
    environment.reset(seeds_of(data, num_envs))
    _, steps = explore(environment, before, seed)
    saved = environment.state()
    kept = {name: value.clone() for name, value in saved.items()}
    assert all(value.shape[0] == num_envs for value in saved.values())
    if case.in_processes:
        first = environment.load_state(saved).clone()
        actions, expected = explore(environment, after, seed)
        assert torch.equal(environment.state()["seed"], kept["seed"])
    else:
        first = steps[-1]["observation"]
        actions, expected = explore(environment, after, seed)
    assert_same(saved, kept, "of a saved state")
    environment.reset(torch.arange(num_envs))
    assert torch.equal(environment.load_state(saved), first)
    for found, right in zip(run(environment, actions), expected, strict=True):
        assert_same(found, right)
    assert_same(saved, kept, "of a saved state")


@every_case
@examples(3)
@given(data=st.data(), seed=numbers)
def test_a_state_can_be_taken_apart(case, shared, data, seed):
    """Rows of a stored state go on in an environment that has never been reset: a cohort's members
    part."""
    many = shared(case, 7, 5)
    many.reset(seeds_of(data, 7))
    explore(many, 4, seed)
    saved = many.state()
    whole = many.load_state(saved).clone()
    actions, expected = explore(many, 9, seed)
    rows = data.draw(st.permutations(range(7)), label="rows")[:2]
    few = shared(case, 2, 5) if case.in_processes else case.make(2, 5)
    close(few.load_state({name: value[rows] for name, value in saved.items()}), whole[rows])
    for found, right in zip(run(few, [action[rows] for action in actions]), expected, strict=True):
        for name, value in found.items():
            close(value, right[name][rows])
    if not case.in_processes:
        few.close()


@every_case
def test_actions_of_a_wrong_form(case, shared):
    environment = shared(case, 2, None)
    environment.reset(torch.arange(2))
    right = random_action(environment, torch.Generator())
    is_float = right.is_floating_point()
    wrong: list[Any] = [
        right[:1],
        right[0],
        right[:, None],
        torch.cat([right, right]),
        right.long() if is_float else right.float(),
        right.double() if is_float else right.int(),
    ]
    for action in wrong:
        form = rf"must be {right.dtype} \[{str(list(right.shape))[1:-1]}\], not {action.dtype} \["
        with pytest.raises(InvalidInput, match=form):
            environment.step(action)
    environment.step(right)


@every_case
def test_seeds_of_a_wrong_form(case, shared):
    for wrong in (torch.arange(3), torch.zeros(2, 1, dtype=torch.int64), torch.tensor(0)):
        with pytest.raises(InvalidInput, match=r"shape \[2\]"):
            shared(case, 2, None).reset(wrong)


@pytest.mark.thorough
@every_case
def test_a_great_many(case):
    environment = case.make(case.many, 3)
    check_observation(environment, environment.reset(derive_key(torch.arange(case.many))))
    _, steps = explore(environment, 4, seed=0)
    for step in steps:
        check_step(environment, Step(**({"action_mask": None} | step)), wild=False)
    assert steps[2]["truncated"].any()
    environment.close()


@pytest.mark.thorough
@every_case
def test_none_are_refused(case):
    with pytest.raises(InvalidInput, match="num_envs"):
        case.make(0, None)
