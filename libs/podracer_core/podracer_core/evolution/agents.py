"""Agents as plain values for ranking and breeding, without weights, and those of a queue that form
one cohort."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from podracer_core.catalogue import HyperparameterValue
from podracer_core.evolution.rules import LineRound
from podracer_core.evolution.search_space import Shape


class State(enum.StrEnum):
    """The state of an agent."""

    TRAINING = "training"
    WAITING = "waiting"
    RETIRED = "retired"
    FAILED = "failed"
    STOPPED = "stopped"


ALIVE = (State.TRAINING, State.WAITING)


class Action(enum.StrEnum):
    """The action at a place of a cohort."""

    CONTINUE = "continue"
    EXPLOIT = "exploit"
    FRESH = "fresh"


class Start(enum.StrEnum):
    """How a new agent gets its first weights; see `podracer.common.v1.InitializationKind`."""

    FRESH = "fresh"
    COPY = "copy"
    NOISE = "noise"
    FUSE = "fuse"


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that may be trained on, bred from, or both.

    lineage         name of its oldest ancestor
    rung            rounds along its line, its ancestors' included
    env_steps       environment steps along its line
    cost_s          device seconds along its line
    score           what its last round is compared by within its rung, of one that waits by as many
                    episodes as there were (`rungs.shrunken`); None where that was not judged
    best_score      statistic of its best candidate, whose checkpoint children start from; None
                    without one
    waiting_since   the smaller, the longer it has waited
    started         whether a pod has ever trained it
    generation      rounds that have ended in its place, those of the agents that it replaced
                    included
    forked          whether a user has forked it from another agent
    pinned          whether a user has protected it from being replaced
    """

    name: str
    number: int
    algorithm: str
    hyperparameters: Mapping[str, HyperparameterValue]
    shape: Shape
    state: State
    lineage: str
    rung: int
    env_steps: int
    cost_s: float
    score: float | None
    best_score: float | None
    waiting_since: int
    started: bool
    generation: int = 0
    forked: bool = False
    pinned: bool = False

    @property
    def leads(self) -> bool:
        """Whether it is trained before all others: a user has forked it, and no pod has trained it
        yet."""
        return self.forked and not self.started

    @property
    def may_give_way(self) -> bool:
        """Whether it may be replaced: a pod has trained it, and no user has pinned it."""
        return self.started and not self.pinned

    @property
    def merit(self) -> float | None:
        """The score by which donors and agents that give way are compared: the last round's, or the
        candidate's of an agent that trains no more. The best of many rounds against another's last
        would compare luck."""
        return self.best_score if self.score is None or self.state not in ALIVE else self.score


@dataclass(frozen=True, slots=True)
class NewAgent:
    """A new agent that a generator requests.

    reason       the reason, as text
    start        the source of its first weights
    parents      the agents that give them: none for FRESH, one for COPY and NOISE, two or more for
                 FUSE, first the one that names its lineage; each has a candidate
    noise_scale  NOISE: standard deviation, relative to each tensor's own
    replaced     the waiting agent that it replaces; None if there is room
    generation   its first `Agent.generation`; used by generators with a barrier only
    """

    action: Action
    algorithm: str
    hyperparameters: Mapping[str, HyperparameterValue]
    shape: Shape
    reason: str
    start: Start = Start.FRESH
    parents: tuple[Agent, ...] = ()
    noise_scale: float = 0.0
    replaced: Agent | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Retirement:
    """A waiting agent that ends without a successor, and the reason as text."""

    agent: Agent
    reason: str


@dataclass(frozen=True, slots=True)
class Population:
    """The population, as input of a generator.

    agents        all that are alive, and those on the leaderboard
    peers         name of a waiting agent that was judged → the scores of its rung, its own
                  included: what every line had reached that was trained about as long
    curves        name of a waiting agent → its last judged rounds, oldest first
    elites        those on the leaderboard, best first
    history       the best and the newest of all that were ever judged, oldest first; empty unless
                  `Generator.uses_history`
    stagnates     whether the best lines have not improved for long; of jobs with adaptive rounds
                  only
    budget_used   part of the job's budget that it has used; 1 if it has no limit
    created       the number of agents so far
    fresh_counts  algorithm → the number of them with fresh weights
    """

    agents: tuple[Agent, ...]
    created: int
    fresh_counts: Mapping[str, int]
    peers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    curves: Mapping[str, tuple[LineRound, ...]] = field(default_factory=dict)
    elites: tuple[Agent, ...] = ()
    history: tuple[Agent, ...] = ()
    stagnates: bool = False
    budget_used: float = 1.0

    @property
    def alive(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.state in ALIVE]

    @property
    def waiting(self) -> list[Agent]:
        """Agents that a pod may train now: first those that users have forked, then the longest
        waiting."""
        waiting = (agent for agent in self.agents if agent.state is State.WAITING)
        return sorted(waiting, key=lambda agent: (not agent.leads, agent.waiting_since))

    def scores_of(self, member: Agent | NewAgent) -> list[float]:
        """The last scores of a member's curve, oldest first; empty for a new agent."""
        curve = self.curves.get(member.name, ()) if isinstance(member, Agent) else ()
        return [each.score for each in curve]

    @property
    def donors(self) -> list[Agent]:
        """Agents with a candidate to start children from, oldest first."""
        donors = (
            agent
            for agent in self.agents
            if agent.best_score is not None and agent.state is not State.FAILED
        )
        return sorted(donors, key=lambda agent: agent.number)


@dataclass(frozen=True, slots=True)
class CohortRequest:
    """The request of a pod.

    places      the most members, of any shape
    algorithms  those that the pod can train; empty: all
    limits      shape → the most members, if less than `places` is known to be better
    """

    places: int
    algorithms: frozenset[str] = frozenset()
    limits: Mapping[Shape, int] = field(default_factory=dict)

    def accepts(self, algorithm: str) -> bool:
        return not self.algorithms or algorithm in self.algorithms

    def places_for(self, shape: Shape) -> int:
        """The most members of a cohort of `shape`."""
        return min(self.places, self.limits.get(shape, self.places))


@dataclass(frozen=True, slots=True)
class Cohort:
    """A generator's answer.

    members   the agents that the pod trains, all of one shape
    created   every new agent, in the order in which they get their numbers; those that are no
              member wait for a cohort of their own shape
    finished  no further round will come; there are no members then
    retired   waiting agents that end here, beside those that `created` replace
    """

    members: tuple[Agent | NewAgent, ...] = ()
    created: tuple[NewAgent, ...] = ()
    finished: bool = False
    retired: tuple[Retirement, ...] = ()


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
