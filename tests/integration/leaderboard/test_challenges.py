"""A challenge, the second evaluation of a claim with fresh seeds, decides over its place; over
gRPC."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.errors import InvalidInput
from support.errors import raises

BOARD = "projects/p/leaderboards/j"
CHALLENGE = agent_pb2.EVALUATION_PURPOSE_CHALLENGE
PROGRESS = agent_pb2.EVALUATION_PURPOSE_PROGRESS


class Claims:
    """Agents that submit candidates, and what the challenges of these say."""

    def __init__(self, driver: Any, agents: Sequence[str]) -> None:
        self.driver = driver
        self.agents = agents
        self.checkpoints: dict[str, agent_pb2.CheckpointReference] = {}
        self._numbers = itertools.count(1)

    async def submit(self, agent: int, score: float) -> pb.SubmitCandidateResponse:
        """Agent number `agent` ends a round; other agents proposed with it end theirs without a
        candidate."""
        name = self.agents[agent]
        await self._train(name)
        request = self.driver.submission(name, score)
        self.checkpoints[name] = request.candidate.checkpoint
        answer: pb.SubmitCandidateResponse = await self.driver.stub.SubmitCandidate(request)
        return answer

    def challenge(
        self, agent: int, score: float, identifier: str = "", episodes: int = 32
    ) -> agent_pb2.Evaluation:
        """What comes out when the agent's last candidate is evaluated again."""
        name = self.agents[agent]
        return agent_pb2.Evaluation(
            evaluation_id=identifier or f"challenge-{next(self._numbers)}",
            agent=name,
            purpose=CHALLENGE,
            checkpoint=self.checkpoints[name],
            returns=[score] * episodes,
            mean=score,
            lower_bound=score,
            upper_bound=score,
        )

    async def record(self, *evaluations: agent_pb2.Evaluation) -> int:
        request = pb.RecordEvaluationsRequest(leaderboard=BOARD, evaluations=evaluations)
        answer: pb.RecordEvaluationsResponse = await self.driver.stub.RecordEvaluations(request)
        return answer.recorded_count

    async def ranking(self) -> list[tuple[int, float, bool]]:
        """Number, score and confirmation of the candidates, best first."""
        candidates = (await self.driver.board()).candidates
        return [
            (self.agents.index(each.agent.name), each.evaluation.lower_bound, each.confirmed)
            for each in candidates
        ]

    async def _train(self, name: str) -> None:
        agents = {agent.name: agent.state for agent in await self.driver.agents()}
        while agents[name] != pb.AGENT_STATE_TRAINING:
            for proposal in (await self.driver.propose(len(self.agents))).proposals:
                agents[proposal.agent.name] = pb.AGENT_STATE_TRAINING


async def start(driver: Any, count: int = 4, **evolution: Any) -> Claims:
    # No agent is replaced: the test chooses which ones train.
    rules = {
        "population": count,
        "leaderboard_size": 4,
        "lineage_limit": 4,
        "replaced_fraction": 1e-9,
    }
    await driver.create(**{**rules, **evolution})
    return Claims(driver, [each.agent.name for each in (await driver.propose(count)).proposals])


async def test_a_claim_on_the_first_place_asks_for_a_challenge(driver):
    claims = await start(driver)
    assert (await claims.submit(0, 5.0)).challenge
    assert not (await claims.submit(1, 4.0)).challenge
    await claims.record(claims.challenge(0, 3.0))
    assert await claims.ranking() == [(0, 3.0, True), (1, 4.0, False)]
    answer = await claims.submit(2, 6.0)
    assert (answer.admitted, answer.rank, answer.challenge) == (True, 2, True)
    assert await claims.ranking() == [(0, 3.0, True), (2, 6.0, False), (1, 4.0, False)]
    await claims.record(claims.challenge(2, 5.5))
    assert await claims.ranking() == [(2, 5.5, True), (1, 4.0, False), (0, 3.0, True)]


async def test_only_the_fresh_seeds_decide_and_the_agents_best_follows(driver):
    claims = await start(driver)
    await claims.submit(0, 5.0)
    revision = (await driver.board()).revision
    challenge = claims.challenge(0, 2.0)
    assert await claims.record(challenge) == 1
    board = await driver.board()
    assert board.revision == revision + 1
    (candidate,) = board.candidates
    assert (candidate.confirmed, candidate.evaluation) == (True, challenge)
    assert candidate.agent.best_evaluation == challenge
    assert candidate.agent.latest_evaluation.lower_bound == 5.0, "the round went as it went"
    assert await claims.record(challenge) == 0
    assert await driver.board() == board


