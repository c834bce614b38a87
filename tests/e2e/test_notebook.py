"""The notebook of the examples, run from top to bottom by a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.processes import EXAMPLES

pytestmark = pytest.mark.slow


def test_first_steps(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "notebook" / "first_steps.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    train, plot, evaluate, play, save = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert "ended by target" in train.outputs[-1]["data"]["text/plain"]
    assert any("steps/s" in output.get("text", "") for output in train.outputs), "the line of progress"
    assert "image/png" in plot.outputs[-1]["data"]
    assert "between" in evaluate.outputs[0]["text"]
    assert int(play.outputs[0]["text"].split()[0]) > 100
    assert "ppo in CartPole-v1" in save.outputs[-1]["data"]["text/plain"]
    assert (tmp_path / "best" / "manifest.json").exists()
