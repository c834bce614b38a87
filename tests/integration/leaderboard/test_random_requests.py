"""No request, however strange, breaks the leaderboard: each is answered or refused for a reason that is the caller's.

PODRACER_FUZZ says how many requests; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.errors import DeadlineExpired, PodracerError
from support.random_messages import RandomMessages, bounded

pytestmark = pytest.mark.thorough
COUNT = int(os.environ.get("PODRACER_FUZZ", "300"))


@pytest.mark.timeout(7200)
async def test_any_request_is_answered_or_refused(server: Any, driver: Any) -> None:
    chance = random.Random(int(os.environ.get("PODRACER_FUZZ_SEED", "2")))
    await driver.create(population=4, leaderboard_size=2)
    response = await driver.propose(2)
    await driver.run_round(response, lambda agent: 1.0)
    texts = ["projects/p/leaderboards/j", "champion", *(each.agent.name for each in response.proposals)]
    stub = await server.stub()
    methods = pb.DESCRIPTOR.services_by_name["LeaderboardService"].methods
    for _ in range(COUNT):
        method = chance.choice(methods)
        request = RandomMessages(chance, texts).fill(GetMessageClass(method.input_type)())
        request = bounded(request) if chance.random() < 0.8 else request
        if method.name == "DeleteLeaderboard" and chance.random() < 0.9:
            request.name = "projects/p/leaderboards/absent"
        try:
            answer = getattr(stub, method.name)(request, timeout=30.0)
            if method.server_streaming:
                async for _ in answer:
                    break
                answer.cancel()
            else:
                await answer
        except DeadlineExpired:
            assert method.name == "WatchLeaderboard", f"{method.name} hangs for {request}"
        except PodracerError as error:
            assert type(error) is not PodracerError, f"{method.name}: {error} for {request}"
