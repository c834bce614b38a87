"""Gymnasium's MuJoCo environments (v5), stepped as one batch: on CPU by C MuJoCo, on CUDA by MuJoCo
Warp.

environment     the frame of all of them: seeds, episodes, time limits, autoreset, broken worlds;
                which engine runs where; Gymnasium's models, loaded as it loads them
tasks           the tasks: model, observation, reward, when it ends, where it starts
physics         what a task asks of an engine, and C MuJoCo; warp_physics is the other engine
"""

from typing import TYPE_CHECKING

from podracer_core.errors import PreconditionFailed
from podracer_core.lazy import exports

try:
    import mujoco.batch
except ImportError as error:
    message = "MuJoCo's environments need MuJoCo 4 or later: install podracer-core[mujoco]"
    raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
if TYPE_CHECKING:
    from podracer_core.environments.mujoco import warp_physics
    from podracer_core.environments.mujoco.environment import MuJoCoEnvironment, load_model
    from podracer_core.environments.mujoco.tasks import HalfCheetah
    from podracer_core.environments.mujoco.warp_physics import Capacity, WarpPhysics, model_for_warp
else:
    __all__, __getattr__ = exports(__name__)
