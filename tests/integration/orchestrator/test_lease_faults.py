"""Leases whose transactions fail, and requests for work that are repeated: no lease stays for ever,
or for no pod."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest
from sqlalchemy.orm import Session

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import Unavailable
from podracer_orchestrator.dispatch import Ask
from podracer_orchestrator.pool import PodReport
from support.lease_history import PODS, TERM_S, History


@pytest.fixture
def history(tmp_path):
    history = History(tmp_path, random.Random(0))
    history.scale_to(1)
    yield history
    history.run(history.database.close())
    history.loop.close()


def ask(history, pod: str = PODS[0]):
    report = PodReport(pod, history.instances[pod], "FUSED", f"{pod}:7000", b"")
    return history.run(history.dispatcher.lease(Ask(report, uuid.uuid4().hex), 0.0))


def fail_at_commit(history, call, monkeypatch) -> None:
    """Make a call whose transaction fails when it is written."""

    def failing(operation):
        def operate(session: Session) -> None:
            operation(session)
            raise Unavailable("the disk is full")

        return write(operate)

    write = history.database._write
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="disk"):
        patch.setattr(history.database, "_write", failing)
        call()


def test_a_lease_whose_expiry_could_not_be_stored_expires_at_the_next_sweep(history, monkeypatch):
    lost = ask(history)
    history.clock.seconds += 1.1 * TERM_S
    fail_at_commit(history, lambda: history.run(history.operations.expire_overdue()), monkeypatch)
    assert list(history.held_now()) == [lost.fence]
    history.run(history.operations.expire_overdue())
    assert ask(history, PODS[1]).fence > lost.fence
    assert history.deadlines.expired() == []


def test_a_lease_whose_pod_asked_anew_in_vain_expires(history, monkeypatch):
    lost = ask(history)
    fail_at_commit(history, lambda: ask(history), monkeypatch)
    history.clock.seconds += 1.1 * TERM_S
    history.run(history.operations.expire_overdue())
    assert history.held_now() == {}
    assert ask(history, PODS[1]).fence > lost.fence


async def all_wait(site, calls: int) -> None:
    waits = site.server.orchestrator.dispatcher._waits
    for _ in range(6000):
        if waits._count == calls:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{waits._count} calls wait, not {calls}")


async def create_for_many(site) -> None:
    await site.create(
        pod=job_pb2.PodShape(members=1, max_count=4),
        objective=evolution_pb2.Objective(max_env_steps=10**9),
    )


async def test_a_request_that_is_repeated_while_it_waits_gets_one_lease(site):
    learner, request_id = site.learner(), uuid.uuid4().hex
    calls = []
    for count in (1, 2, 3):
        calls.append(asyncio.create_task(learner.ask(wait_s=20, request_id=request_id)))
        await all_wait(site, count)
    await create_for_many(site)
    first, *others = await asyncio.gather(*calls)
    assert first.WhichOneof("work") == "train"
    assert [(each.fence, each.token) for each in others] == [(first.fence, first.token)] * 2


async def test_the_call_of_a_learner_that_was_restarted_takes_no_lease(site):
    gone, restarted = site.learner(), site.learner()
    old = asyncio.create_task(gone.ask(wait_s=20))
    await all_wait(site, 1)
    # until it has been heard
    while not (await site.jobs.ListPods()).pods:
        await asyncio.sleep(0.01)
    new = asyncio.create_task(restarted.ask(wait_s=20))
    await all_wait(site, 2)
    await create_for_many(site)
    assert await old is None
    assert (await new).fence
