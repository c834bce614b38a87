"""EVALUATE leases in a real learner process, fused, and split with its evaluator, which has no
store."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import POLICY_GROUPS, evaluate_checkpoints, load_checkpoint
from podracer_platform.messages import seconds_from_duration
from podracer_platform.storage import open_store
from support.processes import wait_until

pytestmark = pytest.mark.processes

MakeWork = Callable[..., pod_service_pb2.TrainWork]
PENDULUM = EnvironmentSpec(id="Pendulum-v1")
SEEDS = list(range(300, 340))  # more than a block of rows


def finished(granted: Any, within_s: float = 60) -> pod_service_pb2.CompleteWorkRequest:
    assert granted.over.wait(within_s), "the lease was not ended"
    assert granted.completed is not None, granted.released
    return granted.completed


def trained(lab: Any, work: pod_service_pb2.TrainWork) -> list[agent_pb2.Parent]:
    """The candidates of a round, as policies to evaluate."""
    result = finished(lab.orchestrator.offer(train=work)).train
    return [
        agent_pb2.Parent(agent=member.candidate.agent, checkpoint=member.candidate.checkpoint)
        for member in result.members
    ]


def evaluate_work(
    policies: Sequence[agent_pb2.Parent], environment: str = "Pendulum-v1", **fields: Any
) -> pod_service_pb2.EvaluateWork:
    fields = {"seeds": SEEDS, "purpose": agent_pb2.EVALUATION_PURPOSE_CHALLENGE} | fields
    return pod_service_pb2.EvaluateWork(
        environment=environment_pb2.EnvironmentSpec(id=environment), policies=policies, **fields
    )


def expected_returns(
    lab: Any, policies: Sequence[agent_pb2.Parent], rule: str | None = None
) -> tuple[float, ...]:
    torch.set_num_threads(1)
    store = open_store(lab.store)
    checkpoints = [
        load_checkpoint(store, one.checkpoint.prefix, None, POLICY_GROUPS) for one in policies
    ]
    return evaluate_checkpoints(checkpoints, PENDULUM, SEEDS, rule=rule).returns


@pytest.fixture(scope="module")
def split_without_store(shared_lab: Any) -> Any:
    """As the split pod of the other tests, but that its evaluator really has no store."""
    shared_lab.start("worker")
    shared_lab.start("evaluator", store="")
    shared_lab.start_learner("split")
    return shared_lab


@pytest.fixture(params=["fused", "split_without_store"])
def either_pod(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_a_candidate_is_judged_again_with_fresh_seeds(either_pod, train_work):
    (policy,) = trained(either_pod, train_work("Pendulum-v1", members=1, steps=300))
    before = len(either_pod.orchestrator.grants)
    granted = either_pod.orchestrator.offer(evaluate=evaluate_work([policy]))
    result = finished(granted).evaluate
    evaluation = result.evaluation
    assert tuple(evaluation.returns) == expected_returns(either_pod, [policy])
    assert list(evaluation.seeds) == SEEDS
    assert (evaluation.agent, evaluation.checkpoint) == (policy.agent, policy.checkpoint)
    assert evaluation.env_steps == policy.checkpoint.env_steps > 0
    assert evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_CHALLENGE
    assert evaluation.lower_bound < evaluation.mean < evaluation.upper_bound
    assert seconds_from_duration(evaluation.duration) > 0
    assert seconds_from_duration(result.cost) > 0
    assert evaluation.HasField("create_time")
    assert result.ensemble == ""
    assert len(either_pod.orchestrator.grants) == before + 1
    again = finished(
        either_pod.orchestrator.offer(evaluate=evaluate_work([policy]))
    ).evaluate.evaluation
    assert again.returns == evaluation.returns
    assert again.evaluation_id != evaluation.evaluation_id


def test_several_act_together(either_pod, train_work):
    policies = trained(either_pod, train_work("Pendulum-v1", members=3, steps=300))
    result = finished(either_pod.orchestrator.offer(evaluate=evaluate_work(policies))).evaluate
    assert result.ensemble == "mean"
    assert tuple(result.evaluation.returns) == expected_returns(either_pod, policies)
    assert result.evaluation.agent == ""
    assert not result.evaluation.HasField("checkpoint")


def test_what_cannot_be_is_a_problem(either_pod, train_work):
    (policy,) = trained(either_pod, train_work("Pendulum-v1", members=1, steps=300))

    def reason(work: pod_service_pb2.EvaluateWork) -> str:
        problem = finished(either_pod.orchestrator.offer(evaluate=work)).problem
        assert problem.message
        return problem.reason

    altered = agent_pb2.Parent()
    altered.CopyFrom(policy)
    altered.checkpoint.manifest_sha256 = "0" * 64
    assert reason(evaluate_work([altered])) == "DATA_CORRUPTED"
    altered.checkpoint.prefix = policy.checkpoint.prefix.replace("/a0/", "/missing/")
    assert reason(evaluate_work([altered])) == "DATA_CORRUPTED"
    assert reason(evaluate_work([policy], environment="CartPole-v1")) == "OTHER_SPACES"
    assert reason(evaluate_work([policy, policy], ensemble="vote")) == "ENSEMBLE_RULE"
    assert reason(evaluate_work([])) == "NOTHING_TO_EVALUATE"
    assert reason(evaluate_work([policy], seeds=[])) == "NOTHING_TO_EVALUATE"


class TestUserCode:
    """An environment whose steps take their time, and which says where it fails."""

    @pytest.fixture
    def code(self, tmp_path: Path) -> Path:
        (tmp_path / "slow.py").write_text(
            "import time, gymnasium\n"
            "class Slow(gymnasium.Env):\n"
            "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
            "    action_space = gymnasium.spaces.Discrete(2)\n"
            "    def __init__(self, pause=0.0, length=20, break_after=0):\n"
            "        self.pause, self.length, self.break_after = pause, length, break_after\n"
            "    def reset(self, seed=None, options=None):\n"
            "        super().reset(seed=seed)\n"
            "        self.count = 0\n"
            "        return self.observation_space.sample() * 0, {}\n"
            "    def step(self, action):\n"
            "        self.count += 1\n"
            "        time.sleep(self.pause)\n"
            "        if self.count == self.break_after:\n"
            "            raise RuntimeError('the wheel came off')\n"
            "        return self.observation_space.sample() * 0, 1.0, self.count >= self.length, "
            "False, {}\n"
        )
        return tmp_path

    @pytest.fixture
    def policy(self, lab: Any, train_work: MakeWork, code: Path) -> Callable[..., Any]:
        """The evaluation of an agent that has trained in it."""

        def make() -> pod_service_pb2.EvaluateWork:
            spec = lab.put_code(code, "slow:Slow")
            work = train_work(user=spec, members=1, envs=2, steps=32)
            box = work.cohort.environment_description.observation_space.box
            box.shape.append(2)
            box.low.append(-1)
            box.high.append(1)
            work.cohort.environment_description.action_space.discrete.n = 2
            work.evaluation.episodes = 1
            result = finished(lab.orchestrator.offer(train=work)).train
            reference = result.members[0].final.checkpoint
            policy = agent_pb2.Parent(
                agent=result.members[0].final.progress.agent, checkpoint=reference
            )
            return pod_service_pb2.EvaluateWork(
                environment=spec,
                policies=[policy],
                seeds=[1, 2],
                purpose=agent_pb2.EVALUATION_PURPOSE_CHALLENGE,
            )

        return make

    @pytest.mark.parametrize("layout", ["fused", "split"])
    def test_failing_taking_too_long_and_being_told_to_stop(self, lab, policy, layout):
        if layout == "split":
            lab.start("worker")
            lab.start("evaluator", store="")
        process = lab.start_learner(layout, allow_user_code="true", peer_patience="15s")
        work = policy()
        assert list(
            finished(lab.orchestrator.offer(evaluate=work)).evaluate.evaluation.returns
        ) == [20.0, 20.0]
        work.environment.kwargs.update({"break_after": 7})
        problem = finished(lab.orchestrator.offer(evaluate=work)).problem
        assert problem.reason == "USER_CODE_FAILED"
        assert "the wheel came off" in problem.detail

        work.environment.kwargs.update({"break_after": 0, "length": 2000, "pause": 0.02})
        work.timeout.FromMilliseconds(700)
        granted = lab.orchestrator.offer(evaluate=work, term_s=5.0)
        assert finished(granted).problem.reason == "EVALUATION_TOO_LONG"
        work.ClearField("timeout")
        granted = lab.orchestrator.offer(evaluate=work, term_s=5.0)
        wait_until(lambda: len(granted.renewals) >= 2, 60, "renewals")
        stub = learner_service_pb2_grpc.LearnerServiceStub(lab.channel("learner"))
        status = stub.GetStatus(learner_service_pb2.GetStatusRequest())
        assert status.state == learner_service_pb2.LEARNER_STATE_BUSY
        assert (status.fence, list(status.agents)) == (
            granted.lease.fence,
            [work.policies[0].agent],
        )
        process.send_signal(signal.SIGTERM)
        assert granted.over.wait(60)
        assert granted.released.reason.reason == "DRAINING"
        assert process.wait(60) == 0

    @pytest.mark.thorough
    def test_a_lost_evaluator_is_waited_for(self, lab, policy):
        lab.start("worker")
        lab.start("evaluator", store="")
        lab.start_learner("split")
        work = policy()
        work.environment.kwargs.update({"length": 1000, "pause": 0.001})
        granted = lab.orchestrator.offer(evaluate=work, term_s=5.0)
        wait_until(lambda: len(granted.renewals) >= 2, 60, "renewals")
        lab.kill("evaluator")
        time.sleep(1.5)
        assert not granted.over.is_set()
        lab.start("evaluator", store="")
        assert list(finished(granted).evaluate.evaluation.returns) == [1000.0, 1000.0]
        assert granted.refused == 0


def test_a_fused_pod_runs_no_user_code_unless_it_may(lab):
    lab.start_learner()
    work = evaluate_work([agent_pb2.Parent(agent="projects/p/jobs/j/agents/a")])
    work.environment.CopyFrom(environment_pb2.EnvironmentSpec(entry_point="mine:Own"))
    assert finished(lab.orchestrator.offer(evaluate=work)).problem.reason == "USER_CODE_NOT_ALLOWED"
