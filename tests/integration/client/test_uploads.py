"""A job's code and data go to the server before the job does, once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2
from podracer_client.jobs import Client
from podracer_client.policies import Trust, bring_files
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.storage import Manifest
from podracer_platform.jobs import load_job_file
from support.code import LINE, stored, write_files
from support.errors import raises

JOB = """
name: line
environment: {entry_point: my_pkg.envs:Line, code: ./my_pkg}
objective: {max_env_steps: 100}
data: {table: "../prices of 2019.csv"}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    write_files(
        tmp_path / "jobs", {"my_pkg/__init__.py": "", "my_pkg/envs.py": LINE, "job.yaml": JOB}
    )
    (tmp_path / "prices of 2019.csv").write_bytes(b"a,b\n" * 500_000)  # 2 MB
    return tmp_path / "jobs" / "job.yaml"


def spec_of(client: Client, job_file: Path) -> job_pb2.JobSpec:
    return client.submit(job_file).message.spec


def test_files_are_uploaded_once_and_named_in_the_job(client, control_plane, job_file):
    spec = spec_of(client, job_file)
    code, table, *_ = control_plane.requests
    assert (code.kind, table.kind) == (
        artifact_service_pb2.ARTIFACT_KIND_CODE,
        artifact_service_pb2.ARTIFACT_KIND_DATA_SET,
    )
    assert spec.environment.code.sha256 == code.sha256
    assert spec.environment.code.key == f"artifacts/{code.sha256}/content"
    assert spec.environment.code.size_bytes == code.size_bytes
    assert spec.data["table"].sha256 == table.sha256
    assert spec.data["table"].name == "prices_of_2019.csv"
    archive = zipfile.ZipFile(io.BytesIO(control_plane.uploads[code.sha256]))
    assert archive.namelist() == ["my_pkg/__init__.py", "my_pkg/envs.py"]
    before = len(control_plane.requests)
    assert spec_of(client, job_file) == spec
    assert len(control_plane.requests) == before + 1, "only CreateJob"
    (job_file.parent / "my_pkg" / "envs.py").write_text(LINE + "# changed\n")
    changed = spec_of(client, job_file)
    assert changed.environment.code.sha256 != spec.environment.code.sha256
    assert changed.data == spec.data


def test_reading_a_job_file_needs_no_server(job_file):
    spec = load_job_file(job_file)
    assert spec.environment.code_path == str(job_file.parent / "my_pkg")
    assert spec.data == {"table": str(job_file.parent.parent / "prices of 2019.csv")}


def test_what_is_no_file_is_refused_and_not_read(client, control_plane, job_file):
    """A pipe without a writer, a device without end."""
    spec = load_job_file(job_file)
    os.mkfifo(job_file.parent / "pipe")
    for path in (str(job_file.parent / "pipe"), "/dev/zero", str(job_file.parent)):
        with raises(InvalidInput, field="data.table", match=str(path)):
            client.submit(replace(spec, data={"table": path}))
    assert not control_plane.jobs


def test_a_file_that_is_gone_by_then_is_named(client, control_plane, job_file):
    spec = load_job_file(job_file)
    (job_file.parent.parent / "prices of 2019.csv").unlink()
    with raises(InvalidInput, field="data.table"):
        client.submit(spec)
    assert not control_plane.jobs


def test_uploading_twice_changes_nothing(client, job_file):
    uploaded = client.upload_files(load_job_file(job_file))
    assert client.upload_files(uploaded) == uploaded
    assert uploaded.environment.code_path == ""


class TestBringFiles:
    """For an evaluator that has none, from the store that the checkpoint lies in, or from a
    server."""

    CODE = stored(b"the code", "code.zip", "projects/default/artifacts/x/content")

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        folder = tmp_path / "objects" / "projects/default/jobs/u/agents/a/checkpoints/10-1"
        metadata = {"environment": EnvironmentSpec(entry_point="a:B", code=self.CODE).to_metadata()}
        return write_files(folder, {"manifest.json": Manifest((), metadata, {}).to_json()})

    @pytest.fixture
    def evaluator(self) -> Any:
        received: list[tuple[str, bytes]] = []

        def put(requests: Iterator[Any], timeout: float) -> None:
            header, *pieces = requests
            received.append((header.header.sha256, b"".join(piece.data for piece in pieces)))

        return SimpleNamespace(PutFile=put, received=received)

    @pytest.fixture
    def trust(self, tmp_path: Path) -> Trust:
        return Trust(tmp_path, given=True)

    def test_from_the_same_store(self, checkpoint, evaluator, tmp_path):
        write_files(tmp_path / "objects", {self.CODE.key: b"the code"})
        bring_files(evaluator, checkpoint, lambda: pytest.fail("no server is needed"), Trust())
        assert evaluator.received == [(self.CODE.sha256, b"the code")]

    NAME = "projects/default/artifacts/x"

    def server(self, artifacts: dict[str, bytes]) -> Callable[[], Any]:
        """Connects to one that has these."""

        @contextmanager
        def connect() -> Iterator[Any]:
            def describe(name: str) -> artifact_service_pb2.Artifact:
                if name not in artifacts:
                    raise NotFound(f"there is no artifact {name}")
                return artifact_service_pb2.Artifact(
                    sha256=hashlib.sha256(artifacts[name]).hexdigest()
                )

            def download(name: str, target: Path) -> None:
                write_files(target, {"content": artifacts[name]})

            yield SimpleNamespace(describe=describe, download=download)

        return connect

    def test_from_a_server(self, checkpoint, evaluator, trust):
        bring_files(evaluator, checkpoint, self.server({self.NAME: b"the code"}), trust)
        assert evaluator.received == [(self.CODE.sha256, b"the code")]

    def test_from_a_server_whose_name_is_another_files_now(self, checkpoint, evaluator, trust):
        earlier = f"{self.NAME}.{self.CODE.sha256[:16]}"
        bring_files(
            evaluator, checkpoint, self.server({self.NAME: b"newer", earlier: b"the code"}), trust
        )
        assert evaluator.received == [(self.CODE.sha256, b"the code")]
        with raises(NotFound, "ENVIRONMENT_FILES_NOT_FOUND", match=f"SHA-256 {self.CODE.sha256}"):
            bring_files(evaluator, checkpoint, self.server({self.NAME: b"newer"}), trust)

    def test_from_nowhere(self, checkpoint, evaluator, trust):
        def connect() -> Any:
            raise NotFound("no server is known")

        with raises(NotFound, "ENVIRONMENT_FILES_NOT_FOUND"):
            bring_files(evaluator, checkpoint, connect, trust)

    def test_an_environment_without_files_needs_nothing(self, evaluator, tmp_path):
        metadata = {"environment": EnvironmentSpec(id="CartPole-v1").to_metadata()}
        write_files(tmp_path, {"manifest.json": Manifest((), metadata, {}).to_json()})
        bring_files(evaluator, tmp_path, lambda: pytest.fail("no server is needed"), Trust())
        assert evaluator.received == []

    def test_what_is_no_policy_is_told(self, evaluator, tmp_path):
        write_files(
            tmp_path, {"manifest.json": json.dumps({"schema": "podracer/manifest/v1"}).encode()}
        )
        with pytest.raises(Exception, match=r"manifest\.json"):
            bring_files(evaluator, tmp_path, lambda: pytest.fail("no server is needed"), Trust())
        write_files(tmp_path, {"manifest.json": Manifest((), {}, {}).to_json()})
        with raises(InvalidInput, "NOT_A_POLICY"):
            bring_files(evaluator, tmp_path, lambda: pytest.fail("no server is needed"), Trust())
