"""A leaderboard's store and its pods in memory: what a generator proposes is carried out, rounds
end as a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from podracer_core.catalogue import Choice, HyperparameterValue, Interval, Range, find_algorithm
from podracer_core.evolution import (
    Action,
    Agent,
    Cohort,
    CohortRequest,
    Generator,
    LineRound,
    LowerBoundUpdater,
    NewAgent,
    Population,
    Rules,
    SearchSpace,
    Start,
    State,
    peer_scores,
    shape_of,
)
from podracer_leaderboard.competition import Competition
from podracer_leaderboard.guard import check_cohort
from podracer_leaderboard.places import stream

LEARNING_RATE = Interval(1e-4, 1e-2, logarithmic=True)
GAMMA = Interval(0.9, 0.999, logarithmic=True, near_one=True)
NARROW = SearchSpace({"ppo": 1.0}, {"ppo": {"learning_rate": LEARNING_RATE, "gamma": GAMMA}})
"""Only what each member has to itself."""

WIDE_RANGES: dict[str, Range] = {
    "learning_rate": LEARNING_RATE,
    "horizon": Choice((16, 32, 64, 128)),
    "hidden_sizes": Choice(((32, 32), (64, 64), (128, 128))),
}
WIDE = SearchSpace({"ppo": 1.0, "a2c": 1.0}, {"ppo": WIDE_RANGES, "a2c": WIDE_RANGES})
"""Of two algorithms, also what a cohort shares, and what weights depend on."""

ROUND_STEPS = 1000


def make_agent(number: int, score: float | None = None, **changes: object) -> Agent:
    """A waiting agent with PPO's defaults and one round behind it, whose last round and candidate
    have `score`."""
    name = f"projects/p/jobs/j/agents/a{number:04}"
    defaults: dict[str, HyperparameterValue] = find_algorithm("ppo").defaults()
    standing = Agent(
        name=name,
        number=number,
        algorithm="ppo",
        hyperparameters=defaults,
        shape=shape_of("ppo", defaults),
        state=State.WAITING,
        lineage=name,
        rung=1,
        env_steps=ROUND_STEPS,
        cost_s=15.0,
        score=score,
        best_score=score,
        waiting_since=number,
        started=True,
        generation=1,
    )
    return replace(standing, **changes)  # type: ignore[arg-type]


def make_population(agents: Iterable[Agent], created: int | None = None) -> Population:
    """Agents whose rungs are those of equal `rung`."""
    agents = tuple(agents)
    ended = [
        LineRound(each.name, 0.0, each.rung, each.score)
        for each in agents
        if each.score is not None
    ]
    most_first = sorted(ended, key=lambda each: -each.after)
    peers = {own.agent: peer_scores(own, most_first) for own in ended}
    return Population(
        agents, len(agents) if created is None else created, {"ppo": len(agents)}, peers
    )


class Arena:
    """A competition; `agents` by number, whatever has become of them."""

    def __init__(
        self, generator: type[Generator], rules: Rules, space: SearchSpace = NARROW, seed: int = 0
    ) -> None:
        self.competition = Competition(rules, space, generator, generator, LowerBoundUpdater(rules))
        self.agents: dict[int, Agent] = {}
        self.origins: dict[int, NewAgent] = {}
        self._best_effort: dict[str, tuple[int, int]] = {}  # rung and steps of the candidate
        self._rounds: list[LineRound] = []
        self._seed, self._clock, self._proposals = seed, 0, 0

    @property
    def population(self) -> Population:
        rules, agents = self.competition.rules, self.agents.values()
        judged = [agent for agent in agents if agent.best_score is not None]
        ranked = sorted(judged, key=lambda agent: (-(agent.best_score or 0.0), agent.number))
        elites = ranked[: rules.leaderboard_size]
        living = [
            each
            for each in agents
            if each.state in (State.TRAINING, State.WAITING) or each in elites
        ]
        rounds = sorted(self._rounds, key=lambda each: -each.after)
        return Population(
            agents=tuple(living),
            created=len(self.agents),
            fresh_counts=Counter(
                new.algorithm for new in self.origins.values() if new.action is Action.FRESH
            ),
            peers={
                agent.name: peer_scores(
                    LineRound(agent.name, 0.0, agent.env_steps, agent.score), rounds
                )
                for agent in living
                if agent.state is State.WAITING and agent.score is not None
            },
            elites=tuple(elites),
            history=tuple(judged),
        )

    @property
    def alive(self) -> list[Agent]:
        return self.population.alive

    @property
    def training(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.state is State.TRAINING]

    def propose(self, places: int = 8, **fields: object) -> Cohort:
        """Have a cohort proposed, checked and carried out."""
        population, request = self.population, CohortRequest(places, **fields)  # type: ignore[arg-type]
        generator = self.competition.generator(self.competition.space, self.competition.rules)
        cohort = generator.propose(population, request, self.chance())
        check_cohort(cohort, self.competition, population, request)
        if cohort.members:
            self._proposals += 1
            numbers = {id(new): self._create(new) for new in cohort.created}
            for each in cohort.retired:
                self.agents[each.agent.number] = replace(each.agent, state=State.RETIRED)
            for member in cohort.members:
                number = member.number if isinstance(member, Agent) else numbers[id(member)]
                self.agents[number] = replace(
                    self.agents[number], state=State.TRAINING, started=True
                )
        return cohort

    def set_rules(self, rules: Rules) -> None:
        """Go on by other rules."""
        self.competition = replace(self.competition, rules=rules)

    def chance(self) -> Random:
        return stream(self._seed, "proposal", self._proposals)

    def end_round(self, agent: Agent, score: float | None, steps: int = ROUND_STEPS) -> None:
        """A training agent's round ends; without steps it was given up."""
        now = self.agents[agent.number]
        assert now.state is State.TRAINING
        self._clock += 1
        now = replace(
            now,
            state=State.WAITING,
            rung=now.rung + (steps > 0),
            env_steps=now.env_steps + steps,
            score=score,
            waiting_since=self._clock,
            generation=now.generation + (steps > 0),
        )
        if score is not None:
            self._rounds.append(LineRound(now.name, now.env_steps - steps, now.env_steps, score))
            if now.best_score is None or score > now.best_score:
                now = replace(now, best_score=score)
                self._best_effort[now.name] = (now.rung, now.env_steps)
        self.agents[now.number] = now

    def fail(self, agent: Agent) -> None:
        self.agents[agent.number] = replace(self.agents[agent.number], state=State.FAILED)

    def train(
        self, score: Callable[[Agent], float | None], rounds: int, pods: int = 1, places: int = 8
    ) -> None:
        """`rounds` of cohorts, each on the pod that is free the longest; `pods` of them train at a
        time."""
        busy: list[list[int]] = []
        for _ in range(rounds):
            while len(busy) < pods:
                self.propose(places)
                started = {agent.number for agent in self.training} - {
                    number for each in busy for number in each
                }
                if not started:
                    break
                busy.append(sorted(started))
            for number in busy.pop(0):
                agent = self.agents[number]
                after = replace(agent, env_steps=agent.env_steps + ROUND_STEPS, rung=agent.rung + 1)
                self.end_round(agent, score(after))
        for number in [number for each in busy for number in each]:
            self.end_round(self.agents[number], score(self.agents[number]))

    def _create(self, new: NewAgent) -> int:
        number = len(self.agents) + 1
        name = f"projects/p/jobs/j/agents/a{number:04}"
        rung, steps = max(
            (self._best_effort[parent.name] for parent in new.parents), default=(0, 0)
        )
        self._clock += new.replaced is None
        self.agents[number] = Agent(
            name=name,
            number=number,
            algorithm=new.algorithm,
            hyperparameters=new.hyperparameters,
            shape=new.shape,
            state=State.WAITING,
            lineage=new.parents[0].lineage if new.parents else name,
            rung=rung,
            env_steps=steps,
            cost_s=steps / 100,
            score=None,
            best_score=None,
            waiting_since=self._clock if new.replaced is None else new.replaced.waiting_since,
            started=False,
            generation=new.generation,
        )
        self.origins[number] = new
        if new.replaced is not None:
            former = self.agents[new.replaced.number]
            self.agents[former.number] = replace(former, state=State.RETIRED)
        return number


def inherited(arena: Arena) -> list[NewAgent]:
    """The agents that began with the weights of others, oldest first."""
    return [new for _, new in sorted(arena.origins.items()) if new.start is not Start.FRESH]
