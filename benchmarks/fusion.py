"""Learners that fuse their parameters once an epoch beside learners that average their gradients at
every step.

1, 2 and 4 learners of one PPO agent, each a process of one thread with environments of its own,
over gloo on this machine. An epoch is one update: 10 passes of 32 minibatches. Both sides have the
same environments, samples, network and minibatches, begin with the same weights, and pool the
statistics of observations once an update; targets of the critic are not normalized, since averaged
gradients need one unit at all learners.

Bytes are what the kernel has sent on all TCP connections of all learners (TCP_INFO), headers left
out. Time is training without the looks: the greedy return of 16 episodes, every tenth of the
samples."""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from lab.agents import Agents
from lab.arguments import arguments
from lab.report import Target, finish, print_table, versions
from torch import Tensor

from podracer_core.algorithms import PPO
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.fusion import (
    Contribution,
    Fused,
    Fusion,
    FusionOptions,
    FusionState,
    Mean,
    Moments,
    Outer,
    fuse,
)
from podracer_core.random_numbers import evaluation_seeds
from podracer_core.training import EpochFusion, FusionTransport

HORIZON, EPOCHS, MINIBATCHES = 64, 10, 32
LOOKS, EPISODES = 10, 16
LEAST_RATIO = 20.0
METHODS: dict[str, str] = {
    "gradients": "gradients averaged at every step",
    "mean": "parameters fused once an epoch: mean",
    "outer": "parameters fused once an epoch: outer, 0.7 and 0.9",
}
_BYTES_ACKED = 120  # tcpi_bytes_acked in struct tcp_info (linux/tcp.h)


def main() -> None:
    parser = arguments(
        __doc__,
        "Pendulum-v1, 2 learners, a few updates: under a minute",
        seeds=3,
        steps=524_288,
        worker="",
    )
    parser.add_argument("--environment", default="HalfCheetah-v5")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_learner(Learner(**json.loads(options.worker)))))
        return
    task = (options.environment, options.steps, 64)
    if options.quick:
        options.seeds, task = 1, ("Pendulum-v1", 8192, 16)
    print(versions("torch", "mujoco-core"), f"· 1 torch thread a learner, {task[0]}", flush=True)
    cells = [(1, "mean")] + [
        (size, method) for size in ((2,) if options.quick else (2, 4)) for method in METHODS
    ]
    report({cell: [measure(task, *cell, seed) for seed in range(options.seeds)] for cell in cells})


@dataclass(frozen=True)
class Learner:
    """One of `size` learners. `steps` are of all together, `envs` its own; `store` is the file by
    which they find one another."""

    environment: str
    steps: int
    envs: int
    method: str
    rank: int
    size: int
    seed: int
    store: str


