"""The agents of a queue that form one cohort, for generators that first decide which live and then
which train."""

from __future__ import annotations

import math
from collections.abc import Iterable

from podracer_core.evolution.agents import Agent, CohortRequest, NewAgent


def seat(queue: Iterable[Agent | NewAgent], request: CohortRequest) -> tuple[Agent | NewAgent, ...]:
    """Members of one shape: the agent with the fewest rounds leads, then come the others of its
    shape.

    Among equals the longest waiting leads; before all an agent that a user has just forked. A new
    agent has waited as long as the one that it replaces."""
    present = [agent for agent in queue if request.accepts(agent.algorithm)]
    if not present:
        return ()
    leader = min(present, key=_order)
    rest = [agent for agent in present if agent.shape == leader.shape and agent is not leader]
    rest.sort(key=_order)
    return (leader, *rest)[: request.places_for(leader.shape)]


def _order(agent: Agent | NewAgent) -> tuple[bool, int, float]:
    if isinstance(agent, Agent):
        return not agent.leads, agent.generation, agent.waiting_since
    return (
        True,
        agent.generation,
        math.inf if agent.replaced is None else agent.replaced.waiting_since,
    )
