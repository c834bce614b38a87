"""Conversion of a job's sections, spaces, environments and hyperparameters to protobuf messages and
back, derived from the fields where they have the same names.

Those of cohorts and evaluations, which need torch, are in `podracer_platform.training_messages`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from google.protobuf import duration_pb2, json_format, struct_pb2
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2, tensor_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import (
    Bound,
    BoxSpace,
    Choice,
    DictSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Fixed,
    HyperparameterValue,
    IntegerInterval,
    Interval,
    Isolation,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Range,
    Space,
    StoredFile,
    TupleSpace,
    find_environment,
)
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.sections import (
    AlgorithmShare,
    Dimension,
    EvaluationPlan,
    Evolution,
    Fusion,
    Objective,
    Pod,
    PodCount,
    Resources,
    Round,
    Search,
)

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


_DURATION, _STRUCT = "google.protobuf.Duration", "google.protobuf.Struct"

Section = TypeVar("Section")
SectionMessage = TypeVar("SectionMessage", bound=Message)


def read(kind: type[Section], message: Message, path: str = "", **given: Any) -> Section:
    """A section of the dataclass `kind`, with unchecked values. Fields in `given` are not read.

    Unset fields get their default, and so does 0 in fields without presence. Raises InvalidInput
    that names the field, below `path`, for arguments that are not JSON values."""
    known = message.DESCRIPTOR.fields_by_name.keys() - given.keys()
    names = [field.name for field in fields(kind) if field.name in known]  # type: ignore[arg-type]
    values = {name: _value(message, name, path) for name in names}
    return kind(**{name: value for name, value in values.items() if value is not None}, **given)


def write(section: object, message: SectionMessage) -> SectionMessage:
    """Copy the fields of `section` to those of the same name, without None, sections and
    collections."""
    known = message.DESCRIPTOR.fields_by_name
    for name, value in vars(section).items():
        field = known.get(name)
        if field is None or value is None:
            continue
        if field.enum_type is not None:
            if value != "auto":  # which is unset in a message
                numbers = {word: number for number, word in _words(field.enum_type).items()}
                setattr(message, name, numbers[value])
        elif field.message_type is None:
            setattr(message, name, value)
        elif field.message_type.full_name == _DURATION:
            getattr(message, name).CopyFrom(seconds_to_duration(value))
        elif field.message_type.full_name == _STRUCT:
            getattr(message, name).update(dict(value))
    return message


def seconds_to_duration(seconds: float) -> duration_pb2.Duration:
    """A Duration, to the nanosecond."""
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def seconds_from_duration(duration: duration_pb2.Duration) -> float:
    """Seconds of a Duration."""
    return duration.seconds + duration.nanos * 1e-9


def _value(message: Message, name: str, path: str) -> Any:
    """A field's value; None where it is unset."""
    field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if field.has_presence and not message.HasField(name):
        return None
    if field.enum_type is not None:
        return _words(field.enum_type).get(value)
    if field.message_type is None:
        return value if field.has_presence else value or None
    if field.message_type.full_name == _DURATION:
        return seconds_from_duration(value)
    return arguments_from_message(value, f"{path}.{name}")


@functools.cache
def _words(kind: EnumDescriptor) -> Mapping[int, str]:
    """`lower_bound` by the number of TARGET_STATISTIC_LOWER_BOUND, and so on; 0 (unset) has no
    word."""
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {
        value.number: value.name.removeprefix(prefix).lower()
        for value in kind.values
        if value.number
    }


def search_from_message(message: evolution_pb2.Search) -> Search:
    """Raises InvalidInput for a dimension without a range."""
    shares = tuple(
        read(AlgorithmShare, share, algorithm=share.algorithm) for share in message.algorithms
    )
    return Search(shares, tuple(map(_dimension_from_message, message.space)))


def search_to_message(search: Search) -> evolution_pb2.Search:
    """The inverse of `search_from_message`."""
    shares = [write(share, evolution_pb2.AlgorithmShare()) for share in search.algorithms]
    return evolution_pb2.Search(
        algorithms=shares, space=[_dimension_to_message(dimension) for dimension in search.space]
    )


