"""Texts -> frozen dataclasses, checked once when they are read; no torch.

builder      what a file says, as a tree with line numbers -> dataclasses: `build`; what names of
             other libraries are called here
scalars      reads one value from text or a file: durations and byte sizes (`Seconds`, `ByteSize`),
             values that are never displayed (`Secret`)
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.config import builder
    from podracer_core.config.builder import (
        INVALID, BuildFunction, Builder, Document, LocatedViolation, Node, Scalar, advice, build,
        counterpart, did_you_mean, schedule_advice,
    )
    from podracer_core.config.scalars import (
        MAX_SECONDS, ByteSize, Seconds, Secret, WrongValueError, alternatives, expected,
        format_seconds, from_text, parse_bytes, parse_seconds,
    )
else:
    __all__, __getattr__ = exports(__name__)
