"""A folder with a policy and its page to where others find it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from podracer_client.outside import mlflow_client, require, within
from podracer_client.policies import PREFIX, hub_client, parse_hub_name
from podracer_core.errors import InvalidInput

__all__ = ["check_destination", "push"]

_TIMEOUT_S = 900.0
_MLFLOW = "mlflow:"
_EXPERIMENT = "podracer/policies"


def check_destination(text: str) -> None:
    """Raises InvalidInput for what is no destination, or where its package is missing."""
    if text.startswith(PREFIX):
        if parse_hub_name(text)[1] is not None:
            raise InvalidInput(f"{text}: a push creates a new revision; omit @REVISION")
        hub_client()
    elif text.startswith(_MLFLOW):
        _registry(text)
        require("mlflow", "mlflow")
    else:
        raise InvalidInput(
            "expected hf://OWNER/REPO or mlflow:MODEL_NAME@URI", reason="UNKNOWN_DESTINATION"
        )


def push(folder: Path, destination: str, metrics: dict[str, Any], *, public: bool) -> str:
    """Upload; what was made, for people. A repository that has to be made is private unless it is
    to be `public`."""
    if destination.startswith(PREFIX):
        return within(
            _TIMEOUT_S,
            destination,
            lambda: _push_to_hub(folder, parse_hub_name(destination)[0], public),
        )
    name, uri = _registry(destination)
    return within(
        _TIMEOUT_S, f"{_MLFLOW}{name}", lambda: _push_to_mlflow(folder, name, uri, metrics)
    )


def _push_to_hub(folder: Path, repository: str, public: bool) -> str:
    page = folder / "README.md"
    page.write_text(page.read_text().replace("hf://OWNER/REPO", f"{PREFIX}{repository}"))
    hub = hub_client()
    hub.create_repo(repository, private=not public, exist_ok=True)
    made = hub.upload_folder(
        repo_id=repository, folder_path=str(folder), commit_message="Push a policy"
    )
    return f"{PREFIX}{repository}@{made.oid}"


def _push_to_mlflow(folder: Path, name: str, uri: str, metrics: dict[str, Any]) -> str:
    """A new version of the model, whose source is the artifacts of a run; the alias `champion`
    points at it."""
    client = mlflow_client(uri)
    experiment = client.get_experiment_by_name(_EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(_EXPERIMENT)
    run = client.create_run(number, run_name=name)
    for metric, value in metrics.items():
        client.log_metric(run.info.run_id, metric, float(value))
    client.log_artifacts(run.info.run_id, str(folder), "policy")
    client.set_terminated(run.info.run_id)
    with suppress(require("mlflow.exceptions", "mlflow").MlflowException):  # it is there
        client.create_registered_model(name)
    made = client.create_model_version(
        name,
        f"{run.info.artifact_uri}/policy",
        run.info.run_id,
        description=(folder / "README.md").read_text().partition("\n---\n")[2],
    )
    client.set_registered_model_alias(name, "champion", made.version)
    return f"{_MLFLOW}{name} version {made.version}"


def _registry(text: str) -> tuple[str, str]:
    name, _, uri = text.removeprefix(_MLFLOW).partition("@")
    if not name or not uri:
        raise InvalidInput("expected mlflow:MODEL_NAME@URI", reason="UNKNOWN_DESTINATION")
    return name, uri
