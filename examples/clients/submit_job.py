"""Submit a job with plain grpcio and the generated stubs, watch it, read the leaderboard, fetch the best policy.

`python examples/clients/submit_job.py [STATE FOLDER]` asks the server that `podracer up` has started; where
PODRACER_ORCHESTRATOR, PODRACER_LEADERBOARD and PODRACER_TOKEN are set, the one that they name.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration

from podracer.common.v1 import environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import (
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
)

SPEC = job_pb2.JobSpec(
    display_name="cartpole",
    environment=environment_pb2.EnvironmentSpec(id="CartPole-v1"),
    objective=evolution_pb2.Objective(
        target_return=475, statistic=evolution_pb2.TARGET_STATISTIC_MEAN, max_duration=Duration(seconds=120)
    ),
    search=evolution_pb2.Search(algorithms=[evolution_pb2.AlgorithmShare(algorithm="ppo")]),
    pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_FUSED, members=8),
)


def download(artifacts, name, folder, metadata):
    """Write every file of an artifact below `folder`."""
    file, content = None, b""
    for response in artifacts.Download(artifact_service_pb2.DownloadRequest(name=name), metadata=metadata):
        if response.HasField("file"):
            save(folder, file, content)
            file, content = response.file, b""
        content += response.data
    save(folder, file, content)


def save(folder, file, content):
    if file is not None:
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise SystemExit(f"{file.path} arrived damaged")
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_bytes(content)


def find_server(state_folder):
    """Addresses of orchestrator and leaderboard, and a client's token."""
    if "PODRACER_ORCHESTRATOR" in os.environ:
        return [os.environ[f"PODRACER_{name}"] for name in ("ORCHESTRATOR", "LEADERBOARD", "TOKEN")]
    connection = json.loads((state_folder / "connection.json").read_text())
    token = Path(connection["token_file"]).read_text().split()[-1]
    return connection["orchestrator"], connection["leaderboard"], token


def main(state_folder):
    orchestrator, leaderboard, token = find_server(state_folder)
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(orchestrator) as channel, grpc.insecure_channel(leaderboard) as board_channel:
        jobs = job_service_pb2_grpc.JobServiceStub(channel)
        job = jobs.CreateJob(job_service_pb2.CreateJobRequest(spec=SPEC), metadata=metadata).job
        print("submitted", job.name)
        for update in jobs.WatchJob(job_service_pb2.WatchJobRequest(name=job.name), metadata=metadata):
            job = update.job
            print(job_pb2.JobState.Name(job.state), job.progress.live_env_steps, round(job.progress.best.mean, 1))

        boards = leaderboard_service_pb2_grpc.LeaderboardServiceStub(board_channel)
        request = leaderboard_service_pb2.GetLeaderboardRequest(name=job.leaderboard)
        for candidate in boards.GetLeaderboard(request, metadata=metadata).leaderboard.candidates:
            print(candidate.rank, candidate.agent.name, round(candidate.evaluation.mean, 1))

        artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(channel)
        download(artifacts, f"{job.name}/checkpoints/best", Path("best-policy"), metadata)
        print("the best policy is in best-policy")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
