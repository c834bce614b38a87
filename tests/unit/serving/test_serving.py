"""Served policies: equal to the local ones, by name and version, in batches."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.checkpoint import (
    Checkpoint,
    load_ensemble_policy,
    load_policy,
    random_observations,
)
from podracer_core.errors import (
    AlreadyExists,
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    NotFound,
    Unavailable,
)
from podracer_policy.policies import MAX_NAMES, Batcher, ServedPolicies, ServedPolicy
from support.errors import raises
from support.policies import random_policy

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
IMAGE = gymnasium.spaces.Box(0, 255, (3, 36, 36), np.uint8)
CHOICE = gymnasium.spaces.Discrete(4)
CHOICES = gymnasium.spaces.MultiDiscrete([3, 2])

KINDS: list[tuple[str, Any, Any]] = [
    ("ppo", BOX, TORQUE),
    ("sac", BOX, TORQUE),
    ("td3", BOX, TORQUE),
    ("ppo", BOX, CHOICE),
    ("ppo", BOX, CHOICES),
    ("dqn", BOX, CHOICE),
    ("ppo", IMAGE, CHOICE),
]


def box_policy(seed: int = 0, name: str = "p", version: str = "1") -> ServedPolicy:
    return ServedPolicy(name, version, [random_policy("ppo", BOX, TORQUE, seed)])


def moderate_policy(algorithm: str, observations: Any, actions: Any, seed: int) -> Checkpoint:
    """Weights of the size that training starts with: outputs that are not saturated."""
    checkpoint = random_policy(algorithm, observations, actions, seed)
    for tensor in checkpoint.groups["actor"].values():
        if tensor.dim() > 1:
            tensor.div_(max(tensor.shape[-2:]) ** 0.5)
    return checkpoint


@pytest.mark.parametrize(("algorithm", "observations", "actions"), KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_equal_to_the_local_policy_in_every_batch_size(algorithm, observations, actions, count):
    checkpoints = [moderate_policy(algorithm, observations, actions, seed) for seed in range(count)]
    served = ServedPolicy("p", "1", checkpoints)
    local = load_policy(checkpoints[0]) if count == 1 else load_ensemble_policy(checkpoints)
    raw = random_observations(checkpoints[0], 33)
    with torch.inference_mode():
        expected = local(raw)
    whole, alone = served.act(raw), torch.cat([served.act(row.unsqueeze(0)) for row in raw])
    assert whole.dtype == expected.dtype
    assert torch.equal(whole, expected)
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-5)


def test_a_mask_allows_what_it_allows():
    served = ServedPolicy("p", "1", [random_policy("ppo", BOX, CHOICE, 0)])
    assert served.mask_parts == (4,)
    masks = torch.eye(4, dtype=torch.bool)
    assert served.act(torch.zeros(4, 3), masks).tolist() == [0, 1, 2, 3]
    assert ServedPolicy("p", "1", [random_policy("ppo", BOX, CHOICES, 0)]).mask_parts == (3, 2)
    assert box_policy().mask_parts == ()


def test_who_cannot_act_is_refused():
    broken = random_policy("ppo", BOX, TORQUE, 0)
    broken.groups["actor"][next(iter(broken.groups["actor"]))].fill_(torch.nan)
    with pytest.raises(InvalidInput, match="not finite"):
        ServedPolicy("p", "1", [broken])
    with raises(InvalidInput, "NOT_A_POLICY"):
        ServedPolicy("p", "1", [Checkpoint({}, {"environment": {"id": "Pendulum-v1"}}, {})])
    with raises(InvalidInput, "ENSEMBLE_SPACES"):
        ServedPolicy(
            "p", "1", [random_policy("ppo", BOX, TORQUE, 0), random_policy("ppo", BOX, CHOICE, 0)]
        )
    with raises(InvalidInput, field="name"):
        box_policy(name="a/b")


def test_a_policy_without_an_owner_is_for_no_token_of_a_project():
    def projects(*agents: str) -> frozenset[str]:
        policies = [random_policy("ppo", BOX, TORQUE, seed) for seed, _ in enumerate(agents)]
        named = [
            replace(each, metadata={**each.metadata, "agent": agent})
            for each, agent in zip(policies, agents, strict=True)
        ]
        return ServedPolicy("p", "1", named).projects

    owned = "projects/a/jobs/j/agents/a0"
    assert projects(owned) <= {"a"}
    assert projects(owned, "projects/b/jobs/j/agents/a0") <= {"a", "b"}
    for agents in ([""], ["a0"], [owned, "a0"]):
        assert not projects(*agents) <= {"a", "b"}


def test_names_and_versions():
    policies = ServedPolicies()
    with raises(NotFound, "UNKNOWN_POLICY", match="served"):
        policies.find()
    first, second, third = (box_policy(seed, version=str(seed)) for seed in (1, 2, 3))
    policies.put(first)
    assert policies.find() is first
    policies.put(second)
    assert policies.find("p") is second
    assert policies.find("p", "1") is first
    assert policies.put(box_policy(1, version="1")) is first, (
        "the same bytes are not loaded twice: back to the former"
    )
    assert policies.versions("p") == ["1", "2"]
    policies.put(third)
    assert policies.versions("p") == ["3", "1"]
    with raises(NotFound, "UNKNOWN_VERSION"):
        policies.find("p", "2")
    with pytest.raises(AlreadyExists, match="another version 3"):
        policies.put(box_policy(9, version="3"))
    policies.put(box_policy(name="q"))
    with raises(NotFound, "UNKNOWN_POLICY", match="policy; served"):
        policies.find()
    policies.remove("q")
    with pytest.raises(NotFound):
        policies.remove("q")


def test_names_are_bounded():
    policies, policy = ServedPolicies(), box_policy()
    for number in range(MAX_NAMES):
        policy.name = f"p{number}"
        policies.put(policy)
    with raises(Exhausted, "TOO_MANY_POLICIES"):
        policies.put(box_policy(name="more"))


class SlowPolicy(ServedPolicy):
    """Waits before it acts, and counts the rows of each call."""

    def __init__(self) -> None:
        self.go, self.calls = threading.Event(), list[int]()
        self.go.set()
        super().__init__("slow", "1", [moderate_policy("ppo", BOX, TORQUE, 0)])
        self.go.clear()
        self.calls.clear()

    def seconds_for(self, rows: int) -> float:
        return 1.0

    def act(self, observations: torch.Tensor, masks: torch.Tensor | None = None) -> torch.Tensor:
        self.calls.append(len(observations))
        assert self.go.wait(20)
        return super().act(observations, masks)


class CountedPolicy(ServedPolicy):
    """Counts the rows of each call, and tells the thread."""

    def __init__(self) -> None:
        self.calls = list[tuple[int, int]]()
        super().__init__("counted", "1", [moderate_policy("ppo", BOX, TORQUE, 0)])
        self.calls.clear()

    def seconds_for(self, rows: int) -> float:
        return 0.0001 * rows

    def act(self, observations: torch.Tensor, masks: torch.Tensor | None = None) -> torch.Tensor:
        self.calls.append((len(observations), threading.get_ident()))
        return super().act(observations, masks)


async def wait_for_calls(policy: SlowPolicy, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(policy.calls) < count and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    assert len(policy.calls) == count


def begun(
    batcher: Batcher, policy: ServedPolicy, *arguments: Any, **named: Any
) -> asyncio.Task[torch.Tensor]:
    """A request that has been handed over once the loop has run."""
    return asyncio.create_task(batcher.act(policy, *arguments, **named))


async def test_what_waits_becomes_one_call_and_everybody_gets_his_own():
    policy, batcher = SlowPolicy(), Batcher(max_batch=8, max_waiting=12)
    first = begun(batcher, policy, torch.zeros(1, 3))
    await wait_for_calls(policy, 1)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(size, 3, generator=generator) for size in (1, 2, 3, 4)]
    answers = [begun(batcher, policy, row) for row in rows]
    await asyncio.sleep(0)
    with raises(Exhausted, "QUEUE_FULL"):
        await batcher.act(policy, torch.zeros(3, 3))
    policy.go.set()
    assert (await first).shape == (1, 2)
    for row, answer in zip(rows, answers, strict=True):
        torch.testing.assert_close(await answer, ServedPolicy.act(policy, row), rtol=0, atol=1e-5)
    await batcher.close()
    assert policy.calls == [1, 6, 4], "6 of at most 8, then the 4 that had no room"
    assert policy.request_count == 5
    with pytest.raises(Unavailable):
        await batcher.act(policy, torch.zeros(1, 3))


async def test_short_calls_are_made_at_once_and_long_ones_by_a_thread():
    policy, batcher = CountedPolicy(), Batcher()
    here = threading.get_ident()
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(size, 3, generator=generator) for size in (1, 2, 3)]
    answers = await asyncio.gather(*(batcher.act(policy, row) for row in rows))
    assert policy.calls == [(6, here)], "one call of what has come at once"
    for row, answer in zip(rows, answers, strict=True):
        torch.testing.assert_close(answer, ServedPolicy.act(policy, row), rtol=0, atol=1e-5)
    slow = SlowPolicy()
    waiting = begun(batcher, slow, torch.zeros(1, 3))
    await wait_for_calls(slow, 1)
    assert (await batcher.act(policy, torch.zeros(1, 3))).shape == (1, 2)
    assert not waiting.done(), "who is short does not wait for who is long"
    slow.go.set()
    await waiting
    assert (await batcher.act(policy, torch.zeros(100, 3))).shape == (100, 2)
    assert [size for size, _ in policy.calls] == [6, 1, 100]
    assert [thread == here for _, thread in policy.calls] == [True, True, False]
    await batcher.close()


def test_a_policy_knows_about_how_long_it_takes():
    policy = box_policy()
    assert 0 < policy.seconds_for(1) < policy.seconds_for(1000)


async def test_late_and_cancelled_requests_are_dropped_and_errors_told():
    policy, batcher = SlowPolicy(), Batcher()
    first = begun(batcher, policy, torch.zeros(1, 3))
    await wait_for_calls(policy, 1)
    late = begun(batcher, policy, torch.zeros(1, 3), deadline=time.monotonic() - 1)
    cancelled = begun(batcher, policy, torch.zeros(1, 3))
    await asyncio.sleep(0)
    assert cancelled.cancel()
    kept = begun(batcher, policy, torch.zeros(1, 3), deadline=time.monotonic() + 60)
    policy.go.set()
    with pytest.raises(DeadlineExpired):
        await late
    assert (await first).shape == (await kept).shape == (1, 2)
    assert policy.calls == [1, 1]
    with pytest.raises(RuntimeError):
        await batcher.act(policy, torch.zeros(1, 7))
    assert (await batcher.act(policy, torch.zeros(1, 3))).shape == (1, 2)
    await batcher.close()


async def test_who_goes_while_the_policy_acts_takes_nothing_from_the_others():
    policy, batcher = SlowPolicy(), Batcher()
    first = begun(batcher, policy, torch.zeros(1, 3))
    await wait_for_calls(policy, 1)
    leaving, staying = (begun(batcher, policy, torch.zeros(1, 3)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    policy.go.set()
    await wait_for_calls(policy, 2)
    leaving.cancel()
    assert (await staying).shape == (1, 2)
    await batcher.close()


async def test_what_waits_is_answered_before_it_closes():
    policy, slow, batcher = CountedPolicy(), SlowPolicy(), Batcher()
    answers = [begun(batcher, one, torch.zeros(1, 3)) for one in (policy, slow, slow)]
    await wait_for_calls(slow, 1)
    slow.go.set()
    await batcher.close()
    assert all(answer.shape == (1, 2) for answer in await asyncio.gather(*answers))


async def test_requests_under_way_keep_their_version():
    slow, batcher, policies = SlowPolicy(), Batcher(), ServedPolicies()
    policies.put(slow)
    observation = torch.randn(1, 3)
    running = begun(batcher, policies.find("slow"), torch.zeros(1, 3))
    await wait_for_calls(slow, 1)
    waiting = begun(batcher, policies.find("slow"), observation)
    replacement = box_policy(5, name="slow", version="2")
    policies.put(replacement)
    newer = begun(batcher, policies.find("slow"), observation)
    policies.remove("slow")
    slow.go.set()
    assert await running is not None
    torch.testing.assert_close(
        await waiting, ServedPolicy.act(slow, observation), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(await newer, replacement.act(observation), rtol=0, atol=1e-5)
    await batcher.close()
