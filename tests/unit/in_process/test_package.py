"""The package `podracer`: light, typed, beside the generated stubs, and clear about what is
missing."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import podracer
from podracer_core.in_process import Order, ProgressLine, find_source
from support.processes import ROOT


def python(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_import_brings_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import podracer; "
        "print(*sorted(set(sys.modules) - before))"
    )
    brought = {name.partition(".")[0] for name in python(code).split()} - sys.stdlib_module_names
    assert brought == {"podracer"}


def test_all_that_it_names_is_there() -> None:
    assert set(podracer.__all__) <= set(dir(podracer))
    for name in podracer.__all__:
        assert getattr(podracer, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        podracer.fly  # noqa: B018


def test_the_one_file_that_is_written_by_hand_lies_beside_the_stubs() -> None:
    folder = ROOT / "libs" / "podracer_core" / "podracer"
    assert {path.name for path in folder.glob("*.py")} == {"__init__.py"}
    assert "rm -rf $(STUBS)/*/ $(VALIDATE_STUBS)\n" in (ROOT / "Makefile").read_text(), (
        "make protos leaves it alone"
    )
    others = [path for path in ROOT.glob("*/*/podracer") if path.is_dir() and path != folder]
    assert not others, "no other distribution has files in this package"


@pytest.mark.parametrize(
    ("missing", "call", "message"),
    [
        (
            "torch",
            "podracer.train",
            "podracer.train needs torch: pip install 'podracer-core[torch]'",
        ),
        (
            "gymnasium",
            "podracer.load",
            "podracer.load needs gymnasium: pip install 'podracer-core[torch]'",
        ),
    ],
)
def test_what_is_missing_is_said(missing: str, call: str, message: str) -> None:
    code = f"""if True:
        import sys
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name == {missing!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        sys.meta_path.insert(0, Missing())
        import podracer
        try: {call}
        except ImportError as error: print(error)
    """
    assert python(code).strip() == message


def test_a_tournament_without_the_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(ImportError, match=r"pip install 'podracer-client\[local\]'"):
        podracer.run(tmp_path / "job.yaml")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_of_progress() -> None:
    order = Order(
        find_source("CartPole-v1"), "ppo", 8, 475.0, "mean", 100_000, None, 32, None, 0, "cpu"
    )
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        line = ProgressLine(order, out)
        line.show(1.0, 10_000, float("-inf"))
        line.show(1.1, 11_000, 20.0)  # too soon
        line.show(6.0, 60_000, 312.44)
        line.show(7.0, 70_000, 480.0, last=True)
    shown = [text.rstrip() for text in terminal.getvalue().split("\r")]
    assert shown == [
        "",
        "10,000 steps  10,000 steps/s  best – (target 475)  0:01, at most 0:09 left",
        "60,000 steps  10,000 steps/s  best 312.4 (target 475)  0:06, at most 0:04 left",
        "70,000 steps  10,000 steps/s  best 480 (target 475)  0:07",
    ]
    assert terminal.getvalue().endswith("\n")
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [shown[2], shown[3]]
