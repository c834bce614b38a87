"""Settings and files -> frozen dataclasses, checked once at the edge; no torch.

settings     service settings from PODRACER_<NAME> variables: `load_settings`
document     YAML text -> a tree that remembers its lines: `load_yaml`, `parse_yaml`
build        such a tree -> dataclasses: `build`
scalars      how one value is read, from text and from YAML: durations and byte sizes (`Seconds`, `ByteSize`), values
             that never show themselves (`Secret`)
"""

from podracer_core.config.build import Builder, build
from podracer_core.config.document import Document, LocatedViolation, Node, load_yaml, parse_yaml
from podracer_core.config.scalars import ByteSize, Seconds, Secret, format_seconds, parse_bytes, parse_seconds
from podracer_core.config.settings import load_settings

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
    "load_settings",
    "load_yaml",
    "parse_bytes",
    "parse_seconds",
    "parse_yaml",
]
