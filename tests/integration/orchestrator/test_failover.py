"""Two orchestrators on one PostgreSQL server, as processes that are paused and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from podracer.orchestrator.v1 import job_service_pb2
from podracer_core.errors import Unavailable
from podracer_platform.rpc.probe import probe
from support.processes import wait_until


class Orchestrators:
    """Processes on one database; each has the log `log-N`."""

    def __init__(self, site, database, folder) -> None:
        self.site, self.folder = site, folder
        self.running: list[subprocess.Popen[str]] = []
        settings = site.make_settings(database=database)
        names = ("tokens", "database", "store", "leaderboard")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PODRACER_", "KUBERNETES_"))
        }
        self.environment = kept | {
            f"PODRACER_{name.upper()}": str(getattr(settings, name)) for name in names
        }
        self.environment |= {"PODRACER_DATABASE_TERM": "2s", "PODRACER_LEASE_TERM": "60s"}

    def start(self) -> subprocess.Popen[str]:
        number = len(self.running)
        health = {"PODRACER_HEALTH_LISTEN": f"unix://{self.folder}/health-{number}"}
        with (self.site.folder / f"log-{number}").open("w") as log:
            command = [sys.executable, "-m", "podracer_orchestrator"]
            process = subprocess.Popen(
                command,
                env=self.environment | health,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.running.append(process)
        return process

    def stand_by(self) -> subprocess.Popen[str]:
        """One that waits, and is ready to."""
        process, number = self.start(), len(self.running) - 1
        log = self.site.folder / f"log-{number}"
        wait_until(lambda: "standing by" in log.read_text(), 60.0, "a standby")
        health = f"unix://{self.folder}/health-{number}"
        wait_until(lambda: probe(health) == "SERVING", 60.0, "a standby that is ready")
        assert probe(health, "liveness") == "SERVING"
        return process


@pytest.fixture
def orchestrators(site, postgresql) -> Iterator[Orchestrators]:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has to be short
        found = Orchestrators(site, postgresql.create_database("failover"), folder)
        yield found
        for process in found.running:
            process.kill()
            process.communicate()


def announced(process: subprocess.Popen[str]) -> str:
    """Where it serves, once it does."""
    assert process.stdout is not None
    return process.stdout.readline().removeprefix("listening on ").strip()


@pytest.mark.thorough
@pytest.mark.processes
async def test_a_standby_takes_over_with_every_lease(site, orchestrators):
    first = orchestrators.start()
    await site.connect(announced(first))
    former = site.client
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    second = orchestrators.stand_by()

    first.send_signal(signal.SIGSTOP)
    await site.connect(announced(second))
    learner.pods = site.client.pods
    await learner.renew()  # under the token and the fence that the first one gave
    await learner.commit(steps=10)

    first.send_signal(signal.SIGCONT)
    with pytest.raises(Unavailable):
        await former.jobs.CancelJob(job_service_pb2.CancelJobRequest(name=job.name))
    assert first.wait(60) == 0
    assert "another process has taken over" in (site.folder / "log-0").read_text()

    third = orchestrators.stand_by()
    second.kill()
    await site.connect(announced(third))
    learner.pods = site.client.pods
    await learner.renew()
    await learner.commit(steps=20)
    assert (await site.job(job.name)).progress.env_steps == 20 * len(
        learner.lease.train.cohort.members
    )

    fourth = orchestrators.stand_by()
    fourth.terminate()
    assert fourth.wait(60) == 0  # also while it waits
