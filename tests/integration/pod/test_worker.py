"""A real worker process, driven as a learner drives it."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from podracer.common.v1 import cohort_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.algorithms import algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.errors import (
    Exhausted,
    InvalidInput,
    PodracerError,
    PreconditionFailed,
    Unavailable,
    UserCodeFailed,
)
from podracer_platform.attachments import pack_code
from podracer_platform.carriers import TensorDecoder, TensorEncoder
from podracer_platform.messages import environment_to_message
from podracer_platform.service import own_build
from podracer_platform.training_messages import cohort_from_message
from support.code import bring_file
from support.errors import raises

pytestmark = pytest.mark.processes

Request = worker_service_pb2.CollectRequest


class Conversation:
    """One Collect stream: send what you like, read what comes."""

    def __init__(self, channel: Any) -> None:
        self._outgoing: queue.Queue[Request | None] = queue.Queue()
        stub = worker_service_pb2_grpc.WorkerServiceStub(channel)
        self.call = stub.Collect(iter(self._outgoing.get, None))

    def send(self, **message: Any) -> None:
        self._outgoing.put(Request(**message))

    def open(self, cohort: cohort_pb2.CohortSpec, **fields: Any) -> None:
        fields = {"build": own_build(), "envs_per_member": 4, "horizon": 16} | fields
        self.send(open=worker_service_pb2.OpenCollect(cohort=cohort, **fields))

    def weights(self, state: dict[str, torch.Tensor], version: int = 1) -> None:
        messages, chunks = TensorEncoder().encode(state)
        self.send(
            actor_update=worker_service_pb2.ActorUpdate(policy_version=version, tensors=messages)
        )
        for chunk in chunks:
            self.send(chunk=chunk)

    def order(self, count: int = 1) -> None:
        self.send(rollout_request=worker_service_pb2.RolloutRequest(count=count))

    def read(self) -> worker_service_pb2.CollectResponse:
        return next(self.call)

    def rollout(self) -> tuple[worker_service_pb2.RolloutBatch, dict[str, torch.Tensor]]:
        response = self.read()
        assert response.WhichOneof("message") == "rollout", response
        decoder = TensorDecoder()
        decoder.begin(response.rollout.tensors)
        while not decoder.complete:
            decoder.add(self.read().chunk)
        return response.rollout, decoder.take()

    def close(self) -> None:
        self.call.cancel()
        self._outgoing.put(None)


@pytest.fixture(scope="module")
def worker(shared_lab: Any) -> Any:
    shared_lab.start("worker")
    return shared_lab


@pytest.fixture
def converse(worker: Any) -> Iterator[Callable[[], Conversation]]:
    """Opens streams to the shared worker; afterwards they are closed and the worker is free."""
    open_ones: list[Conversation] = []

    def start() -> Conversation:
        conversation = Conversation(worker.channel("worker"))
        open_ones.append(conversation)
        return conversation

    yield start
    for conversation in open_ones:
        conversation.close()
    stub = worker_service_pb2_grpc.WorkerServiceStub(worker.channel("worker"))
    while stub.GetStatus(worker_service_pb2.GetStatusRequest()).session_count:
        time.sleep(0.02)


def learner_actor(cohort: cohort_pb2.CohortSpec) -> Any:
    config = cohort_from_message(cohort)
    environment = make_vec_environment(EnvironmentSpec(id=cohort.environment.id), 1)
    return algorithm_class("ppo")(config, environment.observation_space, environment.action_space)


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
def test_rollouts_are_those_that_a_collector_in_process_takes(converse, train_work, environment):
    torch.set_num_threads(1)
    cohort = train_work(environment, members=2).cohort
    algorithm = learner_actor(cohort)
    spec = EnvironmentSpec(id=environment)
    seeds = torch.tensor([member.seed for member in cohort.members])
    collector = Collector(make_vec_environment(spec, 2 * 4), algorithm.actor, seeds)
    conversation = converse()
    conversation.open(cohort)
    conversation.weights(algorithm.actor_state())
    assert conversation.read().opened.environment.max_episode_steps > 0
    for _ in range(5):
        conversation.order()
        batch, tensors = conversation.rollout()
        expected = collector.collect(16).to_tensors()
        assert set(tensors) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(tensors[name], tensor), name
        assert list(batch.policy_versions) == [1]


def test_a_part_of_the_environments_gives_the_same_as_in_the_whole(converse, train_work):
    torch.set_num_threads(1)
    cohort = train_work(members=2).cohort
    algorithm = learner_actor(cohort)
    seeds = torch.tensor([member.seed for member in cohort.members])
    whole = Collector(
        make_vec_environment(EnvironmentSpec(id="CartPole-v1"), 2 * 8), algorithm.actor, seeds
    )
    expected = whole.collect(16)
    conversation = converse()
    conversation.open(cohort, envs_per_member=3, first_env_index=5)
    conversation.weights(algorithm.actor_state())
    conversation.order()
    conversation.read()
    _, tensors = conversation.rollout()
    assert torch.equal(tensors["action"], expected.action[:, :, 5:])
    assert torch.allclose(tensors["observation"], expected.observation[:, :, 5:], atol=1e-6)


def test_a_rollout_above_a_mebibyte_comes_in_chunks(converse, train_work):
    cohort = train_work(members=2).cohort
    conversation = converse()
    conversation.open(cohort, envs_per_member=512, horizon=64)
    conversation.weights(learner_actor(cohort).actor_state())
    conversation.order()
    conversation.read()
    batch, tensors = conversation.rollout()
    assert any(message.WhichOneof("data") == "chunked" for message in batch.tensors.values())
    assert tensors["observation"].shape == (65, 2, 512, 4)


def test_weights_above_a_mebibyte_come_in_chunks(converse, train_work):
    torch.set_num_threads(1)
    cohort = train_work(members=2, hyperparameters={"hidden_sizes": (512, 512)}).cohort
    algorithm = learner_actor(cohort)
    seeds = torch.tensor([member.seed for member in cohort.members])
    collector = Collector(
        make_vec_environment(EnvironmentSpec(id="CartPole-v1"), 2 * 4), algorithm.actor, seeds
    )
    conversation = converse()
    conversation.open(cohort)
    conversation.weights(algorithm.actor_state())
    conversation.order()
    conversation.read()
    assert torch.equal(conversation.rollout()[1]["log_prob"], collector.collect(16).log_prob)


def test_the_newest_weights_act_and_lock_step_waits_for_them(converse, train_work):
    cohort = train_work(members=1).cohort
    state = learner_actor(cohort).actor_state()
    conversation = converse()
    conversation.open(cohort, deterministic=True)
    conversation.read()
    conversation.weights(state, version=1)
    conversation.order(2)
    assert list(conversation.rollout()[0].policy_versions) == [1]
    conversation.weights(state, version=2)
    assert list(conversation.rollout()[0].policy_versions) == [2]


def test_one_learner_at_a_time_and_the_place_is_free_once_it_has_gone(converse, train_work):
    cohort = train_work(members=1).cohort
    first, second = converse(), converse()
    first.open(cohort)
    first.read()
    second.open(cohort)
    with pytest.raises(Exhausted) as refused:
        second.read()
    assert refused.value.metadata["max_sessions"] == "1"
    first.close()
    deadline = time.monotonic() + 60
    while True:
        third = converse()
        third.open(cohort)
        try:
            assert third.read().HasField("opened")
            break
        except Exhausted:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_status_counts_sessions_and_steps(worker, converse, train_work):
    stub = worker_service_pb2_grpc.WorkerServiceStub(worker.channel("worker"))
    before = stub.GetStatus(worker_service_pb2.GetStatusRequest()).env_steps
    cohort = train_work(members=1).cohort
    conversation = converse()
    conversation.open(cohort)
    conversation.weights(learner_actor(cohort).actor_state())
    conversation.order()
    conversation.read()
    conversation.rollout()
    status = stub.GetStatus(worker_service_pb2.GetStatusRequest())
    assert (status.session_count, status.max_sessions) == (1, 1)
    assert status.env_steps - before == 4 * 16
    assert status.env_steps_per_second > 0


def bad_openings() -> dict[str, tuple[dict[str, Any], type[PodracerError]]]:
    other_build = cohort_pb2.BuildInfo(version="0.0.1", protocol=99)
    step_count, _ = TensorEncoder().encode({"step_count": torch.tensor([-1])})
    rest, _ = TensorEncoder().encode(
        {"step_count": torch.tensor([0]), "environment.physics": torch.zeros(1, 4)}
    )
    chunked, _ = TensorEncoder(message_bytes=4).encode({"step_count": torch.tensor([0])})
    return {
        "another build": ({"build": other_build}, PreconditionFailed),
        "no environments": ({"envs_per_member": 0}, InvalidInput),
        "too many environments": ({"envs_per_member": 2**31 - 1}, InvalidInput),
        "no horizon": ({"horizon": 0}, InvalidInput),
        "an endless horizon": ({"horizon": 2**31 - 1}, InvalidInput),
        "more steps than there is memory": (
            {"envs_per_member": 1 << 20, "horizon": 1 << 20},
            InvalidInput,
        ),
        "no device": ({"device": "a\nb"}, InvalidInput),
        "a device that is elsewhere": ({"device": "cuda:99"}, PreconditionFailed),
        "steps that cannot be": ({"environment_state": step_count}, InvalidInput),
        "a state in part": ({"environment_state": rest}, InvalidInput),
        "a state in pieces": ({"environment_state": chunked}, InvalidInput),
    }


@pytest.mark.parametrize("case", bad_openings())
def test_an_opening_that_cannot_be_right_is_refused(converse, train_work, case):
    cohort = train_work(members=1).cohort
    fields, error = bad_openings()[case]
    conversation = converse()
    conversation.open(cohort, **fields)
    with pytest.raises(error):
        conversation.read()


def test_a_first_message_that_opens_nothing_is_refused(converse):
    conversation = converse()
    conversation.order()
    with pytest.raises(InvalidInput, match="open"):
        conversation.read()


def test_an_empty_message_is_refused(converse, train_work):
    conversation = converse()
    conversation.open(train_work(members=1).cohort)
    conversation.send()
    with raises(InvalidInput, "BAD_SESSION", match="empty message"):
        while True:
            conversation.read()


def test_versions_count_from_one(converse, train_work):
    cohort = train_work(members=1).cohort
    conversation = converse()
    conversation.open(cohort)
    conversation.weights(learner_actor(cohort).actor_state(), version=0)
    with raises(InvalidInput, "BAD_SESSION", match="count from 1"):
        while True:
            conversation.read()


def test_more_rollouts_than_can_be_under_way_are_refused(converse, train_work):
    """Else a client that does not read them could fill the worker's memory."""
    cohort, conversation = train_work(members=1).cohort, converse()
    conversation.open(cohort, deterministic=True)
    conversation.weights(learner_actor(cohort).actor_state())
    conversation.order(8)  # the first one may be out soon; the others wait for newer weights
    conversation.order(2)
    with raises(InvalidInput, "TOO_MANY_ROLLOUTS"):
        while True:
            conversation.read()


