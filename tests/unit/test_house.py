"""scripts/measure_house.py: what it counts in a made-up house, and what this one has to hold."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.processes import ROOT

CORE = "libs/podracer_core/podracer_core"
FILES = {
    f"{CORE}/__init__.py": '"""The core."""\n',
    f"{CORE}/errors.py": "import os\n\nNAME = os.name\n",
    f"{CORE}/rpc/__init__.py": "",
    f"{CORE}/rpc/call.py": "from podracer_core.errors import (\n    NAME,\n)\n",
    f"{CORE}/rpc/dial.py": "from podracer_core import errors\nfrom podracer_core.rpc import call",
    "libs/podracer_core/podracer/v1/stub_pb2.py": "x = 1\n" * 1000,
    "services/pilot/podracer_pilot/__init__.py": "",
    "services/pilot/podracer_pilot/left.py": "def go():\n    from podracer_pilot import right\n    "
    "return right\n" + "def halt():\n    pass\n",
    "services/pilot/podracer_pilot/right.py": "from podracer_pilot.left import go\n\n\ndef "
    'long():\n    """Long."""\n' + "    go()\n" * 60,
}


MADE_UP_WALKS = """
[[walk]]
name = "across"
limits = {hops = 1, files = 2}
path = '''
podracer_pilot.right:long = NOISE
podracer_pilot.left:go
podracer_pilot.right:long = NOISE
podracer_pilot.left:halt
podracer_pilot.left:stop
(column: a wire)
podracer_core.rpc.call:Call
'''
"""

MOST_WORDS = 2
WALKS = {
    "submit to CreateJob": (
        "podracer_client.command.jobs:submit",
        "podracer_orchestrator.api.job_service:JobServicer.CreateJob",
        10,
    ),
    "transition to gradient": (
        "podracer_core.environments.torch_environment:TorchEnvironment.step",
        "podracer_core.algorithms.ppo:clipped_surrogate",
        18,
    ),
    "an evaluation to its readers": (
        "podracer_client.jobs.following:Follower._read",
        "podracer_client.display.displays:JsonDisplay._progress",
        12,
    ),
}
"""From where to where, and the most functions."""


CLASSES_UNTIL_THEY_ARE_REWRITTEN = {"Orchestrator", "KubernetesPool"}
"""They may have more than 20 attributes."""


def measure(root: Path) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "measure_house.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_this_house():
    figures = json.loads(measure(ROOT).splitlines()[-1])
    assert figures["circles"] == figures["folder_circles"] == []
    assert figures["broken_walks"] == [], (
        "a function has moved or is called by another: correct scripts/walks.toml"
    )
    assert figures["walks_over_limits"] == []
    walks = tomllib.loads((ROOT / "scripts/walks.toml").read_text())["walk"]
    assert {
        walk["name"]: (lines[0], lines[-1], walk["limits"]["hops"])
        for walk in walks
        for lines in [walk["path"].strip().splitlines()]
    } == WALKS
    long = {
        name
        for name in figures["long_functions"]
        if ".migrations." not in name and "_kernel" not in name
    }
    assert long == set(), (
        "shorten those of more than 60 lines without their docstrings; only migrations, which are "
        "never edited, and kernels, which are one function each, may be longer"
    )


INITS = [
    *ROOT.glob("libs/*/podracer_*/**/__init__.py"),
    *ROOT.glob("services/*/podracer_*/**/__init__.py"),
]


def test_a_folder_says_what_is_in_it():
    """Its `__init__.py` has a docstring; where that lists names (`name, other   what`), they are
    there."""
    absent = []
    for path in INITS:
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        lists = re.findall(r"^([a-z]\w*(?:, [a-z]\w*)*) {2,}\S", text, re.MULTILINE)
        named = [path.parent / name for names in lists for name in names.split(", ")]
        absent += [
            str(each) for each in named if not (each.is_dir() or each.with_suffix(".py").exists())
        ]
    assert absent == []


@pytest.mark.parametrize(
    "readme", sorted(ROOT.glob("services/*/README.md")), ids=lambda path: path.parent.name
)
def test_a_service_says_where_its_modules_are(readme):
    """In the section of that title, bare names and paths in backticks are modules and folders of
    it."""
    text = readme.read_text()
    (section,) = re.findall(
        r"(?ms)^## (?:Inside|How it is built|Where things live)$(.*?)(?=^## |\Z)", text
    )
    (package,) = (path.parent for path in readme.parent.glob("podracer_*/__init__.py"))
    there = {path.stem for path in package.rglob("*") if path.suffix == ".py" or path.is_dir()}
    named = {
        part
        for name in re.findall(r"`([a-z_/]+)(?:\.py)?`", section)
        for part in name.split("/")
        if part
    }
    assert named
    assert named <= there


def test_contributing_names_every_folder_of_the_core_and_the_client():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("## The house") : text.index("## Glossary")]
    inside = {
        path.parent.name
        for path in INITS
        if len(path.relative_to(ROOT).parts) == 5 and "libs" in path.parts
    }
    assert inside <= set(re.findall(r"`(\w+)`", section))


def test_a_folder_is_imported_by_its_facade_alone():
    """Code of the folder itself imports its modules; all other code, and the documents, only names
    that the folder's `__init__.py` exports."""
    folders = {
        path.parent: ".".join(path.parts[-len(path.relative_to(ROOT).parts) + 2 : -1])
        for path in INITS
    }
    modules = {
        f"{name}.{path.stem}": name
        for folder, name in folders.items()
        if "." in name and "migrations" not in name
        for path in folder.glob("*.py")
    }
    listed = subprocess.check_output(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb"], cwd=ROOT, text=True
    )
    past = []
    for path in map(ROOT.joinpath, listed.split()):
        if not path.exists() or "docs/adr" in str(path) or path.is_symlink():
            continue
        own = next((folders[each] for each in path.parents if each in folders), "")
        for module in re.findall(r"\bfrom (podracer_[\w.]+) import\b", path.read_text()):
            folder = modules.get(module)
            if folder is not None and not f"{own}.".startswith(f"{folder}."):
                past.append(f"{path.relative_to(ROOT)}: {module}")
    assert past == []


