"""A real learner process, alone or with its worker and evaluator, under an orchestrator that is
scripted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.checkpoint import Checkpoint, load_checkpoint
from podracer_core.errors import NotFound, PreconditionFailed
from podracer_platform.carriers import TensorDecoder
from podracer_platform.storage import open_store
from support.processes import wait_until

pytestmark = pytest.mark.processes


def load(lab: Any, reference: agent_pb2.CheckpointReference) -> Checkpoint:
    return load_checkpoint(open_store(lab.store), reference.prefix, reference.manifest_sha256)


def finished(granted: Any, within_s: float = 60) -> pod_service_pb2.CompleteWorkRequest:
    assert granted.over.wait(within_s), "the lease was not ended"
    assert granted.completed is not None, granted.released
    return granted.completed


def wait_for_steps(granted: Any, within_s: float = 60) -> None:
    """Until the learner has told of environment steps."""
    deadline = time.monotonic() + within_s
    while not any(member.env_steps for renewal in granted.renewals for member in renewal.members):
        assert time.monotonic() < deadline, "no progress came"
        time.sleep(0.05)


def tells_a_return(renewal: pod_service_pb2.RenewLeaseRequest) -> bool:
    return any(member.HasField("training_return") for member in renewal.members)


def continued(
    agent: agent_pb2.AgentSpec, reference: agent_pb2.CheckpointReference
) -> agent_pb2.AgentSpec:
    """The same agent, to train on from its checkpoint."""
    after = agent_pb2.AgentSpec()
    after.CopyFrom(agent)
    after.resume.CopyFrom(reference)
    after.env_steps = reference.env_steps
    return after


def test_a_round_of_steps_ends_with_checkpoints_candidates_and_exact_counters(pod, train_work):
    work = train_work(members=3, envs=8, steps=500, episodes=10)
    granted = pod.orchestrator.offer(train=work)
    result = finished(granted).train
    assert len(result.members) == 3
    for index, member in enumerate(result.members):
        name = work.cohort.members[index].name
        assert member.final.progress.agent == name
        assert member.final.progress.env_steps == 512  # four rollouts of 16 steps in 8 environments
        assert member.final.checkpoint.env_steps == 512
        assert member.final.checkpoint.fence == granted.lease.fence
        assert len(member.candidate.returns) == 10
        assert member.candidate.purpose == agent_pb2.EVALUATION_PURPOSE_CANDIDATE
        assert 0 < member.candidate.env_steps <= 512
        assert member.candidate.checkpoint.env_steps == member.candidate.env_steps
        confirm = member.candidate.confirm_time.ToNanoseconds()
        total = result.train_time.ToNanoseconds()
        assert 0 < member.candidate.train_time.ToNanoseconds() <= confirm <= total
        cost = member.final.progress.cost.ToNanoseconds()
        assert cost > 0, "processor seconds: how many depends on the machine"
        assert member.final.progress.evaluation_cost.ToNanoseconds() <= cost
        last = load(pod, member.final.checkpoint)
        assert last.metadata["env_steps"] == 512
        assert last.groups["random"]["step_count"] == 64
        best = load(pod, member.candidate.checkpoint)
        assert best.metadata["evaluation"]["returns"] == list(member.candidate.returns)
    assert result.env_steps_per_second > 0


def test_the_evaluation_of_a_hopeless_candidate_ends_early(pod, train_work):
    work = train_work(members=1, steps=500, episodes=12, admission_score=1e6)
    (member,) = finished(pod.orchestrator.offer(train=work)).train.members
    assert len(member.candidate.returns) == 8


def differences(lab: Any, one: Any, other_lab: Any, other: Any) -> dict[str, float]:
    """Largest difference of every tensor of two results' final checkpoints, by name."""
    found = {}
    for first, second in zip(one.members, other.members, strict=True):
        mine, theirs = load(lab, first.final.checkpoint), load(other_lab, second.final.checkpoint)
        assert set(mine.groups) == set(theirs.groups)
        for group, tensors in mine.groups.items():
            for name, tensor in tensors.items():
                difference = (tensor.double() - theirs.groups[group][name].double()).abs()
                found[f"{first.final.progress.agent} {group} {name}"] = (
                    float(difference.max()) if tensor.numel() else 0.0
                )
    return found


