"""Continuous jobs.

generations   the job of each generation
contests      champion against challenger, at its end
promotions    the policies of the aliases, now and before
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.continuous import contests, generations, promotions
    from podracer_orchestrator.continuous.contests import ContestWork, is_won, paired_lower_bound
    from podracer_orchestrator.continuous.generations import GenerationTask
    from podracer_orchestrator.continuous.promotions import Policy
else:
    __all__, __getattr__ = exports(__name__)
