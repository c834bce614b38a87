"""One learner of a torch.distributed group, as a process: `python -m support.group_learner RANK
SIZE STORE WHAT …`.

Prints one line of JSON for each WHAT: `contributions`, `learners` or `cohorts`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import timedelta

import torch
import torch.distributed as distributed

from podracer_core.algorithms.algorithm import algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment
from podracer_core.errors import PodracerError
from podracer_core.fusion.built_in import Mean, Outer
from podracer_core.fusion.fusion import FusionOptions
from podracer_core.fusion.state import FusionState
from podracer_core.training.epochs import EpochFusion, GroupFusion
from podracer_core.training.plan import RoundPlan
from podracer_core.training.session import TrainingSession
from podracer_core.training.source import InProcessSource
from support.fusion import make_contribution, make_state, mean_of, same

SHARED = {
    "horizon": 8,
    "minibatch_size": 16,
    "epochs": 1,
    "hidden_sizes": (8,),
    "normalize_values": True,
}


def contributions(rank: int, size: int) -> dict[str, object]:
    """Three epochs of made-up contributions; all begin with rank 0's state."""
    group = GroupFusion(Mean(FusionOptions()), make_state(rank))
    expected = make_state(0)
    right = [same(group.present.state, expected)]
    for epoch in (1, 2, 3):
        fused = group.exchange(make_contribution(rank, epoch))
        expected = mean_of(expected, *(make_contribution(r, epoch) for r in range(size)))
        right.append(
            same(fused.state, expected)
            and fused.epoch == epoch
            and fused.ranks == tuple(range(size))
        )
    return {"right": right}


def learners(rank: int, size: int) -> dict[str, object]:
    """PPO on CartPole, two members, with an outer optimizer."""
    environment = make_vec_environment(EnvironmentSpec(id="CartPole-v1"), 2 * 4)
    cohort = CohortConfig("ppo", (MemberConfig("a", 1), MemberConfig("b", 2)), SHARED)
    algorithm = algorithm_class("ppo")(
        cohort, environment.observation_space, environment.action_space
    )
    sharing = algorithm.share(rank)
    group = GroupFusion(Outer(FusionOptions(0.7, 0.9)), sharing.state())
    fusion = EpochFusion(algorithm, sharing, group, rank)
    fusion.begin(group.present)
    collector = Collector(
        environment, algorithm.actor, torch.tensor([1, 2]), first_environment=rank << 20
    )
    source = InProcessSource(collector, algorithm)
    session = TrainingSession(
        algorithm, source, None, RoundPlan(env_steps=4 * 8 * 3 * size), fusion=fusion
    )
    while not session.finished:
        session.step()
    state = sharing.state()
    own = hashlib.sha256(
        algorithm.member_state(0)["optimizer"]["first_moment"].numpy().tobytes()
    ).hexdigest()
    progress = session.progress()
    return {
        "digest": digest(state),
        "own": own,
        "env_steps": progress.env_steps,
        "updates": progress.updates,
    }


def cohorts(rank: int, size: int) -> dict[str, object]:
    """The last one has another network."""
    state = make_state()
    if rank == size - 1:
        wider = {name: torch.cat([tensor, tensor], 1) for name, tensor in state.parameters.items()}
        state = FusionState(wider, state.statistics, state.transitions, state.active)
    try:
        GroupFusion(Mean(FusionOptions()), state)
    except PodracerError as error:
        return {"reason": error.reason, "message": error.message}
    return {"reason": ""}


def digest(state: FusionState) -> str:
    tensors = [*state.parameters.values(), state.transitions, state.active]
    tensors += [
        tensor for moments in state.statistics.values() for tensor in moments.tensors().values()
    ]
    return hashlib.sha256(
        b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
    ).hexdigest()


if __name__ == "__main__":
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    try:
        for what in sys.argv[4:]:
            work = {"contributions": contributions, "learners": learners, "cohorts": cohorts}[what]
            print(json.dumps(work(rank, size)))
    finally:
        distributed.destroy_process_group()
