"""The actions of the page on jobs, the same as the commands, and videos of candidates, filmed on
request."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from podracer_client.jobs.client import Client
from podracer_client.jobs.experiments import check_jobs, create_jobs
from podracer_client.local.state_folder import StateFolder
from podracer_client.names import short_name
from podracer_client.policies.environment import parsed_arguments
from podracer_client.policies.folders import MANIFEST
from podracer_client.policies.recording import film
from podracer_client.servers.connection import DEFAULT_FOLDER
from podracer_core.errors import Exhausted, InvalidInput, NotFound
from podracer_platform.jobs.experiment import parse_experiment

KEPT = 16


class Videos:
    """Films one video at a time, and keeps the newest KEPT. `state_folder` as in `film`."""

    def __init__(self, state_folder: Path | None) -> None:
        self._state_folder = state_folder or DEFAULT_FOLDER
        self._films: dict[str, tuple[str, str]] = {}  # by the checkpoint's prefix; the oldest first
        self._turn = threading.Lock()

    def film(self, client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The video of `agent`'s snapshot on the leaderboard of `job`, and its caption.

        Raises NotFound if the agent is not ranked, Exhausted while another one is filmed, and the
        errors of `film`."""
        job, agent = (str(asked.get(name, "")) for name in ("job", "agent"))
        board = client.leaderboard(client.job(job).message.leaderboard)
        found = next(
            (each for each in board.candidates if short_name(each.agent.name) == agent), None
        )
        if found is None:
            raise NotFound(f"{agent} is not on the leaderboard")
        prefix = found.evaluation.checkpoint.prefix
        if prefix not in self._films:
            if not self._turn.acquire(blocking=False):
                raise Exhausted(
                    "another video is being filmed; try again once it is there", reason="FILMING"
                )
            here = StateFolder.objects_of(self._state_folder) / prefix
            name = f"{found.agent.name}/checkpoints/{short_name(prefix.rstrip('/'))}"
            try:
                policy = str(here) if (here / MANIFEST).is_file() else name
                self._films[prefix] = film(policy, client, self._state_folder)
            finally:
                self._turn.release()
        video, text = self._films[prefix]
        for oldest in list(self._films)[:-KEPT]:
            del self._films[oldest]
        return {
            "video": video,
            "text": f"after {found.evaluation.env_steps:,} training steps: {text}",
        }


def _submit(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The job of a file's text, or all jobs of its matrix, all checked before the first is
    submitted."""
    # Without a folder, so that the page cannot be asked about the disk of the machine that serves
    # it.
    experiment = parse_experiment(
        _text(asked, "text"), _text(asked, "file") or "job.yaml", folder=None
    )
    if experiment.axes:
        specs = check_jobs(client, experiment.jobs)
        return {
            "jobs": [
                short_name(job.name) for job in create_jobs(client, specs, secrets.token_hex(16))
            ]
        }
    return {"jobs": [short_name(client.submit(experiment.jobs[0]).name)]}


def _scale(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    client.job(_text(asked, "job")).scale(least=_count(asked, "min"), most=_count(asked, "max"))
    return {}


def _promote(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    client.promote(
        *(_text(asked, name) for name in ("job", "agent")),
        alias=_text(asked, "alias"),
        reason=_why(asked),
    )
    return {}


def _roll_back(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    client.roll_back(_text(asked, "job"), alias=_text(asked, "alias"), reason=_why(asked))
    return {}


def _fork(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    """`set-NAME` for each changed hyperparameter; its value is YAML, as in a job file."""
    changed = [
        f"{name.removeprefix('set-')}={_text(asked, name)}"
        for name in asked
        if name.startswith("set-")
    ]
    hyperparameters = parsed_arguments(changed, "a hyperparameter")
    return {
        "agent": short_name(
            client.job(_text(asked, "job")).fork_agent(_text(asked, "agent"), hyperparameters)
        )
    }


def _on_agent(method: str) -> Callable[[Client, Mapping[str, Any]], dict[str, Any]]:
    def act(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
        getattr(client.job(_text(asked, "job")), f"{method}_agent")(_text(asked, "agent"))
        return {}

    return act


def _on_job(method: str) -> Callable[[Client, Mapping[str, Any]], dict[str, Any]]:
    def act(client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
        getattr(client.job(_text(asked, "job")), method)()
        return {}

    return act


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"{name}: expected a text")
    return value


def _why(asked: Mapping[str, Any]) -> str:
    return _text(asked, "reason") or "on the live page"


def _count(asked: Mapping[str, Any], name: str) -> int | None:
    value = asked.get(name)
    if value is not None and type(value) is not int:
        raise InvalidInput(f"{name}: expected a whole number")
    return value


ACTS: Mapping[str, Callable[[Client, Mapping[str, Any]], dict[str, Any]]] = {
    "submit": _submit,
    "scale": _scale,
    "promote": _promote,
    "rollback": _roll_back,
    "fork": _fork,
    **{method: _on_agent(method) for method in ("pin", "unpin", "stop")},
    **{method: _on_job(method) for method in ("suspend", "resume", "cancel", "delete")},
}
