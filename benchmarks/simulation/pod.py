"""A pod without a learner: it speaks the real PodService, writes real checkpoints, and replays
curves for training."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import duration_pb2
from simulation.clock import SkippingClock
from simulation.curves import Curve, Curves

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import job_pb2, pod_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import Fenced
from podracer_core.evaluate import EvaluationResult
from podracer_core.storage import (
    FILE_NAME,
    CheckpointPlace,
    Manifest,
    ManifestFile,
    ObjectStore,
    checkpoint_prefix,
)
from podracer_platform.rpc import bearer
from podracer_platform.service import own_build
from podracer_platform.training_messages import result_to_message

EVALUATION_FRACTION = 0.1
"""Part of a round that goes into looks; a learner may take a fifth."""
LOOK_EPISODES = 8
EVALUATION_S = 1.0
"""Seconds of the pod for 32 greedy episodes of one agent (HalfCheetah-v5, one core)."""
IDLE_S = 0.25
SPREAD = 0.05
"""Standard deviation of an evaluation's returns, relative to their mean."""


@dataclass
class Load:
    """What the pods have asked of the control plane: seconds that each call took, by method; those
    of LeaseWork that brought nothing by themselves."""

    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Site:
    """What all pods share. `renewal_s`: how often a lease is renewed; by default a third of its
    default term, as a learner does. `look_every`: after how many renewals agents have been looked
    at. `idle_s`: how long a pod waits that was offered nothing."""

    stub: pod_service_pb2_grpc.PodServiceStub
    store: ObjectStore
    clock: SkippingClock
    curves: Curves
    load: Load
    job_has_ended: Callable[[], Awaitable[bool]]
    renewal_s: float = 10.0 / 3
    look_every: int = 1
    idle_s: float = IDLE_S


async def never() -> bool:
    """For pods whose job does not end."""
    return False


@dataclass
class _Member:
    """An agent of a cohort while it trains."""

    spec: agent_pb2.AgentSpec
    curve: Curve
    level: float


