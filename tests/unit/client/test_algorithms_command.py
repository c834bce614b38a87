"""`podracer algorithms`: all of them, or one with its hyperparameters, without a server and without
torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from podracer_client.command import catalogue as command
from podracer_core.catalogue import BUILT_IN_ALGORITHMS
from podracer_core.errors import InvalidInput
from support.installed import CATALOGUE, Install, install

__all__ = ["install"]


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command.algorithms()
    titles, *lines = capsys.readouterr().out.splitlines()
    assert titles.split() == [
        "name",
        "title",
        "policy",
        "action",
        "spaces",
        "in",
        "auto",
        "paper",
        "from",
    ]
    assert [line.split()[0] for line in lines] == list(BUILT_IN_ALGORITHMS)
    (line,) = (line for line in lines if line.startswith("td3 "))
    for expected in (
        "Twin Delayed DDPG",
        "off",
        "bounded Box",
        "yes",
        "Fujimoto et al. 2018",
        "built in",
    ):
        assert f"  {expected}" in line


def test_a_terminal_gets_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    command.algorithms()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 100
    for name in BUILT_IN_ALGORITHMS:
        assert any(line.startswith(f"{name} ") for line in lines)


def test_one_is_shown_with_every_hyperparameter(capsys: pytest.CaptureFixture[str]) -> None:
    command.algorithms("sac")
    shown = capsys.readouterr().out
    assert shown.startswith("sac: Soft Actor-Critic\n")
    for knob in BUILT_IN_ALGORITHMS["sac"].hyperparameters:
        assert f"\n{knob.name}: " in shown
        assert f"    {knob.meaning}\n" in shown
        assert f"    source {knob.source}\n" in shown
    assert "\nreplay: member\n" in shown
    assert "    range member, mixed, shared, scope cohort\n" in shown
    assert (
        "    range 0 to 1, searched 0.97 to 0.999 in the logarithm of 1 - x, scope member\n"
        in shown
    )
    assert "    range 1 to 1_048_576, in a search 128, scope cohort\n" in shown
    assert "    range each 1 to 16_384, in a search [64, 64], scope network\n" in shown


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    command.algorithms(json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["name"] for each in found] == list(BUILT_IN_ALGORITHMS)
    assert all("hyperparameters" not in each and each["package"] is None for each in found)

    command.algorithms("redq", json=True)
    (line,) = capsys.readouterr().out.splitlines()
    redq = json.loads(line)
    assert (redq["on_policy"], redq["action_spaces"], redq["bounded_actions"]) == (
        False,
        ["Box"],
        True,
    )
    knobs = {knob["name"]: knob for knob in redq["hyperparameters"]}
    info = BUILT_IN_ALGORITHMS["redq"]
    assert list(knobs) == [knob.name for knob in info.hyperparameters]
    assert knobs["hidden_sizes"]["default"] == list(info.defaults()["hidden_sizes"])
    assert knobs["target_rate"]["search"]["logarithmic"] is True
    assert knobs["replay"]["choices"] == ["member", "mixed", "shared"]
    assert knobs["batch_size"]["search"] is None

    command.algorithms("td3", json=True)
    (line,) = capsys.readouterr().out.splitlines()
    knobs = {knob["name"]: knob for knob in json.loads(line)["hyperparameters"]}
    assert knobs["batch_size"]["search"] == {"choice": [128]}
    assert knobs["hidden_sizes"]["search"] == {"choice": [[64, 64]]}


def test_those_of_packages_are_listed_and_broken_ones_named(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_no_torch_is_imported() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['podracer', 'algorithms', 'ppo', '--json']\n"
        "from podracer_client.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["name"] == "ppo"