def test_both_layouts_train_the_same_agents_bit_for_bit_in_lock_step(fused, split, train_work):
    """The same seeds, the same rollouts, the same updates: only who takes the steps differs."""
    work = train_work(members=2, envs=6, steps=16 * 6 * 5, deterministic=True)
    in_split, in_fused = (
        finished(lab.orchestrator.offer(train=work)).train for lab in (split, fused)
    )
    assert set(differences(split, in_split, fused, in_fused).values()) == {0.0}


def test_two_workers_share_the_environments_of_each_member(fused, lab, train_work):
    """Not to the last bit: a product of half the rows may round differently."""
    lab.start_split(2)
    work = train_work(members=2, envs=6, steps=16 * 6 * 5, deterministic=True)
    in_split, in_fused = (
        finished(one.orchestrator.offer(train=work)).train for one in (lab, fused)
    )
    assert max(differences(lab, in_split, fused, in_fused).values()) < 1e-3


def test_a_resumed_agent_goes_on_as_if_never_stopped(pod, train_work):
    steps = 16 * 8
    whole = finished(
        pod.orchestrator.offer(train=train_work(steps=4 * steps, deterministic=True))
    ).train
    half_work = train_work(steps=2 * steps, deterministic=True)
    half = finished(pod.orchestrator.offer(train=half_work)).train
    for agent, member in zip(list(half_work.cohort.members), half.members, strict=True):
        agent.CopyFrom(continued(agent, member.final.checkpoint))
    rest = finished(pod.orchestrator.offer(train=half_work)).train
    for one, other in zip(whole.members, rest.members, strict=True):
        assert other.final.progress.env_steps == 2 * steps
        assert other.final.checkpoint.env_steps == one.final.checkpoint.env_steps == 4 * steps
        first, second = load(pod, one.final.checkpoint), load(pod, other.final.checkpoint)
        for group, tensors in first.groups.items():
            for name, tensor in tensors.items():
                assert torch.equal(tensor, second.groups[group][name]), (group, name)


def test_a_copy_starts_from_the_donors_candidate_with_its_own_seed_and_hyperparameters(
    fused, train_work
):
    donor = finished(
        fused.orchestrator.offer(train=train_work(members=1, steps=500))
    ).train.members[0]
    work = train_work(members=2, steps=1, hyperparameters={"learning_rate": 1e-7})
    child = work.cohort.members[1]
    child.seed, child.env_steps = 999, donor.candidate.env_steps
    child.initialization.kind = agent_pb2.INITIALIZATION_KIND_COPY
    child.initialization.parents.add(
        agent="projects/p/jobs/j/agents/a0", checkpoint=donor.candidate.checkpoint
    )
    result = finished(fused.orchestrator.offer(train=work)).train.members[1]
    before, after = load(fused, donor.candidate.checkpoint), load(fused, result.final.checkpoint)
    for name, tensor in before.groups["actor"].items():
        assert torch.allclose(tensor, after.groups["actor"][name], atol=1e-5), (
            "one update at a tiny rate"
        )
    assert after.groups["optimizer"]["step_count"] > before.groups["optimizer"]["step_count"]
    assert (
        after.groups["normalizer"]["observations.count"]
        > before.groups["normalizer"]["observations.count"]
    )
    assert after.groups["random"]["seed"] == 999
    assert after.groups["random"]["step_count"] == 16
    assert after.metadata["hyperparameters"]["learning_rate"] == 1e-7
    assert result.final.checkpoint.env_steps == donor.candidate.env_steps + 128
    assert result.final.progress.env_steps == 128


