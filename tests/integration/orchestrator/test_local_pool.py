"""The local pool with pods that are played by small processes: started, watched, started again, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_orchestrator import pool_keeping

POD_PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
from podracer_core.lifetime import exit_with_parent_if_asked

exit_with_parent_if_asked()
folder = pathlib.Path(os.environ["FAKE_PODS"])
mode = (folder / "mode").read_text() if (folder / "mode").exists() else "wait"
if mode == "crash":
    sys.exit("the fake pod crashes on purpose")
child = subprocess.Popen(["sleep", "600"]) if mode == "stubborn" else None
stop = []
signal.signal(signal.SIGTERM, lambda *_: None if mode == "stubborn" else stop.append(1))
settings = "\\n".join(f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("PODRACER_"))
(folder / f"{os.getpid()}.draft").write_text(f"{sys.argv[0]}\\n{settings}")
(folder / f"{os.getpid()}.draft").rename(folder / f"{os.getpid()}.started")
while not stop:
    time.sleep(0.02)
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """A folder from which the pods' packages are imported, and where their processes say that they have started."""
    folder = tmp_path / "fakes"
    for package in ("podracer_learner", "podracer_worker", "podracer_evaluator"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        (folder / package / "__main__.py").write_text(POD_PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAKE_PODS", str(folder))
    monkeypatch.setenv("PODRACER_SECRET_OF_MINE", "must not reach a pod")
    return folder


@pytest.fixture
async def pool(site, fakes, tmp_path_factory):
    """The site again, with the local pool."""
    await site.stop()
    site.settings = {
        "pool": "local",
        "state_dir": site.folder / "state",
        "run_dir": tmp_path_factory.mktemp("r"),
        "lease_term": 60.0,
    }
    await site.start()
    return site


def started(fakes: Path) -> dict[int, str]:
    return {int(path.stem): path.read_text() for path in fakes.glob("*.started")}


def alive(pids) -> set[int]:
    return {pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}


async def until(condition, timeout_s=8.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)
    return found


async def test_a_fused_pod_is_one_process_that_is_told_what_it_needs(pool, fakes):
    await pool.create()
    (text,) = (await until(lambda: started(fakes))).values()
    lines = dict(line.split("=", 1) for line in text.splitlines()[1:])
    assert lines["PODRACER_LAYOUT"] == "fused"
    assert lines["PODRACER_ORCHESTRATOR"] == pool.server.address
    assert lines["PODRACER_POD"].startswith("projects/default/pods/cartpole-")
    assert "PODRACER_SECRET_OF_MINE" not in lines
    assert "PODRACER_DATABASE" not in lines
    assert list((pool.folder / "state" / "logs").glob("*-learner.log"))


async def test_split_pods_have_workers_and_an_evaluator(pool, fakes):
    await pool.create(
        pod=job_pb2.PodShape(max_count=2, workers=2, layout=job_pb2.POD_LAYOUT_SPLIT, resources={"cpu": 0.1})
    )
    found = await until(lambda: (all_ := started(fakes)) and len(all_) == 8 and all_)
    settings = [dict(line.split("=", 1) for line in text.splitlines()[1:]) for text in found.values()]
    addresses = next(each["PODRACER_WORKERS"] for each in settings if "PODRACER_WORKERS" in each).split(",")
    listening = {each["PODRACER_LISTEN"] for each in settings}
    assert len(addresses) == 2
    assert set(addresses) <= listening
    assert len(listening) == 8
    pods = (await pool.client.jobs.ListPods(service_pb2.ListPodsRequest())).pods
    assert [pod.layout for pod in pods] == [job_pb2.POD_LAYOUT_SPLIT] * 2
    capacity = await pool.client.jobs.GetCapacity(service_pb2.GetCapacityRequest())
    assert (capacity.backend, capacity.pod_count) == ("local", 2)


async def test_a_killed_learner_is_started_again_and_its_lease_is_free_at_once(pool, fakes):
    job = await pool.create()
    (pid,) = await until(lambda: started(fakes))
    (pod,) = (await pool.client.jobs.ListPods(service_pb2.ListPodsRequest(job=job.name))).pods
    learner = pool.learner(pod.name)
    lease = await learner.ask()
    await learner.commit(steps=10)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: len(started(fakes)) == 2)
    (pod,) = (await pool.client.jobs.ListPods(service_pb2.ListPodsRequest(job=job.name))).pods
    assert pod.restart_count == 1
    again = pool.learner(pod.name)
    taken = await again.ask(wait_s=5)  # though its term is a minute
    assert taken.fence > lease.fence
    assert taken.train.cohort.members[0].resume.env_steps == 10
    kinds = [e.kind for e in (await pool.client.jobs.ListEvents(service_pb2.ListEventsRequest(job=job.name))).events]
    assert {"POD_RESTARTED", "LEASE_EXPIRED"} <= set(kinds)


async def test_only_the_process_that_died_is_started_again(pool, fakes):
    await pool.create(pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_SPLIT))
    before = await until(lambda: (all_ := started(fakes)) and len(all_) == 3 and all_)
    worker = next(pid for pid, text in before.items() if "podracer_worker" in text.splitlines()[0])
    os.kill(worker, signal.SIGKILL)
    after = await until(lambda: (all_ := started(fakes)) and len(all_) == 4 and all_)
    assert alive(after) == set(after) - {worker}


