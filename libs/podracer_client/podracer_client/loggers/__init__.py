"""A job's evaluations in the experiment trackers that a user has: one run for each agent.

logger                       the interface of a destination; feeds and chooses them
tensorboard, mlflow, wandb   the destinations
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.loggers.logger import AgentRun, Logger, Point, follow, open_logger
else:
    __all__, __getattr__ = exports(__name__)
