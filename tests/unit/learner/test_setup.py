"""On which device a fused pod trains, and with how many environments."""

from __future__ import annotations

import pytest
import torch

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import PPO, CohortConfig, MemberConfig
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import CartPole, device_for
from podracer_learner.round import describe_sizes, envs_per_member


@pytest.mark.parametrize(
    ("spec", "device"),
    [
        (EnvironmentSpec("CartPole-v1"), "cuda"),
        (EnvironmentSpec("Ant-v5"), "cuda"),
        (EnvironmentSpec("Swimmer-v5"), "cpu"),  # MuJoCo Warp does not step it
        (EnvironmentSpec("Reacher-v5"), "cpu"),
        (EnvironmentSpec("LunarLander-v3"), "cpu"),  # in processes
        (EnvironmentSpec(entry_point="gymnasium.envs.mujoco.ant_v5:AntEnv"), "cpu"),
    ],
)
def test_auto_is_a_gpu_where_the_environment_runs_on_it(spec, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_for("auto", spec) == device
    assert device_for("cuda:1", spec) == "cuda:1"  # an explicit device is checked later
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_for("auto", spec) == "cpu"


@pytest.mark.parametrize(
    ("environment", "algorithm", "members", "device", "envs"),
    [
        ("CartPole-v1", "ppo", 1, "cpu", 256),  # one batch of tensors, shared among the members
        ("CartPole-v1", "ppo", 8, "cpu", 32),
        ("CartPole-v1", "ppo", 64, "cpu", 16),
        ("Hopper-v5", "ppo", 1, "cpu", 16),  # each world is a CPU's work by itself
        ("Hopper-v5", "ppo", 8, "cpu", 16),
        ("Hopper-v5", "ppo", 1, "cuda", 8192),  # a GPU steps thousands at once
        ("CartPole-v1", "ppo", 8, "cuda", 2048),
        ("CartPole-v1", "ppo", 256, "cuda:1", 128),
        ("CartPole-v1", "dqn", 8, "cuda", 128),
        ("Hopper-v5", "sac", 8, "cuda", 128),
        ("LunarLander-v3", "ppo", 8, "cuda", 16),
        ("LunarLander-v3", "dqn", 8, "cuda", 8),
        ("LunarLander-v3", "ppo", 2, "cpu", 16),  # in processes
        ("LunarLander-v3", "ppo", 8, "cpu", 16),
        ("Hopper-v5", "sac", 8, "cpu", 8),  # who replays learns between few steps
    ],
)
def test_how_many_environments_a_member_has(environment, algorithm, members, device, envs):
    work = pod_service_pb2.TrainWork(cohort=cohort_pb2.CohortSpec(algorithm=algorithm))
    for _ in range(members):
        work.cohort.members.add()
    assert envs_per_member(work, EnvironmentSpec(environment), device) == envs
    work.cohort.envs_per_member = 5
    assert envs_per_member(work, EnvironmentSpec(environment), device) == 5


def test_who_is_trained_once_more_has_as_many_as_in_its_cohort():
    work = pod_service_pb2.TrainWork(cohort=cohort_pb2.CohortSpec(algorithm="ppo"), sized_for=8)
    work.cohort.members.add()
    assert envs_per_member(work, EnvironmentSpec("CartPole-v1"), "cpu") == 32


def test_a_gpu_has_so_many_environments_that_a_round_still_has_some_updates():
    work = pod_service_pb2.TrainWork(cohort=cohort_pb2.CohortSpec(algorithm="ppo"))
    work.cohort.members.add()
    work.budget.env_steps_per_member = 1_000_000
    assert envs_per_member(work, EnvironmentSpec("CartPole-v1"), "cuda", horizon=32) == 1953
    work.budget.env_steps_per_member = 1000
    assert envs_per_member(work, EnvironmentSpec("CartPole-v1"), "cuda", horizon=32) == 256
    assert envs_per_member(work, EnvironmentSpec("CartPole-v1"), "cuda", here=False) == 256, (
        "workers may have none"
    )


def test_what_was_chosen_is_told():
    environment = CartPole(1)
    for size, text in ((0, "a quarter"), (32_768, "32,768")):
        cohort = CohortConfig(
            "ppo", (MemberConfig("one", 0),), {"horizon": 32, "minibatch_size": size}
        )
        algorithm = PPO(cohort, environment.observation_space, environment.action_space)
        expected = f"cpu, 4,096 environments each, horizon 32, minibatches of {text}"
        assert describe_sizes(algorithm, 4096) == expected
