"""Spaces, environments and hyperparameters as protobuf messages, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from google.protobuf import json_format, struct_pb2

from podracer.common.v1 import agent_pb2, environment_pb2, tensor_pb2
from podracer_core.catalogue import (
    Bound,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentSpec,
    HyperparameterValue,
    Isolation,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    StoredFile,
    TupleSpace,
    find_environment,
)
from podracer_core.errors import FieldViolation, InvalidInput

_PREPARATION_LENGTH = 4_000  # characters

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
    "uint16": tensor_pb2.DATA_TYPE_UINT16,
    "uint32": tensor_pb2.DATA_TYPE_UINT32,
    "uint64": tensor_pb2.DATA_TYPE_UINT64,
}
_DTYPE_NAMES = {number: name for name, number in _DTYPES.items()} | {
    tensor_pb2.DATA_TYPE_UNSPECIFIED: "float32"
}


def space_to_message(space: Space) -> environment_pb2.Space:
    """A space as a message. Raises InvalidInput for a Box of an unsupported dtype."""
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
        case MultiDiscreteSpace(nvec, starts, shape):
            message.multi_discrete.SetInParent()
            message.multi_discrete.shape.extend(shape)
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
    """The inverse of `space_to_message`. Raises InvalidInput for a malformed message."""
    match message.WhichOneof("kind"):
        case "box":
            box = message.box
            if box.dtype not in _DTYPE_NAMES:
                raise InvalidInput(f"a Box of data type {box.dtype} is not known")
            return BoxSpace(
                _bound(box.low), _bound(box.high), tuple(box.shape), _DTYPE_NAMES[box.dtype]
            )
        case "discrete":
            return DiscreteSpace(message.discrete.n, message.discrete.start)
        case "multi_discrete":
            many = message.multi_discrete
            return MultiDiscreteSpace(tuple(many.nvec), tuple(many.start), tuple(many.shape))
        case "multi_binary":
            return MultiBinarySpace(tuple(message.multi_binary.shape))
        case "dict":
            return DictSpace(
                tuple((part.name, space_from_message(part.space)) for part in message.dict.spaces)
            )
        case "tuple":
            return TupleSpace(tuple(space_from_message(part) for part in message.tuple.spaces))
        case _:
            raise InvalidInput("a space without a kind")


def environment_to_message(spec: EnvironmentSpec) -> environment_pb2.EnvironmentSpec:
    """An environment's name, arguments and stored files as a message.

    Raises InvalidInput for one whose code or data are local files: these have to be uploaded first.
    """
    if spec.code_path:
        raise InvalidInput(f"the code of {spec.name} is a local folder; upload it first")
    message = environment_pb2.EnvironmentSpec(
        id=spec.id,
        entry_point=spec.entry_point,
        code=None if spec.code is None else file_to_message(spec.code),
        max_episode_steps=spec.max_episode_steps or 0,
        data=files_to_messages(spec.data),
        isolation=spec.isolation,
        evaluation_steps=spec.evaluation_steps or 0,
        observation_origin=spec.observation_origin,
        network=spec.network,
    )
    if spec.kwargs:
        message.kwargs.update(dict(spec.kwargs))
    return message


def environment_from_message(message: environment_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """The inverse of `environment_to_message`. Raises InvalidInput for an invalid spec."""
    return EnvironmentSpec(
        id=message.id,
        entry_point=message.entry_point,
        kwargs=arguments_from_message(message.kwargs, "environment.kwargs"),
        max_episode_steps=message.max_episode_steps or None,
        code=file_from_message(message.code, "environment.code")
        if message.HasField("code")
        else None,
        data=files_from_messages(message.data),
        isolation=cast("Isolation", message.isolation),  # the spec checks it
        evaluation_steps=message.evaluation_steps or None,
        observation_origin=tuple(message.observation_origin),
        network=message.network,
    )


def files_to_messages(
    files: Mapping[str, str | StoredFile],
) -> dict[str, tensor_pb2.ObjectReference]:
    """Data sets by name. Raises InvalidInput for one that is a local file: it has to be uploaded
    first."""
    local = [name for name, file in files.items() if isinstance(file, str)]
    if local:
        raise InvalidInput(f"the data set {local[0]} is a local file; upload it first")
    return {
        name: file_to_message(file) for name, file in files.items() if isinstance(file, StoredFile)
    }


def files_from_messages(
    messages: Mapping[str, tensor_pb2.ObjectReference],
) -> dict[str, StoredFile]:
    """The inverse of `files_to_messages`. Raises InvalidInput that names `data.<name>`."""
    return {name: file_from_message(message, f"data.{name}") for name, message in messages.items()}


def file_to_message(file: StoredFile) -> tensor_pb2.ObjectReference:
    """A file in the object store as a message."""
    return tensor_pb2.ObjectReference(
        key=file.key, sha256=file.sha256, size_bytes=file.size_bytes, name=file.name
    )


def file_from_message(message: tensor_pb2.ObjectReference, field: str) -> StoredFile:
    """The inverse of `file_to_message`. Raises InvalidInput whose violations begin with `field`."""
    try:
        return StoredFile(message.key, message.sha256, message.size_bytes, message.name)
    except InvalidInput as error:
        violations = [
            FieldViolation(f"{field}.{one.field}", one.message) for one in error.violations
        ]
        text = "; ".join(map(str, violations))
        raise InvalidInput(text, violations=violations, reason=error.reason) from error


def description_to_message(
    spec: EnvironmentSpec, observation_space: Space, action_space: Space,
    max_episode_steps: int | None, *, preparation: str = "", start_s: float = 0.0,
    step_s: float = 0.0, **flags: Any,
) -> environment_pb2.EnvironmentDescription:  # fmt: skip
    """The description of a started environment as a message, with `flags` of it.

    A `preparation` that is too long for the message is cut. `start_s`, `step_s`: of one start and
    step; 0: not measured."""
    description = environment_pb2.EnvironmentDescription(
        observation_space=space_to_message(observation_space),
        action_space=space_to_message(action_space),
        max_episode_steps=max_episode_steps or 0,
        backend=find_environment(spec.id).backend if spec.id else "gymnasium",
        preparation=_shortened(preparation),
        **flags,
    )
    for duration, seconds in ((description.start_time, start_s), (description.step_time, step_s)):
        if seconds > 0.0:
            duration.FromNanoseconds(int(seconds * 1e9))
    return description


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
    """The inverse of `hyperparameter_to_message`. Raises InvalidInput without a value."""
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


def _shortened(preparation: str) -> str:
    """The text, as long as the contract allows at most, in characters that protobuf takes (a path
    may have others)."""
    text = preparation.strip().encode(errors="replace").decode()
    return text if len(text) <= _PREPARATION_LENGTH else f"{text[: _PREPARATION_LENGTH - 2]} …"


def _bound(values: Any) -> Bound:
    return float(values[0]) if len(values) == 1 else tuple(float(value) for value in values)


def arguments_from_message(message: struct_pb2.Struct, field: str) -> dict[str, Any]:
    """The arguments of a Struct, which has only doubles: whole numbers become integers again, as
    constructors expect.

    Raises InvalidInput that names `field`.
    """
    try:
        arguments: dict[str, Any] = _whole_numbers(json_format.MessageToDict(message))
    except ValueError as error:  # a number that JSON does not know
        raise InvalidInput.of(field, f"must be JSON values: {error}") from error
    return arguments


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
