"""`podracer push`, and `podracer evaluate hf://…`, with the destinations' own clients and a hub of
this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podracer_core.catalogue import EnvironmentSpec
from support.commands import Result, one_evaluator, run_here
from support.hub import COMMIT, Hub, running_hub
from tests.integration.client.test_loggers import no_telemetry
from tests.integration.client.test_policies import SEEDS, stored_policy

__all__ = ["no_telemetry"]
NAME = "hf://ann/lander"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_policy(EnvironmentSpec(id="Pendulum-v1"), tmp_path_factory.mktemp("store"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    with running_hub() as hub:
        yield hub


def podracer(hub: Hub, *arguments: object, cwd: Path) -> Result:
    home = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(cwd / "home"),
        "HF_TOKEN": "hf_secret",
        "HF_HUB_DISABLE_XET": "1",
    }
    return run_here(*arguments, cwd=cwd, HF_HUB_DISABLE_PROGRESS_BARS="1", **home)


def test_a_policy_is_pushed_fetched_and_evaluated(hub, checkpoint, tmp_path):
    (tmp_path / "flight.mp4").write_bytes(b"video")
    pushed = podracer(hub, "push", checkpoint, NAME, "--video", "flight.mp4", cwd=tmp_path)
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout == f"pushed {NAME}@{COMMIT}\n"
    assert hub.created["visibility"] == "private"
    names = {
        "README.md",
        "actor.safetensors",
        "manifest.json",
        "normalizer.safetensors",
        "replay.mp4",
    }
    assert set(hub.files) == names
    page = hub.files["README.md"].decode()
    assert 'library_name: "podracer"' in page
    assert f"podracer evaluate {NAME}" in page
    assert '<video src="replay.mp4"' in page
    assert "Bearer hf_secret" in hub.tokens
    with one_evaluator():
        result = podracer(hub, "evaluate", f"{NAME}@main", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert (values["seeds"], values["environment"]) == (SEEDS, "Pendulum-v1")
    assert values["largest_difference"] <= 1e-4
    assert not any(
        path.endswith(("README.md", "replay.mp4")) for path in hub.requests if "/resolve/" in path
    )


def evil(manifest: dict[str, Any], hub: Hub) -> None:
    manifest["metadata"]["environment"] |= {"id": "", "entry_point": "os:system"}


def evil_module(manifest: dict[str, Any], hub: Hub) -> None:
    manifest["metadata"]["environment"]["id"] = "evil:Pendulum-v1"


def altered(manifest: dict[str, Any], hub: Hub) -> None:
    data = hub.files["actor.safetensors"]
    hub.files["actor.safetensors"] = data[:-1] + bytes([data[-1] ^ 1])


def longer(manifest: dict[str, Any], hub: Hub) -> None:
    hub.files["actor.safetensors"] += b"0"


def pickled(manifest: dict[str, Any], hub: Hub) -> None:
    manifest["files"] = [{**file, "path": "actor.pkl"} for file in manifest["files"][:1]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (evil, "would run code"),
        (evil_module, "would run code"),
        (altered, "has been altered"),
        (longer, "its manifest says"),
        (pickled, "no policy's checkpoint"),
    ],
)
def test_what_is_not_as_we_pushed_it_is_refused(hub, checkpoint, tmp_path, change, told):
    hub.files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    manifest = json.loads(hub.files["manifest.json"])
    change(manifest, hub)
    hub.files["manifest.json"] = json.dumps(manifest).encode()
    result = podracer(hub, "evaluate", NAME, cwd=tmp_path)
    assert result.returncode != 0
    assert told in result.stderr
    assert "hf_secret" not in result.stderr


@pytest.mark.thorough
def test_a_model_in_the_registry_of_mlflow(checkpoint, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to be made
    uri = (tmp_path / "store").as_uri()
    for version in ("1", "2"):
        pushed = run_here("push", checkpoint, f"mlflow:lander@{uri}", cwd=tmp_path)
        assert pushed.returncode == 0, pushed.stderr
        assert pushed.stdout == f"pushed mlflow:lander version {version}\n"
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    champion = client.get_model_version_by_alias("lander", "champion")
    assert champion.version in (2, "2")
    assert "PPO for Pendulum-v1" in champion.description
    folder = Path(champion.source.removeprefix("file://"))
    assert (folder / "actor.safetensors").read_bytes() == (
        checkpoint / "actor.safetensors"
    ).read_bytes()
