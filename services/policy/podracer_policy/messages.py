"""Observations, actions and policies as messages, every value checked."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from podracer.common.v1 import tensor_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer_core.catalogue.observations import WHOLE, flat_rows, parts_of
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_platform.carriers.inline import decode_tensor, encode_tensor
from podracer_platform.messages.catalogue import space_to_message
from podracer_platform.rpc import limits
from podracer_policy.batching import ServedPolicies
from podracer_policy.policy import ServedPolicy

MAX_ROWS = 1024
"""The most observations of one request."""

_CONVERTED = {torch.float32: (torch.float64,), torch.float64: (torch.int64,)}
_PART = {"observations": "observation", "action_masks": "mask"}


def most_bytes(policies: ServedPolicies) -> int:
    """The largest request to act: MAX_ROWS of the largest observation, as doubles, with their
    masks."""
    rows = [
        8 * math.prod(policy.observation_shape) + sum(policy.mask_parts)
        for policy in policies.present()
    ]
    return min(MAX_ROWS * max(rows, default=0) + limits.REQUEST_BYTES, limits.MESSAGE_BYTES)


def observations_of(request: pb.ActRequest, policy: ServedPolicy) -> tuple[Tensor, bool]:
    """The observations for the policy, [B, *obs], and whether it is one without an axis for the
    batch. Raises InvalidInput with the field, the expected and the found."""
    parts = parts_of(policy.original_space)
    given = request.HasField("observations") + bool(request.values) + bool(request.parts)
    if given > 1 or (not given and parts):
        raise _refused("observations", "expected exactly one of observations, values and parts")
    if request.values:
        return _from_values(request, policy), False
    if not request.HasField("observations"):
        return _from_parts(
            {name: _decoded(f"parts.{name}", value) for name, value in request.parts.items()},
            policy,
        )
    observations = _decoded("observations", request.observations)
    shape = tuple(request.observations.shape)
    if [part.name for part in parts] == [WHOLE] and shape == parts[
        0
    ].shape != policy.observation_shape:
        return _from_parts({WHOLE: observations}, policy)
    if observations.dtype in _CONVERTED.get(policy.observation_dtype, ()):
        _require_finite(observations)
        observations = observations.to(policy.observation_dtype)
    if observations.dtype != policy.observation_dtype:
        expected, found = _dtype_name(policy.observation_dtype), _dtype_name(observations.dtype)
        raise _refused("observations.dtype", f"expected {expected}, got {found}")
    observations = _rows("observations", observations, policy.observation_shape)
    _require_finite(observations)
    return observations, shape == policy.observation_shape


def masks_of(request: pb.ActRequest, policy: ServedPolicy, rows: int) -> Tensor | None:
    """The masks, [B, n] bool; None if the request has none. Raises InvalidInput as
    `observations_of`."""
    if not request.HasField("action_masks"):
        return None
    if not policy.mask_parts:
        raise _refused("action_masks", "this policy's actions know no masks; expected none")
    masks = _decoded("action_masks", request.action_masks)
    if masks.dtype != torch.bool:
        raise _refused("action_masks.dtype", f"expected BOOL, got {_dtype_name(masks.dtype)}")
    masks = _rows("action_masks", masks, (sum(policy.mask_parts),))
    if len(masks) != rows:
        raise _refused(
            "action_masks.shape",
            f"expected one mask for each of {rows} observations, got {len(masks)}",
        )
    for place, part in enumerate(masks.split_with_sizes(list(policy.mask_parts), 1)):
        empty = (~part.any(1)).nonzero()
        if len(empty):
            where = f"place {place} of mask {int(empty[0])}"
            raise _refused("action_masks", f"{where} allows nothing; expected one choice at least")
    return masks


def response_of(
    actions: Tensor, request: pb.ActRequest, policy: ServedPolicy, *, alone: bool
) -> pb.ActResponse:
    """actions [B, *action]; those of one observation `alone` lose their first axis. Raises
    PreconditionFailed (BAD_ACTION) if one is not finite."""
    if actions.is_floating_point() and not bool(torch.isfinite(actions).all()):
        row = int((~torch.isfinite(actions).flatten(1).all(1)).nonzero()[0])
        message = (
            f"policy {policy.name}: its action for observation {row} is "
            f"{actions[row].tolist()}, expected finite"
        )
        raise PreconditionFailed(f"{message} numbers; its weights are useless", reason="BAD_ACTION")
    shaped = encode_tensor(actions[0] if alone else actions)
    response = pb.ActResponse(actions=shaped, policy=policy.name, version=policy.version)
    if request.values:
        response.values.extend(actions.flatten().tolist())
    return response


def policy_message(policy: ServedPolicy, policies: ServedPolicies) -> pb.Policy:
    """The description of a policy, and its versions."""
    message = pb.Policy(
        name=policy.name,
        version=policy.version,
        versions=policies.versions(policy.name),
        source=policy.source,
        agents=policy.agents,
        ensemble=policy.rule,
        observation_space=space_to_message(policy.observation_space),
        action_space=space_to_message(policy.action_space),
        request_count=policy.request_count,
        original_observation_space=space_to_message(policy.original_space),
    )
    for part in parts_of(policy.original_space):
        message.parts.add(
            name=part.name, space=space_to_message(part.space), offset=part.offset, size=part.size
        )
    message.load_time.FromNanoseconds(int(policy.load_time * 1e9))
    return message


def _from_parts(parts: Mapping[str, Tensor], policy: ServedPolicy) -> tuple[Tensor, bool]:
    for part in parts_of(policy.original_space):
        value = parts.get(part.name)
        if value is not None and value.dim() > len(part.shape) and not 1 <= len(value) <= MAX_ROWS:
            raise _refused(f"parts.{part.name}", f"expected 1 to {MAX_ROWS} rows, got {len(value)}")
    try:
        rows, alone = flat_rows(
            policy.original_space, {name: tensor.numpy() for name, tensor in parts.items()}
        )
    except InvalidInput as error:
        raise _refused("parts", error.message) from error
    observations = (
        torch.from_numpy(rows).to(policy.observation_dtype).view(-1, *policy.observation_shape)
    )
    _require_finite(observations, "parts")
    return observations, alone


def _from_values(request: pb.ActRequest, policy: ServedPolicy) -> Tensor:
    size = math.prod(policy.observation_shape)
    rows, left = divmod(len(request.values), size)
    if left or rows > MAX_ROWS:
        expected = f"expected {size} numbers for each of 1 to {MAX_ROWS} observations"
        raise _refused("values", f"{expected}, got {len(request.values)} numbers")
    values = torch.tensor(list(request.values), dtype=torch.float64).view(
        rows, *policy.observation_shape
    )
    _require_finite(values, "values")
    if policy.observation_dtype == torch.uint8 and not torch.equal(
        values.clamp(0, 255).round(), values
    ):
        raise _refused("values", "expected whole numbers from 0 to 255: the policy sees images")
    observations = values.to(policy.observation_dtype)
    _require_finite(observations, "values")
    return observations


def _decoded(field: str, message: tensor_pb2.Tensor) -> Tensor:
    try:
        return decode_tensor(message)
    except InvalidInput as error:
        raise _refused(field, error.message) from error


def _rows(field: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A batch: the tensor itself, or one row alone as a batch of one."""
    if tuple(tensor.shape) == shape:
        return tensor.unsqueeze(0)
    if tensor.dim() != len(shape) + 1 or tuple(tensor.shape[1:]) != shape:
        wanted = ", ".join(("B", *map(str, shape)))
        raise _refused(
            f"{field}.shape",
            f"expected [{wanted}], or {list(shape)} for one {_PART[field]}, got "
            f"{list(tensor.shape)}",
        )
    if not 1 <= len(tensor) <= MAX_ROWS:
        raise _refused(f"{field}.shape", f"expected 1 to {MAX_ROWS} rows, got {len(tensor)}")
    return tensor


def _require_finite(observations: Tensor, field: str = "observations") -> None:
    if observations.is_floating_point() and not np.isfinite(observations.numpy()).all():
        place = (~torch.isfinite(observations)).nonzero()[0].tolist()
        found = float(observations[tuple(place)])
        raise _refused(field, f"expected finite numbers, got {found:g} at {place}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").upper()


def _refused(field: str, problem: str) -> InvalidInput:
    return InvalidInput.of(field, problem, reason="BAD_OBSERVATION")
