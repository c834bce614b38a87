"""A user's code and data on their way through a pod: from the store to the learner, and on to those
without keys."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from podracer.common.v1 import environment_pb2, file_pb2
from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_client.local import machine
from podracer_core.box import launcher, missing
from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.checkpoint import load_checkpoint
from podracer_core.errors import (
    DataCorrupted,
    InvalidInput,
    PreconditionFailed,
)
from podracer_platform.attachments import pack_code
from podracer_platform.messages import environment_to_message, file_to_message
from podracer_platform.storage import open_store
from support.code import LINE, bring_file, make_zip, store_code, store_file, stored, write_files
from support.errors import raises
from support.processes import wait_until


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_files(tmp_path / "my_pkg", {"__init__.py": "", "envs.py": LINE})


def line(lab: Any, package: Path, table: bytes | None = None) -> environment_pb2.EnvironmentSpec:
    """Line with its code, and perhaps its data, in the object store of a lab."""
    store = open_store(lab.store)
    code = store_code(store, package, "my_pkg.envs:Line")
    data = {} if table is None else {"table": store_file(store, table, "table.txt")}
    return environment_to_message(
        EnvironmentSpec(entry_point="my_pkg.envs:Line", code=code, data=data)
    )


def inspected(
    lab: Any, environment: environment_pb2.EnvironmentSpec
) -> pod_service_pb2.CompleteWorkRequest:
    granted = lab.orchestrator.offer(inspect=pod_service_pb2.InspectWork(environment=environment))
    assert granted.over.wait(60), "the lease was not ended"
    assert granted.completed is not None, granted.released
    return granted.completed


def own_cache(lab: Any, name: str) -> Path:
    """The folder of its own that a process makes in the one it is given for its cache."""
    return Path(f"{lab.folder}/{name}.cache/podracer-{os.geteuid()}")


def entries(lab: Any, name: str) -> set[str]:
    """What a process has in its cache."""
    folder = own_cache(lab, name)
    return (
        {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        if folder.exists()
        else set()
    )


def test_code_and_data_reach_the_environment(pod, train_work, package):
    environment = line(pod, package, b"3.5")
    description = inspected(pod, environment).inspect.description
    assert description.action_space.discrete.n == 2
    work = train_work(members=1, envs=4, steps=64, user=environment)
    work.cohort.environment_description.CopyFrom(description)
    granted = pod.orchestrator.offer(train=work)
    assert granted.over.wait(60)
    assert granted.completed is not None, granted.released
    (member,) = granted.completed.train.members
    assert 0 <= member.candidate.mean <= 8
    checkpoint = load_checkpoint(open_store(pod.store), member.final.checkpoint.prefix, None)
    remembered = EnvironmentSpec.from_metadata(checkpoint.metadata["environment"])
    assert environment_to_message(remembered) == environment
    assert 0 < checkpoint.groups["normalizer"]["observation_mean"].item() < 12, "it began at 3.5"
    holders = ["learner", "worker0", "evaluator"] if "evaluator" in pod.processes else ["learner"]
    code, table = environment.code.sha256, environment.data["table"].sha256
    for holder in holders:
        assert {f"{code}.zip", f"{table}.txt"} <= entries(pod, holder)
    assert (f"{code}-code" in entries(pod, "learner")) == (holders == ["learner"]), (
        "a split learner unpacks no code"
    )


def test_data_for_a_built_in_environment_needs_no_leave_for_user_code(lab):
    """Which argument is wrong is the environment's own to say, before any agent exists."""
    lab.start_learner()
    table = store_file(open_store(lab.store), b"a,b\n", "prices.csv")
    spec = EnvironmentSpec(id="CartPole-v1", data={"table": table})
    problem = inspected(lab, environment_to_message(spec)).problem
    assert problem.reason == "INVALID_INPUT"
    assert (
        "CartPole-v1 does not take these: got an unexpected keyword argument 'table'"
        in problem.message
    )


