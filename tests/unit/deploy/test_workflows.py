"""The workflow files: what they run is there, and what they use is pinned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.processes import ROOT
from support.s3_server import PROGRAMS

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def _jobs(path: Path) -> Mapping[str, Any]:
    document = yaml.load(path.read_text(), yaml.BaseLoader)  # `on` is a word here
    assert {"name", "on", "permissions", "jobs"} <= set(document)
    assert document["permissions"] == {"contents": "read"}
    jobs: Mapping[str, Any] = document["jobs"]
    return jobs


def _steps(path: Path) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for job in _jobs(path).values():
        for step in job["steps"]:
            yield job, step


@each_workflow
def test_every_job_ends_some_time_on_a_machine_that_is_named(path):
    for job in _jobs(path).values():
        assert re.fullmatch(r"ubuntu-\d+\.\d+", job["runs-on"])
        assert 0 < int(job["timeout-minutes"]) <= 300


@each_workflow
def test_actions_are_pinned_and_keep_no_credentials(path):
    lines = path.read_text().splitlines()
    for _, step in _steps(path):
        assert len({"uses", "run"} & set(step)) == 1, step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
            assert any(
                re.search(re.escape(step["uses"]) + r"  # v\d+\.\d+\.\d+$", line) for line in lines
            ), step
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"


@each_workflow
def test_what_they_make_can_be_made(path):
    made = set()
    for job, step in _steps(path):
        for target in re.findall(
            r'^make "?(\$\{\{ matrix\.target \}\}|[a-z0-9-]+)"?', step.get("run", ""), re.MULTILINE
        ):
            made |= set(job["strategy"]["matrix"]["target"]) if target.startswith("$") else {target}
    assert made
    assert made <= TARGETS


def test_the_servers_of_the_tests_are_those_that_the_tests_name():
    for path in WORKFLOWS:
        if path.stem in ("check", "slow"):
            runs = " ".join(step.get("run", "") for _, step in _steps(path))
            assert all(PROGRAMS[name].had_by in runs for name in ("minio", "versitygw"))


def test_what_decides_here_decides_there():
    """Every target of .ci/run is in the workflow for changes."""
    wanted = set(
        re.findall(r"make ([a-z0-9-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    )
    (check,) = [path for path in WORKFLOWS if path.stem == "check"]
    runs = {step.get("run", "") for _, step in _steps(check)}
    assert {f"make {target}" for target in wanted} <= runs
