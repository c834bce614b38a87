"""Spaces, environments and hyperparameters as protobuf messages, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from podracer.common.v1 import agent_pb2, environment_pb2, tensor_pb2
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.spaces import (
    Bound,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
)
from podracer_core.errors import InvalidInput

__all__ = [
    "HyperparameterValue",
    "description_to_message",
    "environment_from_message",
    "environment_to_message",
    "hyperparameter_from_message",
    "hyperparameter_to_message",
    "hyperparameters_from_message",
    "space_from_message",
    "space_to_message",
]

HyperparameterValue = float | int | bool | str | tuple[int, ...]

_DTYPES = {
    "float32": tensor_pb2.DATA_TYPE_FLOAT32,
    "float64": tensor_pb2.DATA_TYPE_FLOAT64,
    "float16": tensor_pb2.DATA_TYPE_FLOAT16,
    "uint8": tensor_pb2.DATA_TYPE_UINT8,
    "int8": tensor_pb2.DATA_TYPE_INT8,
    "int16": tensor_pb2.DATA_TYPE_INT16,
    "int32": tensor_pb2.DATA_TYPE_INT32,
    "int64": tensor_pb2.DATA_TYPE_INT64,
    "bool": tensor_pb2.DATA_TYPE_BOOL,
}
_DTYPE_NAMES = {number: name for name, number in _DTYPES.items()} | {tensor_pb2.DATA_TYPE_UNSPECIFIED: "float32"}


def space_to_message(space: Space) -> environment_pb2.Space:
    """A space as a message. Raises InvalidInput for a Box of a dtype that the wire does not know."""
    message = environment_pb2.Space()
    match space:
        case BoxSpace(low, high, shape, dtype):
            if dtype not in _DTYPES:
                raise InvalidInput(f"a Box of {dtype} has no form on the wire", dtype=dtype)
            message.box.SetInParent()
            message.box.shape.extend(shape)
            message.box.dtype = _DTYPES[dtype]
            message.box.low.extend(low if isinstance(low, tuple) else (low,))
            message.box.high.extend(high if isinstance(high, tuple) else (high,))
        case DiscreteSpace(n, start):
            message.discrete.n, message.discrete.start = n, start
        case MultiDiscreteSpace(nvec, starts):
            message.multi_discrete.SetInParent()
            message.multi_discrete.nvec.extend(nvec)
            message.multi_discrete.start.extend(starts)
        case MultiBinarySpace(shape):
            message.multi_binary.SetInParent()
            message.multi_binary.shape.extend(shape)
        case DictSpace(named):
            message.dict.SetInParent()
            for name, inner in named:
                message.dict.spaces.add(name=name, space=space_to_message(inner))
        case TupleSpace(inner_spaces):
            message.tuple.SetInParent()
            message.tuple.spaces.extend(space_to_message(inner) for inner in inner_spaces)
    return message


def space_from_message(message: environment_pb2.Space) -> Space:
    """The inverse of `space_to_message`. Raises InvalidInput for a message that is no space."""
    match message.WhichOneof("kind"):
        case "box":
            box = message.box
            if box.dtype not in _DTYPE_NAMES:
                raise InvalidInput(f"a Box of data type {box.dtype} is not known")
            return BoxSpace(_bound(box.low), _bound(box.high), tuple(box.shape), _DTYPE_NAMES[box.dtype])
        case "discrete":
            return DiscreteSpace(message.discrete.n, message.discrete.start)
        case "multi_discrete":
            return MultiDiscreteSpace(tuple(message.multi_discrete.nvec), tuple(message.multi_discrete.start))
        case "multi_binary":
            return MultiBinarySpace(tuple(message.multi_binary.shape))
        case "dict":
            return DictSpace(tuple((part.name, space_from_message(part.space)) for part in message.dict.spaces))
        case "tuple":
            return TupleSpace(tuple(space_from_message(part) for part in message.tuple.spaces))
        case _:
            raise InvalidInput("a space without a kind")


def environment_to_message(spec: EnvironmentSpec) -> environment_pb2.EnvironmentSpec:
    """An environment's name and arguments as a message."""
    message = environment_pb2.EnvironmentSpec(
        id=spec.id,
        entry_point=spec.entry_point,
        code_path=spec.code_path,
        max_episode_steps=spec.max_episode_steps or 0,
    )
    if spec.kwargs:
        message.kwargs.update(dict(spec.kwargs))
    return message


def environment_from_message(message: environment_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """The inverse of `environment_to_message`. Raises InvalidInput for a spec that cannot be right."""
    return EnvironmentSpec(
        id=message.id,
        entry_point=message.entry_point,
        code_path=message.code_path,
        kwargs=_arguments(message.kwargs),
        max_episode_steps=message.max_episode_steps or None,
    )


def description_to_message(
    observation_space: Space, action_space: Space, max_episode_steps: int | None, backend: str
) -> environment_pb2.EnvironmentDescription:
    """What is known of an environment once it has been started; `backend` is what computes it."""
    return environment_pb2.EnvironmentDescription(
        observation_space=space_to_message(observation_space),
        action_space=space_to_message(action_space),
        max_episode_steps=max_episode_steps or 0,
        backend=backend,
    )


def hyperparameter_to_message(value: HyperparameterValue) -> agent_pb2.HyperparameterValue:
    """One hyperparameter's value as a message."""
    if isinstance(value, bool):
        return agent_pb2.HyperparameterValue(flag=value)
    if isinstance(value, int):
        return agent_pb2.HyperparameterValue(integer=value)
    if isinstance(value, float):
        return agent_pb2.HyperparameterValue(number=value)
    if isinstance(value, str):
        return agent_pb2.HyperparameterValue(text=value)
    return agent_pb2.HyperparameterValue(integers=agent_pb2.IntegerList(values=value))


def hyperparameter_from_message(message: agent_pb2.HyperparameterValue) -> HyperparameterValue:
    """The inverse of `hyperparameter_to_message`. Raises InvalidInput where no value is set."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidInput("a hyperparameter without a value")
    if kind == "integers":
        return tuple(message.integers.values)
    value: HyperparameterValue = getattr(message, kind)
    return value


def hyperparameters_from_message(
    messages: Mapping[str, agent_pb2.HyperparameterValue],
) -> dict[str, HyperparameterValue]:
    """All hyperparameters of an agent by name."""
    return {name: hyperparameter_from_message(message) for name, message in messages.items()}


def _bound(values: Any) -> Bound:
    return float(values[0]) if len(values) == 1 else tuple(float(value) for value in values)


def _arguments(message: struct_pb2.Struct) -> dict[str, Any]:
    """A Struct knows only doubles: whole numbers become integers again, as constructors expect them."""
    arguments: dict[str, Any] = _whole_numbers(json_format.MessageToDict(message))
    return arguments


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
