"""Simulated pods in simulated time that train synthetic agents for the real leaderboard.

Proposals, submissions, challenges and the database are the service's own, without gRPC between;
what an orchestrator does (leases, budgets) is played in a few lines. One process, no threads, no
clock: the same seed gives the same run."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from random import Random

from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_leaderboard.acts import Exchanges
from podracer_leaderboard.boards import Boards
from podracer_leaderboard.tables import Changes
from podracer_platform.database import Database
from podracer_platform.messages import hyperparameters_from_message
from synthetic.landscapes import Landscape, State

ROUND_ENV_STEPS = 1000
EPISODES = 32
EPISODE_DEVIATION = 100.0
"""Standard deviation of one episode's return."""

LUCK = 0.15
"""Standard deviation of the logarithm of how far a round gets: two runs with equal hyperparameters
differ."""


@dataclass(frozen=True)
class Setting:
    """A job and its pods. A member trains a round in a second; its pod takes a second for each
    member.

    rounds    budget: agent-rounds of all agents together, equal for every generator
    """

    landscape: type[Landscape]
    generator: str
    seed: int
    rounds: int = 192
    population: int = 8
    pods: int = 2
    members: int = 4
    evolution: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a job has come to: the true returns of the leaderboard's first, and of the best agent,
    at the end."""

    value: float
    best: float
    agents: int
    leases: int
    env_steps: int


async def run_job(database: Database, setting: Setting) -> Outcome:
    """A whole job, from its first lease until its budget has been used."""
    job = _Job(database, setting)
    await job.begin()
    while job.can_go_on:
        await job.step()
    return await job.end()


class _Job:
    def __init__(self, database: Database, setting: Setting) -> None:
        changes = Changes()
        self._boards, self._exchanges = Boards(database, changes), Exchanges(database, changes)
        self._setting = setting
        drawn = Random(f"landscape {setting.seed}")
        self._landscape = setting.landscape(drawn)
        kind = "-adaptive" if setting.evolution else ""
        title = f"{setting.landscape.__name__.lower()}-{setting.generator}{kind}-{setting.seed}"
        self._board, self._job = f"projects/p/leaderboards/{title}", f"projects/p/jobs/{title}"
        self._weights: dict[str, State] = {}
        self._numbers = itertools.count(1)
        self._spent_steps = self._reserved_steps = self._leases = 0
        self._now_s = 0.0
        self._idle = list(range(setting.pods))
        self._busy: list[tuple[float, int, leaderboard_pb2.ProposeCohortResponse]] = []
        self._is_finished = False

    async def begin(self) -> None:
        setting = self._setting
        evolution = evolution_pb2.Evolution(
            population=setting.population,
            round_env_steps=ROUND_ENV_STEPS,
            generator=setting.generator,
            **{"adaptive_rounds": False, **setting.evolution},  # type: ignore[arg-type]
        )
        box = environment_pb2.BoxSpace(shape=[1], low=[-1.0], high=[1.0])
        spec = leaderboard_pb2.LeaderboardSpec(
            job=self._job,
            job_uid=self._job,
            objective=evolution_pb2.Objective(max_env_steps=setting.rounds * ROUND_ENV_STEPS),
            search=self._landscape.search(),
            evolution=evolution,
            environment_description=environment_pb2.EnvironmentDescription(
                action_space=environment_pb2.Space(box=box)
            ),
            seed=setting.seed,
        )
        await self._boards.create(self._board, spec)

    @property
    def _left_steps(self) -> int:
        return self._setting.rounds * ROUND_ENV_STEPS - self._spent_steps - self._reserved_steps

    @property
    def can_go_on(self) -> bool:
        return bool(self._busy) or (self._left_steps > 0 and not self._is_finished)

    async def step(self) -> None:
        """Every idle pod asks for a cohort; then time goes on to the next end of a round."""
        for pod in [*self._idle]:
            await self._lease(pod)
        if not self._busy:
            raise RuntimeError(
                f"{self._board}: all pods are idle and {self._left_steps} steps are left"
            )
        self._now_s, pod, cohort = heapq.heappop(self._busy)
        await self._complete(pod, cohort)

    async def _lease(self, pod: int) -> None:
        if self._left_steps <= 0 or self._is_finished:
            return
        request = leaderboard_pb2.ProposeCohortRequest(
            leaderboard=self._board,
            request_id=f"work-{next(self._numbers)}",
            places=self._setting.members,
            remaining_env_steps=self._left_steps,
            budget_used=self._spent_steps / (self._setting.rounds * ROUND_ENV_STEPS),
        )
        cohort = await self._exchanges.call("cohort", request)
        if cohort.HasField("generator_problem"):
            raise RuntimeError(f"{self._board}: {cohort.generator_problem.message}")
        self._is_finished = cohort.finished
        if not cohort.proposals:
            return
        self._leases += 1
        count = len(cohort.proposals)
        cohort.round_env_steps = min(cohort.round_env_steps, self._left_steps // count)
        self._reserved_steps += cohort.round_env_steps * count
        jitter = Random(f"{self._setting.seed} {pod} {self._leases}").uniform(0.9, 1.1)
        duration_s = cohort.round_env_steps / ROUND_ENV_STEPS * count * jitter
        heapq.heappush(self._busy, (self._now_s + duration_s, pod, cohort))
        self._idle.remove(pod)

    async def _complete(self, pod: int, cohort: leaderboard_pb2.ProposeCohortResponse) -> None:
        self._idle.append(pod)
        self._idle.sort()
        for proposal in cohort.proposals:
            self._reserved_steps -= cohort.round_env_steps
            self._spent_steps += cohort.round_env_steps
            request = self._train(proposal.agent, cohort.round_env_steps, len(cohort.proposals))
            answer = await self._exchanges.call("candidate", request)
            if answer.challenge:
                challenge = self._evaluate(request.candidate.checkpoint, proposal.agent.name)
                challenge.purpose = agent_pb2.EVALUATION_PURPOSE_CHALLENGE
                await self._exchanges.call(
                    "evaluations",
                    leaderboard_pb2.RecordEvaluationsRequest(
                        leaderboard=self._board, evaluations=[challenge]
                    ),
                )

    def _train(
        self, agent: agent_pb2.AgentSpec, env_steps: int, members: int
    ) -> leaderboard_pb2.SubmitCandidateRequest:
        rounds = env_steps / ROUND_ENV_STEPS
        luck = Random(f"{agent.seed} {agent.env_steps}").gauss(0.0, LUCK)
        state = self._landscape.train(
            self._start(agent), agent.algorithm, _numbers(agent), rounds * math.exp(luck)
        )
        checkpoint = agent_pb2.CheckpointReference(
            prefix=f"{agent.name}/checkpoints/{next(self._numbers)}/",
            manifest_sha256="ab" * 32,
            env_steps=agent.env_steps + env_steps,
        )
        self._weights[checkpoint.prefix] = state
        return leaderboard_pb2.SubmitCandidateRequest(
            leaderboard=self._board,
            request_id=checkpoint.prefix,
            agent=agent.name,
            candidate=self._evaluate(checkpoint, agent.name),
            latest=checkpoint,
            env_steps=env_steps,
            cost=duration_pb2.Duration(seconds=int(rounds), nanos=int(rounds % 1 * 1e9)),
            member_count=members,
        )

    def _start(self, agent: agent_pb2.AgentSpec) -> State:
        if agent.HasField("resume"):
            return self._weights[agent.resume.prefix]
        parents = agent.initialization.parents
        if not parents:
            return self._landscape.fresh
        states = [self._weights[parent.checkpoint.prefix] for parent in parents]
        return tuple(math.fsum(values) / len(states) for values in zip(*states, strict=True))

    def _evaluate(
        self, checkpoint: agent_pb2.CheckpointReference, agent: str
    ) -> agent_pb2.Evaluation:
        number = next(self._numbers)
        error = EPISODE_DEVIATION / math.sqrt(EPISODES)
        mean = Random(f"{self._setting.seed} {number}").gauss(
            self._landscape.value(self._weights[checkpoint.prefix]), error
        )
        return agent_pb2.Evaluation(
            evaluation_id=f"e{number}",
            agent=agent,
            checkpoint=checkpoint,
            purpose=agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
            returns=[mean] * EPISODES,
            mean=mean,
            standard_deviation=EPISODE_DEVIATION,
            lower_bound=mean - 1.96 * error,
            upper_bound=mean + 1.96 * error,
        )

    async def end(self) -> Outcome:
        board = await self._boards.get(self._board)
        first = board.candidates[0].evaluation.checkpoint.prefix
        return Outcome(
            value=self._landscape.value(self._weights[first]),
            best=max(map(self._landscape.value, self._weights.values())),
            agents=board.agent_count,
            leases=self._leases,
            env_steps=self._spent_steps,
        )


def _numbers(agent: agent_pb2.AgentSpec) -> dict[str, float | int]:
    values = hyperparameters_from_message(agent.hyperparameters)
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
