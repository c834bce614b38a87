"""A lead and its followers over gRPC: what everybody goes on from is exactly the mean of those that
were there."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from podracer.common.v1 import cohort_pb2
from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer_core.errors import Fenced, InvalidInput, PreconditionFailed, Unavailable
from podracer_core.fusion import Contribution, Fused, FusionOptions, FusionTable, Mean
from podracer_learner.config import LearnerConfig
from podracer_learner.fusion import (
    FollowerRegistry,
    FollowOptions,
    FusionFollower,
    FusionLead,
    LeadOptions,
    RoundOver,
    contribution_requests,
)
from podracer_learner.round import Commands, LearnerStatus
from podracer_learner.server import create_learner_server
from podracer_platform.carriers import TensorEncoder
from podracer_platform.rpc import FileToken, RpcServer, create_tokens, open_channel
from podracer_platform.service import own_build
from support.errors import raises
from support.fusion import make_contribution, make_state, mean_of, same

FENCE = 41
PATIENCE_S = 20.0


class Lab:
    """The server of a learner, and channels to it. Followers run in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        create_tokens(folder / "tokens")
        self.desk = FollowerRegistry()
        self._channels: list[grpc.Channel] = []
        self._threads: list[threading.Thread] = []
        self.stopped = threading.Event()
        self.server = self.start()

    def start(self) -> RpcServer:
        config = LearnerConfig(
            listen=f"unix://{self._folder}/lead.sock",
            tokens=self._folder / "tokens",
            orchestrator="127.0.0.1:1",
            pod="projects/p/pods/lead",
            store=self._folder.as_uri(),
        )
        self.server = create_learner_server(config, LearnerStatus(), Commands(), self.desk)
        self.server.start()
        return self.server

    def lead(
        self,
        followers: int,
        *,
        quorum: int = 0,
        deadline_s: float = PATIENCE_S,
        ends_at: float = math.inf,
    ) -> FusionLead:
        table = FusionTable(
            Mean(FusionOptions()), make_state(), quorum=quorum, deadline_s=deadline_s
        )
        return FusionLead(
            table, LeadOptions(FENCE, followers, lambda: None, self.stopped.is_set, ends_at)
        )

    def stub(self) -> learner_service_pb2_grpc.LearnerServiceStub:
        channel = open_channel(self.server.address, FileToken(self._folder / "tokens" / "pod"))
        self._channels.append(channel)
        return learner_service_pb2_grpc.LearnerServiceStub(channel)

    def follower(
        self, rank: int, *, fence: int = FENCE, coming_s: float = PATIENCE_S, lost_s: float = 0.5
    ) -> FusionFollower:
        return FusionFollower(
            self.stub(), FollowOptions(rank, fence, coming_s, lost_s, lambda: None)
        )

    def spawn(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        return future

    def close(self) -> None:
        self.stopped.set()
        self.server.drain(0.0)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        for channel in self._channels:
            channel.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    # short: a unix socket's path has room for 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="fuse-"))
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)


def follow(follower: FusionFollower, rank: int, epochs: int = 1_000_000) -> list[Fused]:
    """Bring what `make_contribution` gives, epoch by epoch, until the lead ends its round; returns
    what came of it."""
    results = [follower.join()]
    try:
        while len(results) <= epochs:
            fused = follower.exchange(make_contribution(rank, results[-1].epoch + 1))
            assert fused is not None
            results.append(fused)
    except RoundOver:
        pass
    finally:
        follower.close()
    return results


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_learners_start_fuse_and_stop(lab, learners):
    lead = lab.lead(learners - 1)
    with lab.desk.serving(lead):
        followers = [
            lab.spawn(lambda rank=rank: follow(lab.follower(rank), rank))
            for rank in range(1, learners)
        ]
        until(lambda: lead.followers == learners - 1)
        present = make_state()
        for epoch in (1, 2, 3):
            fused = lead.exchange(make_contribution(0, epoch))
            assert fused is not None
            assert (fused.epoch, fused.ranks) == (epoch, tuple(range(learners)))
            present = mean_of(
                present, *(make_contribution(rank, epoch) for rank in range(learners))
            )
            assert same(fused.state, present)
    for results in (follower.result(PATIENCE_S) for follower in followers):
        assert [result.epoch for result in results] == [0, 1, 2, 3]
        assert same(results[0].state, make_state())
        assert same(results[-1].state, present)
        assert results[-1].ranks == tuple(range(learners))


