"""Leaderboards themselves over gRPC: made, watched, deleted; and who may do what."""

from __future__ import annotations

import asyncio

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
)
from podracer_leaderboard import boards
from support.errors import raises

BOARD = "projects/p/leaderboards/j"


async def test_making_one_again_gives_it_as_it_was(driver, new_spec):
    first = await driver.create()
    assert (first.name, first.revision, first.agent_count, list(first.candidates)) == (
        BOARD,
        1,
        0,
        [],
    )
    assert first.spec == new_spec()
    await driver.propose(2)
    again = await driver.create()
    assert (again.agent_count, again.update_time) == (2, first.update_time)


async def test_a_name_that_is_taken_is_refused(driver, new_spec):
    await driver.create()
    other = new_spec()
    other.job_uid = "uid-2"
    with raises(AlreadyExists, "LEADERBOARD_EXISTS", match="another job"):
        await driver.stub.CreateLeaderboard(pb.CreateLeaderboardRequest(name=BOARD, spec=other))
    with raises(AlreadyExists, "LEADERBOARD_EXISTS", match="projects/p/leaderboards/j"):
        await driver.stub.CreateLeaderboard(
            pb.CreateLeaderboardRequest(name=BOARD + "2", spec=new_spec())
        )


async def test_a_spec_that_cannot_be_right_makes_nothing(driver):
    with raises(InvalidInput, field="evolution.leaderboard_size"):
        await driver.create(population=2, leaderboard_size=5)
    with pytest.raises(NotFound):
        await driver.board()


async def test_deleting_takes_all_with_it_and_twice_is_fine(driver):
    await driver.create()
    cohort = await driver.propose(2)
    await driver.run_round(cohort, lambda agent: 1.0)
    for _ in range(2):
        await driver.stub.DeleteLeaderboard(pb.DeleteLeaderboardRequest(name=BOARD))
    with pytest.raises(NotFound):
        await driver.board()
    with pytest.raises(NotFound):
        await driver.stub.GetAgent(pb.GetAgentRequest(name=cohort.proposals[0].agent.name))
    await driver.create()
    assert not await driver.agents()
    assert (await driver.propose(1, request_id="work-1")).proposals[0].agent.name.endswith("a0001")


async def test_watching_gives_the_present_and_every_change(driver):
    await driver.create(leaderboard_size=2)
    names = [each.agent.name for each in (await driver.propose(3)).proposals]
    watch = driver.stub.WatchLeaderboard(pb.WatchLeaderboardRequest(name=BOARD))
    assert (await watch.read()).leaderboard.revision == 1
    await driver.submit(names[0], 1.0)
    change = (await watch.read()).leaderboard
    assert (change.revision, [each.agent.name for each in change.candidates]) == (2, names[:1])
    await driver.submit(names[1], None)  # no change of the ranking: nothing is sent
    await driver.submit(names[2], 2.0)
    assert (await watch.read()).leaderboard.revision == 3
    later = driver.stub.WatchLeaderboard(pb.WatchLeaderboardRequest(name=BOARD, after_revision=3))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(later.read(), 0.2)


async def test_an_answer_cannot_outgrow_a_message(driver, monkeypatch):
    """Where candidates have many episodes, the first ones have all of theirs, and the last ones
    none."""
    await driver.create(population=4, leaderboard_size=4)
    cohort = await driver.propose(places=4)
    await driver.run_round(cohort, lambda agent: float(len(agent.name)))
    whole = await driver.board()
    assert all(each.evaluation.returns for each in whole.candidates)
    monkeypatch.setattr(
        boards, "LISTED_BYTES", whole.candidates[0].ByteSize() + whole.candidates[1].ByteSize()
    )
    stream = driver.stub.WatchLeaderboard(pb.WatchLeaderboardRequest(name=BOARD))
    for board in (await driver.board(), (await stream.read()).leaderboard):
        assert list(board.candidates[:2]) == list(whole.candidates[:2])
        for cut, each in zip(board.candidates[2:], whole.candidates[2:], strict=True):
            assert not (
                cut.evaluation.returns or cut.evaluation.seeds or cut.agent.best_evaluation.returns
            )
            assert (cut.score, cut.evaluation.mean) == (each.score, each.evaluation.mean)
            assert cut.evaluation.checkpoint == each.evaluation.checkpoint


async def test_a_watch_ends_with_the_leaderboard(driver):
    await driver.create()
    watch = driver.stub.WatchLeaderboard(pb.WatchLeaderboardRequest(name=BOARD))
    await watch.read()
    await driver.stub.DeleteLeaderboard(pb.DeleteLeaderboardRequest(name=BOARD))
    assert [message async for message in watch] == []
    with pytest.raises(NotFound):
        async for _ in driver.stub.WatchLeaderboard(pb.WatchLeaderboardRequest(name=BOARD)):
            pass


async def test_a_watch_is_told_that_the_server_drains(server, driver):
    await driver.create()
    watch = driver.stub.WatchLeaderboard(pb.WatchLeaderboardRequest(name=BOARD))
    await watch.read()
    stopping = asyncio.create_task(server.stop(linger_s=0.5))
    assert [message.draining async for message in watch] == [True]
    await asyncio.wait_for(stopping, 30)
