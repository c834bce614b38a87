"""The Python SDK of Podracer.

from podracer_client import Client

with Client.connect(folder="runs") as client:
    job = client.submit("examples/pendulum.yaml")
    job.wait()
    print(job.leaderboard())
    job.download_best("best")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podracer_client.jobs import Client, Follower, History, Job, JobUpdate
    from podracer_client.policies import PolicyClient
    from podracer_client.servers import Connection

__all__ = ["Client", "Connection", "Follower", "History", "Job", "JobUpdate", "PolicyClient"]

_HOME = {
    "Client": "podracer_client.jobs.client",
    "Connection": "podracer_client.servers.connection",
    "Follower": "podracer_client.jobs.following",
    "History": "podracer_client.jobs.history",
    "Job": "podracer_client.jobs.job",
    "JobUpdate": "podracer_client.jobs.following",
    "PolicyClient": "podracer_client.policies.policy_client",
}


def __getattr__(name: str) -> Any:
    """Load gRPC and the stubs at first use only: `podracer --help` needs neither."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
