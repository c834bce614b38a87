"""Random streams that depend on nothing but the board's seed and a count: the same on every machine and version."""

from __future__ import annotations

import hashlib
from random import Random


def derive_seed(seed: int, stream: str, number: int) -> int:
    """A seed from 0 to 2^63 - 1: SHA-256 of its origin."""
    digest = hashlib.sha256(f"podracer/{seed}/{stream}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(seed: int, name: str, number: int) -> Random:
    """A generator of its own; only its `random()` gives the same on every version of Python."""
    return Random(derive_seed(seed, name, number))  # noqa: S311 - repeatable is what it must be
