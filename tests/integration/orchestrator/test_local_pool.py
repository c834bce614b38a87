"""The local pool with pods that are played by small processes: started, watched, started again,
never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import Fenced, InvalidInput, PreconditionFailed
from podracer_orchestrator.pool import machine, reconciler
from podracer_platform.service import warm_start
from support.processes import until

pytestmark = pytest.mark.processes

POD_PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
from podracer_platform.service import exit_with_parent_if_asked

exit_with_parent_if_asked()
folder = pathlib.Path(os.environ["FAKE_PODS"])
mode = (folder / "mode").read_text() if (folder / "mode").exists() else "wait"
if mode == "crash":
    sys.exit("the fake pod crashes on purpose")
child = subprocess.Popen(["sleep", "600"]) if mode == "stubborn" else None
stop = []
signal.signal(signal.SIGTERM, lambda *_: None if mode == "stubborn" else stop.append(1))
told = ("PODRACER_", "CUDA_")
settings = "\\n".join(f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith(told))
(folder / f"{os.getpid()}.draft").write_text(f"{sys.argv[0]}\\n{settings}")
(folder / f"{os.getpid()}.draft").rename(folder / f"{os.getpid()}.started")
while not stop:
    time.sleep(0.02)
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """A folder from which the pods' packages are imported, and where their processes say that they
    have started."""
    folder = tmp_path / "fakes"
    for package in ("podracer_learner", "podracer_worker", "podracer_evaluator"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        (folder / package / "__main__.py").write_text(POD_PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_PODS", str(folder))
    monkeypatch.setenv("PODRACER_SECRET_OF_MINE", "must not reach a pod")
    # A fork server that earlier tests have started in this process has the real packages.
    monkeypatch.setattr(warm_start, "is_running", lambda: False)
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
    return {pid for pid in pids if is_alive(pid)}


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_fused_pod_is_one_process_that_is_told_what_it_needs(pool, fakes):
    await pool.create()
    (text,) = (await until(lambda: started(fakes))).values()
    lines = dict(line.split("=", 1) for line in text.splitlines()[1:])
    assert lines["PODRACER_LAYOUT"] == "fused"
    assert lines["PODRACER_ORCHESTRATOR"] == pool.server.address
    assert lines["PODRACER_POD"].startswith("projects/default/pods/fused-0")
    assert "PODRACER_SECRET_OF_MINE" not in lines
    assert "PODRACER_DATABASE" not in lines
    assert list((pool.folder / "state" / "logs").glob("*-learner.log"))


async def test_split_pods_have_workers_and_an_evaluator(pool, fakes):
    await pool.create(
        pod=job_pb2.PodShape(
            max_count=2, workers=2, layout=job_pb2.POD_LAYOUT_SPLIT, resources={"cpu": 0.1}
        )
    )
    found = await until(lambda: (all_ := started(fakes)) and len(all_) == 8 and all_)
    settings = [
        dict(line.split("=", 1) for line in text.splitlines()[1:]) for text in found.values()
    ]
    addresses = next(
        each["PODRACER_WORKERS"] for each in settings if "PODRACER_WORKERS" in each
    ).split(",")
    listening = {each["PODRACER_LISTEN"] for each in settings}
    assert len(addresses) == 2
    assert set(addresses) <= listening
    assert len(listening) == 8
    pods = (await pool.jobs.ListPods()).pods
    assert [pod.layout for pod in pods] == [job_pb2.POD_LAYOUT_SPLIT] * 2
    capacity = await pool.jobs.GetCapacity()
    assert (capacity.backend, capacity.pod_count) == ("local", 2)


async def test_a_killed_learner_is_started_again_and_its_lease_is_free_at_once(pool, fakes):
    job = await pool.create()
    (pid,) = await until(lambda: started(fakes))
    (pod,) = (await pool.jobs.ListPods(job=job.name)).pods
    learner = pool.learner(pod.name)
    lease = await learner.ask()
    await learner.commit(steps=10)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: len(started(fakes)) == 2)
    (pod,) = (await pool.jobs.ListPods(job=job.name)).pods
    assert pod.restart_count == 1
    again = pool.learner(pod.name)
    taken = await again.ask(wait_s=5)  # though its term is a minute
    assert taken.fence > lease.fence
    assert taken.train.cohort.members[0].resume.env_steps == 10
    assert {"POD_RESTARTED", "LEASE_EXPIRED"} <= set(await pool.kinds(job))


async def test_only_the_process_that_died_is_started_again(pool, fakes):
    await pool.create(pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_SPLIT))
    before = await until(lambda: (all_ := started(fakes)) and len(all_) == 3 and all_)
    worker = next(pid for pid, text in before.items() if "podracer_worker" in text.splitlines()[0])
    os.kill(worker, signal.SIGKILL)
    after = await until(lambda: (all_ := started(fakes)) and len(all_) == 4 and all_)
    assert alive(after) == set(after) - {worker}


async def test_a_pod_that_keeps_dying_fails_its_job_with_the_end_of_its_log(
    pool, fakes, monkeypatch
):
    monkeypatch.setattr(reconciler, "MAX_DEATHS", 3)
    (fakes / "mode").write_text("crash")
    job = await pool.create()
    found = await pool.ended(job, job_pb2.JOB_STATE_FAILED)
    assert found.problem.reason == "POD_KEEPS_DYING"
    assert "3 times in a row" in found.problem.message
    assert "the fake pod crashes on purpose" in found.problem.detail


async def test_a_frozen_learner_that_has_lost_its_lease_is_started_again_in_the_end(
    pool, fakes, monkeypatch
):
    monkeypatch.setattr(reconciler, "FROZEN_S", 0.5)
    monkeypatch.setattr(reconciler, "_TICK_S", 0.1)
    await pool.stop()
    await pool.start(lease_term=0.5)
    await pool.create()
    (pid,) = await until(lambda: started(fakes))
    (pod,) = (await pool.jobs.ListPods()).pods
    assert await pool.learner(pod.name).ask()
    os.kill(pid, signal.SIGSTOP)  # it renews nothing any more
    await until(lambda: len(started(fakes)) > 1)
    assert not alive({pid})


async def test_suspending_stops_the_pods_and_resuming_starts_them_again(pool, fakes):
    job = await pool.create()
    first = await until(lambda: started(fakes))
    await pool.jobs.UpdateJob(name=job.name, suspend=True)
    await until(lambda: not alive(first))
    await pool.jobs.UpdateJob(name=job.name, suspend=False)
    second = await until(lambda: alive(started(fakes)))
    assert second.isdisjoint(first)
    await pool.jobs.CancelJob(name=job.name)
    await until(lambda: not alive(started(fakes)))
    while (await pool.jobs.ListPods()).pods:
        await asyncio.sleep(0.02)


def pods_of(fakes: Path) -> dict[str, int]:
    """The process of each pod that is there, by the last part of its name."""
    found = {}
    for pid in alive(texts := started(fakes)):
        name = next(line for line in texts[pid].splitlines() if line.startswith("PODRACER_POD="))
        found[name.rpartition("/")[2]] = pid
    return found


async def scale(pool, job, **counts):
    request = service_pb2.UpdateJobRequest(
        name=job.name, spec=job_pb2.JobSpec(pod=job_pb2.PodShape(**counts))
    )
    request.update_mask.paths.extend(f"pod.{field}" for field in counts)
    return (await pool.client.jobs.UpdateJob(request)).job


SMALL = {"cpu": 0.1}


async def test_pods_come_and_go_with_the_count_and_the_oldest_stays(pool, fakes):
    job = await pool.create(pod=job_pb2.PodShape(members=1, resources=SMALL))
    await until(lambda: len(pods_of(fakes)) == 1)
    for _ in range(2):  # the same number again changes nothing
        assert (await scale(pool, job, max_count=4)).spec.pod.max_count == 4
        await until(lambda: len(pods_of(fakes)) == 4)
    before = pods_of(fakes)
    learners = [pool.learner(f"projects/default/pods/{name}") for name in sorted(before)]
    held = [await learner.ask() for learner in learners]
    for learner in learners:
        await learner.commit(steps=10)
    await scale(pool, job, max_count=1)  # below the number of leases that are out
    assert await learners[0].renew() == pod_pb2.LEASE_ACTION_CONTINUE
    for learner in learners[1:]:
        with contextlib.suppress(Fenced):  # its process may have ended already
            assert await learner.renew() in (
                pod_pb2.LEASE_ACTION_RELEASE,
                pod_pb2.LEASE_ACTION_DRAIN,
            )
    await until(lambda: len(pods_of(fakes)) == 1)
    assert pods_of(fakes) == {"fused-threads1-0": before["fused-threads1-0"]}
    await learners[0].complete(train=learners[0].train_result(steps=20))
    again = await learners[0].ask()  # it goes on with what another pod had to leave
    assert again.train.cohort.members[0].resume.env_steps == 10
    assert again.train.cohort.members[0].name in {
        lease.train.cohort.members[0].name for lease in held[1:]
    }


async def test_killed_while_scaling_the_next_orchestrator_has_the_new_count(pool, fakes):
    job = await pool.create(pod=job_pb2.PodShape(resources=SMALL))
    await until(lambda: pods_of(fakes))
    await scale(pool, job, max_count=3)
    await pool.restart()
    await until(lambda: len(pods_of(fakes)) == 3)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"max_count": 2, "min_count": 3}, "pod.count.max"),
        ({"max_count": 100_000}, "pod.count.max"),
        ({"min_count": -1}, "pod.count.min"),
        ({"min_count": 9}, "pod.count"),
    ],
)
async def test_a_count_that_cannot_be_is_refused_and_changes_nothing(pool, fakes, counts, message):
    job = await pool.create()
    with pytest.raises(InvalidInput, match=message):
        await scale(pool, job, **counts)
    assert (await pool.job(job.name)).spec.pod.max_count == 1


async def test_an_ended_job_is_not_scaled(pool, fakes):
    job = await pool.create()
    await pool.jobs.CancelJob(name=job.name)
    with pytest.raises(PreconditionFailed, match="ended"):
        await scale(pool, job, max_count=2)


async def test_the_next_job_finds_the_pod_of_the_one_before(pool, fakes, monkeypatch):
    monkeypatch.setattr(reconciler, "SPARE_S", 600.0)
    first = await pool.create()
    (pid,) = (await until(lambda: pods_of(fakes))).values()
    learner = pool.learner("projects/default/pods/fused-0")
    assert (await learner.ask()).job == first.name
    (pod,) = (await pool.jobs.ListPods()).pods
    assert (pod.job, pod.state) == (first.name, job_pb2.POD_STATE_WORKING)
    second = await pool.create()
    await pool.jobs.CancelJob(name=first.name)
    assert await learner.renew() == pod_pb2.LEASE_ACTION_RELEASE
    await learner.release()
    assert (await learner.ask()).job == second.name
    await learner.release()
    await pool.jobs.CancelJob(name=second.name)
    asking = asyncio.create_task(learner.ask(wait_s=30))
    await asyncio.sleep(0.3)
    third = await pool.create()  # the pod was not needed, but was kept for a while
    assert (await asking).job == third.name
    assert pods_of(fakes)["fused-0"] == pid


async def test_a_suspended_jobs_pod_works_for_another(pool, fakes):
    first = await pool.create()
    await until(lambda: pods_of(fakes))
    learner = pool.learner("projects/default/pods/fused-0")
    await learner.ask()
    second = await pool.create(pod=job_pb2.PodShape(max_count=2))
    await until(lambda: len(pods_of(fakes)) == 2)
    await pool.jobs.UpdateJob(name=first.name, suspend=True)
    assert await learner.renew() == pod_pb2.LEASE_ACTION_RELEASE
    await learner.release()
    assert (await learner.ask()).job == second.name


async def test_a_spare_pod_that_dies_is_there_for_the_next_job(pool, fakes):
    job = await pool.create()
    (pid,) = (await until(lambda: pods_of(fakes))).values()
    learner = pool.learner("projects/default/pods/fused-0")
    await learner.ask()
    await learner.release()
    await pool.jobs.CancelJob(name=job.name)
    asking = asyncio.create_task(learner.ask(wait_s=1))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    answer = await asking  # the pool may have heard of the death before the time was up
    assert answer is None or answer.HasField("exit")
    await pool.create()
    assert (await until(lambda: pods_of(fakes)))["fused-0"] != pid


async def test_gpu_pods_get_gpus_of_their_own(pool, fakes, monkeypatch):
    gpus = tuple(machine.Gpu(f"GPU-{letter}", is_in_use=letter == "b") for letter in "abc")
    monkeypatch.setattr(machine.Gpus, "read", lambda self: gpus)
    monkeypatch.setattr(reconciler, "_TICK_S", 0.05)
    while not (await pool.jobs.GetCapacity()).total.gpu:
        await asyncio.sleep(0.02)
    await pool.create(pod=job_pb2.PodShape(max_count=3, resources={"cpu": 0.1, "gpu": 1}))
    found = await until(lambda: (all_ := started(fakes)) and len(all_) == 2 and all_)
    lines = [line for text in found.values() for line in text.splitlines()]
    assert sorted(line for line in lines if line.startswith("CUDA")) == [
        "CUDA_VISIBLE_DEVICES=GPU-a",
        "CUDA_VISIBLE_DEVICES=GPU-c",
    ]
    capacity = await pool.jobs.GetCapacity()
    assert (capacity.total.gpu, capacity.reserved.gpu, capacity.used.gpu) == (3, 2, 3)
    assert capacity.limit == "GPUs: 0 of 2 free, a pod needs 1"


async def test_what_a_pod_uses_is_told(pool, fakes, monkeypatch):
    monkeypatch.setattr(reconciler, "_TICK_S", 0.05)
    await pool.create()
    await until(lambda: pods_of(fakes))
    while (await pool.jobs.ListPods()).pods[0].used.memory_bytes <= 1 << 20:
        await asyncio.sleep(0.05)


async def test_stopping_leaves_nothing_however_stubborn_a_pod_is(pool, fakes):
    (fakes / "mode").write_text("stubborn")
    await pool.create(pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_SPLIT))
    pids = await until(lambda: (all_ := started(fakes)) and len(all_) == 3 and set(all_))
    children = {child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)}
    assert len(children) == 3
    await pool.stop()
    await until(lambda: not alive(pids | children))


@pytest.fixture
async def process(pool, fakes, make_spec):
    """An orchestrator in a process of its own, with a job whose pod has started."""
    await pool.stop()
    settings = {
        key: value for key, value in vars(pool.make_settings()).items() if value is not None
    }
    environment = {
        **os.environ,
        **{f"PODRACER_{key.upper()}": str(value) for key, value in settings.items()},
    }
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


async def test_kill_9_of_the_orchestrator_takes_its_pods_along_and_the_next_one_goes_on(
    pool, fakes, process
):
    first = set(started(fakes))
    process.kill()
    await until(lambda: not alive(first))
    await asyncio.to_thread(process.wait)
    await pool.start()
    assert (await until(lambda: alive(started(fakes)))).isdisjoint(first)


async def test_sigterm_ends_orchestrator_and_pods(pool, fakes, process):
    pids = set(started(fakes))
    process.terminate()
    assert await asyncio.to_thread(process.wait, 60) == 0
    assert not alive(pids)