def test_those_that_have_been_read_are_not_under_way(converse, train_work):
    cohort = train_work(members=1).cohort
    conversation = converse()
    conversation.open(cohort)
    conversation.weights(learner_actor(cohort).actor_state())
    conversation.read()
    for _ in range(4):
        conversation.order(8)
        for _ in range(8):
            conversation.rollout()


def test_a_long_rollout_is_given_up_when_its_learner_leaves(worker, converse, train_work):
    """It would take minutes; the fixture waits for the worker to be free."""
    cohort = train_work(members=1).cohort
    conversation = converse()
    conversation.open(cohort, horizon=1 << 20)
    conversation.weights(learner_actor(cohort).actor_state())
    conversation.read()
    conversation.order()
    time.sleep(0.2)
    conversation.close()
    stub = worker_service_pb2_grpc.WorkerServiceStub(worker.channel("worker"))
    deadline = time.monotonic() + 60
    while stub.GetStatus(worker_service_pb2.GetStatusRequest()).session_count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_weights_of_another_cohort_are_refused(converse, train_work):
    conversation = converse()
    conversation.open(train_work(members=2).cohort)
    conversation.weights(learner_actor(train_work(members=3).cohort).actor_state())
    conversation.order()
    conversation.read()
    with pytest.raises(InvalidInput, match="another cohort"):
        conversation.read()