def test_agents_learn_and_a_target_ends_the_round_with_the_winner_committed_first(pod, train_work):
    knobs = {"horizon": 32, "minibatch_size": 1024, "epochs": 4, "learning_rate": 2e-3}
    work = train_work(
        members=4, envs=32, seconds=600, target=150.0, episodes=20, hyperparameters=knobs
    )
    granted = pod.orchestrator.offer(train=work)
    result = finished(granted, 300).train
    judged = agent_pb2.EVALUATION_PURPOSE_CANDIDATE
    members = [member for member in result.members if member.candidate.purpose == judged]
    winners = [member for member in members if member.candidate.mean >= 150]
    assert winners
    assert all(len(winner.candidate.returns) == 20 for winner in winners)
    committed = [member.checkpoint for commit in granted.commits for member in commit.members]
    assert any(winner.candidate.checkpoint in committed for winner in winners)


def test_checkpoints_are_committed_while_training_goes_on(pod, train_work):
    work = train_work(seconds=300)
    work.checkpoint_interval.FromMilliseconds(300)
    granted = pod.orchestrator.offer(train=work, term_s=5.0)
    wait_until(lambda: len(granted.commits) >= 3, 60, "commits")
    wait_until(
        lambda: any(map(tells_a_return, granted.renewals)), 60, "a renewal that tells a return"
    )
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    result = finished(granted).train
    totals = [commit.members[0].progress.env_steps for commit in granted.commits]
    assert totals == sorted(set(totals))
    assert result.members[0].final.progress.env_steps >= totals[-1]
    for commit in granted.commits:
        for member in commit.members:
            assert load(pod, member.checkpoint).metadata["env_steps"] == member.progress.env_steps
    assert granted.refused == 0
    live = [renewal for renewal in granted.renewals if tells_a_return(renewal)][-1]
    assert live.members[0].env_steps > 0
    assert live.members[0].metrics["policy_loss"] == pytest.approx(
        live.members[0].metrics["policy_loss"]
    )
    assert live.env_steps_per_second > 0


def test_finish_ends_the_round_early_with_its_result(fused, train_work):
    granted = fused.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_for_steps(granted)
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    result = finished(granted).train
    assert all(member.HasField("candidate") for member in result.members)


def test_drain_commits_releases_and_stops(lab, train_work):
    process = lab.start_learner()
    granted = lab.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_for_steps(granted)
    granted.action = pod_service_pb2.LEASE_ACTION_DRAIN
    assert granted.over.wait(60)
    assert granted.released.reason.reason == "DRAINING"
    assert granted.commits[-1].members[0].progress.env_steps > 0
    assert process.wait(60) == 0


def test_release_commits_hands_back_and_goes_on_with_other_work(fused, train_work):
    granted = fused.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_for_steps(granted)
    granted.action = pod_service_pb2.LEASE_ACTION_RELEASE
    assert granted.over.wait(60)
    assert granted.released.reason.reason == "DRAINING"
    assert granted.commits[-1].members[0].progress.env_steps > 0
    finished(fused.orchestrator.offer(train=train_work(steps=128)))
    assert len({one.instance_id for one in fused.orchestrator.requests}) == 1


def test_exit_stops_the_process(lab):
    process = lab.start_learner()
    lab.orchestrator.offer(exit=pod_service_pb2.ExitWork(reason="too many"))
    assert process.wait(60) == 0


def test_the_same_pod_works_on_and_on(fused, train_work):
    for _ in range(3):
        finished(fused.orchestrator.offer(train=train_work(steps=128)))
    request = fused.orchestrator.requests[0]
    assert request.pod == "projects/p/pods/a"
    assert request.address == fused.addresses["learner"]
    assert len({one.instance_id for one in fused.orchestrator.requests}) == 1


