"""A learner's source of rollouts and several workers, which are held up, end, come and will not do.
The workers are real ones in threads of the test, so that it decides when each goes on."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from podracer.common.v1 import cohort_pb2, environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.algorithms import Algorithm, algorithm_class
from podracer_core.buffers import Rollout
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.errors import PreconditionFailed, Unavailable
from podracer_learner.peers import WorkerDirectory
from podracer_learner.round import require_same_environment
from podracer_learner.user_files import FetchedFiles
from podracer_learner.workers import (
    RemoteSource,
    WorkerPlan,
    crew,
    link,
    partition,
)
from podracer_platform.attachments import FileCache
from podracer_platform.carriers import Endpoint
from podracer_platform.rpc import (
    Authorizer,
    ChannelOptions,
    FileToken,
    Role,
    ShownTokens,
    TokenFiles,
    WorkQueue,
    create_server,
    create_tokens,
    methods_of,
)
from podracer_platform.service import own_build
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.training_messages import cohort_from_message
from podracer_worker.server import WorkerConfig, create_worker_server
from podracer_worker.session import Collection
from support.errors import raises

MakeWork = Callable[..., pod_service_pb2.TrainWork]

ENVS, HORIZON, MEMBERS = 8, 16, 2
ALL = ENVS * HORIZON
HALF = ALL // 2


class Worker:
    """A worker that sends what it has collected only while it is not held."""

    by_thread: ClassVar[dict[int, Worker]] = {}

    def __init__(self, folder: Path, listen: str, tokens: Path) -> None:
        self._may_send, self._stop = threading.Event(), threading.Event()
        self._may_send.set()
        self._work = WorkQueue()
        folder.mkdir()
        config = WorkerConfig(
            listen=listen, tokens=tokens, cache_dir=folder / "cache", shm_dir=folder
        )
        self._server = create_worker_server(config, self._work)
        self._server.start()
        self.address = self._server.address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self) -> None:
        self._may_send.clear()

    def go_on(self) -> None:
        self._may_send.set()

    @classmethod
    def wait_here(cls) -> None:
        """In a worker's own thread, in the middle of its work."""
        cls.by_thread[threading.get_ident()]._may_send.wait(60)

    def end(self) -> None:
        self._stop.set()
        self._may_send.set()
        self._thread.join(60)
        self._server.drain(0.0)

    def _run(self) -> None:
        self.by_thread[threading.get_ident()] = self
        self._work.run(self._stop)