def test_a_follower_killed_in_the_middle_of_a_fusion_is_left_out(lab):
    """It has sent a header and part of its chunks; the lead goes on with the others at once, not
    after the deadline."""
    lead = lab.lead(2)
    with lab.desk.serving(lead):
        other = lab.spawn(lambda: follow(lab.follower(1), 1))
        stub, sending = lab.stub(), threading.Event()
        large = make_contribution(2)
        large.growth.parameters["layers.0.weight"] = torch.zeros(2, 1 << 19)  # type: ignore[index]
        requests = list(contribution_requests(large, TensorEncoder()))
        assert len(requests) > 3

        def part() -> Iterator[learner_service_pb2.FuseRequest]:
            join = learner_service_pb2.JoinFusion(build=own_build(), rank=2, lead_fence=FENCE)
            yield from [learner_service_pb2.FuseRequest(join=join), *requests[:-1]]
            sending.wait(PATIENCE_S)

        call = stub.Fuse(part())
        until(lambda: lead.followers == 2)
        waiting = lab.spawn(lambda: lead.exchange(make_contribution(0)))
        time.sleep(0.1)
        assert not waiting.done()
        call.cancel()
        fused = waiting.result(PATIENCE_S)
        sending.set()
        expected = mean_of(make_state(), make_contribution(0), make_contribution(1))
        assert fused.ranks == (0, 1)
        assert same(fused.state, expected)
    assert same(other.result(PATIENCE_S)[1].state, expected)


def test_a_slow_follower_costs_one_deadline_and_rejoins_with_the_fused_parameters(lab):
    lead = lab.lead(2, quorum=2, deadline_s=0.3)
    slow = lab.follower(2)
    with lab.desk.serving(lead):
        fast = lab.spawn(lambda: follow(lab.follower(1), 1))
        assert slow.join().epoch == 0
        until(lambda: lead.followers == 2)
        present = make_state()
        for epoch in range(1, 11):
            fused = lead.exchange(make_contribution(0, epoch))
            assert fused is not None
            assert fused.ranks == (0, 1)
            present = mean_of(present, make_contribution(0, epoch), make_contribution(1, epoch))
            assert same(fused.state, present)
        late = slow.exchange(make_contribution(2, 1))
        assert late is not None
        assert late.epoch == 10
        assert same(late.state, present)
        again = lab.spawn(lambda: slow.exchange(make_contribution(2, 11)))
        until(lambda: lead.brought >= {1, 2})
        fused = lead.exchange(make_contribution(0, 11))
        assert fused is not None
        assert fused.ranks == (0, 1, 2)
        assert same(
            again.result(PATIENCE_S).state,
            mean_of(present, *(make_contribution(r, 11) for r in range(3))),
        )
    slow.close()
    assert fast.result(PATIENCE_S)[-1].epoch == 11


def test_less_than_the_quorum_is_told_to_train_on(lab):
    lead = lab.lead(2, quorum=3, deadline_s=0.2)
    one, two = lab.follower(1), lab.follower(2)
    with lab.desk.serving(lead):
        for follower in (one, two):
            follower.join()
        waiting = lab.spawn(lambda: one.exchange(make_contribution(1)))
        until(lambda: lead.brought == {1})
        assert lead.exchange(make_contribution(0)) is None
        assert waiting.result(PATIENCE_S) is None
        both = [
            lab.spawn(lambda f=f, r=r: f.exchange(make_contribution(r)))
            for r, f in ((1, one), (2, two))
        ]
        until(lambda: lead.brought == {1, 2})
        fused = lead.exchange(make_contribution(0))
        assert fused is not None
        assert fused.ranks == (0, 1, 2)
        assert all(same(result.result(PATIENCE_S).state, fused.state) for result in both)
    for follower in (one, two):
        follower.close()


def test_a_lost_connection_is_opened_again_and_nothing_counts_twice(lab):
    lead = lab.lead(1)
    follower = lab.follower(1, lost_s=PATIENCE_S)
    with lab.desk.serving(lead):
        follower.join()
        waiting = lab.spawn(lambda: follower.exchange(make_contribution(1)))
        until(lambda: lead.brought == {1})
        for _ in range(2):
            broken = follower._call
            assert broken is not None
            broken.close()
            until(
                lambda before=broken: follower._call not in (before, None) and lead.brought == {1}
            )
            assert lead.followers == 1
        fused = lead.exchange(make_contribution(0))
        assert fused is not None
        expected = mean_of(make_state(), make_contribution(0), make_contribution(1))
        assert same(fused.state, expected)
        assert same(waiting.result(PATIENCE_S).state, expected)
    follower.close()


def test_the_end_of_the_round_reaches_who_waits_and_who_trains(lab):
    lead, waiting, training = lab.lead(2), lab.follower(1), lab.follower(2)
    with lab.desk.serving(lead):
        for follower in (waiting, training):
            follower.join()
        training.poll()
        result = lab.spawn(lambda: waiting.exchange(make_contribution(1)))
        until(lambda: lead.brought == {1})
    assert isinstance(result.exception(PATIENCE_S), RoundOver)
    with pytest.raises(RoundOver, match="lead's round"):
        until(lambda: training.poll() is not None)
    for follower in (waiting, training):
        follower.close()


