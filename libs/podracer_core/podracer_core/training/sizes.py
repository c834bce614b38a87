"""The default number of environments of an agent, by device and algorithm."""

from __future__ import annotations

from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.environments.processes.row_processes import MOST_ISOLATED
from podracer_core.environments.registry import batched_class

_BATCHED_ENVS = 256  # of a cohort, where one process steps them all at once
_SINGLE_ENVS = 16  # of a member, where each takes its steps by itself: more at once gain little
_REPLAYING_ENVS = 8  # of a member

# A GPU takes thousands of worlds in hardly more time than a hundred. rsl_rl and Isaac Lab train with 4,096, MuJoCo
# Playground with 2,048 to 8,192, PufferLib with 4,096; replay runs with 128 a policy (MuJoCo Playground's SAC,
# FastTD3). A minibatch is large accordingly: PPO's default is a quarter of the rollout, as in Isaac Lab.
_GPU_ENVS = 4096  # of a cohort, but of a member no fewer than one that replays has
_GPU_REPLAYING_ENVS = 128  # of a member
_LEAST_ISOLATED = 2  # of a member
_LEAST_UPDATES = 16  # in a round whose steps are limited


def usual_envs_per_member(
    algorithm: str,
    spec: EnvironmentSpec,
    device: str,
    members: int,
    *,
    env_steps: int = 0,
    horizon: int = 1,
    here: bool = True,
) -> int:
    """Enough to fill one batch of `members`, and few enough that a member gets long rollouts.

    An off-policy algorithm needs few: it is more important how often it learns between two steps. A GPU gets more if
    environments are stepped `here` (workers may have no GPU), as long as the round's `env_steps` of a member (0: no
    limit) last for some rollouts of `horizon` steps.
    """
    on_policy = find_algorithm(algorithm).on_policy
    if spec.isolation == "process":
        return max(_LEAST_ISOLATED, MOST_ISOLATED // members)
    is_physics = bool(spec.id) and find_environment(spec.id).backend == "mujoco"
    if not on_policy:
        usual = _REPLAYING_ENVS
    elif batched_class(spec) is None or (is_physics and device == "cpu"):
        usual = _SINGLE_ENVS
    else:
        usual = max(_SINGLE_ENVS, _BATCHED_ENVS // members)
    if not here or device == "cpu" or batched_class(spec) is None:
        return usual
    wanted = max(_GPU_REPLAYING_ENVS, _GPU_ENVS // members if on_policy else 0)
    if env_steps:
        wanted = min(wanted, env_steps // (horizon * _LEAST_UPDATES))
    return max(usual, wanted)
