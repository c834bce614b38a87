"""Gymnasium's MuJoCo environments (v5), stepped as one batch: on CPU by C MuJoCo, on CUDA by MuJoCo
Warp.

environment     the frame of all of them: seeds, episodes, time limits, autoreset, broken worlds
tasks           the tasks: model, observation, reward, when it ends, where it starts
physics         what a task asks of an engine, and C MuJoCo; warp_physics is the other engine
engine          which engine runs where; Gymnasium's models, loaded as it loads them
"""

from podracer_core.errors import PreconditionFailed

try:
    import mujoco.batch  # noqa: F401 - only to say clearly that it is missing
except ImportError as error:
    message = "MuJoCo's environments need MuJoCo 4 or later: install podracer-core[mujoco]"
    raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