def test_data_that_the_environment_cannot_read_fails_with_its_own_words(pod, package):
    problem = inspected(pod, line(pod, package, b"no number")).problem
    assert problem.reason == "USER_CODE_FAILED"
    assert "could not convert string to float: 'no number'" in problem.message
    assert 'my_pkg/envs.py", line' in problem.detail


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (
            make_zip(("my_pkg/__init__.py", b""), ("/etc/cron.d/x", b"")),
            "'/etc/cron.d/x' is an absolute path",
        ),
        (
            make_zip(("my_pkg/__init__.py", b""), ("../../x.py", b"")),
            "'../../x.py' leads out of its folder",
        ),
        (b"no zip", "it is not a zip file"),
    ],
)
def test_a_hostile_archive_ends_the_job_with_one_clear_message(pod, packed, said):
    code = store_file(open_store(pod.store), packed, "code.zip")
    environment = environment_to_message(EnvironmentSpec(entry_point="my_pkg.envs:Line", code=code))
    problem = inspected(pod, environment).problem
    assert problem.reason == "INVALID_CODE_ARCHIVE"
    assert problem.message.startswith("the code archive is refused: ")
    assert said in problem.message


def test_what_the_store_does_not_have_ends_the_job(fused, package):
    environment = line(fused, package)
    environment.code.key = "projects/default/artifacts/gone/content"
    environment.code.sha256 = "0" * 64
    problem = inspected(fused, environment).problem
    assert problem.reason == "NOT_FOUND"
    assert "projects/default/artifacts/gone/content" in problem.message


def test_other_bytes_than_the_job_names_end_it(fused, package):
    environment = line(fused, package)
    environment.code.sha256 = "0" * 64
    problem = inspected(fused, environment).problem
    assert problem.reason == "DATA_CORRUPTED"
    assert f"expected {environment.code.size_bytes} with {'0' * 64}" in problem.message


ATTACKS = """
import os, subprocess, sys

def Attacks(secrets, folders, sockets, cache):
    loot = sorted(name for name in os.environ if "PODRACER" in name)
    def attempt(what, act, *arguments):
        try:
            act(*arguments)
        except OSError:
            return
        loot.append(what)
    for path in secrets:
        attempt(f"read {path}", open, path)
        attempt(f"changed {path}", open, path, "r+")
    for folder in folders:
        attempt(f"listed {folder}", os.listdir, folder)
        attempt(f"planted in {folder}", open, f"{folder}/gmpy2.py", "w")
    for path in sockets:
        attempt(f"renamed {path}", os.rename, path, path + ".old")
    attempt("ended its server", os.kill, os.getppid(), 9)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", cache], start_new_session=True)
    raise ValueError(loot)
"""


@pytest.mark.skipif(bool(missing()), reason="this machine lacks a part of the box")
def test_code_gets_at_nothing_of_its_pod(pod, tmp_path):
    """What environments of an audit did: plant a module that the learner imports, put a server in
    the place of the evaluator's, read and change another project's files in the cache, and leave
    processes behind."""
    code = write_files(tmp_path / "attacks", {"attacks.py": ATTACKS})
    other = own_cache(pod, "other") / f"{'0' * 64}-code" / "victim.py"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("SECRET")
    sockets = [address.removeprefix("unix://") for address in pod.addresses.values()]
    kwargs: dict[str, Any] = {
        "secrets": [str(other), *(f"{pod.tokens}/{role}" for role in ("client", "pod", "control"))],
        "folders": [
            str(pod.folder),
            str(pod.shm),
            str(other.parent),
            str(other.parents[1]),
            str(pod.store_folder),
        ],
        "sockets": sockets,
        "cache": f"{pod.folder}/left-behind",
    }
    environment = pod.put_code(code, "attacks:Attacks")
    environment.kwargs.update(kwargs)
    problem = inspected(pod, environment).problem
    assert problem.message.endswith("ValueError: ['PODRACER_ENVIRONMENT_INDEX']")
    wait_until(lambda: not _running(kwargs["cache"]), 60, "the end of what it has started")


@pytest.fixture
def without_landlock(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """A thread whose processes have no Landlock: a filter refuses it, as the profile of a container
    may."""

    # forks would be of another process
    monkeypatch.setattr("support.services.warm_start.is_running", lambda: False)

    def refuse() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launcher, "_REFUSED", {"landlock_create_ruleset": (444, 444)})
            launcher._set(launcher._NO_NEW_PRIVILEGES, 1)
            launcher._refuse_calls(network=True)

    with ThreadPoolExecutor(1, initializer=refuse) as thread:
        yield thread


