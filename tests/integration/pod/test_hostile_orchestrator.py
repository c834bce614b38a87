"""An orchestrator that lies to a learner, and streams of workers and evaluators that are altered on
their way: whatever comes, the learner reports or abandons its work and asks for other work, and is
well afterwards.

PODRACER_FUZZ says how many leases, PODRACER_FUZZ_SEED which; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from podracer.learner.v1 import learner_service_pb2 as learner_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from support.bombardment import Watch
from support.liar import MOST_CALLS, Liar
from support.processes import wait_until

COUNT = int(os.environ.get("PODRACER_FUZZ", "300")) // 15
SEED = int(os.environ.get("PODRACER_FUZZ_SEED", "3"))
JOB = "projects/p/jobs/j"
TEXTS = (
    JOB, f"{JOB}/agents/a0", f"{JOB}/agents/a1", "projects/p/leases/l1", "CartPole-v1", "uid1",
    "ppo", "sac", "horizon", "learning_rate", "../../outside", "/tmp/outside-of-podracer",
    "a/../../outside", "a\0b", "line\nline", "ä", "vote", "x" * 300_000, "\x1b[2J",
    "projects/p/jobs/uid1/agents/a0/checkpoints/64-1/",
)  # fmt: skip
AGAIN = [
    grpc.StatusCode[name]
    for name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED", "UNKNOWN")
]

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(7200)]


class Orchestrator(Liar):
    """Grants so many leases of `works`, altered, and ends each soon; calls to others it hands on to
    `peers`."""

    def __init__(
        self, works: Callable[[random.Random], dict[str, Any]], peers: dict[str, grpc.Channel]
    ) -> None:
        super().__init__(TEXTS)
        self._works, self._peers = works, peers
        self.granted, self.most_calls, self.ends = 0, 0, threading.Event()

    def service(self, details: Any) -> Any:
        peer = next(
            (channel for role, channel in self._peers.items() if f".{role}." in details.method),
            None,
        )
        return super().service(details) if peer is None else self._handed_on(peer, details.method)

    def count(self, method: Any, context: Any) -> None:
        self.calls += 1
        self.most_calls = max(self.calls, self.most_calls)
        if self.chance.random() < 0.1:
            may_ask_again = method.name in ("LeaseWork", "WatchLease")
            self.refuse(
                context, self.chance.choice(AGAIN if may_ask_again else list(grpc.StatusCode)[1:])
            )

    def answer(self, method: Any) -> Any:
        if method.name != "LeaseWork" or self.chance.random() < 0.2:
            return super().answer(method)
        if self.granted == COUNT:
            self.ends.set()
            return pod_pb2.LeaseWorkResponse(
                lease=pod_pb2.Lease(name="projects/p/leases/l", exit=pod_pb2.ExitWork())
            )
        self.granted += 1
        self.begin(random.Random(f"{SEED}-{self.granted}"))
        lease = pod_pb2.Lease(
            name=f"projects/p/leases/l{self.granted}", fence=self.granted, job=JOB, job_uid="uid1"
        )
        lease.token, lease.term.seconds = "token", 3
        lease.MergeFrom(pod_pb2.Lease(**self._works(self.chance)))
        return pod_pb2.LeaseWorkResponse(
            lease=self.messages.mutate(lease) if self.chance.random() < 0.8 else lease
        )

    def be_honest(self, answer: Any) -> None:
        if isinstance(answer, pod_pb2.RenewLeaseResponse):
            answer.term.seconds = 3
        elif isinstance(answer, learner_pb2.FuseResponse):
            answer.joined.epoch = 1

    def parts(self, method: Any, request: Any, context: Any) -> Iterator[Any]:
        yield from super().parts(method, request, context)
        time.sleep(1.0)  # the round goes on meanwhile
        yield pod_pb2.WatchLeaseResponse(action=self.chance.choice((2, 4)))

    def _handed_on(self, peer: grpc.Channel, name: str) -> Any:
        service, method_name = name.strip("/").split("/")
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method_name]
        kinds = "_".join(
            "stream" if each else "unary"
            for each in (method.client_streaming, method.server_streaming)
        )
        call = getattr(peer, kinds)(
            name, response_deserializer=GetMessageClass(method.output_type).FromString
        )

        def altered(message: Any) -> Any:
            return self.messages.mutate(message) if self.chance.random() < 0.1 else message

        def stream(request: Any, context: Any) -> Iterator[Any]:
            answers = call(request)
            context.add_callback(answers.cancel)
            try:
                for message in answers:
                    if self.chance.random() < 0.02:
                        return
                    yield altered(message)
            except grpc.RpcError as error:
                self._fail(context, error)

        def answer(request: Any, context: Any) -> Any:
            try:
                return altered(call(request))
            except grpc.RpcError as error:
                self._fail(context, error)

        behaviour = stream if method.server_streaming else answer
        return getattr(grpc, f"{kinds}_rpc_method_handler")(
            behaviour, response_serializer=lambda message: message.SerializeToString()
        )

    @staticmethod
    def _fail(context: Any, error: Any) -> None:
        context.set_trailing_metadata(error.trailing_metadata() or ())
        context.abort(error.code(), error.details() or "")


def wait_for_the_end(process: Any, lies: Orchestrator) -> None:
    """Of a learner; each lease has a minute."""
    granted = -1

    def goes_on() -> bool:
        return process.poll() is not None or lies.granted > granted

    while process.poll() is None:
        granted = lies.granted
        wait_until(goes_on, 60, f"the end of lease {granted}")


@pytest.mark.parametrize("layout", ["fused", "split"])
def test_a_learner_survives_whatever_it_is_told(lab, train_work, layout):
    def works(chance: random.Random) -> dict[str, Any]:
        train = train_work(members=chance.choice((1, 2)), envs=4, steps=256, episodes=2)
        environment = train.cohort.environment
        return chance.choice((
            {"train": train}, {"train": train},
            {"inspect": pod_pb2.InspectWork(environment=environment)},
            {"evaluate": pod_pb2.EvaluateWork(environment=environment, seeds=[1, 2])},
            {"follow": pod_pb2.FollowWork(lead_address=address, rank=1, lead_fence=1, train=train)},
        ))  # fmt: skip

    peers = {}
    if layout == "split":
        for role in ("worker", "evaluator"):
            lab.start(role)
            peers[role] = lab.channel(role)
    lies, address = Orchestrator(works, peers), f"unix://{lab.folder}/liar.sock"
    with lies.serving(address):
        lab.addresses |= dict.fromkeys(("orchestrator", *peers), address)
        lies.begin(random.Random(SEED))
        watch, others = None, [f"{role}.{end}" for role in peers for end in ("log", "cache")]
        while not lies.ends.is_set():
            process = lab.start_learner(layout, peer_patience="2", store_patience="2")
            watch = watch or Watch(lab, "learner", "store/projects/p/jobs/uid1", *others)
            wait_for_the_end(process, lies)
            log = lab.log("learner")
            assert process.poll() == 0, log[-5000:]
            watch.assert_no_mistake()
    assert lies.most_calls < MOST_CALLS
    assert not Path("/tmp/outside-of-podracer").exists()
