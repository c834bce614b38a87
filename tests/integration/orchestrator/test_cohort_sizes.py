"""The leaderboard hears how many agents a pod trained at once where it is to find out how many are
best."""

from __future__ import annotations

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2


@pytest.mark.parametrize(("members", "told"), [(0, 2), (2, 0)])
async def test_a_size_is_reported_only_where_the_job_has_not_chosen_it(site, members, told):
    await site.create(pod=job_pb2.PodShape(members=members, max_count=1))
    learner = site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=20.0))
    await learner.ask()  # which flushes the outbox first
    heard = site.board.heard(leaderboard_pb2.SubmitCandidateRequest)
    assert [request.member_count for request in heard] == [told, told]
