"""Real workers and evaluators, and a learner's ends of the streams to them: what crosses by which
carrier, and what is left of it when a process dies."""

from __future__ import annotations

import logging
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from podracer.common.v1 import agent_pb2, cohort_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.algorithms import algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment
from podracer_core.errors import InvalidInput
from podracer_learner.evaluators import PolicyStream, RemoteBackend
from podracer_learner.user_files import FetchedFiles
from podracer_learner.workers import Arrival, LinkOptions, Weights, WorkerLink
from podracer_platform.attachments import FileCache
from podracer_platform.carriers import (
    CarrierFailed,
    CarrierOffering,
    Endpoint,
    SharedMemory,
    TensorEncoder,
)
from podracer_platform.rpc import (
    Authorizer,
    FileToken,
    Role,
    TokenFiles,
    create_server,
    create_tokens,
    open_channel,
)
from podracer_platform.service import own_build
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.training_messages import cohort_from_message
from support.errors import raises
from support.processes import wait_until

pytestmark = pytest.mark.processes

MakeWork = Callable[..., pod_service_pb2.TrainWork]
CollectRequest = worker_service_pb2.CollectRequest
INLINE, SHARED = tensor_pb2.CARRIER_KIND_INLINE, tensor_pb2.CARRIER_KIND_SHARED_MEMORY
ENVS, HORIZON = 128, 16


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def cohort(train_work: MakeWork) -> cohort_pb2.CohortSpec:
    return train_work(members=2).cohort


@pytest.fixture
def weights(cohort: cohort_pb2.CohortSpec) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = make_vec_environment(EnvironmentSpec(id="CartPole-v1"), 1)
    config = cohort_from_message(cohort)
    state: dict[str, torch.Tensor] = algorithm_class("ppo")(
        config, environment.observation_space, environment.action_space
    ).actor_state()
    return state


@pytest.fixture(scope="module")
def workers(shared_lab: Any) -> Any:
    """A lab with two workers that are not killed: `shared` sees the lab's folder, `apart` another
    one."""
    (shared_lab.folder / "another/container").mkdir(parents=True)
    shared_lab.start("worker", "shared")
    shared_lab.start("worker", "apart", shm_dir=str(shared_lab.folder / "another/container"))
    return shared_lab


@pytest.fixture
def link(cohort: cohort_pb2.CohortSpec) -> Iterator[Callable[..., WorkerLink]]:
    """Opens a learner's link to a worker of a lab, over the lab's shared-memory folder."""
    links: list[WorkerLink] = []

    def opening(part: tuple[int, int], ahead: int) -> worker_service_pb2.OpenCollect:
        return worker_service_pb2.OpenCollect(
            build=own_build(),
            cohort=cohort,
            envs_per_member=part[1],
            first_env_index=part[0],
            horizon=HORIZON,
        )

    def start(lab: Any, name: str = "worker") -> WorkerLink:
        link = WorkerLink(
            lab.addresses[name],
            lambda: lab.channel(name),
            (0, ENVS),
            LinkOptions(
                opening,
                FetchedFiles(
                    EnvironmentSpec(id="CartPole-v1"),
                    {},
                    FileCache(lab.folder / "cache", 1 << 20),
                    ExitStack(),
                ),
                lambda _: None,
                30.0,
                lambda: None,
                Endpoint(SharedFolder(lab.shm), sends=False),
                with_environment_state=True,
            ),
        )
        links.append(link)
        return link

    yield start
    for one in links:
        one.close()


def rollout(link: WorkerLink, weights: dict[str, torch.Tensor], version: int = 1) -> Arrival:
    messages, _ = TensorEncoder().encode(weights)
    update = worker_service_pb2.ActorUpdate(policy_version=version, tensors=messages)

    def came() -> bool:
        link.poll()
        link.keep_busy(Weights(version, [CollectRequest(actor_update=update)]), 1)
        return bool(link.arrivals)

    wait_until(came)
    return link.arrivals.popleft()


def open_session(link: WorkerLink) -> None:
    def is_open() -> bool:
        link.poll()
        return link.opened

    wait_until(is_open)