def test_an_inspection_starts_what_the_best_is_trained_on_at_the_end_too(pod):
    cartpole, acrobot = (
        environment_pb2.EnvironmentSpec(id=name) for name in ("CartPole-v1", "Acrobot-v1")
    )
    work = pod_service_pb2.InspectWork(environment=cartpole, retrain_environment=cartpole)
    assert (
        finished(pod.orchestrator.offer(inspect=work)).inspect.description.action_space.discrete.n
        == 2
    )
    work.retrain_environment.CopyFrom(acrobot)
    problem = finished(pod.orchestrator.offer(inspect=work)).problem
    assert (
        problem.message == "retrain.kwargs: these change the environment's observations or actions"
    )
    work.retrain_environment.CopyFrom(cartpole)
    work.retrain_environment.kwargs["gravity"] = 1.0
    assert "retrain.kwargs: " in finished(pod.orchestrator.offer(inspect=work)).problem.message


def test_a_round_without_evaluation_has_no_candidate(pod, train_work):
    work = train_work(steps=256)
    work.unjudged = True
    result = finished(pod.orchestrator.offer(train=work)).train
    assert all(member.HasField("final") for member in result.members)
    assert not any(member.HasField("candidate") or member.evaluations for member in result.members)


class TestUserCode:
    """Environments that fail, each with the user's own words."""

    @pytest.fixture
    def code(self, tmp_path: Path) -> Path:
        (tmp_path / "mine.py").write_text(
            "import gymnasium\n"
            "class Broken(gymnasium.Env):\n"
            "    def __init__(self):\n"
            "        print('looking for the maze')\n"
            "        raise ValueError('no maze')\n"
            "class Late(gymnasium.Env):\n"
            "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
            "    action_space = gymnasium.spaces.Discrete(2)\n"
            "    def reset(self, seed=None, options=None):\n"
            "        self.count = 0\n"
            "        return self.observation_space.sample(), {}\n"
            "    def step(self, action):\n"
            "        self.count += 1\n"
            "        if self.count > 20:\n"
            "            raise RuntimeError('the wheel came off')\n"
            "        return self.observation_space.sample(), 1.0, False, False, {}\n"
        )
        return tmp_path

    def test_inspection(self, pod, code):
        spec = pod.put_code(code, "mine:Broken")
        granted = pod.orchestrator.offer(inspect=pod_service_pb2.InspectWork(environment=spec))
        problem = finished(granted).problem
        assert problem.reason == "USER_CODE_FAILED"
        assert "ValueError: no maze" in problem.detail
        assert 'mine.py", line 5' in problem.detail
        assert problem.detail.endswith(
            "The last output of the environment:\nlooking for the maze\n"
        )

    def test_training(self, pod, train_work, code):
        work = train_work(user=pod.put_code(code, "mine:Late"), members=1, envs=2, steps=10_000)
        work.cohort.environment_description.observation_space.box.shape.append(2)
        work.cohort.environment_description.observation_space.box.low.append(-1)
        work.cohort.environment_description.observation_space.box.high.append(1)
        work.cohort.environment_description.action_space.discrete.n = 2
        problem = finished(pod.orchestrator.offer(train=work)).problem
        assert problem.reason == "USER_CODE_FAILED"
        assert "the wheel came off" in problem.detail
        finished(pod.orchestrator.offer(train=train_work(steps=128)))

    def test_a_fused_pod_runs_none_unless_it_may(self, lab, train_work, code):
        lab.start_learner()
        spec = lab.put_code(code, "mine:Broken")
        granted = lab.orchestrator.offer(inspect=pod_service_pb2.InspectWork(environment=spec))
        assert finished(granted).problem.reason == "USER_CODE_NOT_ALLOWED"
        granted = lab.orchestrator.offer(
            train=train_work(user=lab.put_code(code, "mine:Late"), steps=10)
        )
        assert finished(granted).problem.reason == "USER_CODE_NOT_ALLOWED"


