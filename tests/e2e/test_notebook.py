"""The tutorials, run from top to bottom by a kernel of their own. `make notebooks` also stores
their outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.documents import TUTORIALS

SLOW = {"trading"}  # its commands are those of docs/trading.md, which test_documentation.py runs


@pytest.mark.parametrize(
    "tutorial",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=getattr(pytest.mark, "slow" if path.stem in SLOW else "thorough"),
        )
        for path in TUTORIALS
    ],
)
def test_a_tutorial(tutorial, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # all is installed
    notebook = nbformat.read(tutorial, as_version=4)
    NotebookClient(
        notebook,
        timeout=240,
        coalesce_streams=True,
        record_timing=False,
        shutdown_kernel="immediate",  # with the servers that a failed notebook leaves
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    if os.environ.get("PODRACER_NOTEBOOKS"):
        notebook.metadata.language_info = {"name": "python"}
        for cell in notebook.cells:
            if cell.cell_type == "code":  # without lines of progress
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, tutorial)
