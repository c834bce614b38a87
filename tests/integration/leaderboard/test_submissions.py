"""SubmitCandidate and RecordEvaluations over gRPC: what is admitted, kept, refused and never
counted twice."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.errors import InvalidInput, NotFound, PreconditionFailed
from support.errors import raises

BOARD = "projects/p/leaderboards/j"


async def start(driver: Any, count: int = 4, **evolution: Any) -> list[str]:
    """The names of `count` agents that train."""
    await driver.create(
        **{"population": count, "leaderboard_size": 2, "lineage_limit": 2, **evolution}
    )
    return [each.agent.name for each in (await driver.propose(count)).proposals]


async def test_the_board_fills_and_then_only_better_ones_enter(driver):
    a, b, c, d = await start(driver)
    assert [(await driver.submit(a, 1.0)).rank, (await driver.submit(b, 2.0)).rank] == [1, 1]
    refused = await driver.submit(c, 0.5)
    assert (refused.admitted, refused.rank) == (False, 0)
    assert "0.5 against 1 of the worst of a full board" in refused.reason
    assert (await driver.submit(d, 1.5)).rank == 2
    board = await driver.board()
    assert [
        (each.rank, each.agent.name, each.evaluation.lower_bound) for each in board.candidates
    ] == [
        (1, b, 2.0),
        (2, d, 1.5),
    ]
    assert board.revision == 1 + 3
    assert board.candidates[0].evaluation.checkpoint.prefix.endswith("-best/")
    assert (await driver.propose(1)).admission_score == 1.5


async def test_a_round_moves_the_agent_and_its_state(driver):
    (a,) = await start(driver, 1, leaderboard_size=1)
    await driver.submit(a, 3.0)
    await driver.propose(1)
    await driver.submit(a, 1.0)
    (agent,) = await driver.agents()
    assert (agent.state, agent.rung, agent.env_steps, agent.cost.seconds) == (
        pb.AGENT_STATE_WAITING,
        2,
        2000,
        10,
    )
    assert agent.latest_evaluation.lower_bound == 1.0
    assert agent.best_evaluation.lower_bound == 3.0
    assert [each.evaluation.lower_bound for each in (await driver.board()).candidates] == [3.0]


async def test_a_submission_counts_once_and_its_answer_is_kept(server, driver):
    a, *_ = await start(driver)
    request = driver.submission(a, 1.0, request_id="w1/0")
    answers = await asyncio.gather(*(driver.stub.SubmitCandidate(request) for _ in range(10)))
    await server.restart()
    again = await (await server.stub()).SubmitCandidate(request)
    assert {answer.SerializeToString(deterministic=True) for answer in [*answers, again]} == {
        answers[0].SerializeToString(deterministic=True)
    }
    restarted = type(driver)(await server.stub())
    agent = next(agent for agent in await restarted.agents() if agent.name == a)
    assert (agent.env_steps, agent.rung) == (1000, 1)


async def test_a_failed_agent_is_out_but_its_candidate_counts(driver):
    a, *_ = await start(driver)
    request = driver.submission(a, 5.0)
    request.failure = "diverged"
    assert (await driver.stub.SubmitCandidate(request)).rank == 1
    (failed,) = await driver.agents(states=[pb.AGENT_STATE_FAILED])
    assert (failed.name, failed.failure) == (a, "diverged")
    replacement = await driver.propose(4)
    assert [each.agent.name == a for each in replacement.proposals] == [False]


async def test_a_pod_that_gave_up_at_once_has_not_used_a_round(driver):
    a, *_ = await start(driver)
    await driver.submit(a, None, steps=0)
    agent = next(agent for agent in await driver.agents() if agent.name == a)
    assert (agent.state, agent.rung) == (pb.AGENT_STATE_WAITING, 0)
    (again,) = (await driver.propose(4)).proposals
    assert again.action == pb.PROPOSAL_ACTION_CONTINUE
    assert not again.agent.HasField("resume")
    assert again.agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_FRESH


async def test_a_round_without_training_leaves_an_agent_the_score_that_it_had(driver):
    """Else who is at the bottom of its rung would be spared by a pod that gives up."""
    worst, *others = await start(driver, exploration=0.0)
    await driver.submit(worst, 1.0)
    assert [each.agent.name for each in (await driver.propose(1)).proposals] == [worst]
    for each in others:
        await driver.submit(each, 2.0)
    await driver.submit(worst, None, steps=0)
    assert worst in [each.replaced for each in (await driver.propose(4)).proposals]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_a_score_that_is_not_finite_is_refused(driver, number):
    a, *_ = await start(driver)
    request = driver.submission(a, number)
    request.candidate.standard_deviation = number
    with raises(InvalidInput, "OUT_OF_BOUNDS"):
        await driver.stub.SubmitCandidate(request)
    assert not (await driver.board()).candidates


async def test_a_candidate_without_a_checkpoint_cannot_enter(driver):
    a, *_ = await start(driver)
    request = driver.submission(a, 1.0)
    request.candidate.ClearField("checkpoint")
    answer = await driver.stub.SubmitCandidate(request)
    assert (answer.admitted, answer.reason) == (False, "its evaluation names no checkpoint")


async def test_only_an_agent_that_trains_can_end_a_round(driver):
    a, *_ = await start(driver)
    await driver.submit(a, 1.0)
    with raises(PreconditionFailed, "AGENT_NOT_TRAINING", match="a0001 is waiting"):
        await driver.submit(a, 2.0)
    with raises(NotFound, "AGENT_NOT_FOUND"):
        await driver.submit("projects/p/jobs/j/agents/a9999", 2.0)
    with pytest.raises(InvalidInput, match=r"candidate\.agent"):
        request = driver.submission(a, 2.0)
        request.candidate.agent = "projects/p/jobs/j/agents/a0002"
        await driver.stub.SubmitCandidate(request)


async def test_evaluations_are_stored_once_in_their_order(driver, new_evaluation):
    a, b, *_ = await start(driver)
    first = [
        new_evaluation(a, "e1", 1.0),
        new_evaluation(b, "e2", 2.0),
        new_evaluation(a, "e1", 9.0),
    ]
    record = pb.RecordEvaluationsRequest(leaderboard=BOARD, evaluations=first)
    assert (await driver.stub.RecordEvaluations(record)).recorded_count == 2
    assert (await driver.stub.RecordEvaluations(record)).recorded_count == 0
    listed = await driver.stub.ListEvaluations(pb.ListEvaluationsRequest(leaderboard=BOARD))
    assert list(listed.evaluations) == first[:2]
    of_b = await driver.stub.ListEvaluations(pb.ListEvaluationsRequest(leaderboard=BOARD, agent=b))
    assert list(of_b.evaluations) == [first[1]]


async def test_a_recorded_evaluation_gets_its_checkpoint_when_it_becomes_the_candidate(
    driver, new_evaluation
):
    a, *_ = await start(driver)
    request = driver.submission(a, 1.0)
    early = new_evaluation(a, request.candidate.evaluation_id, 1.0)
    await driver.stub.RecordEvaluations(
        pb.RecordEvaluationsRequest(leaderboard=BOARD, evaluations=[early])
    )
    await driver.stub.SubmitCandidate(request)
    listed = await driver.stub.ListEvaluations(pb.ListEvaluationsRequest(leaderboard=BOARD))
    assert list(listed.evaluations) == [request.candidate]


async def test_bad_evaluations_are_refused_whole(driver, new_evaluation):
    a, *_ = await start(driver)
    nameless = pb.RecordEvaluationsRequest(
        leaderboard=BOARD, evaluations=[new_evaluation(a, "e1", 1.0), new_evaluation(a, "", 1.0)]
    )
    with raises(InvalidInput, field="evaluations[1].evaluation_id"):
        await driver.stub.RecordEvaluations(nameless)
    stranger = pb.RecordEvaluationsRequest(
        leaderboard=BOARD, evaluations=[new_evaluation("projects/p/jobs/j/agents/x", "e2", 1.0)]
    )
    with pytest.raises(NotFound):
        await driver.stub.RecordEvaluations(stranger)
    many = pb.RecordEvaluationsRequest(
        leaderboard=BOARD,
        evaluations=[new_evaluation(a, f"e{number}", 1.0) for number in range(1001)],
    )
    with raises(InvalidInput, "OUT_OF_BOUNDS"):
        await driver.stub.RecordEvaluations(many)
    assert not (
        await driver.stub.ListEvaluations(pb.ListEvaluationsRequest(leaderboard=BOARD))
    ).evaluations


async def test_an_exchange_is_carried_out_whole_or_not_at_all_and_once(driver, new_evaluation):
    a, *_ = await start(driver)
    step = pb.ExchangeRequest.Step
    record = pb.RecordEvaluationsRequest(
        leaderboard=BOARD, evaluations=[new_evaluation(a, "e1", 1.0)]
    )
    wish = pb.ProposeCohortRequest(leaderboard=BOARD, request_id="next", places=2)
    steps = [step(evaluations=record), step(candidate=driver.submission(a, 1.0)), step(cohort=wish)]
    stranger = driver.submission("projects/p/jobs/j/agents/a9999", 2.0)
    with pytest.raises(NotFound):
        await driver.stub.Exchange(
            pb.ExchangeRequest(leaderboard=BOARD, steps=[*steps, step(candidate=stranger)])
        )
    assert not (await driver.board()).candidates
    request = pb.ExchangeRequest(leaderboard=BOARD, steps=steps)
    told = await driver.stub.Exchange(request)
    assert [each.WhichOneof("response") for each in told.answers] == [
        "evaluations",
        "candidate",
        "cohort",
    ]
    assert told.answers[0].evaluations.recorded_count == 1
    assert told.answers[1].candidate.admitted
    again = await driver.stub.Exchange(request)
    assert again.answers[1:] == told.answers[1:], "known by their request ids"
    assert again.answers[0].evaluations.recorded_count == 0
    with raises(InvalidInput, field="steps[0]"):
        await driver.stub.Exchange(pb.ExchangeRequest(leaderboard=BOARD, steps=[step()]))


async def test_who_had_few_episodes_is_not_pushed_down_within_its_rung(driver):
    """The first has the better mean of the last two, and the worse lower bound: of 8 episodes and
    not of 32."""
    await driver.create(population=4, exploration=0.0)
    cohort = await driver.propose(4)
    for proposal, mean, episodes, bound in zip(
        cohort.proposals,
        (10.0, 9.0, 30.0, 40.0),
        (8, 32, 32, 32),
        (2.0, 5.5, 26.5, 36.5),
        strict=True,
    ):
        submission = driver.submission(proposal.agent.name, bound)
        candidate = submission.candidate
        candidate.returns[:] = [mean] * episodes
        candidate.mean, candidate.standard_deviation = mean, 9.6
        await driver.stub.SubmitCandidate(submission)
    proposals = (await driver.propose(4)).proposals
    (child,) = [each for each in proposals if each.action == pb.PROPOSAL_ACTION_EXPLOIT]
    assert child.replaced == cohort.proposals[1].agent.name
    assert [entry.evaluation.lower_bound for entry in (await driver.board()).candidates] == [
        36.5,
        26.5,
        5.5,
        2.0,
    ]
