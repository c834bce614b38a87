"""`podracer algorithms`: all of them, or one with its hyperparameters, without a server and without
torch."""

from __future__ import annotations

import re
import sys

import pytest

from podracer_client.command import catalogue as command
from podracer_core.catalogue import BUILT_IN_ALGORITHMS
from podracer_core.errors import InvalidInput
from support.installed import CATALOGUE, install

__all__ = ["install"]


def test_a_terminal_gets_a_table(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    command.algorithms()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 100
    for name in BUILT_IN_ALGORITHMS:
        assert any(line.startswith(f"{name} ") for line in lines)


def test_those_of_packages_are_listed_and_broken_ones_named(install, capsys):
    install("my-package", {"mine": "my_package.catalogue:INFO"}, catalogue=CATALOGUE)
    install("bad-package", {"bad": "bad_package:INFO"})
    command.algorithms()
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].split("  ")[-1] == "my-package 1.2"
    (problem,) = captured.err.splitlines()
    assert problem.startswith("podracer: algorithm 'bad' of package bad-package 1.2: ")
    command.algorithms("mine")
    captured = capsys.readouterr()
    assert "boldness: 0.5\n    how bold it is\n    range 0 to 1, scope member\n" in captured.out
    assert not captured.err
    with pytest.raises(InvalidInput, match="bad-package"):
        command.algorithms("bad")
