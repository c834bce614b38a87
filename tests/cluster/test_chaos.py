"""Two jobs end as they should while all of an installation on a cluster is killed, moved and cut
off at random.

`make chaos-cluster` has a hundred faults. PODRACER_CHAOS_FAULTS, PODRACER_CHAOS_SEED and
PODRACER_CHAOS_DATABASE are those of tests/chaos, the others those of test_cluster.py and, with
PostgreSQL, of test_failover.py."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from chaos.test_chaos import DATABASE, FAULTS, JOBS, SEED, job_text, looked_at, write_report
from cluster.faults import ClusterFaults
from cluster.installation import ALL, Installation, Pulse
from cluster.test_cluster import FAULTS as POWER
from cluster.test_failover import RESTART, WithPostgresql

from podracer_platform.jobs import parse_job
from support.endless_job import end_after

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(4 * 3600)]

PAUSE_S = (2.0, 12.0)
END_S = 1200.0
ENDLESS_STEPS = 10**12


@pytest.fixture
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("overlay")
    if DATABASE == "sqlite":
        installation = Installation(folder, "chaos")
        installation.make_namespace()
        installation.apply()
    else:
        installation = WithPostgresql(folder)
        installation.make_namespace()
        installation.make_databases()
        installation.apply(components=["postgresql"], stays="podracer-minio")
    installation.kubectl.wait_ready(*ALL)
    yield installation
    if not os.environ.get("PODRACER_CLUSTER_KEEP"):
        name = installation.namespace
        installation.kubectl("delete", "namespace", name, "--ignore-not-found", timeout_s=300)


def test_nothing_acknowledged_is_lost(installation):
    chance, has_volumes = random.Random(SEED), DATABASE == "sqlite"
    faults = ClusterFaults(
        installation, POWER, "" if has_volumes else RESTART, has_volumes=has_volumes
    ).all
    chance.shuffle(faults)
    with installation.client() as client:
        names = [
            client.submit(parse_job(job_text(name, ENDLESS_STEPS, cpu=0.2))).name for name in JOBS
        ]
    with ExitStack() as stack:
        pulses = [stack.enter_context(Pulse(installation, name)) for name in names]
        for number in range(FAULTS):
            time.sleep(chance.uniform(*PAUSE_S))
            fault = faults[number % len(faults)] if number < len(faults) else chance.choice(faults)
            print(
                f"{number + 1} of {FAULTS}: {fault.name}, after "
                f"{[pulse.steps for pulse in pulses]} steps",
                flush=True,
            )
            fault.tries += 1
            fault.act(chance)
            lost = [loss for pulse in pulses for loss in pulse.went_back]
            fault.lost += lost[sum(len(one.lost) for one in faults) :]
            fault.survived += not fault.lost
    installation.kubectl.wait_ready(*ALL)
    deadline = time.monotonic() + END_S
    with installation.client() as client:
        jobs = [client.job(name) for name in names]
        limits = [end_after(job, 8) for job in jobs]
        while any(looked_at(job).state in ("RUNNING", "VALIDATING") for job in jobs):
            assert time.monotonic() < deadline, "the jobs have not ended"
            time.sleep(1.0)
        assert {job.state for job in jobs} == {"SUCCEEDED"}, [job.message.problem for job in jobs]
        assert all(job.progress.env_steps >= limit for job, limit in zip(jobs, limits, strict=True))
    write_report(faults)
    assert installation.audit(at_rest=True) == []
    assert not [one for one in faults if one.lost]
