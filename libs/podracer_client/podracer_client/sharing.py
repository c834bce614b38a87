"""A policy given to others: its page (README.md) and the files beside it, uploaded to Hugging Face
or into MLflow's registry of models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from podracer_client.display import interval_text, return_text
from podracer_client.files import write_whole
from podracer_client.jobs import Client, History
from podracer_client.outside import mlflow_client, require, within
from podracer_client.policies import PREFIX, acting_files, hub_client, parse_hub_name
from podracer_client.report import CURVES_BY_STEPS, job_figures, request_rows, versions_of
from podracer_client.report.figures import render
from podracer_core.errors import InvalidInput
from podracer_core.storage import FILE_NAME, Manifest


def write_share(
    target: Path, checkpoint: Path, client: Client | None, job: str, video: Path | None
) -> dict[str, Any]:
    """Write what is shared of a checkpoint into the folder `target`; its metrics.

    client  of the server that has the `job`; without it the page has only what the checkpoint tells
    """
    manifest = Manifest.from_json(
        (checkpoint / FILE_NAME).read_bytes(), str(checkpoint / FILE_NAME)
    )
    files = acting_files(manifest)
    shared = replace(manifest, files=files)
    write_whole(target / FILE_NAME, shared.to_json())
    for file in files:
        data = (checkpoint / file.path).read_bytes()
        file.verify(data)
        write_whole(target / file.path, data)
    pictures, report, versions = [], None, tuple(sorted(manifest.libraries.items()))
    if client is not None:
        found = client.job(job)
        report, versions = found.history(), versions_of(client, found.message)
        spec = MessageToDict(report.job.spec, preserving_proto_field_name=True)
        write_whole(target / "job.json", json.dumps(spec, indent=1).encode())
        drawn = render(CURVES_BY_STEPS, job_figures(report)[0].draw, png=True)
        if drawn is not None:
            write_whole(target / "curves.png", drawn.png)
            pictures.append("![Evaluations against environment steps](curves.png)")
    if video is not None:
        name = f"replay{video.suffix}"
        shutil.copyfile(video, target / name)
        pictures.append(f'<video src="{name}" controls></video>')
    metrics = _metrics(shared, report)
    write_whole(target / "README.md", _page(shared, metrics, pictures, report, versions).encode())
    return metrics


def _metrics(manifest: Manifest, report: History | None) -> dict[str, Any]:
    """Results of the evaluation by which the job ranks this policy, with fresh seeds if it was
    confirmed; else of the one that is stored with it. Empty if there is neither."""
    about, best = manifest.metadata, report.best if report else None
    if (
        report
        and best
        and about["agent"].endswith(f"/{best.agent}")
        and about["env_steps"] == best.env_steps
    ):
        lower, upper = (best.mean if bound is None else bound for bound in (best.lower, best.upper))
        bounds = {"lower_bound": lower, "upper_bound": upper}
        return {
            "mean": best.mean,
            **bounds,
            "episodes": best.episodes,
            "confirmed": report.confirmed,
        }
    stored = about.get("evaluation") or {}
    names = ("mean", "lower_bound", "upper_bound", "episodes")
    found = {name: stored[name] for name in names if isinstance(stored.get(name), int | float)}
    return {**found, "confirmed": False} if len(found) == len(names) else {}


def _page(
    manifest: Manifest,
    metrics: dict[str, Any],
    pictures: Iterable[str],
    report: History | None,
    versions: Iterable[tuple[str, str]],
) -> str:
    about = manifest.metadata
    asked = about["environment"]
    environment, algorithm = asked["id"] or asked["entry_point"], str(about["algorithm"])
    lines = [
        *_front_matter(environment, algorithm, metrics),
        f"# {algorithm.upper()} for {environment}",
        "",
    ]
    lines += [
        f"Trained by Podracer: agent `{about['agent']}`, {about['env_steps']:,} environment steps.",
        "",
    ]
    if metrics:
        interval = interval_text(metrics["lower_bound"], metrics["upper_bound"])
        seeds = "fresh seeds" if metrics["confirmed"] else "not confirmed with fresh seeds"
        lines += [f"Mean return {return_text(metrics['mean'])} (95 % interval {interval}) over"]
        lines += [f"{metrics['episodes']} greedy episodes, {seeds}.", ""]
    lines += [
        "```sh",
        "podracer evaluate hf://OWNER/REPO   # the stored episodes once more",
        "```",
        "",
    ]
    for picture in pictures:
        lines += [picture, ""]
    lines += _table("Hyperparameters", about["hyperparameters"].items())
    if report is not None:
        lines += _table("What was asked", request_rows(report.job.spec))
    lines += _table("Versions", versions)
    return "\n".join(lines)


def _front_matter(environment: str, algorithm: str, metrics: dict[str, Any]) -> list[str]:
    """The front matter that Hugging Face reads of a page; JSON values are YAML."""
    values: dict[str, Any] = {
        "library_name": "podracer",
        "pipeline_tag": "reinforcement-learning",
        "tags": [
            "podracer",
            "deep-reinforcement-learning",
            "reinforcement-learning",
            algorithm,
            environment,
        ],
    }
    if metrics:
        task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        metric = {
            "type": "mean_reward",
            "name": "mean_reward",
            "value": metrics["mean"],
            "verified": False,
        }
        dataset = {"name": environment, "type": environment}
        result = {"task": task, "dataset": dataset, "metrics": [metric]}
        values["model-index"] = [{"name": algorithm, "results": [result]}]
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in values.items()), "---", ""]


def _table(title: str, rows: Iterable[tuple[str, object]]) -> list[str]:
    cells = [f"| {word} | {str(value).replace('|', '&#124;')} |" for word, value in rows]
    return [f"## {title}", "", "| | |", "|---|---|", *cells, ""]


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
