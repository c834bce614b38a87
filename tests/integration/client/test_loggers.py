"""`podracer log` of a real leaderboard: read back with the destinations' own readers, and compared
with it."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podracer_client.jobs import Client, Job
from podracer_client.local import resting_services
from podracer_client.loggers import AgentRun, Logger, Point, follow, open_logger
from podracer_client.names import short_name
from podracer_client.sharing import write_share
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.storage import Manifest, ManifestFile
from podracer_platform.jobs import parse_job
from support.commands import run_here
from support.processes import wait_until
from tests.integration.client.test_reports import EVALUATIONS, JOB, leaderboard_is_there, populate

COUNT = EVALUATIONS - 1 + 3
"""Looks at the first of three agents, and a candidate of each."""


class Remembering:
    """A logger in memory."""

    def __init__(self) -> None:
        self.position = 0
        self.points: list[Point] = []

    def describe(self, run: AgentRun) -> None:
        pass

    def log(self, agent: str, points: Sequence[Point]) -> None:
        self.points = sorted([*self.points, *points], key=lambda point: point.position)

    def commit(self, position: int) -> None:
        self.position = position

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    """Of services with a job that was followed while it ran."""
    with resting_services(folder) as client:
        job = client.submit(parse_job(JOB.format(seed=0)), job_id="grid-0")
        wait_until(
            lambda: leaderboard_is_there(client, job.message.leaderboard), 60, "the leaderboard"
        )
        logger = Remembering()
        with ThreadPoolExecutor(1) as threads:
            following = threads.submit(follow, client, job, [logger])
            populate(client, folder, job.message.leaderboard)
            job.cancel()
            assert following.result(60) == logger.position == COUNT, "followed while it ran"
        assert [point.position for point in logger.points] == list(range(1, COUNT + 1))
        yield client


@pytest.fixture
def job(client: Client) -> Job:
    return client.job("grid-0")


@pytest.fixture
def evaluations(client: Client, job: Job) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Steps and means by agent and name, as the leaderboard has them."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for each in client.evaluations(job.message.leaderboard):
        name = "progress/mean_return" if each.purpose == 1 else "candidate/mean_return"
        found.setdefault((short_name(each.agent), name), []).append((each.env_steps, each.mean))
    return found


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages tell their makers nothing of these tests."""
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


class CutOff(Exception):
    """The process ends here."""


def log_with_interruption(
    client: Client, job: Job, open_one: Callable[[], Logger], monkeypatch
) -> None:
    """The first call is cut off after points were logged that are not committed; the second goes
    on, the third has nothing to do."""
    logger = open_one()
    commit, commits = logger.commit, Counter[str]()

    def cut_off(position: int) -> None:
        commits["count"] += 1
        if commits["count"] == 3:
            raise CutOff
        commit(position)

    monkeypatch.setattr(logger, "commit", cut_off)
    with pytest.raises(CutOff):
        follow(client, job, [logger])
    logger.close()
    for before in (400, COUNT):
        logger = open_one()
        assert logger.position == before
        assert follow(client, job, [logger]) == COUNT
        logger.close()