def assert_same(one: Arrival, other: Arrival) -> None:
    first, second = one.rollout.to_tensors(), other.rollout.to_tensors()
    assert set(first) == set(second)
    assert all(
        torch.equal(tensor.view(torch.uint8), second[name].view(torch.uint8))
        for name, tensor in first.items()
    )
    assert set(one.environment_state) == set(other.environment_state)
    assert all(
        torch.equal(state, other.environment_state[name])
        for name, state in one.environment_state.items()
    )


def test_shared_memory_brings_what_inline_brings_bit_for_bit(workers, link, weights, caplog):
    caplog.set_level(logging.INFO)
    links = {name: link(workers, name) for name in ("shared", "apart")}
    for one in links.values():
        open_session(one)
    assert (
        f"worker {workers.addresses['shared']}: rollouts come by shared memory" in caplog.messages
    )
    assert f"worker {workers.addresses['apart']}: rollouts come by inline" in caplog.messages
    assert not names(workers.shm), "attaching removes the name"
    assert not names(workers.folder / "another/container")
    kept = [{name: rollout(one, weights, 1) for name, one in links.items()} for _ in range(6)]
    for arrivals in kept:  # only now: a slot that was overwritten too early would show
        assert_same(arrivals["shared"], arrivals["apart"])
    assert kept[0]["shared"].rollout.observation.ne(kept[1]["shared"].rollout.observation).any()


def segment_is_mapped(pid: int) -> bool:
    return "podracer-segment-" in Path(f"/proc/{pid}/maps").read_text()


def test_a_killed_worker_leaves_nothing_and_its_successor_gets_a_segment_of_its_own(
    lab, link, weights
):
    process = lab.start("worker")
    one = link(lab)
    open_session(one)
    rollout(one, weights)
    assert segment_is_mapped(process.pid)
    lab.kill("worker")
    process.wait(60)
    assert not names(lab.shm)
    process = lab.start("worker")
    assert rollout(one, weights, 2).rollout.policy_version == 1
    assert segment_is_mapped(process.pid)
    assert not names(lab.shm)


