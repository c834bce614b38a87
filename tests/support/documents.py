"""The documents of the repository, and what stands in their fenced blocks."""

from __future__ import annotations

import re

from support.processes import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
"""Notebooks."""


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a document."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