def test_tensorboard_has_what_the_leaderboard_has(client, job, evaluations, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_with_interruption(
        client, job, lambda: open_logger(f"tensorboard:{tmp_path}", job.message), monkeypatch
    )
    agents = {short_name(agent.name): agent for agent in client.agents(job.message.leaderboard)}
    assert {path.name for path in (tmp_path / "grid-0").iterdir() if path.is_dir()} == set(agents)
    for name, agent in agents.items():
        reader = EventAccumulator(str(tmp_path / "grid-0" / name), size_guidance={"scalars": 0})
        reader.Reload()
        for tag in ("progress/mean_return", "candidate/mean_return"):
            if (name, tag) in evaluations:
                assert [(each.step, each.value) for each in reader.Scalars(tag)] == evaluations[
                    name, tag
                ]
        hparams = str(reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
        assert all(
            word in hparams
            for word in ("learning_rate", "operation", "fresh", agent.spec.algorithm, "grid-0")
        )
        last = {tag: reader.Scalars(tag)[-1].value for tag in reader.Tags()["scalars"]}
        assert (last["round"], last["candidate/episodes"]) == (
            1.0 if name != "a0001" else last["round"],
            2.0,
        )
        assert last["candidate/lower_bound"] == last["candidate/mean_return"] - 10.0


@pytest.mark.thorough
def test_mlflow_has_what_the_leaderboard_has(client, job, evaluations, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    log_with_interruption(
        client, job, lambda: open_logger(f"mlflow:{uri}", job.message), monkeypatch
    )
    reader = mlflow.MlflowClient(tracking_uri=uri)
    experiment = reader.get_experiment_by_name("podracer/grid-0")
    runs = {run.info.run_name: run for run in reader.search_runs([experiment.experiment_id])}
    assert len(runs) == 3
    for (name, key), points in evaluations.items():
        history = reader.get_metric_history(runs[name].info.run_id, key)
        assert [(metric.step, metric.value) for metric in history] == points
    first = runs["a0001"]
    assert float(first.data.params["learning_rate"]) > 0
    assert (first.data.tags["podracer.algorithm"], first.data.tags["podracer.operation"]) == (
        "ppo",
        "fresh",
    )
    assert first.info.status == "FINISHED"


def records(path: Path) -> Iterator[bytes]:
    """The records of W&B's file: LevelDB's log, behind a header of 7 bytes."""
    data, offset, record = path.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        if (left := 32768 - offset % 32768) < 7:
            offset += left
            continue
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        record += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or a last part
            yield record
            record = b""


@pytest.mark.thorough
def test_wandb_has_what_the_leaderboard_has(client, job, evaluations, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for before in (0, COUNT):
        logger = open_logger("wandb:pod", job.message)
        assert logger.position == before
        assert follow(client, job, [logger]) == COUNT
        logger.close()
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 3
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for path in files:
        agent = path.stem.rpartition("-")[2]
        for data in records(path):
            record = wandb_internal_pb2.Record.FromString(data)
            row = {
                item.key or "/".join(item.nested_key): item.value_json
                for item in record.history.item
            }
            for name in row.keys() & {"progress/mean_return", "candidate/mean_return"}:
                found.setdefault((agent, name), []).append(
                    (int(float(row["env_steps"])), float(row[name]))
                )
            if record.WhichOneof("record_type") == "run":
                config = {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
                assert (record.run.run_group, config["operation"]) == ("grid-0", "fresh")
        assert b"pytest" not in path.read_bytes(), "this process's arguments are not logged"
    assert found == evaluations


def test_the_command(client, folder, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    known, token = client.connection, folder / "tokens" / "client"
    server = (
        "--orchestrator",
        known.orchestrator,
        "--leaderboard",
        known.leaderboard,
        "--token-file",
        token,
    )
    for new in (COUNT, 0):
        result = run_here(
            "log", "grid-0", *server, "--to", "tensorboard:board", "--json", cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
        assert [event["new"] for event in result.events] == [new]
    other = run_here("log", "grid-0", *server, "--to", "paper:board", cwd=tmp_path)
    assert (
        other.returncode,
        "expected tensorboard:DIR, mlflow:URI or wandb:PROJECT" in other.stderr,
    ) == (2, True)


def test_the_page_of_a_policy_shows_its_job(client, tmp_path):
    checkpoint, target = tmp_path / "checkpoint", tmp_path / "shared"
    checkpoint.mkdir()
    target.mkdir()
    (checkpoint / "actor.safetensors").write_bytes(b"weights")
    environment = EnvironmentSpec(id="CartPole-v1").to_metadata()
    about = {
        "agent": "a0003",
        "algorithm": "ppo",
        "env_steps": 1000,
        "hyperparameters": {"gamma": 0.9},
    }
    files = (
        ManifestFile.describe("actor.safetensors", b"weights"),
        ManifestFile("replay.safetensors", 1, "0" * 64),
    )
    manifest = Manifest(files, {**about, "environment": environment}, {"torch": "2"})
    (checkpoint / "manifest.json").write_bytes(manifest.to_json())
    write_share(target, checkpoint, client, "grid-0", None)
    names = {"README.md", "actor.safetensors", "curves.png", "job.json", "manifest.json"}
    assert {path.name for path in target.iterdir()} == names, "what acting does not need stays here"
    assert (target / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((target / "job.json").read_text())["display_name"] == "grid-0"
    page = (target / "README.md").read_text()
    assert all(
        row in page
        for row in ("| gamma | 0.9 |", "| learning_rate | 0.001 to 0.01", "| podracer-client | ")
    )


def test_a_folder_of_another_job_stays_as_it_is(job, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "grid-0").mkdir()
    (tmp_path / "grid-0" / "podracer-log.json").write_text(
        '{"job": "other", "position": 1, "sizes": {}}'
    )
    with pytest.raises(InvalidInput, match="another job"):
        open_logger(f"tensorboard:{tmp_path}", job.message)


def test_a_destination_that_fails_tells_no_secret(job, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(Unavailable, match="mlflow: ") as failure:
        open_logger("mlflow:http://ann:hunter2@127.0.0.1:1", job.message)
    assert "hunter2" not in failure.value.message
