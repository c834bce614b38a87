"""Conversion of a job's section to a protobuf message and back, by field names; durations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf import duration_pb2
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from podracer_core.catalogue.messages import arguments_from_message

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
