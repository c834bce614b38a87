"""A real evaluator process: sessions, checkpoints, inspections, exports."""

from __future__ import annotations

import hashlib
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, environment_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2 as pb
from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import algorithm_class
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec, to_json
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    Checkpoint,
    evaluate_checkpoints,
    load_checkpoint,
    pack_policy,
    save_checkpoint,
)
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.errors import (
    DataCorrupted,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UserCodeFailed,
)
from podracer_core.evaluate import GreedyEvaluator, result_to_json
from podracer_platform.attachments import pack_code
from podracer_platform.carriers import TensorEncoder
from podracer_platform.messages import environment_to_message
from podracer_platform.service import own_build
from podracer_platform.storage import open_store
from podracer_platform.training_messages import cohort_from_message
from support.code import bring_file
from support.errors import raises

MakeWork = Callable[..., pod_service_pb2.TrainWork]
JOB = "projects/p/jobs/j"
PREFIX = "projects/p/jobs/u/agents/a0/checkpoints/64-1/"


@pytest.fixture(scope="module")
def evaluator(shared_lab: Any) -> Any:
    shared_lab.start("evaluator", allow_folders="true")
    return shared_lab


@pytest.fixture
def stub(evaluator: Any) -> evaluator_service_pb2_grpc.EvaluatorServiceStub:
    return evaluator_service_pb2_grpc.EvaluatorServiceStub(evaluator.channel("evaluator"))


class Conversation:
    """One Evaluate stream."""

    def __init__(self, stub: evaluator_service_pb2_grpc.EvaluatorServiceStub) -> None:
        self._outgoing: queue.Queue[pb.EvaluateRequest | None] = queue.Queue()
        self._encoder = TensorEncoder()
        self.call = stub.Evaluate(iter(self._outgoing.get, None))

    def send(self, **message: Any) -> None:
        self._outgoing.put(pb.EvaluateRequest(**message))

    def open(self, cohort: Any, **fields: Any) -> None:
        self.send(open=pb.OpenEvaluate(build=own_build(), cohort=cohort, **fields))

    def order(
        self, number: int, agents: list[str], state: dict[str, torch.Tensor], **fields: Any
    ) -> None:
        messages, chunks = self._encoder.encode(state)
        fields = {"seeds": range(8), "purpose": agent_pb2.EVALUATION_PURPOSE_CANDIDATE} | fields
        order = pb.EvaluationOrder(order_id=number, agents=agents, tensors=messages, **fields)
        self.send(order=order)
        for chunk in chunks:
            self.send(chunk=chunk)

    def read(self) -> pb.EvaluateResponse:
        return next(self.call)

    def close(self) -> None:
        self.call.cancel()
        self._outgoing.put(None)


@pytest.fixture
def converse(
    stub: evaluator_service_pb2_grpc.EvaluatorServiceStub,
) -> Iterator[Callable[[], Conversation]]:
    open_ones: list[Conversation] = []

    def start() -> Conversation:
        open_ones.append(Conversation(stub))
        return open_ones[-1]

    yield start
    for conversation in open_ones:
        conversation.close()
    while stub.GetStatus(pb.GetStatusRequest()).session_count:
        time.sleep(0.02)


def trained(cohort: Any, updates: int = 2) -> Any:
    torch.set_num_threads(1)
    config = cohort_from_message(cohort)
    environment = make_vec_environment(
        EnvironmentSpec(id=cohort.environment.id), 4 * len(config.members)
    )
    algorithm = algorithm_class("ppo")(
        config, environment.observation_space, environment.action_space
    )
    seeds = torch.tensor([member.seed for member in config.members])
    collector = Collector(environment, algorithm.actor, seeds)
    for _ in range(updates):
        algorithm.update(collector.collect(16, policy_version=algorithm.version))
    return algorithm


def in_process(environment: str, actor: Any, seeds: list[int]) -> Any:
    return GreedyEvaluator(
        lambda count: make_vec_environment(EnvironmentSpec(id=environment), count)
    ).evaluate(actor, seeds)