async def test_the_agents_best_stays_where_it_is_another_checkpoint(driver):
    claims = await start(driver)
    await claims.submit(0, 5.0)
    challenge = claims.challenge(0, 1.0)
    await claims.submit(0, 7.0)
    await claims.record(challenge)
    (agent,) = [agent for agent in await driver.agents() if agent.name == claims.agents[0]]
    assert agent.best_evaluation.lower_bound == 7.0
    assert await claims.ranking() == [(0, 7.0, False)]


async def test_a_challenge_of_one_that_has_left_changes_only_the_history(driver):
    claims = await start(driver, leaderboard_size=1, lineage_limit=1)
    await claims.submit(0, 5.0)
    await claims.submit(1, 6.0)
    board = await driver.board()
    assert await claims.record(claims.challenge(0, 9.0)) == 1
    assert (await driver.board()).candidates == board.candidates
    listed = await driver.stub.ListEvaluations(pb.ListEvaluationsRequest(leaderboard=BOARD))
    assert [each.lower_bound for each in listed.evaluations] == [5.0, 6.0, 9.0]


async def test_challenges_in_any_order_give_the_same_board(server, driver):
    claims = await start(driver)
    for agent in range(4):
        await claims.submit(agent, 10.0 + agent)
    challenges = [
        claims.challenge(agent, score) for agent, score in enumerate((4.0, 9.0, 1.0, 7.0))
    ]
    random.Random(5).shuffle(challenges)
    await asyncio.gather(
        *(claims.record(*challenges[which:], *challenges[:which]) for which in range(4))
    )
    assert await claims.ranking() == [
        (1, 9.0, True),
        (3, 7.0, True),
        (0, 4.0, True),
        (2, 1.0, True),
    ]
    await server.restart()
    restarted = Claims(type(driver)(await server.stub()), claims.agents)
    assert await restarted.ranking() == [
        (1, 9.0, True),
        (3, 7.0, True),
        (0, 4.0, True),
        (2, 1.0, True),
    ]


@pytest.mark.parametrize("turned", [False, True])
async def test_of_two_challenges_the_longer_counts_then_the_first_by_its_id(driver, turned):
    claims = await start(driver)
    await claims.submit(0, 5.0)
    both = [
        claims.challenge(0, 3.0, "b"),
        claims.challenge(0, 2.0, "a"),
        claims.challenge(0, 9.0, "0", episodes=8),
    ]
    for challenge in reversed(both) if turned else both:
        await claims.record(challenge)
    assert await claims.ranking() == [(0, 2.0, True)]


async def test_the_final_of_a_job_is_first_whatever_it_scores_and_gives_no_place_back(driver):
    claims = await start(driver, leaderboard_size=2, lineage_limit=1)
    await claims.submit(0, 5.0)
    await claims.record(claims.challenge(0, 4.0))
    await claims.submit(1, 6.0)
    await claims.record(claims.challenge(1, 4.5, episodes=200))
    final = claims.challenge(1, 2.0)
    final.purpose = agent_pb2.EVALUATION_PURPOSE_FINAL
    await claims.record(final)
    assert await claims.ranking() == [(1, 2.0, True), (0, 4.0, True)]


async def test_a_challenge_that_comes_before_the_submission_counts_too(driver):
    claims = await start(driver)
    request = driver.submission(claims.agents[0], 5.0)
    claims.checkpoints[claims.agents[0]] = request.candidate.checkpoint
    await claims.record(claims.challenge(0, 2.0))
    answer = await driver.stub.SubmitCandidate(request)
    assert (answer.admitted, answer.challenge) == (True, False)
    assert await claims.ranking() == [(0, 2.0, True)]


async def test_nan_confirms_no_candidate(driver):
    claims = await start(driver)
    await claims.submit(0, 5.0)
    with raises(InvalidInput, "OUT_OF_BOUNDS"):
        await claims.record(claims.challenge(0, float("nan")))
    assert await claims.ranking() == [(0, 5.0, False)]


async def test_a_lucky_candidate_does_not_cost_its_agent_a_confirmed_one(driver):
    claims = await start(driver)
    await claims.submit(0, 5.0)
    sure = claims.challenge(0, 5.0)
    await claims.record(sure)
    await claims.submit(1, 2.0)
    assert (await claims.submit(0, 9.0)).challenge
    assert await claims.ranking() == [(0, 9.0, False), (1, 2.0, False)]
    assert (await claims.submit(0, 10.0)).challenge, "the claim of a claim"
    await claims.record(claims.challenge(0, 1.0))
    assert await claims.ranking() == [(0, 5.0, True), (1, 2.0, False)]
    first = (await driver.board()).candidates[0]
    assert first.evaluation == sure