async def test_a_pod_that_keeps_dying_fails_its_job_with_the_end_of_its_log(pool, fakes, monkeypatch):
    monkeypatch.setattr(pool_keeping, "MAX_DEATHS", 3)
    (fakes / "mode").write_text("crash")
    job = await pool.create()
    for _ in range(300):
        found = await pool.job(job.name)
        if found.state == job_pb2.JOB_STATE_FAILED:
            break
        await asyncio.sleep(0.05)
    assert found.problem.reason == "POD_KEEPS_DYING"
    assert "3 times in a row" in found.problem.message
    assert "the fake pod crashes on purpose" in found.problem.detail


async def test_a_frozen_learner_that_has_lost_its_lease_is_started_again_in_the_end(pool, fakes, monkeypatch):
    monkeypatch.setattr(pool_keeping, "FROZEN_S", 0.5)
    monkeypatch.setattr(pool_keeping, "_IDLE_S", 0.1)
    await pool.stop()
    await pool.start(lease_term=0.5)
    await pool.create()
    (pid,) = await until(lambda: started(fakes))
    (pod,) = (await pool.client.jobs.ListPods(service_pb2.ListPodsRequest())).pods
    assert await pool.learner(pod.name).ask()
    os.kill(pid, signal.SIGSTOP)  # it renews nothing any more
    after = await until(lambda: (all_ := started(fakes)) and len(all_) == 2 and all_)
    assert alive(after) == set(after) - {pid}


async def test_suspending_stops_the_pods_and_resuming_starts_them_again(pool, fakes):
    job = await pool.create()
    first = await until(lambda: started(fakes))
    await pool.client.jobs.UpdateJob(service_pb2.UpdateJobRequest(name=job.name, suspend=True))
    await until(lambda: not alive(first))
    await pool.client.jobs.UpdateJob(service_pb2.UpdateJobRequest(name=job.name, suspend=False))
    second = await until(lambda: alive(started(fakes)))
    assert second.isdisjoint(first)
    await pool.client.jobs.CancelJob(service_pb2.CancelJobRequest(name=job.name))
    await until(lambda: not alive(started(fakes)))
    for _ in range(100):
        if not (await pool.client.jobs.ListPods(service_pb2.ListPodsRequest())).pods:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("the stopped pod is still listed")


async def test_the_number_of_pods_follows_the_job(pool, fakes):
    job = await pool.create(pod=job_pb2.PodShape(max_count=2, resources={"cpu": 0.1}))
    await until(lambda: len(alive(started(fakes))) == 2)
    request = service_pb2.UpdateJobRequest(name=job.name, spec=job_pb2.JobSpec(pod=job_pb2.PodShape(max_count=1)))
    request.update_mask.paths.append("pod.max_count")
    await pool.client.jobs.UpdateJob(request)
    await until(lambda: len(alive(started(fakes))) == 1)


async def test_stopping_takes_under_four_seconds_and_leaves_nothing_however_stubborn_a_pod_is(pool, fakes):
    (fakes / "mode").write_text("stubborn")
    await pool.create(pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_SPLIT))
    pids = await until(lambda: (all_ := started(fakes)) and len(all_) == 3 and set(all_))
    children = {child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)}
    assert len(children) == 3
    begun = time.monotonic()
    await pool.stop()
    assert time.monotonic() - begun < 8
    await until(lambda: not alive(pids | children), timeout_s=1.0)


@pytest.fixture
async def process(pool, fakes, make_spec):
    """An orchestrator in a process of its own, with a job whose pod has started."""
    await pool.stop()
    settings = {key: value for key, value in vars(pool.make_settings()).items() if value is not None}
    environment = {**os.environ, **{f"PODRACER_{key.upper()}": str(value) for key, value in settings.items()}}
    command = [sys.executable, "-m", "podracer_orchestrator"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            assert line.startswith("listening on 127.0.0.1:")
            client = await pool.connect(line.split()[-1])
            await client.jobs.CreateJob(service_pb2.CreateJobRequest(spec=make_spec()))
            await until(lambda: started(fakes))
            yield process
        finally:
            process.kill()


async def test_kill_9_of_the_orchestrator_takes_its_pods_along_and_the_next_one_goes_on(pool, fakes, process):
    first = set(started(fakes))
    process.kill()
    await until(lambda: not alive(first), timeout_s=2.0)
    await asyncio.to_thread(process.wait)
    await pool.start()
    assert (await until(lambda: alive(started(fakes)))).isdisjoint(first)


async def test_sigterm_ends_orchestrator_and_pods_in_time(pool, fakes, process):
    pids = set(started(fakes))
    begun = time.monotonic()
    process.terminate()
    assert await asyncio.to_thread(process.wait, 5) == 0
    assert time.monotonic() - begun < 8
    assert not alive(pids)