LEAVES_ONE = """
import subprocess, sys
import gymnasium
class Leaves(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)
    def __init__(self, word):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", word], start_new_session=True)
    def reset(self, **_):
        return self.observation_space.sample() * 0, {}
    def step(self, action):
        return self.observation_space.sample() * 0, 1.0, False, False, {}
"""


@pytest.mark.skipif(bool(missing()), reason="this machine lacks a part of the box")
def test_a_split_pod_without_landlock_warns_once_and_ends_what_code_starts(
    lab, without_landlock, tmp_path
):
    without_landlock.submit(lab.start_split).result()
    environment = lab.put_code(
        write_files(tmp_path / "code", {"leaves.py": LEAVES_ONE}), "leaves:Leaves"
    )
    environment.kwargs.update({"word": f"{lab.folder}/left-behind"})
    for _ in range(2):
        assert inspected(lab, environment).inspect.description.action_space.discrete.n == 2
    wait_until(
        lambda: not _running(f"{lab.folder}/left-behind"), 60, "the end of what it has started"
    )
    assert (
        lab.log("evaluator").count("this machine lacks Landlock (Linux 5.13), which shuts files")
        == 1
    )
    (finding,) = without_landlock.submit(lambda: list(machine._box())).result()
    assert "Landlock (Linux 5.13)" in str(finding)


@pytest.mark.skipif(bool(missing()), reason="this machine lacks a part of the box")
def test_a_fused_pod_without_landlock_refuses_users_code_whatever_is_allowed(
    lab, without_landlock, tmp_path
):
    without_landlock.submit(lab.start_learner, allow_user_code="true").result()
    environment = lab.put_code(
        write_files(tmp_path / "code", {"leaves.py": LEAVES_ONE}), "leaves:Leaves"
    )
    problem = inspected(lab, environment).problem
    assert problem.reason == "USER_CODE_NOT_ALLOWED"
    assert (
        "use the split layout, or allow it (PODRACER_ALLOW_USER_CODE, on Linux with Landlock)"
        in problem.message
    )


def _running(word: str) -> list[psutil.Process]:
    return [
        each for each in psutil.process_iter(["cmdline"]) if word in (each.info["cmdline"] or ())
    ]


def test_a_learner_that_is_killed_while_it_fetches_leaves_nothing_behind(lab):
    """The data set is large enough to be caught half-way."""
    size_bytes = 128 << 20
    digest = hashlib.sha256()
    for _ in range(size_bytes >> 20):
        digest.update(bytes(1 << 20))
    table = StoredFile("projects/default/artifacts/a/content", digest.hexdigest(), size_bytes)
    open_store(lab.store).put(table.key, b"")
    os.truncate(lab.store_folder / table.key, size_bytes)
    environment = environment_to_message(EnvironmentSpec(id="CartPole-v1", data={"table": table}))
    drafts = own_cache(lab, "learner") / ".drafts"

    lab.start_learner()
    lab.orchestrator.offer(inspect=pod_service_pb2.InspectWork(environment=environment), term_s=5.0)
    deadline = time.monotonic() + 60
    while not (drafts.exists() and list(drafts.iterdir())):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    lab.kill("learner")
    lab.processes["learner"].wait(60)
    assert entries(lab, "learner") == set()
    assert len(list(drafts.iterdir())) == 1

    lab.start_learner()
    assert "unexpected keyword argument 'table'" in inspected(lab, environment).problem.message
    assert entries(lab, "learner") == {table.sha256}
    assert list(drafts.iterdir()) == []


def test_peers_that_lost_their_files_get_them_again(split, train_work, package):
    environment = line(split, package)
    description = inspected(split, environment).inspect.description
    worker = worker_service_pb2_grpc.WorkerServiceStub(split.channel("worker0"))
    packed = pack_code(package, "my_pkg.envs:Line")
    bring_file(worker.PutFile, worker_service_pb2.PutFileRequest, packed, "code.zip")
    peers = ("worker0", "evaluator")
    for name in peers:
        assert f"{environment.code.sha256}.zip" in entries(split, name)
        shutil.rmtree(own_cache(split, name))
    work = train_work(members=1, envs=4, steps=32, user=environment)
    work.cohort.environment_description.CopyFrom(description)
    granted = split.orchestrator.offer(train=work)
    assert granted.over.wait(60)
    assert granted.completed is not None, granted.released
    for name in peers:
        assert f"{environment.code.sha256}-code" in entries(split, name)


