"""What the services of a state folder are told, and which have to be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from podracer_client.local import (
    Foreground,
    ServiceOptions,
    StateFolder,
    keep_up,
    leaderboard_plan,
    orchestrator_plan,
    require_services,
)
from podracer_client.processes import RunFolder
from podracer_core.errors import PreconditionFailed


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    with StateFolder.open(tmp_path / "runs") as state:
        yield state


def environments(state: StateFolder) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Of the orchestrator and the leaderboard."""
    with RunFolder() as run_folder:
        orchestrator = orchestrator_plan(
            state, run_folder, "unix:///o", "unix:///l", ServiceOptions()
        )
        return orchestrator.environment, leaderboard_plan(state, "unix:///l").environment


def test_spans_go_to_the_state_folder(state, monkeypatch):
    monkeypatch.delenv("PODRACER_TRACE_DIR", raising=False)
    assert [one["PODRACER_TRACE_DIR"] for one in environments(state)] == [
        str(state.path / "traces")
    ] * 2


@pytest.mark.parametrize("said", ["", "/elsewhere"])
def test_or_where_the_user_says(state, monkeypatch, said):
    monkeypatch.setenv("PODRACER_TRACE_DIR", said)
    assert [one["PODRACER_TRACE_DIR"] for one in environments(state)] == [said] * 2


def test_one_address_for_metrics_is_the_orchestrators(state, monkeypatch):
    monkeypatch.setenv("PODRACER_METRICS_LISTEN", "127.0.0.1:9464")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    orchestrator, leaderboard = environments(state)
    assert orchestrator["PODRACER_METRICS_LISTEN"] == "127.0.0.1:9464"
    assert "PODRACER_METRICS_LISTEN" not in leaderboard
    assert {one["OTEL_EXPORTER_OTLP_ENDPOINT"] for one in (orchestrator, leaderboard)} == {
        "http://127.0.0.1:4317"
    }


@pytest.mark.parametrize(
    "command",
    [
        lambda folder: Foreground.__init__(object(), None, folder, None, print),
        lambda folder: keep_up(folder, ServiceOptions()),
    ],
)  # type: ignore[arg-type]
def test_what_is_not_installed_is_said_before_anything_is_made(command, tmp_path, monkeypatch):
    find, missing = importlib.util.find_spec, ("podracer_leaderboard", "podracer_worker")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    with pytest.raises(PreconditionFailed) as refused:
        command(tmp_path / "runs")
    assert (
        "needs the extra `local`, which is not installed: pip install 'podracer-client[local]'"
        in str(refused.value)
    )
    assert not (tmp_path / "runs").exists()
    require_services("learner")
