"""Texts -> frozen dataclasses, checked once when they are read; no torch.

document     what a file says, as a tree with line numbers
build        such a tree -> dataclasses: `build`
other_libraries  what names of other libraries are called here
scalars      reads one value from text or a file: durations and byte sizes (`Seconds`, `ByteSize`),
             values that are never displayed (`Secret`)
"""

from __future__ import annotations

from podracer_core.config.build import Builder, build
from podracer_core.config.document import Document, LocatedViolation, Node
from podracer_core.config.scalars import (
    ByteSize,
    Seconds,
    Secret,
    format_seconds,
    parse_bytes,
    parse_seconds,
)

__all__ = [
    "Builder",
    "ByteSize",
    "Document",
    "LocatedViolation",
    "Node",
    "Seconds",
    "Secret",
    "build",
    "format_seconds",
    "parse_bytes",
    "parse_seconds",
]
