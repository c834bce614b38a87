"""What the documents show: job files are valid, links lead somewhere, files of examples are shown
as they are.

The commands of the documents are run by tests/e2e/test_documentation.py.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import podracer
from podracer_client.command import application
from podracer_core.catalogue import (
    EnvironmentSpec,
    find_environment,
    install_advice,
    known_algorithms,
    package_advice,
)
from podracer_core.config import builder
from podracer_core.sections import EvaluationPlan, Evolution, Objective, Pod, Search
from podracer_platform.jobs import JobSpec, load_experiment, parse_experiment
from support.documents import DOCUMENTS, TUTORIALS, blocks, text_of
from support.examples import ALGORITHM, EVALUATOR, FUSION, GENERATOR, HOVER, MAZE
from support.processes import EXAMPLES, ROOT

# page -> the files that it shows in full, and those of which it shows an excerpt; each below the
# folder of its example
EXTENSION_PAGES: dict[str, tuple[dict[str, Path], dict[str, Path]]] = {
    "write-an-algorithm.md": (
        dict.fromkeys(
            ("pyproject.toml", "munchausen_dqn/catalogue.py", "munchausen_dqn/algorithm.py"),
            ALGORITHM,
        ),
        dict.fromkeys(("cartpole.yaml", "tests/test_munchausen_dqn.py"), ALGORITHM),
    ),
    "write-an-evaluator.md": (
        dict.fromkeys(("pyproject.toml", "success_rate/evaluator.py"), EVALUATOR),
        dict.fromkeys(("acrobot.yaml", "tests/test_success_rate.py"), EVALUATOR),
    ),
    "write-a-fusion.md": (
        dict.fromkeys(("pyproject.toml", "median_fusion/fusion.py"), FUSION),
        dict.fromkeys(("cartpole.yaml", "tests/test_median_fusion.py"), FUSION),
    ),
    "write-a-generator.md": (
        dict.fromkeys(("pyproject.toml", "median_stopping/generator.py"), GENERATOR),
        dict.fromkeys(("cartpole.yaml", "tests/test_median_stopping.py"), GENERATOR),
    ),
    "write-an-environment.md": (
        dict.fromkeys(
            ("maze/environment.py", "maze/catalogue.py", "maze.yaml", "pyproject.toml"), MAZE
        )
        | dict.fromkeys(("hover/environment.py", "hover.yaml"), HOVER),
        dict.fromkeys(("installed.yaml", "tests/test_maze.py"), MAZE),
    ),
}


def job_files() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}-{index}", block)
        for path in [*DOCUMENTS, *TUTORIALS]
        for index, block in enumerate(blocks(text_of(path), "yaml"))
        if "\nobjective:" in block
    ]


@pytest.mark.parametrize(("name", "text"), job_files(), ids=[name for name, _ in job_files()])
def test_a_job_file_in_a_document_is_valid(name, text, tmp_path):
    for package in re.findall(r"^  code: (\S+)", text, re.MULTILINE):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for data_set in re.findall(r"^data: \{\w+: (\S+)\}", text, re.MULTILINE):
        (tmp_path / data_set).touch()
    assert parse_experiment(text, name, tmp_path).jobs


@pytest.mark.parametrize("name", ["auto", "experiment", "trading"])
def test_a_job_file_that_is_shown_is_the_example(name, tmp_path):
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    (folder / "prices.csv").touch()
    shown = [
        parse_experiment(text, "job.yaml", folder)
        for _, text in job_files()
        if f"name: {name}\n" in text
    ]
    assert load_experiment(folder / f"{name}.yaml") in shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere_and_make_targets_exist(document):
    text = document.read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / link).exists(), link
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(
        r"`make ([a-z-]+)`|^make ([a-z-]+)(?: |$)(?=\s*(?:#|$))", text, re.MULTILINE
    ):
        assert set(target) & targets, target


@pytest.mark.parametrize("page", ["security.md", "access.md", "web.md", "reliability.md"])
def test_the_tests_that_a_page_names_are_there(page):
    """`tests/path`, `tests/path.py::function`, and `test_name.py` for one beside the file that was
    named before."""
    text, folder = (ROOT / "docs" / page).read_text(), ROOT
    named = re.findall(r"`(?:(tests/[\w/.]+?)/?|(test_\w+\.py))(?:::(\w+))?`", text)
    assert len(named) > 10
    for path, beside, name in named:
        file = ROOT / path if path else folder / beside
        assert file.exists(), file
        if file.is_file():
            folder = file.parent
        if name:
            assert re.search(rf"^(async def|def|class) {name}\b", file.read_text(), re.MULTILINE), (
                f"{file}::{name}"
            )


def test_the_site_names_every_page():
    """In mkdocs.yml; `make site` refuses what is missing too."""
    text, docs = (ROOT / "mkdocs.yml").read_text(), ROOT / "docs"
    named = set(re.findall(r"[\w/-]+\.md\b", text))
    named |= {
        str(page.relative_to(docs))
        for folder in re.findall(r"(\w+)/\*", text)
        for page in docs.glob(f"{folder}/*.md")
    }
    pages = {str(page.relative_to(docs)) for page in [*docs.rglob("*.md"), *TUTORIALS]}
    pages = {page.replace(".ipynb", ".md") for page in pages}
    assert pages <= named
    assert {page for page in named - pages if not page.startswith("reference/")} == set()


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_stored_with_its_outputs(tutorial):
    """In one run from top to bottom (`make notebooks`), without what another machine or hour would
    change."""
    cells = json.loads(tutorial.read_text())["cells"]
    assert f"/blob/main/{tutorial.relative_to(ROOT)})" in "".join(cells[0]["source"]), (
        "where it stands"
    )
    programs = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in programs] == list(range(1, len(programs) + 1))
    pictures = [
        cell
        for cell in programs
        if any("image/png" in each.get("data", {}) for each in cell["outputs"])
    ]
    assert pictures == [cell for cell in programs if "alt" in cell["metadata"]], (
        "they need an `alt` in the metadata"
    )
    outputs = [
        each | {"data": {**each.get("data", {}), "image/png": ""}}
        for cell in programs
        for each in cell["outputs"]
    ]
    assert {output["output_type"] for output in outputs} - {"error"}
    assert not re.search(r"[ '\"](/\w+){2}|0x[0-9a-f]{6}|\d\d:\d\d:\d\d", json.dumps(outputs))
    pages = set(re.findall(r"podracer-rl\.github\.io/podracer/([\w/-]+)\.html", json.dumps(cells)))
    assert {page for page in pages if "reference/" not in page} <= {
        str(path.relative_to(ROOT / "docs").with_suffix(""))
        for path in [*DOCUMENTS[2:], *TUTORIALS]
        if path.stem != "README"
    }


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *TUTORIALS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_commands_have_the_options_that_a_document_shows(document):
    for line in "\n".join(
        re.findall(r"```sh.*?\n(.*?)```", text_of(document), re.DOTALL)
    ).splitlines():
        program, *words = shlex.split(line.split(" && ")[0], comments=True) or [""]
        if program != "podracer":
            continue
        command = get_command(application)
        while isinstance(command, TyperGroup):
            command = command.commands[words.pop(0)]
        with command.make_context(line, [], resilient_parsing=True) as context:
            command.make_parser(context).parse_args([word for word in words if word != "&"])


def test_what_other_libraries_names_become_is_there():
    """Every name in the right columns of docs/coming-from.md, and in the messages."""
    evolution, pod = ({each.name for each in fields(kind)} for kind in (Evolution, Pod))
    known = {each.name for info in known_algorithms().values() for each in info.hyperparameters}
    known |= set(inspect.signature(podracer.train).parameters) | set(known_algorithms())
    known |= {f"result.{name}" for name in dir(podracer.Result)} | {
        f"podracer.{name}" for name in podracer.__all__
    }
    known |= {f"Callback.{name}" for name in dir(podracer.Callback)} | {
        "result.policy",
        "train",
        "matrix",
    }
    known |= {f"evolution.{name}" for name in evolution} | {f"pod.{name}" for name in pod}
    rows = re.findall(
        r"^\|.*\|(.*)\|$", (ROOT / "docs" / "coming-from.md").read_text(), re.MULTILINE
    )
    named = [
        name for row in rows for name in re.findall(r"`([a-z][\w.]*)[^`]*`", row, re.IGNORECASE)
    ]
    assert len(named) > 80
    assert set(named) - known == set()
    sections = {
        "objective": Objective,
        "environment": EnvironmentSpec,
        "evaluation": EvaluationPlan,
        "search": Search,
    }
    known |= {
        f"{section}.{each.name}" for section, kind in sections.items() for each in fields(kind)
    }
    known |= {each.name for each in fields(JobSpec)} | {
        "log_uniform",
        "integer_uniform",
        "integer_log_uniform",
        "choice",
    }
    told = {
        here
        for names in builder._COUNTERPARTS.values()
        for text in names.values()
        for here in text.split(" or ")
    }
    assert told - known == set()


ID = re.compile(r"(?<![\w/.:-])(?:([\w.]+):)?((?:[\w-]+/)?[A-Z][\w-]*-v\d+)\b(?!\.)")


def test_every_environment_that_is_named_is_there_or_says_what_to_install():
    """In documents and docstrings; the module that knows packages shows ids before and after its
    advice."""
    sources = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    texts = [text_of(path) for path in [*DOCUMENTS, *TUTORIALS]]
    texts += [
        doc
        for path in sources
        if not str(path).endswith(("_pb2.py", "_pb2_grpc.py", "catalogue/environments.py"))
        for doc in docstrings(path)
    ]
    named = {
        (package or "", name, install_advice(package) in text or not package)
        for text in texts
        for package, name in ID.findall(text)
    }
    assert len(named) > 20
    examples = "".join(path.read_text() for path in EXAMPLES.rglob("pyproject.toml"))
    for package, name, says_so in sorted(named):
        if package:
            assert says_so and package_advice(name), f"{package}:{name}"
        elif name not in examples:
            find_environment(name)


def docstrings(path: Path) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
    ]


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *TUTORIALS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_is_installed_stands_in_the_checkout(document):
    """There is no release: an index has none of our packages, and the name `podracer` is another
    project's."""
    text = document.read_text()
    for installed in re.findall(r"(?:pip install|uvx)((?:[ \\]+[^\s`\"#\\]+)+)", text):
        for word in re.findall(r"[^ ']*podracer[^ ']*", installed):
            folder, extras = re.fullmatch(r"([^\[]*)(?:\[(.*)\])?[.,:]?", word).groups()
            if folder == "podracer" and document.name == "faq.md":
                continue
            project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
            assert set((extras or "").split(",")) - {""} <= set(project["optional-dependencies"]), (
                word
            )


@pytest.mark.parametrize("page", EXTENSION_PAGES)
def test_a_page_shows_the_files_of_its_example(page):
    """Above each block stands the name of its file."""
    in_full, in_part = EXTENSION_PAGES[page]
    shown = re.findall(
        r"`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL
    )
    assert {name for name, _ in shown} == in_full.keys() | in_part.keys()
    for name, text in shown:
        file = ((in_full | in_part)[name] / name).read_text()
        assert text == file if name in in_full else text in file, name
