"""What an agent is to those who rank and breed; plain values, the weights are only named."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from podracer_leaderboard.ranges import Value
from podracer_leaderboard.search_space import Shape


class State(enum.StrEnum):
    """Where an agent stands."""

    TRAINING = "training"
    WAITING = "waiting"
    RETIRED = "retired"
    FAILED = "failed"


ALIVE = (State.TRAINING, State.WAITING)


class Action(enum.StrEnum):
    """What happens at a place of a cohort."""

    CONTINUE = "continue"
    EXPLOIT = "exploit"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that may be trained on, bred from, or both.

    rung            rounds along its line, its ancestors' included
    score           statistic of the evaluation of its last round; None where none was judged
    best_score      statistic of its best candidate, whose checkpoint children start from; None where it has none
    waiting_since   the smaller, the longer it has waited
    started         whether a pod has ever had it
    """

    name: str
    number: int
    algorithm: str
    hyperparameters: Mapping[str, Value]
    shape: Shape
    state: State
    rung: int
    score: float | None
    best_score: float | None
    waiting_since: int
    started: bool


@dataclass(frozen=True, slots=True)
class NewAgent:
    """An agent that a generator wants: `donor` gives the first weights of an EXPLOIT, `replaced` gives way to it."""

    action: Action
    algorithm: str
    hyperparameters: Mapping[str, Value]
    shape: Shape
    reason: str
    donor: Agent | None = None
    replaced: Agent | None = None


@dataclass(frozen=True, slots=True)
class Population:
    """What a generator sees.

    agents        all that are alive, and those on the leaderboard
    rung_scores   rung → the scores of all agents that ever finished it; of the rungs that matter now
    created       how many agents there have been
    fresh_counts  algorithm → how many of them began from nothing
    """

    agents: tuple[Agent, ...]
    rung_scores: Mapping[int, tuple[float, ...]]
    created: int
    fresh_counts: Mapping[str, int]

    @property
    def alive(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.state in ALIVE]

    @property
    def waiting(self) -> list[Agent]:
        """Those that a pod may have now, the longest waiting first."""
        waiting = (agent for agent in self.agents if agent.state is State.WAITING)
        return sorted(waiting, key=lambda agent: agent.waiting_since)

    @property
    def donors(self) -> list[Agent]:
        """Those with a candidate to start children from, oldest first."""
        donors = (agent for agent in self.agents if agent.best_score is not None and agent.state is not State.FAILED)
        return sorted(donors, key=lambda agent: agent.number)


@dataclass(frozen=True, slots=True)
class CohortRequest:
    """What a pod asks for; an empty `algorithms` means all."""

    places: int
    warm: frozenset[str] = frozenset()
    algorithms: frozenset[str] = frozenset()

    def accepts(self, algorithm: str) -> bool:
        return not self.algorithms or algorithm in self.algorithms


@dataclass(frozen=True, slots=True)
class Cohort:
    """A generator's answer.

    members   what the pod trains, all of one shape
    created   every new agent, in the order in which they get their numbers; those that are no member wait for a
              cohort of their own shape
    """

    members: tuple[Agent | NewAgent, ...] = ()
    created: tuple[NewAgent, ...] = ()