def test_sigterm_ends_a_worker_that_is_being_brought_a_file(lab):
    """The sender has stalled: nothing is kept, and the wait is as long as for any call."""
    process, request = lab.start("worker"), worker_service_pb2.PutFileRequest
    worker = worker_service_pb2_grpc.WorkerServiceStub(lab.channel("worker"))
    stalled, over = threading.Event(), threading.Event()

    def requests() -> Any:
        yield request(header=file_pb2.FileHeader(sha256="0" * 64, size_bytes=2 << 20))
        yield request(data=bytes(1 << 20))
        stalled.set()
        over.wait(60)

    outcome = worker.PutFile.future(requests(), timeout=60)
    try:
        assert stalled.wait(60)
        drafts = own_cache(lab, "worker") / ".drafts"
        wait_until(lambda: drafts.exists() and list(drafts.iterdir()) != [], 60, "the draft")
        lab.kill("worker", signal.SIGTERM)
        assert process.wait(60) == 0
        assert outcome.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        over.set()
    assert entries(lab, "worker") == set()
    assert list(drafts.iterdir()) == []


class TestPutFile:
    """Straight to a worker and to an evaluator."""

    @pytest.fixture(params=["worker", "evaluator"])
    def peer(self, request: pytest.FixtureRequest, shared_lab: Any) -> tuple[Any, Any, str]:
        """Its stub, the class of its requests, and its name."""
        name = request.param
        if name not in shared_lab.processes:
            shared_lab.start(name)
        if name == "worker":
            stub = worker_service_pb2_grpc.WorkerServiceStub(shared_lab.channel(name))
            return stub, worker_service_pb2.PutFileRequest, name
        return (
            evaluator_service_pb2_grpc.EvaluatorServiceStub(shared_lab.channel(name)),
            evaluator_service_pb2.PutFileRequest,
            name,
        )

    def test_once_is_enough(self, peer, shared_lab):
        stub, request, name = peer
        content = bytes(range(256)) * 20_000  # 5 MB
        file = stored(content, "prices.csv")
        header = request(
            header=file_pb2.FileHeader(
                sha256=file.sha256, size_bytes=file.size_bytes, name=file.name
            )
        )
        bring_file(stub.PutFile, request, content, "prices.csv")
        assert (own_cache(shared_lab, name) / file.local_name).read_bytes() == content
        sent = []

        def requests() -> Any:
            yield header
            for _ in range(1000):
                sent.append(1)
                yield request(data=bytes(1 << 20))

        assert stub.PutFile(requests(), timeout=30).already_there
        assert len(sent) < 100

    def test_wrong_bytes_are_refused(self, peer, shared_lab):
        stub, request, name = peer
        before = entries(shared_lab, name)
        header = request(header=file_pb2.FileHeader(sha256="0" * 64, size_bytes=3))
        with pytest.raises(DataCorrupted, match="expected 3 with 0000"):
            stub.PutFile(iter([header, request(data=b"abc")]), timeout=30)
        with raises(InvalidInput, "INVALID_FILE"):
            stub.PutFile(iter([request(data=b"abc")]), timeout=30)
        assert entries(shared_lab, name) == before


def test_an_evaluator_says_what_it_lacks(shared_lab, package):
    if "evaluator" not in shared_lab.processes:
        shared_lab.start("evaluator")
    stub = evaluator_service_pb2_grpc.EvaluatorServiceStub(shared_lab.channel("evaluator"))
    code = stored(pack_code(package, "my_pkg.envs:Line"), "code.zip")
    environment = environment_pb2.EnvironmentSpec(
        entry_point="my_pkg.envs:Line", code=file_to_message(code)
    )
    with raises(PreconditionFailed, "FILES_MISSING"):
        stub.Inspect(evaluator_service_pb2.InspectRequest(environment=environment), timeout=30)
    bring_file(
        stub.PutFile,
        evaluator_service_pb2.PutFileRequest,
        pack_code(package, "my_pkg.envs:Line"),
        "code.zip",
    )
    response = stub.Inspect(
        evaluator_service_pb2.InspectRequest(environment=environment), timeout=30
    )
    assert response.description.action_space.discrete.n == 2
