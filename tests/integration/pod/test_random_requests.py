"""No request, however strange, breaks a worker, an evaluator or a learner: each is answered, or
refused for a reason that is the caller's, and a process that has had thousands of them serves the
next caller as it served the first.

PODRACER_FUZZ says how many requests (each service gets a fifth, a stream counting as one),
PODRACER_FUZZ_SEED which; `make fuzz` has many."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from google.protobuf.message import Message

from podracer.common.v1 import agent_pb2, file_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer.learner.v1 import learner_service_pb2 as learner_pb2
from podracer.learner.v1 import learner_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer.worker.v1 import worker_service_pb2 as worker_pb2
from podracer.worker.v1 import worker_service_pb2_grpc
from podracer_core.algorithms import algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import pack_policy, save_checkpoint
from podracer_core.environments import make_vec_environment
from podracer_platform.carriers import CarrierOffering, Endpoint, TensorDecoder, TensorEncoder
from podracer_platform.messages import environment_to_message
from podracer_platform.service import own_build
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.storage import open_store
from podracer_platform.training_messages import cohort_from_message
from support.bombardment import ANSWER_S, Target, Turn, Watch, open_stream, until
from support.code import LINE, bring_file, make_zip, stored
from support.policies import trained_policies

COUNT = int(os.environ.get("PODRACER_FUZZ", "300")) // 5
SEED = int(os.environ.get("PODRACER_FUZZ_SEED", "5"))

CHUNK_BYTES = 8000
PREFIX = "projects/p/jobs/u/agents/a0/checkpoints/64-1/"
FENCE = 1_000_000
"""In a follower's opening: what becomes the fence of the present lease."""


