"""Packages that seem to be installed, for what finds extensions by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from podracer_core.catalogue import algorithms, installed_environments

Install = Callable[..., None]

CATALOGUE = """
from podracer_core.catalogue import AlgorithmInfo
from podracer_core.catalogue import Hyperparameter
from podracer_core.catalogue import DictSpace, DiscreteSpace

INFO = AlgorithmInfo(
    name="mine",
    title="My Own Algorithm",
    paper="Author 2024, A Title, arXiv:0000.00000",
    on_policy=True,
    action_spaces=(DiscreteSpace, DictSpace),
    implementation="my_package.mine:Mine",
    hyperparameters=(Hyperparameter("boldness", "float", 0.5, "member", "how bold it is", bounds=(0.0, 1.0)),),
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install("my-package", {"mine": "my_package.catalogue:INFO"}, catalogue=CATALOGUE)`: a
    distribution on sys.path.

    Other keyword arguments than `group`, that of the entry points, are the modules of its package,
    which is called as the distribution with _ for -."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    _forget()

    def install(
        distribution: str,
        entry_points: Mapping[str, str],
        group: str = "podracer.algorithms",
        **modules: str,
    ) -> None:
        package = distribution.replace("-", "_")
        (folder / package).mkdir()
        for name, text in {"__init__": "", **modules}.items():
            (folder / package / f"{name}.py").write_text(text)
        write_metadata(folder, distribution, "1.2", {group: entry_points})
        _forget()

    yield install
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    _forget()


def write_metadata(
    folder: Path, distribution: str, version: str, entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """What an installer leaves in a folder of sys.path beside the package; entry points are group
    -> name -> value."""
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    lines: list[str] = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _forget() -> None:
    installed_environments.cache_clear()
    algorithms.known_algorithms.cache_clear()
    algorithms._installed.cache_clear()
