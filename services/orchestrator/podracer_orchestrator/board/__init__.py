"""Calls to the leaderboard.

delivery   the calls, and the delivery of results from the outbox
requests   requests: cohorts, the candidates of ensembles
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.board import requests
    from podracer_orchestrator.board.agent_acts import AgentActs
    from podracer_orchestrator.board.delivery import LeaderboardClient
    from podracer_orchestrator.board.delivery import Delivery, _together
    from podracer_orchestrator.board.requests import (
        CohortProposer,
        EnsembleMaker,
        ToPropose,
        to_propose,
    )
else:
    __all__, __getattr__ = exports(__name__)
