"""docs/deploy.md: what needs neither a cluster nor a container engine is run; the rest names
existing files."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.manifests import COMPONENTS, OVERLAYS, kubectl, kustomize, of_kind, pod_specs, rendered
from support.processes import EXAMPLES, ROOT

TEXT = (ROOT / "docs" / "deploy.md").read_text()


def _commands(kind: str) -> Iterator[list[str]]:
    """The words of each command in the blocks with this heading."""
    for block in _blocks(kind):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words := [
                word for place, word in enumerate(words) if place or not re.match(r"[A-Z]+=", word)
            ]:
                yield words


def _blocks(heading: str) -> list[str]:
    return re.findall(rf"^```{heading}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def _overlays_of_ones_own() -> list[str]:
    return _blocks("yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as the page begins from, with the user's first overlay."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "postgresql-ca.pem").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(_overlays_of_ones_own()[0])
    return tmp_path


def test_every_block_says_what_it_needs():
    assert set(re.findall(r"^```(\S.*)$", TEXT, re.MULTILINE)) == {
        "sh",
        "sh engine",
        "sh cluster",
        "yaml",
    }


def test_the_commands_that_need_nothing(folder):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join(_blocks("sh"))
    command = ["sh", "-eu", "-c", script]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    objects = kustomize(folder / "mine")
    assert {one["metadata"].get("namespace") for one in objects if one["kind"] != "Namespace"} == {
        "team-rl"
    }
    images = {
        name: one["image"] for pod in pod_specs(objects) for name, one in pod.containers.items()
    }
    assert images["learner"].startswith("images.example.org/podracer-learner:")
    for stateful in of_kind(objects, "StatefulSet").values():
        assert stateful["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "gp3"


def test_an_overlay_with_a_name_of_the_page(folder):
    (folder / "mine" / "kustomization.yaml").write_text(_overlays_of_ones_own()[1])
    (pod,) = [pod for pod in pod_specs(kustomize(folder / "mine")) if pod.owner == "podracer-web"]
    assert pod.containers["web"]["command"][1:] == [
        *(
            "web",
            "--listen=0.0.0.0:8080",
            "--key-file=/etc/podracer/web/key",
            "--host=podracer.example.org",
        ),
    ]


def test_an_overlay_for_production(folder):
    (folder / "mine" / "kustomization.yaml").write_text(_overlays_of_ones_own()[2])
    objects = kustomize(folder / "mine")
    assert of_kind(objects, "ConfigMap")["podracer-store"]["data"] == {
        "PODRACER_STORE": "s3://bucket/prefix",
        "PODRACER_S3_ENDPOINT": "https://s3.example.org",
        "PODRACER_S3_REGION": "eu-central-1",
        "PODRACER_S3_CREATE_BUCKET": "false",
    }
    (rule,) = of_kind(objects, "NetworkPolicy")["podracer-to-external-s3"]["spec"]["egress"]
    assert rule["to"] == [{"ipBlock": {"cidr": "203.0.113.0/24"}}]


def test_what_the_commands_for_a_cluster_name_is_there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    there = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in rendered("web")}
    for program, *arguments in _commands("sh cluster"):
        assert program in {"kubectl", "podracer"} or (ROOT / program).exists()
        for word in arguments:
            if re.fullmatch(r"(deployment|service|statefulset)/[\w-]+", word):
                assert word in there
        for option, path in itertools.pairwise(arguments):
            if option in ("-f", "-k"):
                assert Path(path).exists(), path
        if "create" in arguments and program == "kubectl":
            (made,) = yaml.safe_load_all(kubectl(*arguments, "--dry-run=client", "--output=yaml"))
            assert made["kind"] in ("Namespace", "Secret")


def test_make_targets_and_files_of_the_commands_for_an_engine():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *arguments in _commands("sh engine"):
        if program == "make":
            assert set(arguments) <= targets
        else:
            assert program == "docker"
            files = [path for option, path in itertools.pairwise(arguments) if option == "-f"]
            assert all((ROOT / path).exists() for path in files)


def test_overlays_and_components_are_all_named():
    (table,) = re.findall(r"^\| overlay \|.*?\n\n", TEXT, re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE) == OVERLAYS
    assert all(f"`{name}`" in TEXT for name in COMPONENTS)