class Refusing(worker_service_pb2_grpc.WorkerServiceServicer):
    """A worker of another build."""

    def __init__(self) -> None:
        self.opened = 0

    def Collect(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        self.opened += 1
        own = own_build()
        raise PreconditionFailed(
            f"this is build 0.0.1 (protocol 0), the peer is {own.version} (protocol "
            f"{own.protocol})",
            reason="BUILD_MISMATCH",
        )
        yield

    def GetStatus(self, request: Any, context: Any) -> worker_service_pb2.GetStatusResponse:
        return worker_service_pb2.GetStatusResponse(
            build=cohort_pb2.BuildInfo(version="0.0.1", protocol=0), max_sessions=1
        )


class Pod:
    """Workers as the test starts them, and a learner that trains on what they collect."""

    def __init__(self, folder: Path, cohort: cohort_pb2.CohortSpec) -> None:
        torch.set_num_threads(1)
        self.folder, self.cohort = folder, cohort
        self.tokens = folder / "tokens"
        create_tokens(self.tokens)
        self.held = ExitStack()
        self._numbers = itertools.count()
        environment = make_vec_environment(EnvironmentSpec(id="CartPole-v1"), 1)
        self.algorithm: Algorithm = algorithm_class("ppo")(
            cohort_from_message(cohort), environment.observation_space, environment.action_space
        )
        self.taken = torch.zeros(MEMBERS, dtype=torch.int64)

    def worker(self, listen: str = "") -> Worker:
        number = next(self._numbers)
        listen = listen or f"unix://{self.folder}/w{number}.sock"
        worker = Worker(self.folder / f"worker{number}", listen, self.tokens)
        self.held.callback(worker.end)
        return worker

    def directory(
        self, *names: str, **resolving: Callable[[str, int], list[str]]
    ) -> WorkerDirectory:
        return WorkerDirectory(
            names,
            ShownTokens(FileToken(self.tokens / "pod")),
            ChannelOptions(allow_insecure=True),
            **resolving,
        )

    def source(
        self, *names: str, directory: WorkerDirectory | None = None, **plan: Any
    ) -> RemoteSource:
        directory = directory or self.directory(*names)
        files = FetchedFiles(
            EnvironmentSpec(id="CartPole-v1"),
            {},
            FileCache(self.folder / "c", 1 << 20),
            ExitStack(),
        )
        settings = {
            "lock_step": False,
            "ahead": 0,
            "max_workers": 0,
            "patience_s": 20.0,
            "check_environment": partial(
                require_same_environment, self.cohort.environment_description
            ),
        } | plan
        source = RemoteSource(
            WorkerPlan(
                cohort=self.cohort,
                files=files,
                envs_per_member=ENVS,
                horizon=HORIZON,
                check=lambda: None,
                endpoint=Endpoint(SharedFolder(self.folder), sends=False),
                **settings,
            ),
            directory,
            self.algorithm,
            torch.zeros(MEMBERS, dtype=torch.int64),
            [None] * MEMBERS,
        )
        self.held.callback(source.close)
        source.opened()
        return source

    def train(self, source: RemoteSource, rollouts: int = 1) -> Rollout:
        """Collect and learn; the last rollout."""
        for _ in range(rollouts):
            rollout = source.collect()
            assert rollout.num_envs == ENVS, "minibatches keep their shapes"
            assert rollout.first_step.tolist() == [self.algorithm.version * HORIZON] * MEMBERS
            valid = rollout.valid.sum((0, 2))
            assert valid.tolist() == [rollout.live_envs * HORIZON] * MEMBERS
            self.taken += valid
            self.algorithm.update(rollout)
            counted = self.algorithm.member_state(0)["random"]["transition_count"]
            assert counted == self.taken[0], "every valid row counts once"
        return rollout

    def train_until(
        self, source: RemoteSource, condition: Callable[[Rollout], bool], within_s: float = 30.0
    ) -> Rollout:
        deadline = time.monotonic() + within_s
        while not condition(rollout := self.train(source)):
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.02)
        return rollout


