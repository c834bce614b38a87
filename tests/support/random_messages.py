"""Messages of any type with whatever may be in them: what fits, what is at an edge, and what no
caller means."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from protovalidate import collect_violations

INTEGERS = (0, 1, 2, 7, 100, 1000, 1001, -1, 2**31 - 1, -(2**31))
WIDE_INTEGERS = (*INTEGERS, 2**53 + 1, 2**63 - 1, -(2**63))
SURROGATE = "\x03\x02\x01"
"""Stands for a lone surrogate, which no text of a message may have: it has as many bytes."""
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, math.inf, -math.inf, math.nan)
TEXTS = (
    "", "a", "*", "/", "..", "../../etc/passwd", "projects/default", "projects/default/jobs/a",
    "projects/other/jobs/a", "projects/default/pods/x", "projects/default/leaderboards/a",
    "projects/default/jobs/a/agents/a0001", "projects//x", "ppo", "CartPole-v1", "learning_rate",
    "mean", "0", "-1", "1e9", "a" * 300, "ä€😀", "a\0b", "a\nb", f"a{SURROGATE}", "\x1b[2J",
    "\u202e", "9" * 18, "9" * 400, "9" * 5000, "1e400", "NaN", "'; DROP TABLE jobs; --",
    "0" * 64, "f" * 64,
)  # fmt: skip
MOST_DEEP = 5


class RandomMessages:
    """Makes messages from a stream of chance; `texts` are some that mean something to the server,
    such as names."""

    def __init__(self, chance: random.Random, texts: Sequence[str] = ()) -> None:
        self._chance = chance
        self._texts = [*TEXTS, *texts, *texts, *texts]

    def fill(self, message: Message, depth: int = 0) -> Any:
        """The message with some of its fields set."""
        for field in message.DESCRIPTOR.fields:
            if self._chance.random() >= 0.35 + 0.1 * depth:
                self._set(message, field, depth)
        return message

    def mutate(self, message: Message) -> Any:
        """The message with a few fields, at any depth, that are not what they were."""
        for _ in range(self._chance.choice((1, 1, 1, 2, 4))):
            part, depth = message, 0
            while (inner := self._inner(part)) is not None and self._chance.random() < 0.7:
                part, depth = inner, depth + 1
            if part.DESCRIPTOR.fields:
                self._change(part, self._chance.choice(part.DESCRIPTOR.fields), depth)
        return message

    def _change(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        values, luck = getattr(message, field.name), self._chance.random()
        if _is_map(field) and len(values) and luck < 0.5:
            del values[self._chance.choice(sorted(values))]
        elif field.is_repeated and not _is_map(field) and len(values) and luck < 0.3:
            values.extend(list(values) * self._chance.choice((1, 40)))
        elif isinstance(values, bytes) and values and luck < 0.5:
            at = self._chance.randrange(len(values))
            setattr(message, field.name, values[:at] + self._chance.randbytes(1) + values[at + 1 :])
        else:
            message.ClearField(field.name)
            if luck < 0.9:
                self._set(message, field, depth)

    def _inner(self, message: Message) -> Message | None:
        """One of the messages within this one, if there are any."""
        found: list[Message] = []
        for field, value in message.ListFields():
            if _is_map(field):
                found += [value[key] for key in sorted(value) if isinstance(value[key], Message)]
            elif field.message_type is not None:
                found += value if field.is_repeated else [value]
        return self._chance.choice(found) if found else None

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if _is_map(field):
            self._fill_map(message, field, depth)
        elif field.is_repeated:
            for _ in range(self._chance.choice((0, 1, 1, 2, 5))):
                self._add(getattr(message, field.name), field, depth)
        elif field.message_type is not None:
            if depth < MOST_DEEP:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, self._value(field))

    def _add(self, values: Any, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is None:
            values.append(self._value(field))
        elif depth < MOST_DEEP:
            self.fill(values.add(), depth + 1)

    def _fill_map(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        assert field.message_type is not None
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        values = getattr(message, field.name)
        for _ in range(self._chance.choice((0, 1, 2))):
            if value.message_type is None:
                values[self._value(key)] = self._value(value)
            elif depth < MOST_DEEP:
                self.fill(values[self._value(key)], depth + 1)

    def _value(self, field: FieldDescriptor) -> Any:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_INT32:
                return self._chance.choice(INTEGERS)
            case FieldDescriptor.CPPTYPE_INT64:
                return self._chance.choice(WIDE_INTEGERS)
            case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
                return abs(self._chance.choice(INTEGERS))
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                number = self._chance.choice(NUMBERS)
                return (
                    number
                    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE or abs(number) < 1e38
                    else 3e38
                )
            case FieldDescriptor.CPPTYPE_BOOL:
                return self._chance.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                assert field.enum_type is not None
                return self._chance.choice(
                    [*[value.number for value in field.enum_type.values], 99]
                )
        text = self._chance.choice(self._texts)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def bounded(message: Message) -> Any:
    """The message without the fields that its proto does not allow: one that reaches a handler."""
    while violations := collect_violations(message):
        for violation in violations:
            assert violation.proto.field is not None
            *outer, last = violation.proto.field.elements
            part: Any = message
            for element in outer:
                part = getattr(part, element.field_name)
                part = part if element.subscript is None else part[element.subscript.value]
            part.ClearField(last.field_name)
    return message


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
