"""Reads one value, from the text of an environment variable or from a YAML scalar."""

from __future__ import annotations

import enum
import math
import re
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from podracer_core.errors import InvalidInput


class Unit(enum.Enum):
    """Marks a number whose text form has units."""

    SECONDS = "seconds"
    BYTES = "bytes"


Seconds = Annotated[float, Unit.SECONDS]
"""A finite duration of 0 s or more. In text: `10s`, `1h30m`, `250ms`; a bare number is seconds."""

ByteSize = Annotated[int, Unit.BYTES]
"""Bytes, 0 or more. In text: `512Mi`, `2Gi` (powers of 1024), `1G` (powers of 1000); a bare number
is bytes."""

DURATION_EXPECTED = "a duration such as 90s, 10m or 1h30m"
SIZE_EXPECTED = "a size such as 512Mi or 2Gi"

MAX_SECONDS = 315_576_000_000.0  # ten thousand years: the range of google.protobuf.Duration

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(
    rf"(?:({_NUMBER})d)?(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?"
)
_SECONDS_OF = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_SIZE = re.compile(rf"({_NUMBER})\s*([kKMGT]i?)?B?")
_SCALE = {"": 1, "k": 1000, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_SCALE |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", start=1)} | {"ki": 1024}


def parse_seconds(value: str | float) -> float:
    """`1h30m` -> 5400.0; a bare number is seconds. Raises InvalidInput for anything else, and below
    0."""
    seconds = math.nan
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(_NUMBER, text):
            seconds = float(text)
        elif text and (found := _DURATION.fullmatch(text)):
            seconds = sum(
                float(n) * scale for n, scale in zip(found.groups(), _SECONDS_OF, strict=True) if n
            )
    elif not isinstance(value, bool):
        seconds = float(value)
    if not 0.0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(
            f"expected {DURATION_EXPECTED}, got {value!r}", reason="INVALID_DURATION"
        )
    return seconds


def parse_bytes(value: str | float) -> int:
    """`2Gi` -> 2147483648; a bare number is bytes. Raises InvalidInput for anything else, and below
    0."""
    size = math.nan
    if isinstance(value, str):
        if found := _SIZE.fullmatch(value.strip()):
            size = float(found[1]) * _SCALE[found[2] or ""]
    elif not isinstance(value, bool):
        size = float(value)
    if not 0.0 <= size < 2.0**63 or not size.is_integer():
        raise InvalidInput(f"expected {SIZE_EXPECTED}, got {value!r}", reason="INVALID_SIZE")
    return int(size)


def format_seconds(seconds: float) -> str:
    """5400.0 -> `1h30m`; under a minute with a decimal: `7.5s`."""
    if seconds < 60.0:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    parts = [
        (whole // 86400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "m"),
        (whole % 60, "s"),
    ]
    return "".join(f"{count}{unit}" for count, unit in parts if count)


class Secret:
    """Holds a string that neither `str`, `repr` nor an error message shows; `reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The string itself, only for the code that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)


_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Secret: "text",
    types.NoneType: "nothing",
    Any: "any value",
}


class WrongValueError(ValueError):
    """The value is not of the type; the message says what was expected."""


def unit_of(kind: Any) -> Unit | None:
    """Seconds -> SECONDS, ByteSize -> BYTES, anything else -> None."""
    found = (
        [mark for mark in get_args(kind)[1:] if isinstance(mark, Unit)]
        if get_origin(kind) is Annotated
        else []
    )
    return found[0] if found else None


def alternatives(kind: Any) -> tuple[Any, ...]:
    """int | None -> (int, NoneType); a type that is not a union is the only one."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def expected(kind: Any) -> str:
    """The expected form, for a message: `auto or a whole number`."""
    if unit := unit_of(kind):
        return DURATION_EXPECTED if unit is Unit.SECONDS else SIZE_EXPECTED
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return expected(arguments[0])
    if origin is Literal:
        return " or ".join(str(value) for value in arguments)
    if len(alternatives(kind)) > 1:
        return " or ".join(expected(option) for option in arguments if option is not types.NoneType)
    if origin is tuple:
        items = (
            f"{len(arguments)} values"
            if arguments[-1] is not Ellipsis
            else f"values, each {expected(arguments[0])}"
        )
        return f"a list of {items}"
    if origin is not None and issubclass(origin, Mapping):
        return "a mapping"
    if is_dataclass(kind):
        return "a mapping"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " or ".join(str(member.value) for member in kind)
    return _NAMES[kind]


def from_text(kind: Any, text: str) -> Any:
    """The value of a non-empty `text`. Raises WrongValueError."""
    for option in alternatives(kind):
        try:
            return _from_text(option, text)
        except ValueError:
            continue
    raise WrongValueError(f"expected {expected(kind)}")


def _from_text(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise WrongValueError
        return _BOOLEANS[text.lower()]
    if kind is int:
        return int(text)
    if kind is float:
        return _finite(float(text))
    if kind is str:
        return text
    if kind is Path:
        return Path(text).expanduser()
    if kind is Secret:
        return Secret(text)
    if get_origin(kind) is Literal:
        values = {str(value): value for value in get_args(kind)}
        return values[text] if text in values else _wrong()
    if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
        return tuple(
            _from_text(get_args(kind)[0], part.strip()) for part in text.split(",") if part.strip()
        )
    if unit_of(kind):
        return _quantity(kind, text)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(text)
    return _wrong()


def from_yaml(kind: Any, value: Any) -> Any:
    """The value of a YAML scalar, strictly: text is not a number, but a whole number may be written
    as 2e6. Raises WrongValueError."""
    match kind:
        case _ if unit_of(kind) and isinstance(value, str | int | float):
            return _quantity(kind, value)
        case _ if kind is bool and isinstance(value, bool):
            return value
        case _ if kind is int and isinstance(value, int | float) and not isinstance(value, bool):
            return (
                value if isinstance(value, int) else int(value) if value.is_integer() else _wrong()
            )
        case _ if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(float(value))
        case _ if kind is str and isinstance(value, str):
            return value
        case _ if kind is Path and isinstance(value, str):
            return Path(value)
        case _ if kind is types.NoneType and value is None:
            return None
        case _ if get_origin(kind) is Literal and any(
            value == o and type(value) is type(o) for o in get_args(kind)
        ):
            return value
        case _ if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return kind(value)
    return _wrong()


def _quantity(kind: Any, value: str | float) -> float | int:
    try:
        return parse_seconds(value) if unit_of(kind) is Unit.SECONDS else parse_bytes(value)
    except InvalidInput as error:
        raise WrongValueError from error


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _wrong()


def _wrong() -> Any:
    raise WrongValueError
