"""The walks of CONTRIBUTING.md, done in a copy: a job field and a command need these edits and no
others.

The stage is done by tests/integration/orchestrator/test_stages.py, the others by plug-ins:
tests/unit/test_extension_examples.py, tests/unit/orchestrator.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = """
name: walk
environment: {id: CartPole-v1}
objective: {max_env_steps: 1000}
evolution: {patience: VALUE}
"""
READ = """
from podracer_platform.jobs import parse_job
from podracer_platform.jobs import JobSpec
from podracer_platform.jobs import validate

spec = JobSpec.from_message(parse_job(JOB).to_message())
validate(spec)
print(spec.evolution.patience)
"""
COMMAND = '''"""A greeting."""

from __future__ import annotations

import typer


def greet(name: str) -> None:
    """Greet a person."""
    typer.echo(f"hello, {name}")
'''


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in (
        "protos",
        "libs/podracer_core/podracer_core",
        "libs/podracer_client/podracer_client",
    ):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(ROOT / "libs/podracer_core/podracer", tmp_path / "libs/podracer_core/podracer")
    return tmp_path


def insert(path: Path, before: str, text: str) -> None:
    whole = path.read_text()
    assert whole.count(before) == 1, before
    path.write_text(whole.replace(before, text + before))


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        str(copy / "libs" / package) for package in ("podracer_core", "podracer_client")
    )
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=copy, env=environment
    )


@pytest.mark.thorough
def test_a_field_of_the_job_file(copy):
    """In the proto and in its section; `make protos` in between."""
    insert(
        copy / "protos/podracer/common/v1/evolution.proto",
        "  // Number of best candidates that also act together",
        "  // Rounds without a new best before the job ends. 0: no limit.\n  int32 patience = "
        "1000;\n",
    )
    section = copy / "libs/podracer_core/podracer_core/sections/evolution.py"
    insert(section, "    ensemble_size: int = 0\n", "    patience: int = 0\n")
    insert(
        section,
        '        for kind, extension in (("generator"',
        '        check.between(self.patience, 0, MAX_GENERATIONS, "evolution.patience")\n',
    )
    include = ["--proto_path=.", f"--proto_path={sysconfig.get_path('purelib')}"]
    protos = [str(path.relative_to(copy / "protos")) for path in (copy / "protos").rglob("*.proto")]
    stubs = f"--python_out={copy / 'libs/podracer_core'}"
    compiler = [sys.executable, "-m", "grpc_tools.protoc", *include, stubs, *protos]
    subprocess.run(compiler, check=True, cwd=copy / "protos")
    right = run(copy, "-c", f"JOB = {JOB.replace('VALUE', '7')!r}{READ}")
    assert right.stdout.strip() == "7", right.stderr
    wrong = run(copy, "-c", f"JOB = {JOB.replace('VALUE', '-1')!r}{READ}")
    assert "evolution.patience: expected 0 to 1_000_000, got -1" in wrong.stderr


@pytest.mark.thorough
def test_a_command(copy):
    """A module in `command/`, and two places in `commands.py`."""
    folder = copy / "libs/podracer_client/podracer_client/command"
    (folder / "greet.py").write_text(COMMAND)
    insert(folder / "commands.py", "    jobs,\n", "    greet,\n")
    insert(folder / "commands.py", "        report.trace,\n", "        greet.greet,\n")
    assert "Greet a person." in run(copy, "-m", "podracer_client", "--help").stdout
    assert run(copy, "-m", "podracer_client", "greet", "world").stdout == "hello, world\n"
