"""The examples of docs/write-a-*.md, as packages that seem to be installed."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from podracer_core.catalogue import algorithms, installed_environments
from support.installed import write_metadata
from support.processes import EXAMPLES

ALGORITHM = EXAMPLES / "algorithms" / "munchausen_dqn"
EVALUATOR = EXAMPLES / "evaluators" / "success_rate"
FUSION = EXAMPLES / "fusions" / "median_fusion"
GENERATOR = EXAMPLES / "generators" / "median_stopping"
MAZE, HOVER = EXAMPLES / "environments" / "maze", EXAMPLES / "environments" / "hover"


class Packages:
    """Copies of examples below a folder; this process and those that it starts see them as
    installed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self._site = folder / "site"
        self._site.mkdir(parents=True)
        self._paths: list[Path] = []
        self._see(self._site)

    def install(self, example: Path) -> Path:
        """Returns the copy."""
        copy = shutil.copytree(example, self.folder / example.name)
        project = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
        assert project["name"] == ("maze" if example == MAZE else example.name.replace("_", "-"))
        self.add(project["name"], project["version"], project["entry-points"])
        self._see(copy)
        return copy

    def install_variant(self, example: Path, module: str, name: str, old: str, new: str) -> None:
        """An example under another name and with another text in `module`; its one entry point is
        called `name`."""
        copy = self.folder / name
        shutil.copytree(example / example.name, copy / name)
        file = copy / name / f"{module}.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
        ((group, entries),) = project["entry-points"].items()
        (value,) = entries.values()
        self.add(name, "0.1.0", {group: {name: value.replace(example.name, name)}})
        self._see(copy)

    def add(self, distribution: str, version: str, entry_points: dict[str, dict[str, str]]) -> None:
        """The metadata of a distribution, without a package."""
        write_metadata(self._site, distribution, version, entry_points)
        self.forget()

    def _see(self, path: Path) -> None:
        self._paths.append(path)
        self._monkeypatch.setenv("PYTHONPATH", ":".join(map(str, self._paths)))
        self._monkeypatch.syspath_prepend(path)

    def forget(self) -> None:
        """What this process knows of installed packages, and the modules that it has of these."""
        installed_environments.cache_clear()
        algorithms.known_algorithms.cache_clear()
        algorithms._installed.cache_clear()
        for name, module in list(sys.modules.items()):
            if str(self.folder) in str(getattr(module, "__file__", None)):
                del sys.modules[name]
