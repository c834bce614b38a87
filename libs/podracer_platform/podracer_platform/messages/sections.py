"""Conversion of a job's sections to protobuf messages and back, by the names of their fields."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf import duration_pb2
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.ranges import Choice, Fixed, IntegerInterval, Interval, Range
from podracer_core.errors import InvalidInput
from podracer_core.sections.evolution import Evolution, Round
from podracer_core.sections.objective import EvaluationPlan, Objective
from podracer_core.sections.pod import Fusion, Pod, PodCount, Resources
from podracer_core.sections.search import AlgorithmShare, Dimension, Search
from podracer_platform.messages.catalogue import (
    arguments_from_message,
    hyperparameter_from_message,
    hyperparameter_to_message,
)

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
