"""The effects of ended leases on their job: results, failures, challenges, the objective, stages
after training."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.outcomes import (
        broken_worlds, ending, ensembles, finals, lease_ends, objective, post_training,
    )
    from podracer_orchestrator.outcomes.claims import TARGET_EPISODES, corrected_score
    from podracer_orchestrator.outcomes.lease_ends import work_of
    from podracer_orchestrator.outcomes.objective import claim_of
    from podracer_orchestrator.outcomes.training import record_evaluations
else:
    __all__, __getattr__ = exports(__name__)