def test_a_gymnasium_environment_trains(pod, train_work):
    inspection = pod_service_pb2.InspectWork(
        environment=environment_pb2.EnvironmentSpec(id="FrozenLake-v1")
    )
    description = finished(pod.orchestrator.offer(inspect=inspection)).inspect.description
    work = train_work("FrozenLake-v1", members=2, envs=4, steps=256, episodes=2)
    work.cohort.environment_description.CopyFrom(description)
    result = finished(pod.orchestrator.offer(train=work), 60).train
    assert result.members[0].final.progress.env_steps == 256
    assert 0 <= result.members[0].candidate.mean <= 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda work: setattr(work.cohort, "algorithm", "dreamer"), "UNKNOWN_ALGORITHM"),
        (lambda work: work.cohort.members[1].hyperparameters["horizon"].CopyFrom(
            agent_pb2.HyperparameterValue(integer=8)), "COHORT_MISMATCH"),
        (lambda work: work.cohort.members[0].hyperparameters["learning_rate"].CopyFrom(
            agent_pb2.HyperparameterValue(number=-1.0)), "INVALID_INPUT"),
        (lambda work: work.cohort.members[0].resume.CopyFrom(agent_pb2.CheckpointReference(
            prefix="projects/p/jobs/u/agents/a/checkpoints/1-1/", manifest_sha256="0" * 64)),
            "DATA_CORRUPTED"),
        (lambda work: setattr(work.cohort.environment, "id", "CartPoll-v1"), "UNKNOWN_ENVIRONMENT"),
        (lambda work: setattr(work.evaluation, "evaluator", "greedy"), "UNKNOWN_EXTENSION"),
    ],
    ids=["algorithm", "stack", "range", "checkpoint", "environment", "evaluator"],
)  # fmt: skip
def test_work_that_cannot_be_right_ends_with_a_problem(fused, train_work, change, reason):
    work = train_work(steps=128)
    change(work)
    problem = finished(fused.orchestrator.offer(train=work)).problem
    assert problem.reason == reason
    assert problem.message


def test_a_learner_tells_its_state_policy_and_checkpoints_while_it_trains(fused, train_work):
    stub = learner_service_pb2_grpc.LearnerServiceStub(fused.channel("learner"))
    deadline = time.monotonic() + 60  # the round of the test before may be ending
    while (idle := stub.GetStatus(learner_service_pb2.GetStatusRequest())).state != (
        learner_service_pb2.LEARNER_STATE_IDLE
    ):
        assert time.monotonic() < deadline, idle
        time.sleep(0.1)
    with pytest.raises(PreconditionFailed):
        stub.Checkpoint(learner_service_pb2.CheckpointRequest())
    granted = fused.orchestrator.offer(train=train_work(members=2, seconds=300), term_s=5.0)
    deadline = time.monotonic() + 60
    while (status := stub.GetStatus(learner_service_pb2.GetStatusRequest())).updates == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status.state == learner_service_pb2.LEARNER_STATE_TRAINING
    assert status.fence == granted.lease.fence
    assert list(status.agents) == ["projects/p/jobs/j/agents/a0", "projects/p/jobs/j/agents/a1"]
    assert status.env_steps > 0

    agent = status.agents[1]
    (header,) = stub.FetchPolicy(learner_service_pb2.FetchPolicyRequest(agent=agent))
    assert list(header.snapshot.agents) == [agent]
    decoder = TensorDecoder()
    decoder.begin(header.snapshot.tensors)
    assert decoder.take()["observation_mean"].shape == (1, 1, 4)

    (reference,) = stub.Checkpoint(
        learner_service_pb2.CheckpointRequest(agents=[agent])
    ).checkpoints
    assert granted.commits[-1].members[0].checkpoint == reference
    assert load(fused, reference).metadata["agent"] == agent
    asked = [*reversed(status.agents), agent]
    references = stub.Checkpoint(learner_service_pb2.CheckpointRequest(agents=asked)).checkpoints
    assert [load(fused, one).metadata["agent"] for one in references] == asked[:2], (
        "in the order asked for, each once"
    )
    with pytest.raises(NotFound):
        stub.Checkpoint(
            learner_service_pb2.CheckpointRequest(agents=["projects/p/jobs/j/agents/x"])
        )
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    finished(granted)
