"""docker-compose.yml, the files beside it and the Dockerfile say what the code says; they run in
`make e2e-compose`."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
import yaml

from podracer_client.secrets import HOSTS, ROLES
from podracer_core.native import NATIVE_SETTINGS
from podracer_evaluator.server import EvaluatorConfig
from podracer_leaderboard.server import LeaderboardConfig
from podracer_learner.config import LearnerConfig
from podracer_orchestrator.config import OrchestratorConfig
from podracer_platform.settings import load_settings
from podracer_platform.storage import S3Settings
from podracer_policy.server import PolicyConfig
from podracer_worker.server import WorkerConfig
from support.processes import ROOT

SETTINGS: Mapping[str, type[Any]] = {
    "orchestrator": OrchestratorConfig,
    "leaderboard": LeaderboardConfig,
    "learner": LearnerConfig,
    "worker": WorkerConfig,
    "evaluator": EvaluatorConfig,
    "policy": PolicyConfig,
}
OF_THE_COMMAND = {"PODRACER_ORCHESTRATOR", "PODRACER_TOKEN_FILE"}
VERSION = tomllib.loads((ROOT / "libs" / "podracer_core" / "pyproject.toml").read_text())[
    "project"
]["version"]


@pytest.fixture(scope="module")
def services() -> Mapping[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])


def _plain(value: object) -> str:
    """A value without what people may set: `${NAME:-default}` is the default."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", str(value))


@pytest.mark.parametrize("role", SETTINGS)
def test_each_variable_is_a_setting(role, services):
    variables = {name: _plain(value) for name, value in services[role]["environment"].items()}
    settings = {f"PODRACER_{field.name.upper()}" for field in fields(SETTINGS[role])}
    store = {f"PODRACER_S3_{field.name.upper()}" for field in fields(S3Settings)}
    store |= {f"{name}_FILE" for name in store}
    unknown = {name for name in variables if name.startswith("PODRACER_")} - settings - store
    assert unknown <= (OF_THE_COMMAND if role == "orchestrator" else set())
    load_settings(SETTINGS[role], variables)


@pytest.mark.parametrize("role", SETTINGS)
def test_nothing_runs_with_more_than_it_needs(role, services):
    service = services[role]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["stop_grace_period"] == "60s"
    assert f"{role}-secrets:/secrets:ro" in service["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    own = {name for name in services if f"{name}-secrets:/secrets:ro" in service["volumes"]}
    assert own == {role}
    if role in ("worker", "evaluator"):
        assert service["networks"] == ["pods"]
        assert service["pids_limit"]
        assert _plain(service["mem_limit"]) == "4g"


def test_the_learner_stops_first(services):
    assert set(services["learner"]["depends_on"]) == {"orchestrator", "worker", "evaluator"}
    assert set(services["orchestrator"]["depends_on"]) == {
        "bootstrap",
        "postgres",
        "leaderboard",
        "minio-user",
    }


def test_the_bootstrap_gives_each_role_its_folder(services):
    given = {
        volume.rpartition("/")[2]
        for volume in services["bootstrap"]["volumes"]
        if "/roles/" in volume
    }
    assert given == {*ROLES, *HOSTS} - {"client"}


def test_images_and_versions_agree(services):
    gpu = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]["learner"]["image"]
    assert gpu == f"{services['learner']['image']}-cuda"
    for name, service in services.items():
        if name in (*SETTINGS, "minio"):
            assert service["image"] == f"${{PODRACER_REGISTRY}}/podracer-{name}:${{PODRACER_TAG}}"
            assert name == "minio" or service["build"]["target"] == name
        written = re.sub(r"\$\{[^}]*\}", "", service["image"])
        assert not re.match(r"[^/]*\.[^/]*/", written), "images of a named registry"
        assert _plain(service["image"]).partition(":")[2] not in ("", "latest")
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert set(re.findall(r"image\.version=(\S+)", dockerfile)) == {VERSION}
    assert "# syntax=" not in dockerfile
    native = " ".join(f"{name}={value}" for name, value in NATIVE_SETTINGS.items())
    assert f"ENV {native}" in dockerfile


def test_one_file_names_what_is_published():
    lines = [line for line in (ROOT / ".env").read_text().splitlines() if not line.startswith("#")]
    named = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
    assert named["PODRACER_TAG"] == VERSION
    projects = [
        tomllib.loads(path.read_text())["project"] for path in ROOT.glob("[ls]*/*/pyproject.toml")
    ]
    assert {project["name"] for project in projects} == set(named["PODRACER_DISTRIBUTIONS"].split())
    assert {project["version"] for project in projects} == {VERSION}


def test_the_object_store_is_built_from_what_its_labels_say():
    folder = ROOT / "deploy" / "minio"
    dockerfile = (folder / "Dockerfile").read_text()
    (version,) = re.findall(
        r"^\tgithub\.com/minio/minio (\S+)", (folder / "go.mod").read_text(), re.MULTILINE
    )
    assert f"github.com/minio/minio {version} h1:" in (folder / "go.sum").read_text()
    labels = dict(re.findall(r"org\.opencontainers\.image\.(\w+)=(\S+)", dockerfile))
    assert (labels["version"], labels["licenses"]) == (version, "AGPL-3.0-only")
    assert labels["source"].endswith(f"/minio/minio/tree/{version.rpartition('-')[2]}")
    assert re.findall(r"^FROM (?:--platform=\S+ )?(\S+)", dockerfile, re.MULTILINE) == [
        "${GOLANG}",
        "scratch",
    ]


def test_torch_is_the_cpu_build_but_on_gpus(services):
    index = services["worker"]["build"]["args"]["TORCH_INDEX"]
    default = re.fullmatch(r"\$\{PODRACER_TORCH_INDEX-(.+)\}", index)
    assert default is not None
    assert f"ARG TORCH_INDEX={default[1]}" in (ROOT / "Dockerfile").read_text()
    gpu = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]["learner"]["build"][
        "args"
    ]
    assert gpu == {"VARIANT": "cuda", "TORCH_INDEX": "${PODRACER_TORCH_INDEX-}"}


def test_a_second_file_and_postgres_name_what_is_there(services):
    gpu = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]
    assert set(gpu) <= set(services)
    load_settings(
        LearnerConfig,
        {**services["learner"]["environment"], **gpu["learner"]["environment"], **_OWN},
    )
    lines = (ROOT / "deploy" / "compose" / "postgres.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    used = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    assert set(variables) - used == {"COMPOSE_PROFILES"}


_OWN = {"PODRACER_TLS": "", "PODRACER_THREADS": "1", "PODRACER_MAX_WORKERS": "2", "PODRACER_LOG_JSON": "false",
        "PODRACER_LOG_LEVEL": "INFO"}  # fmt: skip


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--profile", "observability"],
        ["--env-file", ".env", "--env-file", "deploy/compose/postgres.env"],
        ["-f", "docker-compose.yml", "-f", "compose.gpu.yaml"],
    ],
)
def test_docker_compose_takes_it(arguments, tmp_path):
    if subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    ).returncode:
        pytest.skip("docker has no compose")
    command = ["docker", "compose", *arguments, "config", "--format", "json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "variable is not set" not in done.stderr
