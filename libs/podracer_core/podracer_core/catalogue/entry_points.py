"""Where an entry point comes from."""

from __future__ import annotations

from importlib.metadata import EntryPoint

__all__ = ["package_of"]


def package_of(entry: EntryPoint) -> str:
    """Name and version of its distribution, as in `my-package 1.2`."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