@pytest.fixture
def pod(tmp_path: Path, train_work: MakeWork, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    collect = Collection.collect

    def collect_and_wait(collection: Collection, policy_version: int) -> Rollout:
        rollout = collect(collection, policy_version)
        Worker.wait_here()
        return rollout

    monkeypatch.setattr(Collection, "collect", collect_and_wait)
    # only the held worker is late, however busy the machine is
    monkeypatch.setattr(partition, "_LEAST_GRACE_S", 2.0)
    pod = Pod(tmp_path, train_work(members=MEMBERS).cohort)
    with pod.held:
        yield pod


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts change hands at once."""
    monkeypatch.setattr(crew, "_SETTLED_S", 0.2)
    monkeypatch.setattr(crew, "_SWAP_S", 0.0)


def whole(pod: Pod, rollouts: int) -> Rollout:
    """What one process collects and learns from."""
    environment = make_vec_environment(EnvironmentSpec(id="CartPole-v1"), MEMBERS * ENVS)
    config = cohort_from_message(pod.cohort)
    algorithm = algorithm_class("ppo")(
        config, environment.observation_space, environment.action_space
    )
    seeds = torch.tensor([member.seed for member in config.members])
    collector = Collector(environment, algorithm.actor, seeds)
    for _ in range(rollouts):
        rollout = collector.collect(HORIZON, policy_version=algorithm.version)
        algorithm.update(rollout)
    return rollout


@pytest.mark.parametrize("lock_step", [False, True])
def test_three_workers_take_the_steps_of_one(pod, lock_step):
    source = pod.source(*(pod.worker().address for _ in range(3)), lock_step=lock_step)
    rollout, expected = pod.train(source, 3), whole(pod, 3)
    assert torch.equal(rollout.action, expected.action)
    assert torch.allclose(rollout.observation, expected.observation, atol=1e-4)
    assert source.figures == {
        "workers": 3,
        "live_environments": MEMBERS * ENVS,
        "staleness": 0.0,
        "staleness_greatest": 0,
        "collected_ahead": 0,
    }


def test_a_worker_that_is_held_up_costs_its_share_and_what_comes_late_is_used(pod):
    quick, slow = pod.worker(), pod.worker()
    source = pod.source(quick.address, slow.address)
    standing = pod.train(source, 3).observation[-1, :, ENVS // 2 :].clone()
    slow.hold()
    rollout = pod.train(source)
    assert rollout.live_envs == ENVS // 2
    assert rollout.valid[:, :, : ENVS // 2].all()
    assert (rollout.observation[:, :, ENVS // 2 :] == standing).all()
    pod.train(source)
    slow.go_on()
    rollout = source.collect()
    while rollout.live_envs < ENVS:  # no update: nothing grows older meanwhile
        rollout = source.collect()
    assert torch.equal(rollout.observation[0, :, ENVS // 2 :], standing), (
        "it goes on where it stood"
    )
    assert source.figures["staleness_greatest"] == 2
    assert source.staleness == 1.0, "half of the rows are as new as can be"
    assert rollout.policy_version == pod.algorithm.version - 2
    assert pod.algorithm.update(rollout)["policy_loss"].isfinite().all()


def test_what_is_too_old_is_dropped_and_counts_nothing(pod, caplog):
    caplog.set_level(logging.INFO)
    quick, slow = pod.worker(), pod.worker()
    source = pod.source(quick.address, slow.address)
    pod.train(source, 2)
    slow.hold()
    pod.train(source, 4)
    slow.go_on()
    pod.train_until(source, lambda rollout: rollout.live_envs == ENVS)
    assert any("versions old and was dropped" in text for text in caplog.messages)
    assert source.figures["staleness_greatest"] <= 2


def test_lock_step_waits_for_everybody(pod):
    quick, slow = pod.worker(), pod.worker()
    source = pod.source(quick.address, slow.address, lock_step=True)
    pod.train(source, 2)
    slow.hold()
    threading.Timer(1.5, slow.go_on).start()
    began = time.monotonic()
    rollout = pod.train(source)
    assert time.monotonic() - began > 1.4
    assert rollout.live_envs == ENVS
    assert torch.equal(rollout.action, whole(pod, 3).action)


@pytest.mark.parametrize("ahead", [1, 2])
def test_workers_collect_ahead_and_the_lag_is_as_many_versions(pod, ahead):
    source = pod.source(pod.worker().address, pod.worker().address, ahead=ahead)
    lags = set()
    for _ in range(8):
        assert pod.train(source).live_envs == ENVS
        lags.add(source.figures["staleness_greatest"])
        time.sleep(0.05)  # training takes its time: workers have done all that they may
    assert max(lags) == ahead
    assert source.figures["collected_ahead"] == ahead


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_worker_that_leaves_hands_its_part_to_the_others(pod, hasty, ahead):
    workers = [pod.worker() for _ in range(3)]
    source = pod.source(*(worker.address for worker in workers), ahead=ahead)
    pod.train(source, 2)
    workers[1].end()
    rollout = pod.train_until(
        source, lambda rollout: source.worker_count == 2 and rollout.live_envs == ENVS
    )
    assert rollout.valid.all()
    workers[0].end()
    pod.train_until(source, lambda rollout: source.worker_count == 1 and rollout.live_envs == ENVS)


def test_a_spare_worker_takes_over_what_another_had(pod, hasty, caplog):
    caplog.set_level(logging.INFO)
    workers = [pod.worker() for _ in range(3)]
    source = pod.source(*(worker.address for worker in workers), max_workers=2)
    pod.train(source, 2)
    assert source.worker_count == 2
    pod.train_until(source, lambda _: bool(source._crew._discovery.free()))
    workers[0].end()
    pod.train_until(source, lambda rollout: rollout.live_envs == ENVS)
    said = f"worker {workers[2].address} takes over from {workers[0].address}"
    pod.train_until(source, lambda rollout: said in caplog.messages and rollout.live_envs == ENVS)
    assert [link.part for link in source._crew.links] == [(0, 4), (4, 4)]


def test_in_lock_step_a_spare_goes_on_bit_for_bit(pod, hasty):
    workers = [pod.worker() for _ in range(3)]
    source = pod.source(*(worker.address for worker in workers), max_workers=2, lock_step=True)
    pod.train_until(source, lambda _: bool(source._crew._discovery.free()))
    workers[0].end()
    rollout = pod.train(source)
    assert torch.equal(rollout.action, whole(pod, pod.algorithm.version).action)


def test_a_worker_that_comes_gets_a_part(pod, hasty):
    """Both have the same name, whose addresses change."""
    first = pod.worker("127.0.0.1:0")
    port = first.address.rpartition(":")[2]
    hosts = ["127.0.0.1"]
    source = pod.source(
        directory=pod.directory(f"dns:///workers.test:{port}", resolve=lambda *_: hosts)
    )
    pod.train(source, 2)
    assert source.worker_count == 1
    pod.worker(f"127.0.0.2:{port}")
    hosts.append("127.0.0.2")
    pod.train_until(source, lambda rollout: source.worker_count == 2 and rollout.live_envs == ENVS)
    assert [link.part for link in source._crew.links] == [(0, 4), (4, 4)]


def test_a_round_begins_without_who_was_away_in_the_last_one(pod, hasty):
    there, away = pod.worker(), pod.worker()
    directory = pod.directory(there.address, away.address)
    away.end()
    for _ in range(2):
        source = pod.source(directory=directory)
        began_with = [link.address for link in source._crew.links]
        while source.collect().live_envs < ENVS:
            pass
        source.close()
    assert began_with == [there.address], "it is not awaited any more"
    source = pod.source(directory=directory)
    pod.worker(away.address)
    while source.worker_count < 2:  # it comes back in the middle of a round
        source.collect()


def test_a_worker_that_another_learner_has_is_left_to_it(pod, hasty, monkeypatch):
    """As where several learners look in one place."""
    monkeypatch.setattr(link, "_RELEASE_S", 0.1)
    addresses = [pod.worker().address for _ in range(4)]
    others = pod.source(*addresses, max_workers=2)
    source = pod.source(*addresses, max_workers=2)
    pod.train_until(source, lambda rollout: rollout.live_envs == ENVS)
    for one, expected in ((others, addresses[:2]), (source, addresses[2:])):
        assert sorted(link.address for link in one._crew.links if link.opened) == sorted(expected)


def test_all_gone_and_back_within_patience(pod):
    workers = [pod.worker(), pod.worker()]
    addresses = [worker.address for worker in workers]
    source = pod.source(*addresses)
    pod.train(source, 2)
    for worker in workers:
        worker.end()
    threading.Timer(1.0, lambda: [pod.worker(address) for address in addresses]).start()
    rollout = pod.train(source)
    assert rollout.live_envs >= ENVS // 2
    pod.train_until(source, lambda rollout: rollout.live_envs == ENVS)


def test_all_gone_for_longer_ends_the_round(pod):
    workers = [pod.worker(), pod.worker()]
    source = pod.source(*(worker.address for worker in workers), patience_s=0.5)
    pod.train(source)
    for worker in workers:
        worker.end()
    with raises(Unavailable, "WORKER_LOST", match="lost worker"):
        pod.train(source, 2)
    with raises(Unavailable, "WORKER_LOST", match=r"0 s at nowhere\.test:9"):
        pod.source(directory=pod.directory("nowhere.test:9", resolve=lambda *_: []), patience_s=0.4)


def test_a_worker_of_another_build_is_left_out_with_both_named(pod, hasty, caplog):
    refusing = Refusing()
    roles = dict.fromkeys(methods_of("worker"), (Role.POD,))
    register = partial(worker_service_pb2_grpc.add_WorkerServiceServicer_to_server, refusing)
    authorizer = Authorizer(roles, TokenFiles(pod.tokens))
    authorizer.accept_shown("worker", f"unix://{pod.folder}/other.sock")
    with create_server(f"unix://{pod.folder}/other.sock", [register], authorizer) as server:
        source = pod.source(server.address, pod.worker().address)
        pod.train_until(source, lambda rollout: rollout.live_envs == ENVS)
        time.sleep(0.3)
        pod.train(source, 3)
        assert refusing.opened == 1
        named = (
            f"will not be used: this is build 0.0.1 (protocol 0), the peer is {own_build().version}"
        )
        assert any(named in text for text in caplog.messages)
        with raises(PreconditionFailed, "BUILD_MISMATCH"):
            pod.source(server.address)


def test_a_worker_with_another_environment_is_left_out_with_both_named(pod, hasty, caplog):
    """As where an installed package is of another version in one image."""
    started: list[str] = []

    def check(description: environment_pb2.EnvironmentDescription) -> None:
        started.append("one")
        if len(started) == 1:
            description.action_space.discrete.n = 3
        require_same_environment(pod.cohort.environment_description, description)

    source = pod.source(pod.worker().address, pod.worker().address, check_environment=check)
    pod.train_until(source, lambda rollout: source.worker_count == 1 and rollout.live_envs == ENVS)
    named = (
        "it has started an environment of Box [4] float32, Discrete(3); the job's is of Box "
        "[4] float32, Discrete(2)"
    )
    assert any(named in text for text in caplog.messages)
