"""Submit a job with plain grpcio and the generated stubs, watch it, read the leaderboard, fetch the
best policy.

`python examples/clients/python/submit_job.py [TARGET RETURN]` asks the server that
PODRACER_ORCHESTRATOR … name, or the one that `podracer up` has started in this folder; see
../README.md."""

import hashlib
import json
import os
import sys
import time
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
        target_return=float(sys.argv[1]) if len(sys.argv) > 1 else 475,
        statistic=evolution_pb2.TARGET_STATISTIC_MEAN,
        max_duration=Duration(seconds=120),
    ),
    search=evolution_pb2.Search(algorithms=[evolution_pb2.AlgorithmShare(algorithm="ppo")]),
    pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_FUSED, members=8),
)


def download(artifacts, name, folder, metadata):
    """Write every file of an artifact below `folder`."""
    file, content = None, b""
    for response in artifacts.Download(
        artifact_service_pb2.DownloadRequest(name=name), metadata=metadata
    ):
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


def find_server():
    """Addresses of orchestrator and leaderboard, and a client's token."""
    if "PODRACER_ORCHESTRATOR" in os.environ:
        token = os.environ.get("PODRACER_TOKEN") or read_token(os.environ["PODRACER_TOKEN_FILE"])
        return os.environ["PODRACER_ORCHESTRATOR"], os.environ["PODRACER_LEADERBOARD"], token
    connection = json.loads(Path("runs/connection.json").read_text())
    return (
        connection["orchestrator"],
        connection["leaderboard"],
        read_token(connection["token_file"]),
    )


def read_token(path):
    return Path(path).read_text().split()[0]


def connect(address, server):
    """A channel; with PODRACER_TLS both sides show certificates, the server's for its role and not
    for its address."""
    if "PODRACER_TLS" not in os.environ:
        return grpc.insecure_channel(address)
    folder = Path(os.environ["PODRACER_TLS"])
    authority, key, certificate = (
        (folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")
    )
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(
        address, credentials, [("grpc.ssl_target_name_override", f"{server}.podracer")]
    )


def watch(jobs, job, metadata):
    """Prints what happens to a job until it has ended; a lost connection is made anew, and no event
    is missed."""
    position = 0
    while job.state < job_pb2.JOB_STATE_SUCCEEDED:
        try:
            request = job_service_pb2.WatchJobRequest(name=job.name, after_position=position)
            for update in jobs.WatchJob(request, metadata=metadata):
                job = update.job
                for event in update.events:
                    position = event.position
                    print(event.kind, event.message)
                print(job_pb2.JobState.Name(job.state), job.progress.live_env_steps)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
        time.sleep(0.1)
    return job


def main():
    orchestrator, leaderboard, token = find_server()
    metadata = (("authorization", f"Bearer {token}"),)
    with (
        connect(orchestrator, "orchestrator") as channel,
        connect(leaderboard, "leaderboard") as board_channel,
    ):
        jobs = job_service_pb2_grpc.JobServiceStub(channel)
        job = jobs.CreateJob(job_service_pb2.CreateJobRequest(spec=SPEC), metadata=metadata).job
        print("submitted", job.name)
        job = watch(jobs, job, metadata)

        boards = leaderboard_service_pb2_grpc.LeaderboardServiceStub(board_channel)
        request = leaderboard_service_pb2.GetLeaderboardRequest(name=job.leaderboard)
        for candidate in boards.GetLeaderboard(request, metadata=metadata).leaderboard.candidates:
            print(candidate.rank, candidate.agent.name, round(candidate.evaluation.mean, 1))
        if job.state != job_pb2.JOB_STATE_SUCCEEDED:
            raise SystemExit(f"{job_pb2.JobState.Name(job.state)}: {job.problem.message}")

        artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(channel)
        download(artifacts, f"{job.name}/checkpoints/best", Path("best-policy"), metadata)
        print("the best policy is in best-policy")


if __name__ == "__main__":
    main()