def measure(task: tuple[str, int, int], size: int, method: str, seed: int) -> dict[str, Any]:
    """One run of `size` learners: the curve of rank 0 as (samples, seconds, return), and the bytes
    of all."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        orders = [
            Learner(*task, method, rank, size, seed, f"{folder}/store") for rank in range(size)
        ]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", json.dumps(asdict(order))],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for order in orders
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a learner of {size} with {method} failed")
    learners = [json.loads(output) for output in outputs]
    return {"curve": learners[0]["curve"], "bytes": sum(learner["bytes"] for learner in learners)}


def run_learner(own: Learner) -> dict[str, Any]:
    """One of them, in its own process."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{own.store}",
        rank=own.rank,
        world_size=own.size,
        timeout=timedelta(minutes=5),
    )
    settings = {
        "horizon": HORIZON,
        "epochs": EPOCHS,
        "minibatch_size": HORIZON * own.envs // MINIBATCHES,
        "normalize_values": False,
    }
    spec, first = EnvironmentSpec(id=own.environment), own.rank << 20
    agents = Agents("ppo", spec, [1 + own.seed], own.envs, settings, first_environment=first)
    algorithm, member = agents.algorithm, (own.rank, own.size)
    after_update = (
        averaging(algorithm, *member)
        if own.method == "gradients"
        else fusing(algorithm, *member, own.method)
    )
    evaluator = GreedyEvaluator(lambda count: make_vec_environment(spec, count, evaluation=True))
    updates = max(1, own.steps // (own.size * agents.steps))
    looks = {round(updates * (look + 1) / LOOKS) for look in range(LOOKS)}
    curve, seconds = [], 0.0
    for update in range(1, updates + 1):
        start = time.perf_counter()
        agents.train()
        after_update()
        seconds += time.perf_counter() - start
        if update in looks:
            if own.rank == 0:
                fresh = evaluation_seeds(own.seed, 0, EPISODES)
                (result,) = evaluator.evaluate(algorithm.actor, fresh)
                curve.append((update * own.size * agents.steps, seconds, result.mean))
            distributed.barrier()  # evaluation time is not counted
    sent = bytes_sent()
    distributed.barrier()
    distributed.destroy_process_group()
    agents.environment.close()
    evaluator.close()
    return {"curve": curve, "bytes": sent}


class GroupTransport(FusionTransport):
    """Every learner gathers all contributions and fuses them itself. All begin with the same
    `state`."""

    def __init__(self, fusion: Fusion, state: FusionState, size: int) -> None:
        self._fusion, self._size = fusion, size
        self.present = Fused(0, state, ())

    def exchange(self, contribution: Contribution) -> Fused:
        growths = gathered(contribution.growth, self._size)
        epoch, samples = contribution.epoch, contribution.samples  # all have trained on as many
        contributions = [
            Contribution(rank, epoch, samples, one) for rank, one in enumerate(growths)
        ]
        state = fuse(self._fusion, self.present.state, contributions)
        self.present = Fused(epoch, state, tuple(range(self._size)))
        return self.present


def gathered(own: FusionState, size: int) -> list[FusionState]:
    """The states of all ranks."""

    def all_ranks(tensor: Tensor) -> list[Tensor]:
        others = [torch.empty_like(tensor) for _ in range(size)]
        distributed.all_gather(others, tensor.contiguous())
        return others

    parameters = {name: all_ranks(tensor) for name, tensor in own.parameters.items()}
    statistics = {
        name: [
            Moments(*parts) for parts in zip(*map(all_ranks, one.tensors().values()), strict=True)
        ]
        for name, one in own.statistics.items()
    }
    transitions, active = all_ranks(own.transitions), all_ranks(own.active)
    return [
        FusionState(
            {name: tensors[rank] for name, tensors in parameters.items()},
            {name: moments[rank] for name, moments in statistics.items()},
            transitions[rank],
            active[rank],
        )
        for rank in range(size)
    ]


def fusing(algorithm: PPO, rank: int, size: int, method: str) -> Callable[[], object]:
    """As pods that sit in one group do it."""
    sharing = algorithm.share(rank)
    fusion: Fusion = Outer(FusionOptions(0.7, 0.9)) if method == "outer" else Mean(FusionOptions())
    group = GroupTransport(fusion, sharing.state(), size)
    epochs = EpochFusion(algorithm, sharing, group, rank)
    epochs.begin(group.present)
    return epochs.after_update


def averaging(algorithm: PPO, rank: int, size: int) -> Callable[[], object]:
    """Every gradient is the mean of all learners'; after an update they pool statistics, and send
    no parameters."""
    sharing = algorithm.share(rank)
    networks, gather = algorithm._networks, algorithm._networks.gather_settings

    def gather_and_average(log_std_gradient: Tensor) -> None:
        gather(log_std_gradient)
        distributed.all_reduce(networks.member_gradients)
        networks.member_gradients.div_(size)

    networks.gather_settings = gather_and_average  # type: ignore[method-assign]
    state = sharing.state()
    without_parameters = FusionState({}, state.statistics, state.transitions, state.active)
    statistics_only = GroupTransport(Mean(FusionOptions()), without_parameters, size)

    def pool() -> None:
        growth = sharing.growth()
        part = FusionState({}, growth.statistics, growth.transitions, growth.active)
        pooled = statistics_only.exchange(Contribution(rank, algorithm.version, 0, part)).state
        sharing.load(
            FusionState(growth.parameters, pooled.statistics, pooled.transitions, pooled.active)
        )

    return pool


def bytes_sent() -> int:
    """On all TCP connections that this process has open, acknowledged by the other end."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.type == socket.SOCK_STREAM and connection.family in (
                    socket.AF_INET,
                    socket.AF_INET6,
                ):
                    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", information, _BYTES_ACKED)[0]
        except OSError:
            continue  # no socket, or closed meanwhile
    return total


def report(results: dict[tuple[int, str], list[dict[str, Any]]]) -> None:
    """Tables, and the closing line."""
    figures: dict[str, object] = {}
    targets: dict[str, Target] = {}
    rows = []
    for (size, method), runs in results.items():
        curves = [run["curve"] for run in runs]
        sent = statistics.median(run["bytes"] for run in runs)
        final = statistics.median(curve[-1][2] for curve in curves)
        seconds = statistics.median(curve[-1][1] for curve in curves)
        title = METHODS[method] if size > 1 else "alone"
        rows.append([size, title, sent / 1e6, final, seconds, curves[0][-1][0] / seconds])
        found = {"bytes": sent, "return": final, "seconds": seconds, "curves": curves}
        figures[f"{size}_{method}"] = found
        if size > 1 and method != "gradients":
            gradients = statistics.median(run["bytes"] for run in results[size, "gradients"])
            targets[f"bytes_saved_by_{method}_with_{size}"] = Target(gradients / sent, LEAST_RATIO)
    header = ["learners", "how", "MB sent by all", "greedy return at the end", "seconds", "steps/s"]
    print_table("The same samples of all learners together; medians over seeds", header, rows)
    print_curves(results)
    finish("fusion", figures, targets)


def print_curves(results: dict[tuple[int, str], list[dict[str, Any]]]) -> None:
    """Return against samples and against time."""
    for (size, method), runs in results.items():
        points = zip(*(run["curve"] for run in runs), strict=True)
        rows = [
            [at[0][0], statistics.median(p[1] for p in at), statistics.median(p[2] for p in at)]
            for at in (list(point) for point in points)
        ]
        print_table(
            f"{size} learners, {METHODS[method] if size > 1 else 'alone'}",
            ["samples", "seconds", "return"],
            rows,
        )


if __name__ == "__main__":
    main()
