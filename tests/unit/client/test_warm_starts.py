"""The candidates of another job become founders, or a clear refusal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.jobs import look_up_founders
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import load_packed_checkpoint, save_checkpoint
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.storage import FolderStore
from podracer_platform.jobs import JobSpec, WarmStart, load_job_file, parse_job
from support.errors import raises

SPEC = parse_job(
    "name: x\nenvironment: CartPole-v1\nobjective: {max_env_steps: 1000}\nwarm_start: {job: "
    "former, candidates: 2}"
)


def board(count: int) -> leaderboard_pb2.Leaderboard:
    found = leaderboard_pb2.Leaderboard()
    for number in range(1, count + 1):
        candidate = found.candidates.add(rank=number)
        candidate.agent.name = f"projects/default/jobs/former/agents/a{number}"
        candidate.agent.spec.algorithm = "ppo"
        candidate.agent.spec.hyperparameters["gamma"].number = 0.9
        candidate.evaluation.checkpoint.prefix = (
            f"projects/default/jobs/u/agents/a{number}/checkpoints/1-1/"
        )
        candidate.evaluation.checkpoint.manifest_sha256 = "0" * 64
    return found


def look_up(spec: JobSpec, candidates: int = 3) -> JobSpec:
    """On servers with one job, whose file calls it `former`, and a leaderboard of some
    candidates."""
    job = job_pb2.Job(
        name="projects/default/jobs/former-1", leaderboard="projects/default/leaderboards/former-1"
    )
    job.spec.display_name = "former"

    def find(request: job_service_pb2.GetJobRequest) -> None:
        raise NotFound(request.name)

    def listed(
        request: job_service_pb2.ListJobsRequest, **_: object
    ) -> job_service_pb2.ListJobsResponse:
        named = request.filter.removeprefix("display_name=")
        return job_service_pb2.ListJobsResponse(jobs=[job] if named in ("", "former") else [])

    service = SimpleNamespace(GetJob=find, ListJobs=listed)
    return look_up_founders(
        cast("Any", SimpleNamespace(job_service=service, leaderboard=lambda _: board(candidates))),
        spec,
    )


def test_the_best_candidates_become_founders():
    message = look_up(SPEC).to_message()
    assert [founder.agent[-2:] for founder in message.founders] == ["a1", "a2"]
    assert (
        message.founders[0].checkpoint.prefix
        == "projects/default/jobs/u/agents/a1/checkpoints/1-1/"
    )
    assert message.founders[0].hyperparameters["gamma"].number == 0.9


class Store:
    """An artifact service that has nothing, and keeps what it is sent."""

    def GetArtifact(self, request: artifact_pb2.GetArtifactRequest) -> None:
        raise NotFound(request.name)

    def Upload(self, requests: Iterable[artifact_pb2.UploadRequest], timeout: float) -> Any:
        first, *rest = requests
        self.header, self.data = first.header, b"".join(each.data for each in rest)
        return artifact_pb2.UploadResponse(
            artifact=artifact_pb2.Artifact(uri="projects/default/artifacts/x/content")
        )


def test_a_folder_is_uploaded_and_becomes_a_founder(tmp_path):
    """Without its environments and transitions; a learner reads it back."""
    folder, tensor = tmp_path / "Best one", {"w": torch.arange(3.0)}
    groups = {"actor": tensor, "optimizer": tensor, "environment": tensor, "replay/tail": tensor}
    environment = EnvironmentSpec("CartPole-v1", observation_origin=(1.7e9,)).to_metadata()
    hyperparameters = {"hidden_sizes": [16], "gamma": 0.9}
    metadata = {"algorithm": "ppo", "hyperparameters": hyperparameters, "environment": environment}
    save_checkpoint(FolderStore(folder), "", groups, metadata)
    (tmp_path / "job.yaml").write_text(
        "name: x\nenvironment: CartPole-v1\nobjective: {max_env_steps: 1000}\nwarm_start: "
        "{checkpoint: ./Best one}"
    )
    store = Store()
    servers: Any = SimpleNamespace(artifact_service=store)
    message = look_up_founders(servers, load_job_file(tmp_path / "job.yaml")).to_message()
    assert message.environment.observation_origin == [1.7e9]
    (founder,) = message.founders
    assert re.fullmatch(r"projects/default/artifacts/best-one-[0-9a-f]{12}", founder.agent)
    assert (founder.algorithm, founder.hyperparameters["gamma"].number) == ("ppo", 0.9)
    objects = FolderStore(tmp_path / "objects")
    objects.put(founder.checkpoint.prefix, store.data)
    sha256, size = founder.checkpoint.manifest_sha256, len(store.data)
    loaded = load_packed_checkpoint(objects, founder.checkpoint.prefix, sha256, size).groups
    assert sorted(loaded) == ["actor", "optimizer"]
    assert torch.equal(loaded["actor"]["w"], tensor["w"])
    with raises(InvalidInput, "INVALID_FILE", field="warm_start.checkpoint"):
        parse_job(
            "name: x\nenvironment: CartPole-v1\nobjective: {max_env_steps: 1}\nwarm_start: "
            "{checkpoint: none}"
        )
    with raises(InvalidInput, "INVALID_FILE"):
        parse_job(
            "name: x\nenvironment: CartPole-v1\nobjective: {max_env_steps: 1}\nwarm_start: "
            "{candidates: 2}"
        )


def test_a_job_without_a_warm_start_asks_for_no_job():
    plain = replace(SPEC, warm_start=())
    assert look_up_founders(cast("Any", None), plain) is plain


def test_nothing_to_start_from_is_refused():
    with raises(InvalidInput, field="warm_start.job", match="job former"):
        look_up(SPEC, candidates=0)
    with raises(InvalidInput, field="warm_start.job", match="job formr"):
        look_up(replace(SPEC, warm_start=WarmStart("formr")))