pytestmark = [pytest.mark.thorough, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def lab(shared_lab: Any) -> Any:
    """With one process of each kind; all that these write lies in its folder, temporary files
    too."""
    temporary = shared_lab.folder / "tmp"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        shared_lab.start("worker")
        shared_lab.start("evaluator", allow_folders="true")
        shared_lab.start(
            "learner", orchestrator=shared_lab.addresses["orchestrator"], pod="projects/p/pods/a"
        )
    return shared_lab


@pytest.fixture(scope="module")
def offer(lab: Any) -> Iterator[tensor_pb2.CarrierOffer]:
    """Requests of a process that shares the folder for tensors."""
    offering = CarrierOffering(Endpoint(SharedFolder(lab.shm), sends=False))
    yield offering.message
    offering.close()


def actor_state(cohort: Any) -> dict[str, torch.Tensor]:
    environment = make_vec_environment(EnvironmentSpec(id=cohort.environment.id), 1)
    spaces = environment.observation_space, environment.action_space
    return algorithm_class("ppo")(cohort_from_message(cohort), *spaces).actor_state()


def files_to_put(request: Any, *contents: tuple[bytes, str]) -> tuple[list[Message], list[Turn]]:
    """Headers that begin PutFile, and the bytes that may follow."""
    files = [stored(content, name) for content, name in contents]
    headers = [
        file_pb2.FileHeader(sha256=file.sha256, size_bytes=file.size_bytes, name=file.name)
        for file in files
    ]
    return [request(header=header) for header in headers], [
        [request(data=content)] for content, _ in contents
    ]


def users_environment(stub: Any, request: Any) -> Any:
    """One whose code has been brought."""
    file = bring_file(stub.PutFile, request, make_zip(("line.py", LINE.encode())), "line.zip")
    return environment_to_message(EnvironmentSpec(entry_point="line:Line", code=file))


def first_rollout(stub: Any, said: Turn) -> tuple[Any, Any]:
    """Transitions, and where environments stand then."""
    stream = open_stream(stub.Collect, said)
    stream.receive(ANSWER_S)
    batch = stream.receive(ANSWER_S).rollout
    stream.close()
    return batch.tensors, batch.environment_state


def test_worker(lab, train_work, offer):
    stub = worker_service_pb2_grpc.WorkerServiceStub(lab.channel("worker"))
    request, put = worker_pb2.CollectRequest, worker_pb2.PutFileRequest
    cohort = train_work(members=2).cohort
    state = actor_state(cohort)

    def opening(**fields: Any) -> Message:
        fields = {
            "build": own_build(),
            "cohort": cohort,
            "envs_per_member": 4,
            "horizon": 16,
        } | fields
        return request(open=worker_pb2.OpenCollect(**fields))

    def weights(encoder: TensorEncoder) -> list[Message]:
        tensors, chunks = encoder.encode(state)
        update = worker_pb2.ActorUpdate(policy_version=1, tensors=tensors)
        return [request(actor_update=update), *(request(chunk=chunk) for chunk in chunks)]

    (update,), pieces = weights(TensorEncoder()), weights(TensorEncoder(CHUNK_BYTES))
    order = request(rollout_request=worker_pb2.RolloutRequest(count=1))
    with_state = request(
        rollout_request=worker_pb2.RolloutRequest(count=2, with_environment_state=True)
    )
    slot = request(
        slot_return=tensor_pb2.SlotReturn(segment="podracer-segment-" + "0" * 32, generation=1)
    )
    valid = [opening(), update, with_state]
    before = first_rollout(stub, valid)
    users = opening()
    users.open.cohort.environment.CopyFrom(users_environment(stub, put))
    shared = opening(envs_per_member=64, horizon=64, carriers=offer)
    again = opening(environment_state=before[1], deterministic=True)
    target = Target(
        stub,
        worker_pb2.DESCRIPTOR.services_by_name["WorkerService"],
        [
            "CartPole-v1",
            "Acrobot-v1",
            "line:Line",
            "cuda:0",
            "cpu",
            "step_count",
            "resumed",
            offer.nonce_file,
        ],
        {
            "Collect": (
                [*[opening(), shared, again] * 3, users],
                [[update], *[[update, order]] * 3, pieces, [*pieces, with_state], [order], [slot]],
            ),
            "PutFile": files_to_put(put, (b"x" * 2000, "data.csv"), (b"", "a")),
        },
        is_idle=lambda: not stub.GetStatus(worker_pb2.GetStatusRequest()).session_count,
    )
    watch = Watch(lab, "worker")
    target.bombard(COUNT, random.Random(SEED))
    assert first_rollout(stub, valid) == before
    until(target.is_idle, "the last session")
    watch.assert_well()


def stored_policies(lab: Any, stub: Any) -> tuple[list[Any], bytes]:
    """Two policies: one in the store and in a folder, one that has been brought, and the bytes of
    that one."""
    first, second = trained_policies("Pendulum-v1", [1, 2], updates=1, horizon=16, envs=4)
    reference = save_checkpoint(open_store(lab.store), PREFIX, first.groups, first.metadata)
    packed = pack_policy(second)
    brought = bring_file(stub.PutFile, evaluator_pb2.PutFileRequest, packed, "")
    source = evaluator_pb2.CheckpointSource
    return [
        source(
            checkpoint=agent_pb2.CheckpointReference(
                prefix=PREFIX, manifest_sha256=reference.manifest_sha256
            )
        ),
        source(folder=str(lab.store_folder / PREFIX)),
        source(file_sha256=brought.sha256),
    ], packed


def first_answer(stub: Any, said: Turn) -> list[tuple[list[float], list[int]]]:
    """Returns and lengths of each policy's episodes."""
    stream = open_stream(stub.Evaluate, said)
    stream.receive(ANSWER_S)
    answer = stream.receive(ANSWER_S).answer
    stream.close()
    return [(list(each.returns), list(each.lengths)) for each in answer.evaluations]


def test_evaluator(lab, train_work, offer):
    stub = evaluator_service_pb2_grpc.EvaluatorServiceStub(lab.channel("evaluator"))
    request, put = evaluator_pb2.EvaluateRequest, evaluator_pb2.PutFileRequest
    cohort = train_work("Pendulum-v1", members=2).cohort
    agents, state = [member.name for member in cohort.members], actor_state(cohort)

    def order(encoder: TensorEncoder, **fields: Any) -> list[Message]:
        fields = {
            "order_id": 1,
            "agents": agents,
            "seeds": range(8),
            "first_episodes": 4,
            "purpose": 2,
        } | fields
        tensors, chunks = encoder.encode(state)
        message = request(order=evaluator_pb2.EvaluationOrder(tensors=tensors, **fields))
        return [message, *(request(chunk=chunk) for chunk in chunks)]

    whole, in_pieces = TensorEncoder(), TensorEncoder(CHUNK_BYTES)
    plain = request(open=evaluator_pb2.OpenEvaluate(build=own_build(), cohort=cohort))
    shared = request(
        open=evaluator_pb2.OpenEvaluate(build=own_build(), cohort=cohort, carriers=offer)
    )
    sources, packed = stored_policies(lab, stub)
    evaluations = [
        evaluator_pb2.EvaluateCheckpointRequest(checkpoints=checkpoints, **fields)
        for checkpoints in (*([source] for source in sources), sources)
        for fields in ({"episodes": 2}, {"seeds": [1, 2], "environment": cohort.environment})
    ]
    specs = [
        EnvironmentSpec(id="CartPole-v1"),
        EnvironmentSpec(
            id="Acrobot-v1", kwargs={"dt": 0.1, "torque_noise_max": 1.0, "book_or_nips": "book"}
        ),
        EnvironmentSpec(id="PointChasingDiscrete-v0", kwargs={"dimensions": 3, "factored": True}),
        EnvironmentSpec(id="FrozenLake-v1", max_episode_steps=7),
    ]
    inspected = [*map(environment_to_message, specs), users_environment(stub, put)]
    target = Target(
        stub,
        evaluator_pb2.DESCRIPTOR.services_by_name["EvaluatorService"],
        [
            *agents,
            PREFIX,
            "dt",
            "dimensions",
            "max_episode_steps",
            "line:Line",
            "FrozenLake-v1",
            "cuda:0",
            "cpu",
        ],
        {
            "Evaluate": (
                [plain, shared],
                [
                    order(whole),
                    order(whole, purpose=1),
                    order(whole, admission_score=-1000.0),
                    order(in_pieces),
                ],
            ),
            "EvaluateCheckpoint": (evaluations, ()),
            "Backtest": (
                [evaluator_pb2.BacktestRequest(checkpoints=[each]) for each in sources],
                (),
            ),
            "ExportPolicy": (
                [
                    evaluator_pb2.ExportPolicyRequest(checkpoints=[each], format=2)
                    for each in sources
                ],
                (),
            ),
            "RecordVideo": (
                [evaluator_pb2.RecordVideoRequest(checkpoints=sources[:1], step_limit=3)],
                (),
            ),
            "Inspect": ([evaluator_pb2.InspectRequest(environment=each) for each in inspected], ()),
            "PutFile": files_to_put(put, (b"x" * 2000, "data.csv"), (packed, "")),
        },
        # very long episodes, a compiler
        slow=("EvaluateCheckpoint", "ExportPolicy", "RecordVideo"),
        is_idle=lambda: not stub.GetStatus(evaluator_pb2.GetStatusRequest()).session_count,
    )
    valid = [plain, *order(whole)]
    before, watch = first_answer(stub, valid), Watch(lab, "evaluator")
    target.bombard(COUNT, random.Random(SEED + 1))
    assert first_answer(stub, valid) == before
    until(target.is_idle, "the last session")
    watch.assert_well()


class Lead:
    """A learner that leads a fusion, and never comes to the end of its round."""

    def __init__(self, lab: Any, work: pod_service_pb2.TrainWork) -> None:
        self.stub = learner_service_pb2_grpc.LearnerServiceStub(lab.channel("learner"))
        self.granted = lab.orchestrator.offer(train=work)
        until(
            lambda: self.stub.GetStatus(learner_pb2.GetStatusRequest()).updates > 0,
            "it does not train",
        )

    def adapted(self, message: Any, first: Any) -> Any:
        """With the fence of the lease, and the number of the next fusion."""
        if message.WhichOneof("message") == "join" and message.join.lead_fence == FENCE:
            message.join.lead_fence = self.granted.lease.fence
        if (
            first is not None
            and message.WhichOneof("message") == "contribution"
            and message.contribution.epoch == 1
        ):
            message.contribution.epoch = first.joined.epoch + 1
        return message

    def contribution(self, joined: Any, encoder: TensorEncoder) -> list[Message]:
        """Requests of a follower that sends the lead's own parameters."""
        decoder = TensorDecoder()
        decoder.begin(joined.parameters)
        parameters, chunks = encoder.encode(decoder.take())
        statistics = {
            name: tensor for name, tensor in joined.normalizer.items() if name != "transitions"
        }
        brought = learner_pb2.FusionContribution(
            epoch=1,
            sample_count=128,
            env_steps=[128, 128],
            parameters=parameters,
            normalizer_delta=statistics,
        )
        request = learner_pb2.FuseRequest
        return [request(contribution=brought), *(request(chunk=chunk) for chunk in chunks)]


def test_learner(lab, train_work, offer):
    values = {"normalize_observations": True}
    work = train_work(
        members=2, seconds=7200.0, hyperparameters=values, follower_count=2, episodes=2
    )
    work.fusion.fusion = "weighted"
    work.fusion.deadline.FromMilliseconds(100)  # for those who come and bring nothing
    lead = Lead(lab, work)
    joins = [
        learner_pb2.FuseRequest(
            join=learner_pb2.JoinFusion(
                build=own_build(), rank=rank, lead_fence=FENCE, carriers=offer
            )
        )
        for rank in (1, 2)
    ]

    def joined() -> tuple[Any, Any]:
        stream = open_stream(lead.stub.Fuse, [lead.adapted(joins[0], None)])
        return stream, stream.receive(ANSWER_S)

    stream, first = joined()
    stream.close()
    whole, pieces = (
        lead.contribution(first.joined, TensorEncoder(size)) for size in (1 << 20, CHUNK_BYTES)
    )
    agents = [member.name for member in work.cohort.members]
    target = Target(
        lead.stub,
        learner_pb2.DESCRIPTOR.services_by_name["LearnerService"],
        [*agents, "active", "observations.count", "log_std"],
        {
            "Fuse": (joins, [whole, pieces]),
            "FetchPolicy": (
                [learner_pb2.FetchPolicyRequest(agent=agent) for agent in ("", *agents)],
                (),
            ),
            "Checkpoint": ([learner_pb2.CheckpointRequest(agents=agents[:1])], ()),
        },
        adapted=lead.adapted,
    )
    watch = Watch(lab, "learner", "store/projects/p/jobs/uid1")
    target.bombard(COUNT, random.Random(SEED + 2))
    stream, first = joined()
    stream.send(lead.adapted(whole[0], first))
    assert list(stream.receive(ANSWER_S).result.ranks) == [0, 1]
    lead.granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    assert stream.receive(ANSWER_S).HasField("end")
    assert lead.granted.over.wait(ANSWER_S)
    assert all(member.HasField("candidate") for member in lead.granted.completed.train.members)
    watch.assert_well()
