"""Latency of a policy server under an open load of single observations, and while its policy is
exchanged.

The server, of one thread of torch, and the load, a process of its own (open_load.py), share the
machine. Requests come at random times, as those of many independent callers, whether former ones
have been answered or not; a latency counts from the time at which its request was due. `exchanged`
loads a new version every two seconds meanwhile. `bare` is a gRPC server of threads around the same
policy and nothing else: no tokens, no checks, no batches, no versions."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from report import Target, finish, print_table, spread, versions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from podracer.common.v1 import tensor_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer_client import PolicyClient
from podracer_core.checkpoint import pack_policy
from podracer_platform.rpc.tokens import Role, create_tokens
from support.policies import random_policy

HERE = Path(__file__).resolve().parent
OBSERVATION = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTION = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
RATE, MOST_P99_MS = 500.0, 10.0
SWAP_EVERY_S = 2.0
ACT = "/podracer.policy.v1.PolicyService/Act"


@dataclass(frozen=True)
class Outcome:
    """Of one run: latencies in ms, what went wrong, and the cores that server and load took."""

    latencies: Sequence[float]
    errors: dict[str, int]
    versions: int
    rate: float
    server_cores: float
    load_cores: float

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.latencies, share)) if self.latencies else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each once, a few seconds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds = 1, 8.0
    print(versions("torch", "grpcio", "numpy"), flush=True)
    packed = [pack_policy(random_policy("ppo", OBSERVATION, ACTION, seed)) for seed in range(2)]
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="policy-server-") as name:
        folder = Path(name)
        tokens = create_tokens(folder / "tokens")
        (folder / "policy").write_bytes(packed[0])
        with _process("-m", "podracer_policy", PODRACER_TOKENS=str(folder / "tokens")) as server:
            with PolicyClient(server.address, token_file=tokens[Role.CONTROL]) as operator:
                operator.load("p", "v0", packed[:1])
            for repeat in range(options.repeats):
                for title, rate, swapped in (
                    (f"{RATE:g}/s, exchanged every {SWAP_EVERY_S:g} s", RATE, True),
                    (f"{RATE:g}/s", RATE, False),
                    (f"{RATE / 5:g}/s", RATE / 5, False),
                    (f"{2 * RATE:g}/s", 2 * RATE, False),
                ):
                    swaps = (f"v{repeat}-{number}" for number in range(10**6)) if swapped else None
                    found = _run(server, rate, repeat, options.seconds, tokens, swaps, packed)
                    outcomes.setdefault(title, []).append(found)
        with _process(str(HERE / "open_load_bare.py"), str(folder / "policy")) as bare:
            for repeat in range(options.repeats):
                found = _run(bare, RATE, repeat, options.seconds, tokens)
                outcomes.setdefault(f"{RATE:g}/s, bare", []).append(found)
    _report(outcomes)


def _report(outcomes: dict[str, list[Outcome]]) -> None:
    print_table(
        "Single observations, ms from the time that each was due",
        [
            "load",
            "answers/s",
            "p50",
            "p99",
            "p99.9",
            "errors",
            "versions",
            "cores: server",
            "cores: load",
        ],
        [
            [
                title,
                spread([run.rate for run in runs]),
                *(spread([run.quantile(share) for run in runs]) for share in (0.5, 0.99, 0.999)),
                sum(sum(run.errors.values()) for run in runs),
                runs[-1].versions,
                spread([run.server_cores for run in runs]),
                spread([run.load_cores for run in runs]),
            ]
            for title, runs in outcomes.items()
        ],
    )
    for error, count in [
        item for runs in outcomes.values() for run in runs for item in run.errors.items()
    ][:5]:
        print(f"{count} × {error}")
    first, second = list(outcomes.values())[:2]
    ours = [run for title, runs in outcomes.items() if "bare" not in title for run in runs]
    targets = {
        "p99_ms": Target(
            statistics.median(run.quantile(0.99) for run in second), MOST_P99_MS, at_most=True
        ),
        "p99_ms_exchanged": Target(
            statistics.median(run.quantile(0.99) for run in first), MOST_P99_MS, at_most=True
        ),
        "answers_per_second": Target(statistics.median(run.rate for run in first), 0.97 * RATE),
        "errors": Target(float(sum(sum(run.errors.values()) for run in ours)), 0.0, at_most=True),
    }
    figures = {
        title: {
            f"p{100 * share:g}_ms": [run.quantile(share) for run in runs]
            for share in (0.5, 0.99, 0.999)
        }
        for title, runs in outcomes.items()
    }
    finish("policy_server", figures, targets)


@dataclass(frozen=True)
class Server:
    """A server process that listens."""

    address: str
    pid: int


@contextmanager
def _process(*arguments: str, **settings: str) -> Iterator[Server]:
    environment = {**os.environ, "PODRACER_THREADS": "1", "OMP_NUM_THREADS": "1", **settings}
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield Server(process.stdout.readline().removeprefix("listening on ").strip(), process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _run(
    server: Server,
    rate: float,
    seed: int,
    seconds: float,
    tokens: Any,
    swaps: Iterator[str] | None = None,
    packed: Sequence[bytes] = (),
) -> Outcome:
    observation = np.random.default_rng(seed).normal(size=17).astype(np.float32)
    tensor = tensor_pb2.Tensor(
        dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[17], inline=observation.tobytes()
    )
    request = pb.ActRequest(observations=tensor).SerializeToString().hex()
    arguments = [
        sys.executable,
        str(HERE / "open_load.py"),
        server.address,
        ACT,
        request,
        "--versions",
    ]
    arguments += ["--rate", str(rate), "--seconds", str(seconds), "--seed", str(seed)]
    process = psutil.Process(server.pid)
    cpu_s = sum(process.cpu_times()[:2])
    load = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ended = threading.Event()
    swapping = threading.Thread(target=_swap, args=(server.address, tokens, swaps, packed, ended))
    if swaps is not None:
        swapping.start()
    output, _ = load.communicate(Path(tokens[Role.CLIENT]).read_text(), timeout=seconds + 60)
    ended.set()
    if swaps is not None:
        swapping.join()
    if load.returncode:
        raise SystemExit(f"the load ended with {load.returncode}")
    values = json.loads(output)
    outcome = Outcome(
        values["latencies_ms"],
        values["errors"],
        len(values["versions"]),
        len(values["latencies_ms"]) / values["seconds"],
        (sum(process.cpu_times()[:2]) - cpu_s) / values["seconds"],
        values["cpu_s"] / values["seconds"],
    )
    what = f"{rate:g}/s{', exchanged' if swaps else ''}"
    print(
        f"{what}: p50 {outcome.quantile(0.5):.2f} ms, p99 {outcome.quantile(0.99):.2f} ms",
        flush=True,
    )
    return outcome


def _swap(
    address: str, tokens: Any, swaps: Iterator[str], packed: Sequence[bytes], ended: threading.Event
) -> None:
    with PolicyClient(address, token_file=tokens[Role.CONTROL]) as operator:
        for number, version in enumerate(swaps):
            if ended.wait(SWAP_EVERY_S):
                return
            operator.load("p", version, [packed[number % 2]])


if __name__ == "__main__":
    main()
