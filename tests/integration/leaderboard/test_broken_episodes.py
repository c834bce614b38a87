"""Episodes whose world broke: they count with the lowest intact return, and too many of them bar
the first place."""

from __future__ import annotations

import math
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb

BOARD = "projects/p/leaderboards/j"


def broken(
    driver: Any, agent: str, returns: list[float], numbers: int, code: int = 0
) -> pb.SubmitCandidateRequest:
    """A round whose candidate has these returns, and further episodes that broke."""
    request: pb.SubmitCandidateRequest = driver.submission(agent, 0.0)
    found = request.candidate
    found.returns[:], found.seeds[:] = returns, range(len(returns))
    found.mean = found.lower_bound = found.upper_bound = (
        sum(returns) / len(returns) if returns else 0.0
    )
    found.broken_number_episodes, found.broken_code_episodes = numbers, code
    found.first_break = "step 13: the reward was nan"
    return request


async def test_broken_episodes_rank_as_the_lowest_return_and_bar_the_first_place(driver, server):
    await driver.create()
    first, second, third, fourth = [each.agent.name for each in (await driver.propose(4)).proposals]
    # Every intact episode is worth -20; one agent ends half of its episodes by a break, before they
    # cost as much.
    crashing = await driver.stub.SubmitCandidate(broken(driver, first, [-15.0] * 16, 16))
    assert (crashing.rank, len(crashing.exclusions)) == (1, 0), (
        "it is alone: there is nothing to compare with"
    )
    await driver.stub.SubmitCandidate(broken(driver, second, [-20.0] * 32, 0))
    last = await driver.stub.SubmitCandidate(broken(driver, third, [-20.5] * 32, 0, 1))
    assert [each.agent for each in last.exclusions] == [first]
    reason = "its environment broke in 16 of 32 episodes, those of the other agents in 1 of 65"
    assert last.exclusions[0].reason == reason
    nothing = await driver.stub.SubmitCandidate(broken(driver, fourth, [], 1))
    assert not nothing.admitted
    assert nothing.reason == "no episode of its evaluation was intact"

    await server.restart()
    driver.stub = await server.stub()
    board, by_name = await driver.board(), {each.name: each for each in await driver.agents()}
    assert [each.agent.name for each in board.candidates] == [second, third, first]
    assert [bool(each.exclusion) for each in board.candidates] == [False, False, True]
    assert {name: each.exclusion for name, each in by_name.items() if each.exclusion} == {
        first: board.candidates[-1].exclusion
    }
    crasher, bound = board.candidates[-1], -17.75 - 2.0395 * 2.7941 / math.sqrt(32)
    assert math.isclose(crasher.score, bound, abs_tol=1e-3), (
        "16 of -15 and 16 of -20.5, the lowest, which came later"
    )
    assert crasher.evaluation.mean == -15.0, "what is shown beside it is what was measured"
    counts = {
        name: (each.evaluated_episodes, each.broken_number_episodes, each.broken_code_episodes)
        for name, each in by_name.items()
    }
    assert counts == {first: (32, 16, 0), second: (32, 0, 0), third: (33, 0, 1), fourth: (1, 1, 0)}
    assert not by_name[fourth].HasField("best_evaluation")

    await driver.stub.RecordEvaluations(
        pb.RecordEvaluationsRequest(leaderboard=BOARD, evaluations=[last_evaluation(board)] * 2)
    )
    again = {each.name: each.evaluated_episodes for each in await driver.agents()}
    assert again[second] == 32, "each evaluation counts once"


def last_evaluation(board: pb.Leaderboard) -> agent_pb2.Evaluation:
    return board.candidates[0].evaluation