def test_when_the_round_is_over_no_follower_is_awaited_until_the_deadline(lab):
    lead, slow = lab.lead(1, quorum=1, ends_at=time.monotonic()), lab.follower(1)
    with lab.desk.serving(lead):
        slow.join()
        fused = lab.spawn(lambda: lead.exchange(make_contribution(0))).result(PATIENCE_S / 2)
        assert fused.ranks == (0,)
        slow.close()


def test_a_lead_that_has_trained_its_round_lets_its_followers_go(lab):
    """Its evaluations and checkpoints take a while; who comes meanwhile is told so too."""
    lead, waiting = lab.lead(2), lab.follower(1)
    with lab.desk.serving(lead):
        waiting.join()
        result = lab.spawn(lambda: waiting.exchange(make_contribution(1)))
        until(lambda: lead.brought == {1})
        lead.finish()
        assert isinstance(result.exception(PATIENCE_S), RoundOver)
        with pytest.raises(RoundOver, match="finished"):
            lab.follower(2).join()
    waiting.close()


def test_a_lead_that_is_gone_is_looked_for_and_left(lab):
    lead, follower = lab.lead(1), lab.follower(1, lost_s=0.5)
    with lab.desk.serving(lead):
        follower.join()
        # as if it were killed, without notice
        lab.server._loop.do(lab.server._server._server.stop(None))
        with raises(Unavailable, "LEAD_LOST", match="answered for 0 s") as raised:
            follower.exchange(make_contribution(1))
    assert raised.value.reason == "LEAD_LOST"
    follower.close()


def test_a_lead_is_waited_for_until_it_leads(lab):
    follower = lab.follower(1)
    joined = lab.spawn(follower.join)
    time.sleep(0.3)
    assert not joined.done()
    with lab.desk.serving(lab.lead(1)):
        assert joined.result(PATIENCE_S).epoch == 0
    follower.close()
    with raises(Unavailable, "LEAD_LOST", match="learner leads"):
        lab.follower(1, coming_s=0.2).join()


@pytest.mark.parametrize(
    ("rank", "fence", "error", "text"),
    [
        (1, FENCE - 1, Fenced, f"with fence {FENCE - 1}, this lead's fence is {FENCE}"),
        (3, FENCE, InvalidInput, "with rank 3, expected 1 to 2"),
        (0, FENCE, InvalidInput, "with rank 0, expected 1 to 2"),
    ],
)
def test_who_does_not_belong_is_refused(lab, rank, fence, error, text):
    with lab.desk.serving(lab.lead(2)) as lead:
        follower = lab.follower(rank, fence=fence)
        with pytest.raises(error, match=text):
            follower.join()
        follower.close()
        assert lead.followers == 0


def test_another_build_is_refused_with_both_versions(lab, monkeypatch):
    other = cohort_pb2.BuildInfo(version="9.8.7", protocol=own_build().protocol)
    monkeypatch.setattr("podracer_learner.fusion.follower.own_build", lambda: other)
    with lab.desk.serving(lab.lead(1)):
        follower = lab.follower(1)
        with raises(PreconditionFailed, "BUILD_MISMATCH", match=f"{own_build().version} .* 9.8.7"):
            follower.join()
        follower.close()


def test_another_cohort_is_refused(lab):
    lead = lab.lead(1)
    with lab.desk.serving(lead):
        follower = lab.follower(1)
        follower.join()
        other = make_contribution(1)
        other.growth.parameters["log_std"] = torch.zeros(3, 3)  # type: ignore[index]
        with raises(InvalidInput, "COHORT_MISMATCH"):
            follower.exchange(other)
        follower.close()
        until(lambda: lead.followers == 0)


@pytest.mark.parametrize(("samples", "steps"), [(-8, 4), (8, -4), (8, 1 << 62)])
def test_a_contribution_of_numbers_that_cannot_be_is_refused(lab, samples, steps):
    lead = lab.lead(1)
    with lab.desk.serving(lead):
        follower = lab.follower(1)
        follower.join()
        growth = replace(make_contribution(1).growth, transitions=torch.full((2,), steps))
        with raises(InvalidInput, match=f" .*{steps}|sample_count: is {samples},"):
            follower.exchange(Contribution(1, 1, samples, growth))
        follower.close()
        until(lambda: lead.followers == 0)
        assert not lead.brought


def test_the_second_of_a_rank_takes_the_place_of_the_first(lab):
    lead = lab.lead(1)
    with lab.desk.serving(lead):
        first, second = lab.follower(1), lab.follower(1)
        first.join()
        second.join()
        waiting = lab.spawn(lambda: second.exchange(make_contribution(1, samples=80)))
        until(lambda: lead.brought == {1})
        fused = lead.exchange(make_contribution(0))
        assert fused is not None
        assert same(
            fused.state,
            mean_of(make_state(), make_contribution(0), make_contribution(1, samples=80)),
        )
        assert waiting.result(PATIENCE_S).epoch == 1
        first.close()
        second.close()
