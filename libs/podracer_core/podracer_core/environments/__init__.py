"""Batched environments: one protocol, whatever steps them.

vec_environment                            the protocol: N environments as one, tensors on one
                                           device
torch_environment                          the frame of those written in torch
rsl_rl                                     simulators behind the interface of rsl_rl, such as mjlab
classic_control, point_chasing, mujoco     the built-in ones; info: descriptions, without torch
processes                                  users' and Gymnasium's, in child processes
registry                                   a spec -> running environments, tried beforehand
spaces, video                              Gymnasium's spaces, an MP4 of an episode

Nothing heavy is imported here: the children of `processes` start through it and must stay small.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.environments.classic_control import (
        Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum,
    )
    from podracer_core.environments.info import CLASSIC_CONTROL
    from podracer_core.environments.point_chasing import PointChasing, PointChasingDiscrete
    from podracer_core.environments.registry import (
        Inspection, IsolationProof, batched_class, device_for, evaluates_alike, evaluation_device,
        inspect_environment, is_evaluated_beside, isolation_proof, make_vec_environment,
        require_device, runs_on,
    )
    from podracer_core.environments.rsl_rl import RslRlEnvironment
    from podracer_core.environments.spaces import (
        action_array_space, action_mask_parts, action_mask_size, check_mask, from_gymnasium,
        observation_array_space, sample_allowed, to_gymnasium,
    )
    from podracer_core.environments.torch_environment import EpisodeStarts, State, TorchEnvironment
    from podracer_core.environments.vec_environment import (
        Break, EpisodeStatistic, Step, VecEnvironment, allocate_step, check_time_limit,
    )
    from podracer_core.environments.video import Recording, _filmed_spec, record_video
else:
    __all__, __getattr__ = exports(__name__)