async def test_children_start_from_what_was_confirmed_where_a_later_claim_falls_short(
    driver, tmp_path
):
    claims = await start(driver)
    await claims.submit(0, 5.0)
    sure = claims.challenge(0, 5.0)
    await claims.record(sure)
    await claims.submit(0, 9.0)
    lucky = claims.challenge(0, 1.0)
    for _ in range(2):
        await claims.record(lucky)
        (candidate,) = (await driver.board()).candidates
        assert candidate.evaluation == candidate.agent.best_evaluation == sure
    with closing(sqlite3.connect(tmp_path / "leaderboard.sqlite")) as connection:
        columns = "best_score, best_rung, best_env_steps, best_cost_s"
        rows = connection.execute(
            f"SELECT {columns} FROM agents WHERE best_score IS NOT NULL"
        ).fetchall()
    assert rows == [(5.0, 1, 900, 5.0)], "as old as it was then"


async def test_a_candidate_that_drives_out_the_first_is_challenged_though_others_claim_more(driver):
    """Else the first place would stay with a worse one until another agent claims it."""
    claims = await start(driver)
    for agent, score in ((0, 5.0), (1, 3.0)):
        await claims.submit(agent, score)
        await claims.record(claims.challenge(agent, score))
    assert (await claims.submit(2, 9.0)).challenge
    assert (await claims.submit(0, 6.0)).challenge
    await claims.record(claims.challenge(0, 1.0))
    assert await claims.ranking() == [(0, 5.0, True), (2, 9.0, False), (1, 3.0, True)]


async def test_a_claim_that_holds_keeps_its_place(driver):
    claims = await start(driver, leaderboard_size=1, lineage_limit=1)
    await claims.submit(0, 5.0)
    await claims.record(claims.challenge(0, 5.0))
    await claims.submit(1, 9.0)
    assert await claims.ranking() == [(1, 9.0, False)]
    await claims.record(claims.challenge(1, 6.0))
    assert await claims.ranking() == [(1, 6.0, True)]
    await claims.submit(2, 8.0)
    await claims.record(claims.challenge(2, 6.0))
    assert await claims.ranking() == [(1, 6.0, True)], "who was there stays in a tie"


async def test_an_evaluation_of_seven_episodes_scores_but_does_not_enter(driver):
    claims = await start(driver)
    request = driver.submission(claims.agents[0], 5.0)
    request.candidate.purpose = PROGRESS
    request.candidate.returns[:] = [5.0] * 7
    answer = await driver.stub.SubmitCandidate(request)
    assert (answer.admitted, answer.rank, answer.challenge) == (False, 0, False)
    assert "too few episodes" in answer.reason
    (agent,) = [agent for agent in await driver.agents() if agent.name == claims.agents[0]]
    assert (agent.latest_evaluation.lower_bound, agent.best_evaluation.lower_bound) == (5.0, 5.0)
    assert await claims.ranking() == []


async def test_an_evaluation_of_eight_episodes_counts_with_its_lower_bound(driver):
    """Each mean is 2 above the bound."""
    claims = await start(driver, updater="mean")
    answers = []
    for number, (bound, is_full) in enumerate(
        ((5.0, True), (6.0, False), (4.0, False), (6.5, True))
    ):
        request = driver.submission(claims.agents[number], bound)
        request.candidate.purpose = request.candidate.purpose if is_full else PROGRESS
        answer = await driver.stub.SubmitCandidate(request)
        answers.append((answer.admitted, answer.challenge))
    assert answers == [(True, True), (True, False), (True, False), (True, True)]
    assert await claims.ranking() == [
        (3, 6.5, False),
        (0, 5.0, False),
        (1, 6.0, False),
        (2, 4.0, False),
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_confirmed_as_best_is_never_lost(driver, seed):
    """Whatever happens, the first place is never worse than the best that a challenge of a claim
    has shown."""
    drawn = random.Random(seed)
    size = drawn.choice([1, 2, 4])
    claims = await start(driver, leaderboard_size=size, lineage_limit=drawn.randint(1, size))
    best, open_claims = float("-inf"), dict[int, agent_pb2.Evaluation]()
    for _ in range(40):
        if open_claims and drawn.random() < 0.6:
            agent = drawn.choice(list(open_claims))
            challenge = open_claims.pop(agent)
            checkpoints = {
                each.evaluation.checkpoint.prefix for each in (await driver.board()).candidates
            }
            await claims.record(challenge)
            if challenge.checkpoint.prefix in checkpoints:
                best = max(best, challenge.lower_bound)
        else:
            agent = drawn.randrange(4)
            if (await claims.submit(agent, drawn.uniform(0.0, 10.0))).challenge:
                open_claims[agent] = claims.challenge(agent, drawn.uniform(0.0, 10.0))
        ranking = await claims.ranking()
        assert len(ranking) <= size
        confirmed = [score for _, score, is_confirmed in ranking if is_confirmed]
        assert ranking[0][2] or not confirmed
        if not open_claims:
            assert max(confirmed, default=best) == best