def test_a_users_environment_that_does_not_start_is_told_with_its_own_traceback(
    worker, converse, train_work, tmp_path
):
    (tmp_path / "broken.py").write_text(
        "class Broken:\n    def __init__(self):\n        raise ValueError('no maze')\n"
    )
    stub = worker_service_pb2_grpc.WorkerServiceStub(worker.channel("worker"))
    packed = pack_code(tmp_path, "broken:Broken")
    code = bring_file(stub.PutFile, worker_service_pb2.PutFileRequest, packed, "code.zip")
    user = environment_to_message(EnvironmentSpec(entry_point="broken:Broken", code=code))
    conversation = converse()
    conversation.open(train_work(members=1, user=user).cohort)
    with pytest.raises(UserCodeFailed) as failed:
        conversation.read()
    assert "ValueError: no maze" in failed.value.user_traceback
    assert 'broken.py", line 3' in failed.value.user_traceback
    assert "podracer_worker" not in failed.value.user_traceback


def test_sigterm_tells_open_sessions_and_ends(lab, train_work):
    process = lab.start("worker")
    conversation = Conversation(lab.channel("worker"))
    conversation.open(train_work(members=1).cohort)
    conversation.read()
    lab.kill("worker", signal.SIGTERM)
    assert conversation.read().HasField("draining")
    with pytest.raises((StopIteration, Unavailable)):
        conversation.read()
    assert process.wait(60) == 0
