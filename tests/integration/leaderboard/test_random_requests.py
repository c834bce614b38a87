"""No request, however strange, breaks the leaderboard: each is answered or refused for a reason
that is the caller's.

PODRACER_FUZZ says how many requests; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from support.random_requests import COUNT, DATABASES, Requests

pytestmark = pytest.mark.thorough


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("server", DATABASES, indirect=True)
async def test_any_request_is_answered_or_refused(server, driver):
    await driver.create(population=4, leaderboard_size=2)
    response = await driver.propose(2)
    await driver.run_round(response, lambda agent: 1.0)
    texts = [
        "projects/p/leaderboards/j",
        "champion",
        *(each.agent.name for each in response.proposals),
    ]
    requests = Requests(
        random.Random(int(os.environ.get("PODRACER_FUZZ_SEED", "2"))), waits=("WatchLeaderboard",)
    )
    channel = await server.channel()
    for _ in range(COUNT):
        method = requests.chance.choice(
            pb.DESCRIPTOR.services_by_name["LeaderboardService"].methods
        )
        made = requests.make(method, texts)
        if method.name == "DeleteLeaderboard" and requests.chance.random() < 0.9:
            made.name = "projects/p/leaderboards/absent"
        await requests.send(channel, method, made)
    requests.assert_bounded()
    await driver.create(population=4, leaderboard_size=2)
