"""The names that each folder exports."""

from __future__ import annotations

import importlib

from support.golden import check_golden
from support.processes import ROOT


def test_public_names():
    lines = []
    for path in sorted(ROOT.glob("*/*/podracer_*/**/__init__.py")):
        if "exports(__name__)" in path.read_text():
            name = ".".join(path.parent.relative_to(ROOT).parts[2:])
            folder = importlib.import_module(name)
            lines += [name, *(f"    {each}" for each in folder.__all__)]
    check_golden("public_names.txt", "\n".join(lines) + "\n")