LEARNER = """
import sys
import time
from pathlib import Path
import grpc
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_platform.carriers import CarrierOffering, Endpoint
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.rpc import open_channel
from podracer_platform.rpc import FileToken

address, token, shm, opening, attach = sys.argv[1:]
offering = CarrierOffering(Endpoint(SharedFolder(Path(shm)), sends=False))
request = worker_service_pb2.OpenCollect.FromString(bytes.fromhex(opening))
request.carriers.CopyFrom(offering.message)

def requests():
    yield worker_service_pb2.CollectRequest(open=request)
    time.sleep(600)

with open_channel(address, FileToken(Path(token))) as channel:
    call = worker_service_pb2_grpc.WorkerServiceStub(channel).Collect(requests())
    opened = next(call).opened
    if attach == "yes":
        kept = offering.settle(opened.carrier)
    print(opened.carrier.segment, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("attached", ["yes", "no"], ids=["in the middle", "before it has attached"])
def test_a_killed_learner_leaves_nothing_once_the_worker_notices(lab, cohort, attached):
    """Its nonce, where it has not got beyond that, goes when the next one comes."""
    lab.start("worker")
    opening = worker_service_pb2.OpenCollect(
        build=own_build(), cohort=cohort, envs_per_member=ENVS, horizon=HORIZON
    ).SerializeToString()
    arguments = [
        lab.addresses["worker"],
        str(lab.tokens / "pod"),
        str(lab.shm),
        opening.hex(),
        attached,
    ]
    learner = subprocess.Popen(
        [sys.executable, "-c", LEARNER, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert learner.stdout is not None
        segment = learner.stdout.readline().strip()
        assert segment.startswith("podracer-segment-")
        assert (segment in names(lab.shm)) == (attached == "no")
    finally:
        learner.kill()
        learner.communicate()
    wait_until(lambda: segment not in names(lab.shm))
    stub = worker_service_pb2_grpc.WorkerServiceStub(lab.channel("worker"))
    wait_until(lambda: not stub.GetStatus(worker_service_pb2.GetStatusRequest()).session_count)
    CarrierOffering(Endpoint(SharedFolder(lab.shm), sends=False)).close()
    assert not names(lab.shm)


def test_a_worker_killed_before_anybody_attached_is_swept_up_after_by_the_next(lab, cohort):
    process = lab.start("worker")
    session = Session(lab, cohort)
    assert session.choice.kind == SHARED
    lab.kill("worker")
    process.wait(60)
    session.close()
    assert names(lab.shm) == {session.choice.segment}
    lab.start("worker")
    assert not names(lab.shm)


def test_a_worker_without_room_falls_back_to_inline_and_says_so_once(lab, link, weights):
    process = lab.start("worker")
    # as good as a full tmpfs
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (65_536, 65_536))
    for _ in range(3):
        one = link(lab)
        open_session(one)
        assert rollout(one, weights).rollout.env_steps == 2 * ENVS * HORIZON
        one.close()
        assert not names(lab.shm)
    assert lab.log("worker").count("shared memory cannot be used") == 1


def refuse(*_: object, **__: object) -> int:
    raise InvalidInput("it cannot be opened")


def test_a_link_whose_carrier_fails_goes_on_inline(workers, link, weights, monkeypatch, caplog):
    monkeypatch.setattr(SharedFolder, "open", refuse)
    one = link(workers, "shared")
    open_session(one)
    assert rollout(one, weights).rollout.env_steps == 2 * ENVS * HORIZON
    assert (
        sum(
            "shared memory does not work here: it cannot be opened" in text
            for text in caplog.messages
        )
        == 1
    )
    wait_until(lambda: not names(workers.shm))


class Session:
    """A Collect stream over shared memory, by hand."""

    def __init__(self, lab: Any, cohort: cohort_pb2.CohortSpec, name: str = "worker") -> None:
        """Opens it, again and again while an earlier session still ends."""
        stub = worker_service_pb2_grpc.WorkerServiceStub(lab.channel(name))
        wait_until(lambda: not stub.GetStatus(worker_service_pb2.GetStatusRequest()).session_count)
        self.offering = CarrierOffering(Endpoint(SharedFolder(lab.shm), sends=False))
        opening = worker_service_pb2.OpenCollect(
            build=own_build(),
            cohort=cohort,
            envs_per_member=ENVS,
            horizon=HORIZON,
            carriers=self.offering.message,
        )
        self.outgoing: queue.Queue[CollectRequest | None] = queue.Queue()
        self.outgoing.put(CollectRequest(open=opening))
        self.call = stub.Collect(iter(self.outgoing.get, None))
        self.choice = next(self.call).opened.carrier

    def close(self) -> None:
        self.offering.close()
        self.call.cancel()
        self.outgoing.put(None)


@pytest.mark.parametrize(
    "returned",
    [
        tensor_pb2.SlotReturn(segment="podracer-segment-other", slot=0, generation=1),
        tensor_pb2.SlotReturn(slot=99, generation=1),
        tensor_pb2.SlotReturn(slot=0, generation=1),
    ],
    ids=["another segment", "no such slot", "never handed over"],
)
def test_a_slot_that_was_never_handed_over_ends_the_session(workers, cohort, returned):
    session = Session(workers, cohort, "shared")
    session.offering.settle(session.choice)
    message = CollectRequest(slot_return=returned)
    message.slot_return.segment = returned.segment or session.choice.segment
    session.outgoing.put(message)
    with raises(InvalidInput, "BAD_SLOT_RETURN"):
        next(session.call)
    session.close()


@pytest.fixture(scope="module")
def evaluators(shared_lab: Any) -> Any:
    """As `workers`."""
    (shared_lab.folder / "far/away").mkdir(parents=True)
    shared_lab.start("evaluator", "shared_evaluator")
    shared_lab.start("evaluator", "apart_evaluator", shm_dir=str(shared_lab.folder / "far/away"))
    return shared_lab


@pytest.mark.parametrize("case", ["shared", "apart", "refused"])
def test_policies_reach_an_evaluator_by_whatever_works(
    evaluators, train_work, case, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    torch.set_num_threads(1)
    lab, name = evaluators, "apart_evaluator" if case == "apart" else "shared_evaluator"
    if case == "refused":
        monkeypatch.setattr(SharedMemory, "create", refuse)
    cohort = train_work(
        "Pendulum-v1", members=2, hyperparameters={"hidden_sizes": (128, 128)}
    ).cohort
    environment = make_vec_environment(EnvironmentSpec(id="Pendulum-v1"), 1)
    config = cohort_from_message(cohort)
    algorithm = algorithm_class("ppo")(
        config, environment.observation_space, environment.action_space
    )
    stub = evaluator_service_pb2_grpc.EvaluatorServiceStub(lab.channel(name))
    wait_until(lambda: not stub.GetStatus(evaluator_service_pb2.GetStatusRequest()).session_count)
    opening = evaluator_service_pb2.OpenEvaluate(build=own_build(), cohort=cohort)
    stream = PolicyStream(
        stub, opening, Endpoint(SharedFolder(lab.shm), sends=True), inline_only=False
    )
    items = []

    def arrived(count: int) -> bool:
        stream.wait(0.1)
        if (item := stream.poll()) is not None:
            items.append(item)
        return len(items) >= count

    try:
        wait_until(lambda: arrived(1))
        opened = items[0]
        assert isinstance(opened, evaluator_service_pb2.EvaluateOpened)
        assert opened.carrier.kind == (INLINE if case == "apart" else SHARED)
        for number in range(1, 6):  # more often than there are slots
            order = evaluator_service_pb2.EvaluationOrder(
                order_id=number,
                agents=[member.name for member in cohort.members],
                seeds=[5, 6],
                purpose=agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
            )
            stream.send(order, algorithm.actor_state())
        wait_until(lambda: arrived(6), 60.0)
        assert not names(lab.shm)
    finally:
        stream.close()
    returns = {tuple(tuple(one.returns) for one in item.evaluations) for item in items[1:]}
    assert len(returns) == 1, "the same policy, the same seeds"
    said = {
        "shared": "by shared memory",
        "apart": "by inline",
        "refused": "cannot be opened; policies go to the eva",
    }
    assert sum(said[case] in text for text in caplog.messages) == 1
    wait_until(lambda: not names(lab.shm))


class PickyEvaluator(evaluator_service_pb2_grpc.EvaluatorServiceServicer):
    """Finds that any carrier but inline does not work."""

    def __init__(self) -> None:
        self.offers: list[list[int]] = []

    def Evaluate(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        self.offers.append(list(next(request_iterator).open.carriers.kinds))
        if self.offers[-1] != [INLINE]:
            raise CarrierFailed("cannot map the other side's memory")
        yield evaluator_service_pb2.EvaluateResponse(opened=evaluator_service_pb2.EvaluateOpened())
        for _ in request_iterator:
            pass


def test_a_judge_opens_again_without_a_carrier_that_failed_at_the_evaluator(tmp_path, cohort):
    evaluator, endpoint = PickyEvaluator(), Endpoint(SharedFolder(tmp_path), sends=True)
    create_tokens(tmp_path)
    roles = {"/podracer.evaluator.v1.EvaluatorService/Evaluate": (Role.POD,)}
    register = partial(evaluator_service_pb2_grpc.add_EvaluatorServiceServicer_to_server, evaluator)
    files = FetchedFiles(
        EnvironmentSpec(id="CartPole-v1"), {}, FileCache(tmp_path / "cache", 1 << 20), ExitStack()
    )
    with (
        create_server("127.0.0.1:0", [register], Authorizer(roles, TokenFiles(tmp_path))) as server,
        open_channel(server.address, FileToken(tmp_path / "pod")) as channel,
    ):
        stubs = [evaluator_service_pb2_grpc.EvaluatorServiceStub(channel)]
        judge = RemoteBackend(cohort, files, stubs, lambda: None, endpoint)
        wait_until(lambda: not judge.poll(0.05) and judge.ready)
        judge.close()
    assert evaluator.offers == [[SHARED, INLINE], [INLINE]]


def test_a_split_pod_works_over_shared_memory_and_leaves_nothing(lab, train_work):
    lab.start_split(workers=2)
    granted = lab.orchestrator.offer(train=train_work(envs=128, steps=128 * 16 * 3, episodes=2))
    assert granted.over.wait(60), lab.log("learner")
    assert granted.completed is not None
    for name in ("worker0", "worker1"):
        assert "rollouts go out by shared memory" in lab.log(name)
    wait_until(lambda: not names(lab.shm))
    for process in lab.processes.values():
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert not names(lab.shm)
