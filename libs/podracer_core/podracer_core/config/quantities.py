"""Durations and sizes with a unit, as people write them: `90s`, `1h30m`, `2Gi`."""

from __future__ import annotations

import enum
import math
import re
from typing import Annotated

from podracer_core.errors import InvalidInput


class Unit(enum.Enum):
    """Marks a number whose text form has units."""

    SECONDS = "seconds"
    BYTES = "bytes"


Seconds = Annotated[float, Unit.SECONDS]
"""A finite duration of 0 s or more. In text: `10s`, `1h30m`, `250ms`; a bare number is seconds."""

ByteSize = Annotated[int, Unit.BYTES]
"""Bytes, 0 or more. In text: `512Mi`, `2Gi` (powers of 1024), `1G` (powers of 1000); a bare number is bytes."""

DURATION_EXPECTED = "a duration such as 90s, 10m or 1h30m"
SIZE_EXPECTED = "a size such as 512Mi or 2Gi"

MAX_SECONDS = 315_576_000_000.0  # ten thousand years: the range of google.protobuf.Duration

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"(?:({_NUMBER})d)?(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?")
_SECONDS_OF = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_SIZE = re.compile(rf"({_NUMBER})\s*([kKMGT]i?)?B?")
_SCALE = {"": 1, "k": 1000, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_SCALE |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", start=1)} | {"ki": 1024}


def parse_seconds(value: str | float) -> float:
    """`1h30m` -> 5400.0; a bare number is seconds. Raises InvalidInput for anything else, and below 0."""
    seconds = math.nan
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(_NUMBER, text):
            seconds = float(text)
        elif text and (found := _DURATION.fullmatch(text)):
            seconds = sum(float(n) * scale for n, scale in zip(found.groups(), _SECONDS_OF, strict=True) if n)
    elif not isinstance(value, bool):
        seconds = float(value)
    if not 0.0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(f"expected {DURATION_EXPECTED}, got {value!r}", reason="INVALID_DURATION")
    return seconds


def parse_bytes(value: str | float) -> int:
    """`2Gi` -> 2147483648; a bare number is bytes. Raises InvalidInput for anything else, and below 0."""
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
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count)
