"""The documents of the repository, and what stands in their fenced blocks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.processes import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
"""Notebooks."""


def text_of(document: Path) -> str:
    """The Markdown of a document; of a notebook, that of its cells."""
    if document.suffix == ".md":
        return document.read_text()
    cells = json.loads(document.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a document."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
