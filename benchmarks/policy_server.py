"""Latency of a policy server under an open load of single observations, exchanged all the while.

A server process of one thread and this process, which asks, share the machine. Requests are sent at their times whether
former ones have been answered or not, and a latency counts from the time at which its request was due. Beside the load
a new version of the policy is loaded every two seconds. There is no peer in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from report import Target, finish, print_table, spread, versions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from podracer.common.v1 import tensor_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer.policy.v1.policy_service_pb2_grpc import PolicyServiceStub
from podracer_client import PolicyClient
from podracer_core.checkpoint import pack_policy
from podracer_core.errors import PodracerError
from podracer_core.rpc.channel import open_aio_channel
from podracer_core.rpc.tokens import FileToken, Role, create_tokens
from support.policies import random_policy

OBSERVATION = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTION = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
LEAST_RATE, MOST_P99_MS = 500.0, 10.0
SWAP_EVERY_S = 2.0


@dataclass
class Outcome:
    """Of one run: latencies in ms, and what went wrong."""

    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once, a few seconds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement")
    parser.add_argument("--rate", type=float, default=LEAST_RATE, help="requests a second")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds = 1, 8.0
    print(versions("torch", "grpcio", "numpy"), flush=True)
    packed = [pack_policy(random_policy("ppo", OBSERVATION, ACTION, seed)) for seed in range(2)]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="policy-server-") as folder:
        tokens = create_tokens(Path(folder, "tokens"))
        environment = {**os.environ, "PODRACER_TOKENS": str(Path(folder, "tokens")), "PODRACER_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, "-m", "podracer_policy"], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().removeprefix("listening on ").strip()
            with PolicyClient(address, token_file=tokens[Role.CONTROL]) as operator:
                operator.load("p", "v0", packed[:1])
                for repeat in range(options.repeats):
                    outcomes.append(asyncio.run(_load(address, tokens, packed, repeat, options)))
                    print(f"p99 {_quantile(outcomes[-1], 0.99):.2f} ms", flush=True)
        finally:
            server.terminate()
            server.wait(20)
    rates = [len(outcome.latencies) / outcome.seconds for outcome in outcomes]
    quantiles = {name: [_quantile(outcome, q) for outcome in outcomes] for name, q in (("p50", 0.5), ("p99", 0.99))}
    errors = [error for outcome in outcomes for error in outcome.errors]
    print_table(
        f"Single observations at {options.rate:g} requests/s, the policy exchanged every {SWAP_EVERY_S:g} s",
        ["answers/s", "p50 ms", "p99 ms", "errors", "versions that acted"],
        [[spread(rates), spread(quantiles["p50"]), spread(quantiles["p99"]), len(errors), len(outcomes[-1].versions)]],
    )
    for error in errors[:3]:
        print(error)
    targets = {
        "p99_ms": Target(statistics.median(quantiles["p99"]), MOST_P99_MS, at_most=True),
        "answers_per_second": Target(statistics.median(rates), 0.98 * LEAST_RATE),
        "errors": Target(float(len(errors)), 0.0, at_most=True),
    }
    finish("policy_server", {"rates": rates, **quantiles, "errors": len(errors)}, targets)


async def _load(address: str, tokens: Any, packed: list[bytes], repeat: int, options: argparse.Namespace) -> Outcome:
    outcome = Outcome()
    request = pb.ActRequest(
        observations=tensor_pb2.Tensor(
            dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[17], inline=np.ones(17, np.float32).tobytes()
        )
    )
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_aio_channel(address, FileToken(tokens[Role.CLIENT])))
        stub: Any = PolicyServiceStub(channel)
        await stub.Act(request)

        async def ask(due: float) -> None:
            try:
                answer = await stub.Act(request, timeout=10)
            except PodracerError as error:
                outcome.errors.append(error.message)
                return
            outcome.latencies.append(1000 * (time.perf_counter() - due))
            outcome.versions.add(answer.version)

        start, asked = time.perf_counter(), []
        swapping = asyncio.create_task(asyncio.to_thread(_swap, address, tokens, packed, repeat, options.seconds))
        for number in range(int(options.rate * options.seconds)):
            due = start + number / options.rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(asyncio.create_task(ask(due)))
        await asyncio.gather(*asked)
        outcome.seconds = time.perf_counter() - start
        await swapping
    return outcome


def _swap(address: str, tokens: Any, packed: list[bytes], repeat: int, seconds: float) -> None:
    with PolicyClient(address, token_file=tokens[Role.CONTROL]) as operator:
        for number in range(1, int(seconds / SWAP_EVERY_S)):
            time.sleep(SWAP_EVERY_S)
            operator.load("p", f"v{repeat}-{number}", [packed[number % 2]])


def _quantile(outcome: Outcome, share: float) -> float:
    return float(np.quantile(outcome.latencies, share))


if __name__ == "__main__":
    main()
