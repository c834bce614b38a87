"""A checkpoint -> a policy, from the checkpoint alone.

The metadata of an agent's checkpoint must have:

    algorithm           name in the catalogue: "ppo"
    hyperparameters     object of all the agent's hyperparameters by name, of every scope
    observation_space   catalogue.spaces.to_json, of the environment or of its batch
    action_space        likewise
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import (
    BUILT_IN_ALGORITHMS,
    find_algorithm,
    origin_array,
    parts_of,
    spaces,
)
from podracer_core.checkpoint.objects import Checkpoint
from podracer_core.environments import (
    action_array_space,
    observation_array_space,
    to_gymnasium,
)
from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_core.networks import Actor, Policy

POLICY_GROUPS = ("actor", "normalizer")
"""The groups that acting needs: `load_checkpoint(…, groups=POLICY_GROUPS)`."""
_LARGE = 1 << 22
"""The most numbers of a space in a checkpoint whose networks have fewer, or were not loaded."""


def load_actor(checkpoint: Checkpoint, device: torch.device | str = "cpu") -> Actor:
    """The agent's actor, M = 1, ready for `evaluate` and `collect`. Raises InvalidInput if metadata
    are missing, or the tensors do not match them."""
    return load_actors([checkpoint], device)


def load_actors(checkpoints: Sequence[Checkpoint], device: torch.device | str = "cpu") -> Actor:
    """The stacked actors of M agents with the same algorithm, network and spaces. Raises as
    `load_actor`."""
    first = checkpoints[0]
    algorithm = _entry(first, "algorithm", str)
    members = tuple(MemberConfig(f"agent{number}", 0) for number in range(len(checkpoints)))
    cohort = CohortConfig(algorithm, members, _entry(first, "hyperparameters", dict))
    observation_space, action_space = array_spaces(first, whole=True)
    # without memory first: metadata may lie
    for place in ("meta", device) if algorithm in BUILT_IN_ALGORITHMS else (device,):
        actor = algorithm_class(algorithm).make_actor(
            cohort, observation_space, action_space, place
        )
        for member, checkpoint in enumerate(checkpoints):
            actor.load_member_state(member, checkpoint.groups)
    return actor


def network_of(checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """Algorithm and shape, which must be the same for stacked actors. Raises InvalidInput as
    `load_actor`."""
    info = find_algorithm(_entry(checkpoint, "algorithm", str))
    given = _entry(checkpoint, "hyperparameters", dict)
    cohort = CohortConfig(info.name, (MemberConfig("agent", 0),), given)
    values, network = cohort.shared_values(info), info.defaults("network")
    return info.name, {name: values[name] for name in network}


def original_space(checkpoint: Checkpoint, *, whole: bool = False) -> spaces.Space:
    """The observation space of the environment; only of its batch if an earlier version has written
    the checkpoint. Without what is the critic's alone, unless `whole`. Raises InvalidInput as
    `load_actor`."""
    space = _space(checkpoint, "observation_space")
    return space if whole else spaces.seen_by_actor(space)


def array_spaces(
    checkpoint: Checkpoint, *, whole: bool = False
) -> tuple[gymnasium.spaces.Box, gymnasium.Space[Any]]:
    """The spaces of observations and actions in a batch of environments. `whole` and errors as of
    `original_space`."""
    observation_space = to_gymnasium(original_space(checkpoint, whole=whole))
    action_space = to_gymnasium(_space(checkpoint, "action_space"))
    return observation_array_space(observation_space), action_array_space(action_space)


def observation_origin(checkpoint: Checkpoint) -> Tensor:
    """Subtracted from raw observations before an actor sees them, float64 [*obs]; zeros where there
    is none."""
    origin = checkpoint.metadata.get("environment", {}).get("observation_origin", ())
    return torch.from_numpy(origin_array(origin, array_spaces(checkpoint)[0].shape))


def load_policy(checkpoint: Checkpoint) -> Policy:
    """The agent's greedy policy, a module: raw observation [B, *obs] -> action [B, *action]. Errors
    as `load_actor`."""
    policy, origin = load_actor(checkpoint).policy(0), observation_origin(checkpoint)
    policy.origin = origin if origin.any() else None
    return policy


def random_observations(checkpoint: Checkpoint, count: int) -> Tensor:
    """Made-up observations, always the same: [count, *obs], uint8 for images, float64 with an
    origin, else float32."""
    space, _ = array_spaces(checkpoint)
    generator, shape = torch.Generator().manual_seed(0), (count, *space.shape)
    if space.dtype == np.uint8:
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    rows, origin = torch.randn(shape, generator=generator), observation_origin(checkpoint)
    return rows + origin if origin.any() else rows


def _space(checkpoint: Checkpoint, name: str) -> spaces.Space:
    """Raises InvalidInput for a space that is much larger than the networks: its bounds alone would
    take memory."""
    space = spaces.from_json(_entry(checkpoint, name, dict))
    held = sum(
        tensor.numel()
        for group in POLICY_GROUPS
        for tensor in checkpoint.groups.get(group, {}).values()
    )
    if sum(part.size for part in parts_of(space)) > max(held, _LARGE):
        raise InvalidInput(
            f"the checkpoint cannot act: its {name} is larger than its networks",
            reason="NOT_A_POLICY",
        )
    return space


def _entry(checkpoint: Checkpoint, name: str, kind: type) -> Any:
    value = checkpoint.metadata.get(name)
    if not isinstance(value, kind):
        raise InvalidInput(
            f"the checkpoint cannot act: its metadata have no {name} "
            f"({'text' if kind is str else 'an object'})",
            reason="NOT_A_POLICY",
            entry=name,
        )
    return value


_HEADER = "podracer"


def pack_policy(checkpoint: Checkpoint) -> bytes:
    """The parts of a checkpoint that acting needs, as one file, for services without an object
    store.

    A safetensors file with tensors `<group>/<name>`, and in its header the checkpoint's metadata
    and libraries as JSON. The same checkpoint always gives the same bytes."""
    tensors = {
        f"{group}/{name}": tensor
        for group in POLICY_GROUPS
        for name, tensor in checkpoint.groups.get(group, {}).items()
    }
    header = {"metadata": dict(checkpoint.metadata), "libraries": dict(checkpoint.libraries)}
    return safetensors.torch.save(tensors, {_HEADER: json.dumps(header, sort_keys=True)})


def open_packed_policy(path: Path) -> Checkpoint:
    """The inverse of `pack_policy`. The file's bytes are not verified. Raises DataCorrupted for any
    other file."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = file.get_tensor(key)
            return Checkpoint(groups, dict(header["metadata"]), dict(header["libraries"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataCorrupted(
            f"{path.name} is not a packed policy: {error!r}", file=path.name
        ) from error