class SimulatedPod:
    """`run` leases and carries out work until it is cancelled or its job has ended.

    `completed_at` is when the clock stood at its last completed work.
    """

    def __init__(self, site: Site, name: str) -> None:
        self.completed_at = 0.0
        self._site = site
        self._name = f"projects/default/pods/{name}"
        self._instance = uuid.uuid4().hex
        self._numbers = 0

    async def run(self) -> None:
        clock = self._site.clock
        clock.enter()
        try:
            while True:
                lease = await self._lease()
                work = lease.WhichOneof("work") if lease is not None else None
                if lease is None and await self._site.job_has_ended():
                    return
                if lease is None:
                    await clock.sleep_until(clock.now + self._site.idle_s)
                elif work == "train":
                    await self._train(lease)
                elif work == "evaluate":
                    await self._evaluate(lease)
                else:
                    return
        except Fenced:
            return  # the job has ended
        finally:
            clock.leave()

    async def _lease(self) -> pod_pb2.Lease | None:
        request = pod_pb2.LeaseWorkRequest(
            pod=self._name,
            instance_id=self._instance,
            request_id=uuid.uuid4().hex,
            build=own_build(),
            capabilities=pod_pb2.PodCapabilities(layout=job_pb2.POD_LAYOUT_FUSED, cpu_threads=1),
            wait=_seconds(0.0),
        )
        response = await self._call("LeaseWork", request, "")
        if response.HasField("lease"):
            return response.lease
        load = self._site.load
        load.latencies["LeaseWork, nothing"].append(load.latencies["LeaseWork"].pop())
        return None

    async def _train(self, lease: pod_pb2.Lease) -> None:
        """A round, with a renewal every few seconds; it ends early where a member reaches the
        target."""
        clock, work = self._site.clock, lease.train
        begin, share = clock.now, 1.0 - EVALUATION_FRACTION
        members = [self._member(spec) for spec in work.cohort.members]
        target = (
            work.objective.target_return if work.objective.HasField("target_return") else math.inf
        )
        hits = [
            found
            for each in members
            if (found := each.curve.seconds_to(each.level, target)) is not None
        ]
        length_s = min(
            [work.budget.time.ToNanoseconds() / 1e9, *(hit / share + 1e-3 for hit in hits)]
        )
        renewal_s = self._site.renewal_s
        count = int(length_s / renewal_s)
        for index in range(1, count + 1):
            await clock.sleep_until(begin + index * renewal_s)
            looks = members if index % self._site.look_every == 0 else []
            action = await self._renew(lease, members, looks, index * renewal_s)
            if action != pod_pb2.LEASE_ACTION_CONTINUE:
                return
        await clock.sleep_until(begin + length_s)
        for each in members:
            each.level = each.curve.after(each.level, length_s * share)
        speed = len(members) * share * self._site.curves.env_steps_per_second
        result = pod_pb2.TrainResult(train_time=_seconds(length_s), env_steps_per_second=speed)
        for each in members:
            checkpoint = self._checkpoint(lease, each, length_s)
            candidate = self._evaluation(
                lease, each.spec, each.level, work.evaluation.episodes, checkpoint
            )
            candidate.train_time.CopyFrom(_seconds(length_s))
            candidate.confirm_time.CopyFrom(_seconds(length_s))
            result.members.add(final=checkpoint, candidate=candidate)
        commit = pod_pb2.CommitCheckpointRequest(lease=lease.name, fence=lease.fence)
        commit.members.extend(each.final for each in result.members)
        await self._call("CommitCheckpoint", commit, lease.token)
        complete = pod_pb2.CompleteWorkRequest(lease=lease.name, fence=lease.fence, train=result)
        await self._call("CompleteWork", complete, lease.token)

    async def _renew(
        self,
        lease: pod_pb2.Lease,
        members: Sequence[_Member],
        looks: Sequence[_Member],
        elapsed_s: float,
    ) -> pod_pb2.LeaseAction.ValueType:
        """Progress of each member, and a look at some."""
        request = pod_pb2.RenewLeaseRequest(
            lease=lease.name, fence=lease.fence, train_time=_seconds(elapsed_s)
        )
        for each in members:
            request.members.append(self._progress(each.spec.name, elapsed_s, len(members)))
        for each in looks:
            level = each.curve.after(each.level, elapsed_s * (1.0 - EVALUATION_FRACTION))
            request.evaluations.append(
                self._evaluation(lease, each.spec, level, LOOK_EPISODES, None)
            )
        return (await self._call("RenewLease", request, lease.token)).action

    async def _evaluate(self, lease: pod_pb2.Lease) -> None:
        """Fresh episodes of a checkpoint (of the first, where several act together)."""
        clock, work = self._site.clock, lease.evaluate
        await clock.sleep_until(clock.now + EVALUATION_S * max(1, len(work.seeds)) / 32)
        policy = work.policies[0]
        spec = agent_pb2.AgentSpec(name=policy.agent)
        evaluation = self._evaluation(
            lease, spec, self._level(policy.checkpoint.prefix), len(work.seeds), None
        )
        evaluation.purpose = work.purpose
        evaluation.seeds[:] = work.seeds
        evaluation.checkpoint.CopyFrom(policy.checkpoint)
        result = pod_pb2.EvaluateResult(evaluation=evaluation, cost=_seconds(EVALUATION_S))
        request = pod_pb2.CompleteWorkRequest(lease=lease.name, fence=lease.fence, evaluate=result)
        await self._call("CompleteWork", request, lease.token)

    async def _call(self, method: str, request: Any, token: str) -> Any:
        start = time.perf_counter()
        metadata = bearer(token) if token else None
        response = await getattr(self._site.stub, method)(request, metadata=metadata, timeout=600.0)
        self._site.load.latencies[method].append(time.perf_counter() - start)
        if method == "CompleteWork":
            self.completed_at = self._site.clock.now
        return response

    def _member(self, spec: agent_pb2.AgentSpec) -> _Member:
        """An agent as its checkpoint, or its first parent's, has it."""
        values = spec.hyperparameters
        curve = self._site.curves.of(
            values["learning_rate"].number, values["gamma"].number, spec.seed
        )
        if spec.HasField("resume"):
            level = self._level(spec.resume.prefix)
        elif spec.initialization.parents:
            level = self._level(spec.initialization.parents[0].checkpoint.prefix)
        else:
            level = curve.start
        return _Member(spec, curve, level)

    def _level(self, prefix: str) -> float:
        return float(json.loads(self._site.store.get(f"{prefix}level.json"))["level"])

    def _progress(self, agent: str, elapsed_s: float, members: int) -> pod_pb2.MemberProgress:
        steps = int(
            elapsed_s * (1.0 - EVALUATION_FRACTION) * self._site.curves.env_steps_per_second
        )
        cost_s = elapsed_s / members
        return pod_pb2.MemberProgress(
            agent=agent,
            env_steps=steps,
            cost=_seconds(cost_s),
            evaluation_cost=_seconds(cost_s * EVALUATION_FRACTION),
        )

    def _checkpoint(
        self, lease: pod_pb2.Lease, member: _Member, elapsed_s: float
    ) -> pod_pb2.MemberCheckpoint:
        """Write the agent's level, manifest last."""
        progress = self._progress(member.spec.name, elapsed_s, len(lease.train.cohort.members))
        steps = member.spec.env_steps + progress.env_steps
        agent = member.spec.name.rpartition("/")[2]
        prefix = checkpoint_prefix("default", lease.job_uid, agent, steps, lease.fence)
        data = json.dumps({"level": member.level}).encode()
        manifest = Manifest(
            (ManifestFile.describe("level.json", data),), {"agent": agent}, {}
        ).to_json()
        self._site.store.put(f"{prefix}level.json", data)
        self._site.store.put(f"{prefix}{FILE_NAME}", manifest)
        reference = agent_pb2.CheckpointReference(
            prefix=CheckpointPlace.parse(prefix).prefix,
            manifest_sha256=ManifestFile.describe(FILE_NAME, manifest).sha256,
            size_bytes=len(data) + len(manifest),
            env_steps=steps,
            fence=lease.fence,
        )
        return pod_pb2.MemberCheckpoint(progress=progress, checkpoint=reference)

    def _evaluation(
        self,
        lease: pod_pb2.Lease,
        spec: agent_pb2.AgentSpec,
        level: float,
        episodes: int,
        final: pod_pb2.MemberCheckpoint | None,
    ) -> agent_pb2.Evaluation:
        """Returns spread evenly around `level`: their mean is exact, so that the same run comes out
        the same."""
        self._numbers += 1
        offsets = [
            (2.0 * index / max(1, episodes - 1) - 1.0) * SPREAD * 3**0.5
            for index in range(episodes)
        ]
        returns = tuple(level + abs(level) * offset for offset in offsets)
        result = EvaluationResult(returns, (1000,) * episodes, tuple(range(episodes)))
        message = result_to_message(result)
        message.evaluation_id, message.agent = f"{lease.fence}-{self._numbers}", spec.name
        if final is None:
            message.purpose = agent_pb2.EVALUATION_PURPOSE_PROGRESS
            message.env_steps = spec.env_steps
        else:
            message.purpose = agent_pb2.EVALUATION_PURPOSE_CANDIDATE
            message.checkpoint.CopyFrom(final.checkpoint)
            message.env_steps = final.checkpoint.env_steps
        return message


def _seconds(value: float) -> duration_pb2.Duration:
    message = duration_pb2.Duration()
    message.FromNanoseconds(int(value * 1e9))
    return message