def test_a_session_answers_with_what_an_evaluation_in_process_gives(converse, train_work):
    cohort = train_work("Pendulum-v1", members=2).cohort
    algorithm = trained(cohort)
    agents = [member.name for member in cohort.members]
    conversation = converse()
    conversation.open(cohort)
    assert conversation.read().HasField("opened")
    seeds = [5, 6, 7, 8, 9]
    conversation.order(3, agents, algorithm.actor_state(), seeds=seeds, policy_version=2)
    answer = conversation.read().answer
    assert answer.order_id == 3
    expected = in_process("Pendulum-v1", algorithm.actor, seeds)
    for agent, evaluation, result in zip(agents, answer.evaluations, expected, strict=True):
        assert evaluation.agent == agent
        assert tuple(evaluation.returns) == result.returns
        assert list(evaluation.seeds) == seeds
        assert evaluation.mean == result.mean
        assert evaluation.lower_bound == pytest.approx(result.lower_bound)
        assert evaluation.policy_version == 2


def test_policies_above_a_mebibyte_come_in_chunks(converse, train_work):
    cohort = train_work(members=2, hyperparameters={"hidden_sizes": (512, 512)}).cohort
    algorithm = trained(cohort, updates=0)
    conversation = converse()
    conversation.open(cohort)
    conversation.read()
    conversation.order(1, [member.name for member in cohort.members], algorithm.actor_state())
    returns = [tuple(evaluation.returns) for evaluation in conversation.read().answer.evaluations]
    expected = in_process("CartPole-v1", algorithm.actor, list(range(8)))
    assert returns == [result.returns for result in expected]


def test_one_member_of_the_cohort_alone(converse, train_work):
    cohort = train_work(members=3).cohort
    algorithm = trained(cohort)
    conversation = converse()
    conversation.open(cohort)
    conversation.read()
    actor = algorithm.actor.member(1)
    conversation.order(1, [cohort.members[1].name], actor.state())
    evaluation = conversation.read().answer.evaluations[0]
    (expected,) = in_process("CartPole-v1", actor, list(range(8)))
    assert tuple(evaluation.returns) == expected.returns


def test_a_newer_look_takes_the_place_of_one_that_waits_but_never_of_a_candidate(
    converse, train_work
):
    cohort = train_work("Pendulum-v1", members=1).cohort
    state = trained(cohort).actor_state()
    agents = [cohort.members[0].name]
    conversation = converse()
    conversation.open(cohort)
    look = {"purpose": agent_pb2.EVALUATION_PURPOSE_PROGRESS, "seeds": range(32)}
    conversation.order(1, agents, state)
    for number in range(2, 8):
        conversation.order(number, agents, state, **look)
    conversation.order(8, agents, state)
    conversation.read()
    answers = {}
    while len(answers) < 8:
        answer = conversation.read().answer
        answers[answer.order_id] = answer.superseded
    assert not answers[1]
    assert not answers[7]
    assert not answers[8]
    assert sum(answers.values()) >= 3


def test_evaluation_goes_on_only_while_admission_is_possible(converse, train_work):
    cohort = train_work(members=1).cohort
    state, agents = trained(cohort).actor_state(), [cohort.members[0].name]
    conversation = converse()
    conversation.open(cohort)
    conversation.read()
    staged = {"seeds": range(24), "first_episodes": 8}
    conversation.order(1, agents, state, admission_score=1e6, **staged)
    first = conversation.read().answer.evaluations[0].returns
    assert len(first) == 8, "it has failed"
    for number, admission in enumerate(
        ({"admission_score": 0.0}, {"admission_score": sum(first) / 8}, {}), start=2
    ):
        conversation.order(number, agents, state, **admission, **staged)
        assert len(conversation.read().answer.evaluations[0].returns) == 24


