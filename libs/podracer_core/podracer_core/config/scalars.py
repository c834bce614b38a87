"""How one value is read, from the text of an environment variable or from a YAML scalar."""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from podracer_core.config.quantities import DURATION_EXPECTED, SIZE_EXPECTED, Unit, parse_bytes, parse_seconds
from podracer_core.errors import InvalidInput


class Secret:
    """Holds a string that neither `str`, `repr` nor an error message shows; `reveal` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The string itself: for the one place that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
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
    found = [mark for mark in get_args(kind)[1:] if isinstance(mark, Unit)] if get_origin(kind) is Annotated else []
    return found[0] if found else None


def alternatives(kind: Any) -> tuple[Any, ...]:
    """int | None -> (int, NoneType); a type that is no union stands alone."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def expected(kind: Any) -> str:
    """What would be right, for a message: `auto or a whole number`."""
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
            f"{len(arguments)} values" if arguments[-1] is not Ellipsis else f"values, each {expected(arguments[0])}"
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
    """The value that `text`, not empty, stands for. Raises WrongValueError."""
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
        return tuple(_from_text(get_args(kind)[0], part.strip()) for part in text.split(",") if part.strip())
    if unit_of(kind):
        return _quantity(kind, text)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(text)
    return _wrong()


def from_yaml(kind: Any, value: Any) -> Any:
    """The value of a YAML scalar, strictly: no text for numbers, but a whole number may be written as 2e6. Raises
    WrongValueError."""
    match kind:
        case _ if unit_of(kind) and isinstance(value, str | int | float):
            return _quantity(kind, value)
        case _ if kind is bool and isinstance(value, bool):
            return value
        case _ if kind is int and isinstance(value, int | float) and not isinstance(value, bool):
            return value if isinstance(value, int) else int(value) if value.is_integer() else _wrong()
        case _ if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(float(value))
        case _ if kind is str and isinstance(value, str):
            return value
        case _ if kind is Path and isinstance(value, str):
            return Path(value)
        case _ if kind is types.NoneType and value is None:
            return None
        case _ if get_origin(kind) is Literal and any(value == o and type(value) is type(o) for o in get_args(kind)):
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
