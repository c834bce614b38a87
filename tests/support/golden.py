"""Golden files: what users see, stored in tests/golden. PODRACER_GOLDEN=write renews them."""

from __future__ import annotations

import json
import os
from difflib import unified_diff

from support.processes import ROOT

FOLDER = ROOT / "tests" / "golden"
STATE = ROOT / "tests" / "e2e" / "fixtures" / "version_before.tar.xz"
"""A state folder of an earlier version; see tests/e2e/test_version_before.py."""

_WRITE = os.environ.get("PODRACER_GOLDEN") == "write"


def check_golden(name: str, text: str) -> None:
    """Compare a text with a stored file, or store it."""
    path = FOLDER / name
    text = text.replace(str(ROOT), "ROOT")
    if _WRITE:
        path.write_text(text, encoding="utf-8")
    stored = path.read_text(encoding="utf-8")
    changes = list(
        unified_diff(stored.splitlines(), text.splitlines(), "stored", "now", lineterm="", n=1)
    )
    assert not changes, "\n".join(
        [f"{name} has changed; PODRACER_GOLDEN=write stores it anew", *changes]
    )


def pretty(value: object) -> str:
    """JSON, one value a line, for diffs that can be read."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
