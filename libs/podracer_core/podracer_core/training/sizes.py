"""The default sizes of a cohort: environments by device, algorithm and speed, the horizon, and the
memory for them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium
import numpy as np
import torch

from podracer_core.algorithms import Algorithm, CohortConfig, algorithm_class
from podracer_core.buffers import require_replay
from podracer_core.catalogue import EnvironmentSpec, find_algorithm, find_recipe
from podracer_core.device import free_bytes
from podracer_core.environments import batched_class
from podracer_core.environments.processes import MOST_ISOLATED
from podracer_core.errors import InvalidInput
from podracer_core.networks import image_shape

_LEAST_ISOLATED = 2  # of a member
_LEAST_UPDATES = 16  # in a round whose steps are limited

_WAITING_ENVS = 32  # of a cohort whose environments wait: each has a process or a thread of its own
_PART = 1 / 20  # of the time that there is, for the start of the environments, and for a rollout
_LONGEST_START_S = 60.0
_SHORTEST_HORIZON = 8
_SNAPSHOTS = 4  # of a member, those of its three best looks and of the last


def usual_envs_per_member(
    algorithm: str,
    spec: EnvironmentSpec,
    device: str,
    members: int,
    *,
    env_steps: int = 0,
    horizon: int = 1,
    here: bool = True,
    is_batched: bool = False,
) -> int:
    """Those of the table (`find_recipe`), which fill one batch of `members`.

    A GPU gets more if environments are stepped `here` (workers may have no GPU), as long as the
    round's `env_steps` of a member (0: no limit) last for some rollouts of `horizon` steps.
    `is_batched`: of a class of the caller's."""
    if spec.isolation == "process":
        return max(_LEAST_ISOLATED, MOST_ISOLATED // members)
    is_batched = is_batched or batched_class(spec) is not None
    on_policy = find_algorithm(algorithm).on_policy
    least, wanted = (
        find_recipe(spec, place, is_batched=is_batched).envs_per_member(
            members, on_policy=on_policy
        )
        for place in ("cpu", device if here else "cpu")
    )
    if env_steps:
        wanted = min(wanted, env_steps // (horizon * _LEAST_UPDATES))
    return max(least, wanted)


def fitting_envs(
    usual: int, members: int, start_s: float, waits: bool, lanes: int, time_s: float | None
) -> int:
    """`usual` environments of a member, or fewer where those would take too long to start in
    `lanes` at a time.

    time_s   the time of the round or training; None: no limit
    """
    if waits:
        return max(1, min(usual, _WAITING_ENVS // members))
    limit_s = min(_LONGEST_START_S, math.inf if time_s is None else time_s * _PART)
    return usual if start_s <= 0.0 else max(1, min(usual, int(limit_s * lanes / start_s / members)))


def fitting_horizon(
    usual: int, envs: int, step_s: float, waits: bool, lanes: int, time_s: float
) -> int:
    """`usual` steps of a rollout, or fewer, so that one of `envs` environments takes a twentieth of
    the time."""
    rollout_step_s = step_s * (1 if waits else math.ceil(envs / lanes))
    longest = int(time_s * _PART / rollout_step_s) if rollout_step_s > 0.0 else usual
    return min(usual, max(_SHORTEST_HORIZON, longest))


def fitting_algorithm(
    cohort: CohortConfig,
    envs: int,
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    device: str,
) -> Algorithm:
    """The algorithm of a cohort, after `require_room`."""
    require_room(cohort, envs, space, action_space, device)
    return algorithm_class(cohort.algorithm)(cohort, space, action_space, device)


def require_room(
    cohort: CohortConfig,
    envs: int,
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    device: str,
) -> None:
    """Raises InvalidInput (NO_ROOM) unless a rollout of `envs` environments for each member, the
    networks and the replay buffer fit into the device's free memory; REPLAY_TOO_LARGE if this
    buffer alone does not."""
    info, members = find_algorithm(cohort.algorithm), len(cohort.members)
    shared = info.defaults() | dict(cohort.shared)
    numbers, horizon = math.prod(space.shape or ()), shared.get("horizon", 1)
    item_bytes = 1 if space.dtype == np.uint8 else 4
    # The observations and their successors here, and twice in the memory of the environments that
    # train or are judged; and the copies with which an update works, as floats: of a rollout, or of
    # a batch.
    rollout = members * envs * numbers * item_bytes * (2 * horizon + 1 + 4)
    worked_with = envs * horizon if info.on_policy else shared.get("batch_size", 0)
    image = image_shape(space)
    rollout += (32 if not image else 2 if info.on_policy else 8) * numbers * members * worked_with
    widths = [image.features if image else numbers, *shared.get("hidden_sizes", ())]
    parameters = sum(before * after for before, after in itertools.pairwise(widths))
    # Two networks, or three with two targets; gradients and two moments; the actor that acts; and
    # in each snapshot all but the gradients.
    networks = (
        members * parameters * 4 * (9 + 6 * _SNAPSHOTS if info.on_policy else 15 + 12 * _SNAPSHOTS)
    )
    replay, knobs = 0, "horizon or hidden_sizes"
    if not info.on_policy:
        action = 4 if isinstance(action_space, gymnasium.spaces.Box) else 8
        items = numbers * item_bytes, math.prod(action_space.shape or ()) * action
        capacity, prioritized = shared.get("replay_capacity", 0), shared.get("prioritized", False)
        *_, replay = require_replay(
            capacity, members, envs, horizon, items, torch.device(device), prioritized=prioritized
        )
        knobs = "horizon, hidden_sizes, batch_size or replay_capacity"
    needed, free = rollout + networks + replay, free_bytes(torch.device(device))
    if free is not None and needed > free:
        what = (
            f"{members} members of {envs} environments with observations of {numbers:,} "
            "numbers need"
        )
        parts = (
            f"{_gib(rollout)} for rollouts and batches, {_gib(networks)} for networks and "
            "snapshots, "
        )
        parts += f"{_gib(replay)} for replay"
        advice = f"lower members, envs_per_member, {knobs}, or shrink the observations"
        text = (
            f"{what} {_gib(needed)} GiB ({parts}); {_gib(free)} GiB are free on {device}: {advice}"
        )
        raise InvalidInput(text, reason="NO_ROOM", field="members")


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.1f}"