@pytest.mark.parametrize(
    "bad",
    [
        {"seeds": []},
        {"seeds": range(10_001)},
        {"agents": ["stranger"]},
        {"agents": []},
        {"agents": [f"{JOB}/agents/a0"] * 2},
        {"first_episodes": -1},
        {"first_episodes": 9},
        {"purpose": agent_pb2.EVALUATION_PURPOSE_UNSPECIFIED},
        {"purpose": 99},
        {"admission_score": float("nan")},
    ],
    ids=[
        "no seeds", "too many seeds", "a stranger", "no agent", "one twice",
        "fewer episodes than none", "more episodes than there are", "no purpose",
        "a purpose that is none", "no number",
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_right_ends_the_session(converse, train_work, bad):
    cohort = train_work(members=1).cohort
    state = trained(cohort, updates=0).actor_state()
    conversation = converse()
    conversation.open(cohort)
    conversation.read()
    conversation.order(1, bad.pop("agents", [cohort.members[0].name]), state, **bad)
    with pytest.raises(InvalidInput):
        conversation.read()


@pytest.mark.parametrize(
    "message", [{}, {"slot_return": tensor_pb2.SlotReturn()}], ids=["nothing", "a slot"]
)
def test_a_message_that_says_nothing_here_ends_the_session(converse, train_work, message):
    conversation = converse()
    conversation.open(train_work(members=1).cohort)
    conversation.read()
    conversation.send(**message)
    with raises(InvalidInput, "BAD_SESSION"):
        conversation.read()


def test_a_device_is_one_that_is_here(converse, train_work):
    for device, error in (("'; DROP", InvalidInput), ("cuda:99", PreconditionFailed)):
        conversation = converse()
        conversation.open(train_work(members=1).cohort, device=device)
        with pytest.raises(error):
            conversation.read()
        conversation.close()


def test_an_evaluation_without_end_is_given_up_when_its_learner_leaves(stub, converse, train_work):
    cohort = train_work("Pendulum-v1", members=1).cohort
    state = trained(cohort, updates=0).actor_state()
    cohort.environment.max_episode_steps = 1 << 62
    conversation = converse()
    conversation.open(cohort)
    conversation.read()
    conversation.order(1, [cohort.members[0].name], state)
    time.sleep(0.2)
    conversation.close()
    deadline = time.monotonic() + 60
    while stub.GetStatus(pb.GetStatusRequest()).session_count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sigterm_tells_open_sessions_and_ends(lab, train_work):
    process = lab.start("evaluator")
    conversation = Conversation(
        evaluator_service_pb2_grpc.EvaluatorServiceStub(lab.channel("evaluator"))
    )
    conversation.open(train_work(members=1).cohort)
    conversation.read()
    lab.kill("evaluator", signal.SIGTERM)
    assert conversation.read().HasField("draining")
    with pytest.raises((StopIteration, Unavailable)):
        conversation.read()
    assert process.wait(60) == 0


class TestCheckpoints:
    @pytest.fixture
    def stored(self, evaluator: Any, train_work: MakeWork) -> Any:
        """A Pendulum agent's checkpoint with its evaluation, in the evaluator's store."""
        cohort = train_work("Pendulum-v1", members=1).cohort
        algorithm = trained(cohort)
        (result,) = in_process("Pendulum-v1", algorithm.actor, list(range(50, 60)))
        info = BUILT_IN_ENVIRONMENTS["Pendulum-v1"]
        assert info.observation_space is not None
        assert info.action_space is not None
        metadata = {
            "algorithm": "ppo",
            "agent": cohort.members[0].name,
            "hyperparameters": {"learning_rate": 0.001, "hidden_sizes": [64, 64], "horizon": 16},
            "environment": EnvironmentSpec(id="Pendulum-v1").to_json(),
            "observation_space": to_json(info.observation_space),
            "action_space": to_json(info.action_space),
            "env_steps": 64,
            "evaluation": result_to_json(result),
        }
        store = open_store(evaluator.store)
        store.delete_prefix(PREFIX)
        reference = save_checkpoint(store, PREFIX, algorithm.member_state(0), metadata)
        message = agent_pb2.CheckpointReference(
            prefix=PREFIX, manifest_sha256=reference.manifest_sha256
        )
        return message, result, algorithm

    def test_the_stored_seeds_give_the_stored_returns_again(self, stub, stored):
        message, result, _ = stored
        request = pb.EvaluateCheckpointRequest(
            checkpoints=[pb.CheckpointSource(checkpoint=message)]
        )
        response = stub.EvaluateCheckpoint(request, timeout=30)
        assert response.largest_difference == 0.0
        assert tuple(response.evaluation.returns) == result.returns
        assert response.stored.mean == pytest.approx(result.mean)
        assert response.evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_REQUESTED
        assert response.description.algorithm == "ppo"
        assert response.description.environment.id == "Pendulum-v1"
        assert response.description.environment_description.action_space.box.high == [2.0]
        assert list(response.description.hyperparameters["hidden_sizes"].integers.values) == [
            64,
            64,
        ]

    def test_from_a_folder(self, evaluator, stub, stored):
        source = pb.CheckpointSource(folder=str(evaluator.store_folder / PREFIX))
        response = stub.EvaluateCheckpoint(
            pb.EvaluateCheckpointRequest(checkpoints=[source]), timeout=30
        )
        assert response.largest_difference == 0.0

    def test_fresh_episodes_are_fresh(self, stub, stored):
        request = pb.EvaluateCheckpointRequest(
            checkpoints=[pb.CheckpointSource(checkpoint=stored[0])], episodes=12
        )
        first, second = (stub.EvaluateCheckpoint(request, timeout=30).evaluation for _ in range(2))
        assert len(first.returns) == 12
        assert not set(first.seeds) & set(second.seeds)
        assert not stub.EvaluateCheckpoint(request, timeout=30).HasField("largest_difference")

    def test_in_another_environment(self, stub, stored):
        request = pb.EvaluateCheckpointRequest(
            checkpoints=[pb.CheckpointSource(checkpoint=stored[0])],
            environment=environment_pb2.EnvironmentSpec(id="Pendulum-v1", max_episode_steps=10),
            seeds=[1, 2],
        )
        assert list(stub.EvaluateCheckpoint(request, timeout=30).evaluation.lengths) == [10, 10]

    def test_by_another_evaluator(self, stub, stored):
        request = pb.EvaluateCheckpointRequest(
            checkpoints=[pb.CheckpointSource(checkpoint=stored[0])]
        )
        request.evaluator = "greedy_episodes"
        assert stub.EvaluateCheckpoint(request, timeout=30).largest_difference == 0.0
        request.evaluator = "backtest"
        with raises(InvalidInput, "NOT_A_MARKET"):
            stub.EvaluateCheckpoint(request, timeout=30)
        request.evaluator = "greedy"
        with raises(
            InvalidInput,
            "UNKNOWN_EXTENSION",
            field="evaluation.evaluator",
            match="backtest, greedy_epis",
        ):
            stub.EvaluateCheckpoint(request, timeout=30)

    def test_a_damaged_file_is_named(self, evaluator, stub, stored):
        path = evaluator.store_folder / PREFIX / "actor.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        request = pb.EvaluateCheckpointRequest(
            checkpoints=[pb.CheckpointSource(checkpoint=stored[0])]
        )
        with pytest.raises(DataCorrupted, match=r"actor\.safetensors"):
            stub.EvaluateCheckpoint(request, timeout=30)

    @pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
    @pytest.mark.parametrize(
        ("number", "suffix"),
        [
            (pb.EXPORT_FORMAT_UNSPECIFIED, ".pt2"),
            (pb.EXPORT_FORMAT_TORCH_EXPORT, ".pt2"),
            (pb.EXPORT_FORMAT_TORCHSCRIPT, ".pt"),
            (pb.EXPORT_FORMAT_ONNX, ".onnx"),
        ],
    )
    def test_an_exported_policy_acts_without_podracer(self, stub, stored, number, suffix, tmp_path):
        message, _, algorithm = stored
        request = pb.ExportPolicyRequest(
            checkpoints=[pb.CheckpointSource(checkpoint=message)], format=number
        )
        parts = list(stub.ExportPolicy(request, timeout=60))
        header, data = parts[0].header, b"".join(part.data for part in parts[1:])
        assert len(data) == header.size_bytes
        assert hashlib.sha256(data).hexdigest() == header.sha256
        assert header.largest_difference <= 1e-5
        assert (header.compared_count, header.played_count) == (128 + 256, 256)
        path = tmp_path / f"policy{suffix}"
        path.write_bytes(data)
        if suffix == ".onnx":
            session = onnxruntime.InferenceSession(path)

            def policy(rows: torch.Tensor) -> torch.Tensor:
                return torch.from_numpy(session.run(None, {"observation": rows.numpy()})[0])

        else:
            policy = torch.jit.load(path) if suffix == ".pt" else torch.export.load(path).module()
        observation = torch.randn(7, 3)
        expected = algorithm.actor.greedy(observation.unsqueeze(0))[0]
        assert torch.allclose(policy(observation), expected, atol=1e-5)

    def test_several_act_together(self, evaluator, stub, stored):
        """By reference, by folder, and by the hash of a packed one, which has to be brought
        first."""
        message, result, _ = stored
        one = load_checkpoint(open_store(evaluator.store), PREFIX, groups=POLICY_GROUPS)
        actions = {name: tensor + 0.3 for name, tensor in one.groups["actor"].items()}
        other = Checkpoint({**one.groups, "actor": actions}, one.metadata, one.libraries)
        packed = pack_policy(other)
        sources = [
            pb.CheckpointSource(checkpoint=message),
            pb.CheckpointSource(folder=str(evaluator.store_folder / PREFIX)),
            pb.CheckpointSource(file_sha256=hashlib.sha256(packed).hexdigest()),
        ]
        request = pb.EvaluateCheckpointRequest(checkpoints=sources)
        with raises(PreconditionFailed, "FILES_MISSING"):
            stub.EvaluateCheckpoint(request, timeout=30)
        bring_file(stub.PutFile, pb.PutFileRequest, packed, "")
        response = stub.EvaluateCheckpoint(request, timeout=30)
        expected = evaluate_checkpoints(
            [one, one, other], EnvironmentSpec(id="Pendulum-v1"), result.seeds
        )
        assert tuple(response.evaluation.returns) == expected.returns != result.returns
        assert (response.evaluation.agent, response.evaluation.env_steps) == ("", 0)
        assert not response.HasField("largest_difference")
        assert tuple(response.stored.returns) == result.returns

        export = pb.ExportPolicyRequest(checkpoints=sources, ensemble="mean")
        header = next(iter(stub.ExportPolicy(export, timeout=60))).header
        assert header.largest_difference <= 1e-5
        request.ensemble = export.ensemble = "vote"
        with raises(InvalidInput, "ENSEMBLE_RULE"):
            stub.EvaluateCheckpoint(request, timeout=30)
        with raises(InvalidInput, "ENSEMBLE_RULE"):
            list(stub.ExportPolicy(export, timeout=30))

    def test_a_file_that_is_no_policy(self, stub):
        bring_file(stub.PutFile, pb.PutFileRequest, b"not a policy", "")
        source = pb.CheckpointSource(file_sha256=hashlib.sha256(b"not a policy").hexdigest())
        with pytest.raises(DataCorrupted, match="a packed policy"):
            stub.EvaluateCheckpoint(pb.EvaluateCheckpointRequest(checkpoints=[source]))
        with pytest.raises(InvalidInput, match="64 lower-case"):
            source = pb.CheckpointSource(file_sha256="../../etc/passwd")
            stub.EvaluateCheckpoint(pb.EvaluateCheckpointRequest(checkpoints=[source]))

    @pytest.mark.parametrize(
        ("fields", "complaint"),
        [
            ({"episodes": -1}, "episodes: is -1, .*or equal to 0"),
            ({"seeds": range(100_001)}, "episodes must be 0 to 100000, not 100001"),
            ({"seeds": [1], "purpose": 99}, "purpose: is 99, .*defined"),
        ],
    )
    def test_a_request_that_cannot_be_right_is_refused(self, stub, stored, fields, complaint):
        source = pb.CheckpointSource(checkpoint=stored[0])
        with pytest.raises(InvalidInput, match=complaint):
            stub.EvaluateCheckpoint(pb.EvaluateCheckpointRequest(checkpoints=[source], **fields))

    @pytest.mark.parametrize(
        ("sources", "error"),
        [
            ([], InvalidInput),
            ([pb.CheckpointSource()], InvalidInput),
            ([pb.CheckpointSource(folder="/nowhere")], InvalidInput),
            ([pb.CheckpointSource(folder="a" * 300)], InvalidInput),
            ([pb.CheckpointSource(folder="a\0b")], InvalidInput),
            (
                [
                    pb.CheckpointSource(
                        checkpoint=agent_pb2.CheckpointReference(prefix="projects/x/")
                    )
                ],
                NotFound,
            ),
        ],
        ids=["none", "empty", "no folder", "no name of a folder", "a byte of none", "no object"],
    )
    def test_a_checkpoint_that_is_not_there(self, stub, sources, error):
        with pytest.raises(error):
            stub.EvaluateCheckpoint(pb.EvaluateCheckpointRequest(checkpoints=sources))

    def test_a_shared_evaluator_reads_no_folders(self, lab, evaluator, stored):
        lab.start("evaluator")
        stub = evaluator_service_pb2_grpc.EvaluatorServiceStub(lab.channel("evaluator"))
        source = pb.CheckpointSource(folder=str(evaluator.store_folder / PREFIX))
        with pytest.raises(PreconditionFailed, match="folders"):
            stub.EvaluateCheckpoint(pb.EvaluateCheckpointRequest(checkpoints=[source]))


def user_environment(
    stub: evaluator_service_pb2_grpc.EvaluatorServiceStub, folder: Path, entry_point: str
) -> environment_pb2.EnvironmentSpec:
    """A user's environment whose code the evaluator has been brought."""
    code = bring_file(stub.PutFile, pb.PutFileRequest, pack_code(folder, entry_point), "code.zip")
    return environment_to_message(EnvironmentSpec(entry_point=entry_point, code=code))


class TestInspect:
    @pytest.mark.parametrize("seconds", [-1, 3601, (1 << 63) - 1])
    def test_a_limit_that_is_none(self, stub, seconds):
        request = pb.InspectRequest(environment=environment_pb2.EnvironmentSpec(id="CartPole-v1"))
        request.timeout.seconds = seconds
        with raises(InvalidInput, field="timeout") as refused:
            stub.Inspect(request, timeout=30)
        assert refused.value.violations[0].field == "timeout"

    def test_a_users_own_that_raises(self, stub, tmp_path):
        (tmp_path / "maze.py").write_text(
            "class Maze:\n    def __init__(self, size):\n        raise KeyError('walls')\n"
        )
        spec = user_environment(stub, tmp_path, "maze:Maze")
        spec.kwargs.update({"size": 3})
        with pytest.raises(UserCodeFailed) as failed:
            stub.Inspect(pb.InspectRequest(environment=spec), timeout=30)
        assert "KeyError: 'walls'" in failed.value.user_traceback

    def test_one_that_never_starts_is_given_up_in_time(self, stub, tmp_path):
        (tmp_path / "slow.py").write_text(
            "import time\nclass Slow:\n    def __init__(self):\n        time.sleep(600)\n"
        )
        spec = user_environment(stub, tmp_path, "slow:Slow")
        request = pb.InspectRequest(environment=spec, timeout=duration_pb2.Duration(seconds=2))
        with pytest.raises(UserCodeFailed):
            stub.Inspect(request, timeout=120)
