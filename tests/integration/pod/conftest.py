"""A pod without its orchestrator: real processes, and a PodService that hands out scripted
leases."""

from __future__ import annotations

import contextlib
import itertools
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2, pod_service_pb2_grpc
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec
from podracer_core.errors import Fenced
from podracer_core.storage import ObjectStore, job_prefix, written_pattern
from podracer_platform.messages import (
    description_to_message,
    environment_to_message,
    hyperparameter_to_message,
    seconds_from_duration,
)
from podracer_platform.rpc import (
    Authorizer,
    FileToken,
    LeaseTokens,
    Role,
    RpcServer,
    TokenFiles,
    create_server,
    create_tokens,
    current_caller,
    open_channel,
)
from podracer_platform.storage import open_store
from support.code import store_code
from support.services import Service, ServiceProcesses

_SERVICE = "/podracer.orchestrator.v1.PodService"
JOB = "projects/p/jobs/j"


@dataclass
class Granted:
    """One lease of the script, and everything that was said under it."""

    lease: pod_service_pb2.Lease
    deadline: float
    renewals: list[pod_service_pb2.RenewLeaseRequest] = field(default_factory=list)
    commits: list[pod_service_pb2.CommitCheckpointRequest] = field(default_factory=list)
    completed: pod_service_pb2.CompleteWorkRequest | None = None
    released: pod_service_pb2.ReleaseLeaseRequest | None = None
    refused: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    action: int = pod_service_pb2.LEASE_ACTION_CONTINUE

    @property
    def evaluations(self) -> list[agent_pb2.Evaluation]:
        """All that renewals delivered."""
        return [one for renewal in self.renewals for one in renewal.evaluations]


class ScriptedOrchestrator(pod_service_pb2_grpc.PodServiceServicer):
    """Grants what `offer` puts into the queue, and keeps fences and terms as the real one does."""

    def __init__(self, lease_tokens: LeaseTokens) -> None:
        self._tokens = lease_tokens
        self._work: queue.Queue[tuple[pod_service_pb2.Lease, Granted]] = queue.Queue()
        self._fences = itertools.count(1)
        self._lock = threading.Lock()
        self.grants: dict[int, Granted] = {}
        self.store: ObjectStore
        """The one whose keys it has, if pods have none."""
        self.answered: dict[str, pod_service_pb2.LeaseWorkResponse] = {}
        self.requests: list[pod_service_pb2.LeaseWorkRequest] = []
        self.on_commit: Callable[[], None] = lambda: None
        """Called once a commit is stored, before it is acknowledged."""
        self.on_complete: Callable[[], None] = lambda: None
        """Called when a completion arrives, before it is looked at."""

    def offer(self, term_s: float = 10.0, **work: Any) -> Granted:
        """Put work into the queue: inspect=, train= or exit=."""
        fence = next(self._fences)
        lease = pod_service_pb2.Lease(
            name=f"projects/p/leases/l{fence}", fence=fence, job=JOB, job_uid="uid1", **work
        )
        lease.term.CopyFrom(duration_pb2.Duration(nanos=int(term_s % 1 * 1e9), seconds=int(term_s)))
        lease.token = self._tokens.issue(lease.name, fence)
        granted = Granted(lease, float("inf"))
        self._work.put((lease, granted))
        return granted

    def LeaseWork(self, request, context):
        self.requests.append(request)
        if request.request_id in self.answered:
            return self.answered[request.request_id]
        response = pod_service_pb2.LeaseWorkResponse()
        deadline = time.monotonic() + min(seconds_from_duration(request.wait), 5.0)
        while context.is_active() and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                lease, granted = self._work.get(timeout=0.02)
                granted.deadline = time.monotonic() + seconds_from_duration(lease.term)
                self.grants[lease.fence] = granted
                response.lease.CopyFrom(lease)
                self.answered[request.request_id] = response
                break
        return response

    def RenewLease(self, request, context):
        with self._held(request) as granted:
            granted.renewals.append(request)
            granted.deadline = time.monotonic() + seconds_from_duration(granted.lease.term)
            return pod_service_pb2.RenewLeaseResponse(
                action=granted.action, term=granted.lease.term
            )

    def CommitCheckpoint(self, request, context):
        with self._held(request) as granted:
            granted.commits.append(request)
            self.on_commit()
            return pod_service_pb2.CommitCheckpointResponse()

    def CompleteWork(self, request, context):
        self.on_complete()
        with self._held(request) as granted:
            granted.completed = request
            granted.deadline = float("-inf")
            granted.over.set()
            return pod_service_pb2.CompleteWorkResponse()

    def ReleaseLease(self, request, context):
        with self._held(request) as granted:
            granted.released = request
            granted.deadline = float("-inf")
            granted.over.set()
            return pod_service_pb2.ReleaseLeaseResponse()

    def GetStoreAccess(self, request, context):
        with self._held(request) as granted:
            key, validity = request.read or request.write, duration_pb2.Duration(seconds=3600)
            if key:
                url = self.store.signed_url("GET" if request.read else "PUT", key, 3600.0)
                return pod_service_pb2.GetStoreAccessResponse(url=url, validity=validity)
            written = written_pattern("p", "uid1", granted.lease.fence)
            keys = self.store.session_keys(f"{job_prefix('p', 'uid1')}*", written, 3600.0)
            message = keys and pod_service_pb2.StoreKeys(**asdict(keys))
            return pod_service_pb2.GetStoreAccessResponse(keys=message, validity=validity)

    @contextlib.contextmanager
    def _held(self, request: Any) -> Iterator[Granted]:
        caller = current_caller()
        assert (caller.lease_id, caller.fence) == (request.lease.rpartition("/")[2], request.fence)
        with self._lock:
            granted = self.grants[request.fence]
            if time.monotonic() > granted.deadline:
                # A renewal that crosses the completion on its way is not a mistake.
                crossed = granted.completed is not None and isinstance(
                    request, pod_service_pb2.RenewLeaseRequest
                )
                granted.refused += not crossed
                raise Fenced("the lease has expired", lease=request.lease)
            yield granted


