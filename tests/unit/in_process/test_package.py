"""The package `podracer`: light, typed, beside the generated stubs, and clear about what is
missing."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import tomllib

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


def test_the_import_brings_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import podracer; "
        "print(*sorted(set(sys.modules) - before))"
    )
    brought = {name.partition(".")[0] for name in python(code).split()} - sys.stdlib_module_names
    assert brought == {"podracer"}


def test_all_that_it_names_is_there():
    assert set(podracer.__all__) <= set(dir(podracer))
    for name in podracer.__all__:
        assert getattr(podracer, name).__name__ == name
    with pytest.raises(AttributeError, match="attribute 'fly'"):
        podracer.fly  # noqa: B018


def test_the_one_file_that_is_written_by_hand_lies_beside_the_stubs():
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
        (
            "podracer_client",
            "podracer.run('job.yaml')",
            "podracer.run needs the command and the services: pip install 'podracer-client[local]'",
        ),
    ],
)
def test_what_is_missing_is_said(missing, call, message):
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


def test_training_needs_no_platform():
    """Without grpc, protobuf, SQLAlchemy, YAML, telemetry and the house's other packages."""
    code = """if True:
        import sys
        class Missing:
            def find_spec(self, name, path=None, target=None):
                absent = ("grpc", "google", "sqlalchemy", "yaml", "opentelemetry")
                if name.partition(".")[0] in absent or name.startswith(("podracer_", "podracer.")):
                    if name.partition(".")[0] != "podracer_core":
                        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Missing())
        import podracer
        result = podracer.train("CartPole-v1", members=2, steps=2_000, progress=False)
        print(result.env_steps >= 2_000)
    """
    assert python(code).strip() == "True"


def test_the_library_of_learning_requires_nothing_of_a_server():
    project = tomllib.loads((ROOT / "libs/podracer_core/pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    required = [*project["dependencies"], *itertools.chain.from_iterable(extras)]
    names = {re.split(r"\W", each.lower().replace("-", "_"))[0] for each in required}
    absent = {"grpcio", "protobuf", "protovalidate", "sqlalchemy", "pyyaml", "podracer_platform"}
    assert not names & absent
    assert not [name for name in names if name.startswith(("opentelemetry", "grpc"))]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_of_progress():
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