def test_a_class_that_acts_has_at_most_20_attributes():
    """Counted are the names X stored as `self.X`, in all methods and the functions inside them."""
    many = []
    for path in [
        *ROOT.glob("libs/*/podracer_*/**/*.py"),
        *ROOT.glob("services/*/podracer_*/**/*.py"),
    ]:
        for each in ast.walk(ast.parse(path.read_text())):
            if not isinstance(each, ast.ClassDef) or each.name in CLASSES_UNTIL_THEY_ARE_REWRITTEN:
                continue
            stored = {
                node.attr
                for node in ast.walk(each)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
            if len(stored) > 20:
                many.append(f"{path.relative_to(ROOT)}: {each.name} has {len(stored)}")
    assert many == [], "make parts of what belongs together"


def test_tests_assert_reasons_and_fields_instead_of_words():
    """`match` has two words at most, where a name (`evolution.updater`) is one: tests/golden has the messages,
    and `support.errors.raises` asserts what callers can rely on."""
    wordy = []
    for path in (ROOT / "tests").rglob("*.py"):
        if path.is_relative_to(ROOT / "tests" / "golden"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "match":
                literals = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
                text = " ".join(each.value for each in literals if isinstance(each.value, str))
                if (
                    len(re.findall(r"(?<![\w.])[A-Za-z][A-Za-z_./:\\\[\]-]+(?!\w)", text))
                    > MOST_WORDS
                ):
                    wordy.append(f"{path.relative_to(ROOT)}:{node.value.lineno}: {text}")
    assert wordy == []


def test_a_made_up_house(tmp_path):
    for name, text in {**FILES, "scripts/walks.toml": MADE_UP_WALKS}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    table = measure(tmp_path)
    figures = json.loads(table.splitlines()[-1])
    assert (figures["lines"], figures["files"]) == (1 + 3 + 3 + 2 + 5 + 65, 8)
    assert figures["tokens"] == 236
    assert figures["import_share"] == round((1 + 3 + 2 + 1 + 1) / 79, 4)
    assert figures["one_importer"] == 3, "call, left and right; errors has two"
    assert figures["circles"] == [["podracer_pilot.left", "podracer_pilot.right"]]
    assert figures["folder_circles"] == figures["circles"]
    assert figures["long_functions"] == {"podracer_pilot.right:long": 61}
    assert figures["packages"] == {
        "podracer_core": {"lines": 9, "tokens": 27, "files": 5, "floors": 3},
        "podracer_pilot": {"lines": 70, "tokens": 209, "files": 3, "floors": 2},
    }
    assert "podracer_pilot.left ↔ podracer_pilot.right" in table
    walk = {"hops": 5, "conversions": 1, "files": 3, "most_hops": 1, "most_files": 2}
    assert figures["walks"] == {"across": walk}
    assert figures["walks_over_limits"] == [
        "across: 5 hops, at most 1",
        "across: 3 files, at most 2",
    ]
    assert figures["broken_walks"] == [
        "across: podracer_pilot.left:halt neither calls nor is called by the line before",
        "across: there is no podracer_pilot.left:stop",
        "across: there is no podracer_core.rpc.call:Call",
    ]
