"""A round of training.

setup     the beginning: networks and environments, sizes, members' first states
train     the training
results   checkpoints and reports
access    access for other threads
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.round.access import Commands, LearnerStatus
    from podracer_learner.round.results import (
        RoundMeter, evaluation_message, member_progress, problem_message, progress_report,
        work_span,
    )
    from podracer_learner.round.setup import (
        InitialAgents, ReplayCache, RoundSetup, StoredReplays, describe_sizes, envs_per_member,
        load_initial_agents, require_same_environment, set_up_round,
    )
    from podracer_learner.round.train import TrainRun
else:
    __all__, __getattr__ = exports(__name__)