class PodLab(ServiceProcesses):
    """Starts the processes of a pod under an orchestrator that is scripted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tokens = folder / "tokens"
        create_tokens(self.tokens)
        self.store_folder = folder / "store"
        self.store = self.store_folder.as_uri()
        self.shm = folder / "shm"  # its own, so that it shows no files of other tests
        self.shm.mkdir()
        self._channels: list[grpc.Channel] = []
        lease_tokens = LeaseTokens(b"x" * 32)
        self.orchestrator = ScriptedOrchestrator(lease_tokens)
        self._lease_tokens = lease_tokens
        self._server: RpcServer | None = None
        self.start_orchestrator()

    def start_orchestrator(self) -> None:
        roles = {f"{_SERVICE}/LeaseWork": (Role.POD,)}
        roles |= {
            f"{_SERVICE}/{name}": (Role.LEASE,)
            for name in (
                "RenewLease",
                "CommitCheckpoint",
                "CompleteWork",
                "ReleaseLease",
                "GetStoreAccess",
            )
        }
        register = partial(pod_service_pb2_grpc.add_PodServiceServicer_to_server, self.orchestrator)
        address = self.addresses.get("orchestrator", f"unix://{self.folder}/o.sock")
        self._server = create_server(
            address, [register], Authorizer(roles, TokenFiles(self.tokens), self._lease_tokens)
        )
        self._server.start()
        self.addresses["orchestrator"] = self._server.address

    def stop_orchestrator(self) -> None:
        assert self._server is not None
        self._server.drain(0.0)

    def start(self, role: str, name: str = "", **settings: str) -> Service:
        """Start a worker, evaluator or learner as `name`, and wait until it listens."""
        name = name or role
        common = {
            "tokens": str(self.tokens),
            "threads": "1",
            "store": self.store,
            "cache_dir": f"{self.folder}/{name}.cache",  # as on machines of their own
            "shm_dir": str(self.shm),
        }
        return self.launch(role, name, **(common | settings))

    def start_learner(self, layout: str = "fused", **settings: str) -> Service:
        workers = ",".join(
            address for name, address in self.addresses.items() if name.startswith("worker")
        )
        evaluators = ",".join(
            address for name, address in self.addresses.items() if name.startswith("evaluator")
        )
        return self.start(
            "learner",
            orchestrator=self.addresses["orchestrator"],
            pod="projects/p/pods/a",
            layout=layout,
            workers=workers,
            evaluators=evaluators,
            **settings,
        )

    def start_split(self, workers: int = 1, **settings: str) -> Service:
        for index in range(workers):
            self.start("worker", f"worker{index}")
        self.start("evaluator")
        return self.start_learner("split", **settings)

    def channel(self, name: str) -> grpc.Channel:
        channel = open_channel(self.addresses[name], FileToken(self.tokens / "pod"))
        self._channels.append(channel)
        return channel

    def put_code(self, folder: Path, entry_point: str) -> environment_pb2.EnvironmentSpec:
        """An environment whose code folder is in the object store."""
        code = store_code(open_store(self.store), folder, entry_point)
        return environment_to_message(EnvironmentSpec(entry_point=entry_point, code=code))

    def close(self) -> None:
        self.end_processes()
        for channel in self._channels:
            channel.close()
        self.stop_orchestrator()


@pytest.fixture
def lab() -> Iterator[PodLab]:
    """A lab for one test."""
    with new_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[PodLab]:
    """A lab whose processes all tests of a module use."""
    with new_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def fused() -> Iterator[PodLab]:
    """A fused pod that all tests of a module give work to."""
    with new_lab() as lab:
        lab.start_learner(allow_user_code="true")
        yield lab


@pytest.fixture(scope="module")
def split() -> Iterator[PodLab]:
    """A split pod that all tests of a module give work to."""
    with new_lab() as lab:
        lab.start_split()
        yield lab


@pytest.fixture(params=["fused", "split"])
def pod(request: pytest.FixtureRequest) -> PodLab:
    """Both layouts, one after the other."""
    lab: PodLab = request.getfixturevalue(request.param)
    return lab


@contextlib.contextmanager
def new_lab() -> Iterator[PodLab]:
    # Short: a unix socket's path has room for 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pod-"))
    lab = PodLab(folder)
    try:
        yield lab
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)


def make_train_work(
    environment: str = "CartPole-v1",
    members: int = 2,
    envs: int = 8,
    *,
    steps: int = 0,
    seconds: float = 0.0,
    target: float | None = None,
    episodes: int = 8,
    hyperparameters: dict[str, Any] | None = None,
    user: environment_pb2.EnvironmentSpec | None = None,
    seed: int = 7,
    **fields: Any,
) -> pod_service_pb2.TrainWork:
    """A TRAIN grant of fresh agents a0, a1, …, in a built-in environment or in a `user`'s own."""
    cohort = cohort_pb2.CohortSpec(algorithm="ppo", envs_per_member=envs, seed=seed)
    cohort.environment.CopyFrom(user or environment_pb2.EnvironmentSpec(id=environment))
    info = BUILT_IN_ENVIRONMENTS.get(environment)
    if info is not None and user is None and info.observation_space and info.action_space:
        description = description_to_message(
            EnvironmentSpec(environment),
            info.observation_space,
            info.action_space,
            info.max_episode_steps,
        )
        cohort.environment_description.CopyFrom(description)
    for index in range(members):
        values = {
            "horizon": 16,
            "minibatch_size": 64,
            "epochs": 2,
            "learning_rate": 1e-3 * (1 + index),
        }
        agent = cohort.members.add(name=f"{JOB}/agents/a{index}", algorithm="ppo", seed=100 + index)
        agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_FRESH
        for name, value in (values | (hyperparameters or {})).items():
            agent.hyperparameters[name].CopyFrom(hyperparameter_to_message(value))
    work = pod_service_pb2.TrainWork(cohort=cohort, **fields)
    work.evaluation.episodes = episodes
    work.budget.env_steps_per_member = steps
    if seconds:
        work.budget.time.CopyFrom(
            duration_pb2.Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
        )
    if target is not None:
        work.objective.target_return = target
        work.objective.statistic = 2
    return work


@pytest.fixture
def train_work() -> Callable[..., pod_service_pb2.TrainWork]:
    return make_train_work


@pytest.fixture
def environment_message() -> Callable[..., environment_pb2.EnvironmentSpec]:
    return environment_pb2.EnvironmentSpec