def _dimension_from_message(message: evolution_pb2.Dimension) -> Dimension:
    try:
        return Dimension(message.hyperparameter, _range_from_message(message), message.algorithm)
    except InvalidInput as error:
        algorithm = f"{message.algorithm}." if message.algorithm else ""
        path = f"search.space.{algorithm}{message.hyperparameter}"
        raise InvalidInput(error.message, field=path) from error


def _dimension_to_message(dimension: Dimension) -> evolution_pb2.Dimension:
    message = evolution_pb2.Dimension(
        hyperparameter=dimension.hyperparameter, algorithm=dimension.algorithm
    )
    match dimension.range:
        case Fixed(value):
            message.fixed.CopyFrom(hyperparameter_to_message(value))
        case Interval(low, high, logarithmic):
            interval = message.log_uniform if logarithmic else message.uniform
            interval.low, interval.high = low, high
        case IntegerInterval(first, last, logarithmic):
            message.integer_uniform.CopyFrom(
                evolution_pb2.IntegerInterval(low=first, high=last, log=logarithmic)
            )
        case Choice(values):
            message.choice.values.extend(map(hyperparameter_to_message, values))
    return message


def _range_from_message(message: evolution_pb2.Dimension) -> Range:
    match message.WhichOneof("range"):
        case "fixed":
            return Fixed(hyperparameter_from_message(message.fixed))
        case "uniform":
            return Interval(message.uniform.low, message.uniform.high)
        case "log_uniform":
            return Interval(message.log_uniform.low, message.log_uniform.high, logarithmic=True)
        case "integer_uniform":
            whole = message.integer_uniform
            return IntegerInterval(whole.low, whole.high, whole.log)
        case "choice":
            return Choice(tuple(map(hyperparameter_from_message, message.choice.values)))
        case _:
            raise InvalidInput("has no range")


def evolution_from_message(message: evolution_pb2.Evolution) -> Evolution:
    """The evolution of a message, with the defaults filled in."""
    seconds = seconds_from_duration(message.round_time) if message.HasField("round_time") else None
    length = Round(seconds, message.round_env_steps or None)
    if length == Round():
        return read(Evolution, message)
    return read(Evolution, message, round=length)


def evolution_to_message(evolution: Evolution) -> evolution_pb2.Evolution:
    """The inverse of `evolution_from_message`, but for the places, which are filled in."""
    length = evolution.round
    message = write(evolution, evolution_pb2.Evolution(round_env_steps=length.env_steps or 0))
    message.leaderboard_size = evolution.places
    if length.seconds is not None:
        message.round_time.CopyFrom(seconds_to_duration(length.seconds))
    return message


def objective_from_message(message: evolution_pb2.Objective) -> Objective:
    """The objective of a message; unset fields are None."""
    return read(Objective, message)


def objective_to_message(objective: Objective) -> evolution_pb2.Objective:
    """The inverse of `objective_from_message`."""
    return write(objective, evolution_pb2.Objective())


def evaluation_plan_from_message(message: job_pb2.EvaluationSpec) -> EvaluationPlan:
    """The plan of a message, with the default filled in."""
    return read(EvaluationPlan, message)


def evaluation_plan_to_message(plan: EvaluationPlan) -> job_pb2.EvaluationSpec:
    """The inverse of `evaluation_plan_from_message`."""
    return write(plan, job_pb2.EvaluationSpec())


def pod_from_message(message: job_pb2.PodShape) -> Pod:
    """The pod of a message, with the defaults filled in."""
    least, needs, fusion = message.min_count or 1, message.resources, message.fusion
    return read(
        Pod,
        message,
        count=PodCount(least, message.max_count or least),
        resources=read(Resources, needs, memory=needs.memory_bytes or None),
        fusion=read(Fusion, fusion, interval=fusion.interval_updates or None)
        if message.HasField("fusion")
        else None,
    )


def pod_to_message(pod: Pod) -> job_pb2.PodShape:
    """The inverse of `pod_from_message`, but for the maximum, which is filled in."""
    needs, fusion = pod.resources, pod.fusion
    message = job_pb2.PodShape(
        min_count=pod.count.min,
        max_count=pod.count.most,
        resources=write(needs, job_pb2.Resources(memory_bytes=needs.memory or 0)),
        fusion=None
        if fusion is None
        else write(fusion, job_pb2.Fusion(interval_updates=fusion.interval or 0)),
    )
    return write(pod, message)
