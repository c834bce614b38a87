"""Sends single observations to a policy server at fixed times, whether former ones have been
answered or not.

A process of its own, so that what it costs is not the server's: bytes that were made once go to as
bare a client as there is. A latency counts from the time at which its request was due, late sending
included. Prints one JSON object."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter

import grpc

from podracer.policy.v1 import policy_service_pb2 as pb


async def _load(options: argparse.Namespace) -> dict[str, object]:
    request = bytes.fromhex(options.request)
    latencies: list[float] = []
    answers: list[bytes] = []
    errors: Counter[str] = Counter()
    # Times of independent callers: a regular beat would hide what happens when several come at
    # once.
    clock, dues, generator = 0.0, [], random.Random(options.seed)
    while clock < options.seconds:
        dues.append(clock)
        clock += generator.expovariate(options.rate)
    async with grpc.aio.insecure_channel(options.address) as channel:
        act = channel.unary_unary(options.method)
        metadata = (("authorization", f"Bearer {sys.stdin.readline().strip()}"),)
        for _ in range(20):
            await act(request, timeout=10, metadata=metadata)

        async def ask(due: float) -> None:
            try:
                answer = await act(request, timeout=10, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                errors[f"{error.code().name}: {error.details()}"[:200]] += 1
                return
            latencies.append(1000 * (time.perf_counter() - due))
            answers.append(answer)

        asked = []
        began, start = time.process_time(), time.perf_counter()
        for due in dues:
            if (wait := start + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            asked.append(asyncio.create_task(ask(start + due)))
        await asyncio.gather(*asked)
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - began
    versions = (
        {pb.ActResponse.FromString(answer).version for answer in answers}
        if options.versions
        else set()
    )
    return {
        "latencies_ms": [round(latency, 3) for latency in latencies],
        "errors": errors,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "versions": sorted(versions),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("method", help="full name, /package.Service/Method")
    parser.add_argument("request", help="bytes of a request, in hexadecimal")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--versions", action="store_true", help="tell which versions have answered")
    json.dump(asyncio.run(_load(parser.parse_args())), sys.stdout)
