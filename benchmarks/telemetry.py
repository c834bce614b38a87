"""What telemetry costs: environment steps/s of whole pods, learning included, with none of it, with
spans in files (the default on one machine), and with spans and metrics to a collector, to
Prometheus and in files.

Every run is `podracer run` of a job with one agent and one pod: real processes, on the cores that
there are. Steps/s are what the learner tells of the last five seconds, the median of what it told
once it had settled. Beside them the processor time of all processes by step: with the cores busy
that is the same, and on cores that other machines share it varies as much. So what all threads take
that train nothing (less than a tenth of a core each) is told by itself: exporters, scrapes and
whatever else telemetry does in threads and services of its own is there. The three take turns,
repeat after repeat, and are compared within a repeat. The collector, and what fetches for
Prometheus every two seconds, run on the same cores.

Before that, the same in one process: processor time of the thread that trains, an update and its
rollout, in blocks of updates that take turns; what exporters do in threads of their own is not in
it. And what each part costs by itself, times how often there is one: the one figure that says
something on a machine that is busy with other things."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import timeit
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import torch
from measured_process import Measured, run_measured
from pipeline import END_S, FUSED, START_S, TASKS, Pod, job, steady_pace
from report import Target, finish, print_table, spread, versions

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.ppo import PPO
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment
from podracer_core.training.plan import RoundPlan
from podracer_core.training.session import TrainingSession
from podracer_core.training.source import InProcessSource
from podracer_learner.round.reports import RoundMeter
from podracer_platform.service.telemetry import TelemetryOptions, telemetry
from podracer_platform.telemetry.spans import span

OFF, FILES, ALL = "off", "files", "collector, Prometheus and files"
MODES = (OFF, FILES, ALL)
PODS = {"fused": FUSED, "split, one worker": Pod(1)}
MOST_OVERHEAD = 0.02
BUSY = 0.1
"""Of a core: a thread that takes more trains or collects; nothing of telemetry comes near to it."""
Figures = dict[str, dict[str, list[float]]]
"""By pod and by what is on."""
UPDATES = 10
"""Of a block."""
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
REPORT_S = 0.3
"""As often as a learner."""
PHASES = 3
"""Of an update: collect, update, evaluate."""
SPANS_PER_S = 2.0
"""Of a learner, more than there are after the first seconds of a round."""
TASK = TASKS["cartpole"]
"""Its updates are short, so that whatever is done for each of them weighs most."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one fused run of each: under a minute"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="only what is measured in one process"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long a run is measured")
    options = parser.parse_args()
    pods = {} if options.in_process else dict(PODS)
    if options.quick:
        options.repeats, options.seconds = 1, 2.5
        pods.pop("split, one worker", None)
    print(
        versions("torch", "opentelemetry-sdk"),
        f"· {options.repeats} × {options.seconds:g} s",
        flush=True,
    )
    costs_s = in_one_process(1 if options.quick else 60)
    shares = print_parts(statistics.median(costs_s[OFF]))
    thread = {
        mode: statistics.median(one / off for one, off in zip(found, costs_s[OFF], strict=True))
        - 1.0
        for mode, found in costs_s.items()
    }
    print_table(
        f"{TASK.title}, in one process: ms of processor time for an update and its rollout, median "
        "(least – greatest)",
        ["telemetry", "ms", "more by"],
        [
            [mode, spread([1e3 * s for s in found]), f"{100 * thread[mode]:.2f} %"]
            for mode, found in costs_s.items()
        ],
    )
    speeds: Figures = {name: {mode: [] for mode in MODES} for name in pods}
    costs: Figures = {name: {mode: [] for mode in MODES} for name in pods}
    beside: Figures = {name: {mode: [] for mode in MODES} for name in pods}
    with discarding_collector() as endpoint:
        for repeat in range(options.repeats):
            for name, pod in pods.items():
                for mode in MODES[repeat % 3 :] + MODES[: repeat % 3]:
                    speed, cost_us, share = _measure(pod, _environment(mode, endpoint), options)
                    speeds[name][mode].append(speed)
                    costs[name][mode].append(cost_us)
                    beside[name][mode].append(share)
                    told = (
                        f"{speed:,.0f} steps/s, {cost_us:.2f} µs each, {share:.2%} beside training"
                    )
                    print(f"{name}, {mode}: {told}", flush=True)
    slower = {
        name: {mode: 1.0 - _ratio(of_pod, mode) for mode in MODES[1:]}
        for name, of_pod in speeds.items()
    }
    dearer = {
        name: {mode: _ratio(of_pod, mode) - 1.0 for mode in MODES[1:]}
        for name, of_pod in costs.items()
    }
    others = {
        name: {
            mode: statistics.median(of_pod[mode]) - statistics.median(of_pod[OFF])
            for mode in MODES[1:]
        }
        for name, of_pod in beside.items()
    }
    for name in pods:
        print_table(
            f"{TASK.title}, {name}: environment steps/s, learning included, µs of processor time "
            "for each, and the part of it in threads that train nothing, %; median (least – "
            "greatest)",
            ["telemetry", "steps/s", "slower by", "µs", "more by", "beside, %"],
            [
                [
                    mode,
                    spread(speeds[name][mode]),
                    "–" if mode == OFF else f"{100 * slower[name][mode]:.1f} %",
                    spread(costs[name][mode]),
                    "–" if mode == OFF else f"{100 * dearer[name][mode]:.1f} %",
                    spread([100 * share for share in beside[name][mode]]),
                ]
                for mode in MODES
            ],
        )
    targets = {
        f"its parts, {mode}": Target(shares[mode], MOST_OVERHEAD, at_most=True) for mode in MODES
    }
    targets |= {
        f"in one process, {mode}": Target(thread[mode], MOST_OVERHEAD, at_most=True)
        for mode in MODES[1:]
    }
    targets |= {
        f"{name}, {mode}, {unit}": Target(overhead, MOST_OVERHEAD, at_most=True)
        for unit, overheads in (
            ("steps/s", slower),
            ("processor time", dearer),
            ("beside training", others),
        )
        for name, of_pod in overheads.items()
        for mode, overhead in of_pod.items()
    }
    figures = {
        "steps_per_second": speeds,
        "cpu_us_per_step": costs,
        "slower": slower,
        "dearer": dearer,
        "beside_training": beside,
        "thread_overhead": thread,
        "parts": shares,
    }
    finish("telemetry", figures, targets)


def in_one_process(blocks: int) -> dict[str, list[float]]:
    """Seconds of processor time of one update and its rollout, the mean of each block, by what is
    on."""
    costs_s: dict[str, list[float]] = {mode: [] for mode in MODES}
    with (
        tempfile.TemporaryDirectory(prefix="telemetry-") as scratch,
        discarding_collector() as endpoint,
    ):
        session, meter = _session()
        for block in range(blocks + 1):
            for mode in MODES[block % 3 :] + MODES[: block % 3]:
                with _telemetry(mode, endpoint, Path(scratch)), span("train", begins=True):
                    cost_s = _block(session, meter)
                if block:  # the first one warms up
                    costs_s[mode].append(cost_s)
    return costs_s


def print_parts(update_s: float) -> dict[str, float]:
    """What telemetry is made of, each by itself; returns what share of the training thread's time
    it takes, by mode."""
    shares: dict[str, float] = {}
    rows: list[list[object]] = []
    with (
        tempfile.TemporaryDirectory(prefix="telemetry-") as scratch,
        discarding_collector() as endpoint,
    ):
        session, meter = _session()
        session.step()
        progress = session.progress()
        for mode in MODES:
            with _telemetry(mode, endpoint, Path(scratch)), span("train", begins=True):
                parts = {
                    "a phase without a span": (
                        _seconds(lambda: _phase(session)),
                        PHASES / update_s,
                    ),
                    "a span": (
                        _seconds(lambda: span("x", iteration=1).end()),
                        SPANS_PER_S if mode != OFF else 0.0,
                    ),
                    "counting where a round stands": (
                        _seconds(lambda: meter.count(progress)),
                        1.0 / REPORT_S,
                    ),
                }
            rows += [
                [mode, name, 1e6 * cost_s, often, f"{cost_s * often:.4%}"]
                for name, (cost_s, often) in parts.items()
            ]
            shares[mode] = sum(cost_s * often for cost_s, often in parts.values())
    title = "Parts of telemetry by themselves, in the thread that trains"
    print_table(title, ["telemetry", "part", "µs", "times a second", "share of its time"], rows)
    return shares


def _phase(session: TrainingSession) -> None:
    with session.phases.phase("update"):
        pass


def _seconds(work: Callable[[], object]) -> float:
    """Seconds of one call: the least mean over 300 calls, which other processes disturbed the
    least."""
    return min(timeit.repeat(work, number=300, repeat=15, timer=time.thread_time)) / 300


def _block(session: TrainingSession, meter: RoundMeter) -> float:
    reported_at = time.monotonic()
    began_s = time.thread_time()
    for _ in range(UPDATES):
        session.step()
        if time.monotonic() - reported_at >= REPORT_S:
            reported_at = time.monotonic()
            meter.count(session.progress())
    return (time.thread_time() - began_s) / UPDATES


def _session() -> tuple[TrainingSession, RoundMeter]:
    torch.set_num_threads(1)
    shared = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in TASK.space.items()
    }
    cohort = CohortConfig("ppo", (MemberConfig("a", 1, {}),), shared)
    environment = make_vec_environment(
        EnvironmentSpec(id=str(TASK.environment["id"])), TASK.envs, "cpu"
    )
    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    source = InProcessSource(Collector(environment, algorithm.actor, torch.tensor([1])), algorithm)
    session = TrainingSession(algorithm, source, None, RoundPlan(env_steps=1 << 40))
    return session, RoundMeter(session, algorithm, source)


@contextmanager
def _telemetry(mode: str, endpoint: str, folder: Path) -> Iterator[None]:
    options = {
        OFF: TelemetryOptions(),
        FILES: TelemetryOptions(trace_dir=folder),
        ALL: TelemetryOptions("127.0.0.1:0", folder),
    }[mode]
    if mode == ALL:
        os.environ[_ENDPOINT] = endpoint
    try:
        with telemetry("learner", options):
            yield
    finally:
        os.environ.pop(_ENDPOINT, None)


def _ratio(found: Mapping[str, Sequence[float]], mode: str) -> float:
    """To without: the median over runs that followed one another."""
    return statistics.median(one / off for one, off in zip(found[mode], found[OFF], strict=True))


def _environment(mode: str, endpoint: str) -> dict[str, str]:
    if mode == OFF:
        return {"PODRACER_TRACE_DIR": ""}
    if mode == FILES:
        return {}
    return {
        _ENDPOINT: endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
        "PODRACER_METRICS_LISTEN": f"127.0.0.1:{_free_port()}",
    }


def _measure(
    pod: Pod, environment: Mapping[str, str], options: argparse.Namespace
) -> tuple[float, float, float]:
    """Environment steps/s, µs of processor time for each, and the part of it that threads take
    which train nothing."""
    settle_s = 2.0 if options.quick else TASK.settle_s
    with tempfile.TemporaryDirectory(prefix="telemetry-") as scratch:
        folder = Path(scratch)
        (folder / "job.json").write_text(
            json.dumps(job(TASK, pod, START_S + settle_s + options.seconds))
        )
        command = [
            sys.executable,
            "-m",
            "podracer_client",
            "run",
            str(folder / "job.json"),
            "--json",
        ]
        with fetching(environment.get("PODRACER_METRICS_LISTEN", "")):
            measured = run_measured(
                [*command, "--dir", str(folder / "runs")],
                folder / "run.log",
                environment={"PODRACER_COLLECT_AHEAD": "0", **environment},
                timeout_s=START_S + settle_s + options.seconds + END_S,
                until=("job_finished",),
                with_threads=True,
            )
        finished = measured.first("job_finished")
        if finished is None or finished[1]["state"] != "SUCCEEDED":
            raise SystemExit(f"a run has failed:\n{(folder / 'run.log').read_text()[-3000:]}")
        pace, settled = steady_pace(measured, settle_s), _settled(measured, settle_s)
        return pace, 1e6 * _cpu_s_per_step(measured, settled), _share_beside(measured, settled)


Settled = tuple[tuple[float, int], tuple[float, int]]
"""The first and the last moment, once a run has settled, of which it told its steps."""


def _settled(measured: Measured, settle_s: float) -> Settled:
    told = [
        (at, event["live_env_steps"])
        for at, event in measured.events
        if event.get("event") == "progress"
    ]
    training = [(at, steps) for at, steps in told if steps > 0]
    settled = [(at, steps) for at, steps in training if at >= training[0][0] + settle_s]
    return settled[0], next(one for one in settled if one[1] == settled[-1][1])


def _cpu_s_per_step(measured: Measured, settled: Settled) -> float:
    (first_at, first), (last_at, last) = settled
    return (measured.cpu_s_at(last_at) - measured.cpu_s_at(first_at)) / (last - first)


def _share_beside(measured: Measured, settled: Settled) -> float:
    (first_at, _), (last_at, _) = settled
    samples = [sample for sample in measured.threads if first_at <= sample[0] <= last_at]
    (begin_s, first), (end_s, last) = samples[0], samples[-1]
    taken = [cpu_s - first.get(thread, 0.0) for thread, cpu_s in last.items()]
    return sum(one for one in taken if one < BUSY * (end_s - begin_s)) / sum(taken)


@contextmanager
def discarding_collector() -> Iterator[str]:
    """The endpoint of a collector that takes whatever comes and forgets it."""

    def forget(request: bytes, context: grpc.ServicerContext) -> bytes:
        return b""  # an empty message of any type

    handlers = {
        f"opentelemetry.proto.collector.{signal}.v1.{signal.title()}{name}": {
            "Export": grpc.unary_unary_rpc_method_handler(forget)
        }
        for signal, name in (("trace", "Service"), ("metrics", "Service"))
    }
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(service, methods)
            for service, methods in handlers.items()
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def fetching(address: str) -> Iterator[None]:
    """Fetch metrics every two seconds, as Prometheus does; nothing where there is no address."""
    over = threading.Event()

    def fetch() -> None:
        while not over.wait(2.0):
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://{address}/metrics", timeout=5.0) as answer,
            ):
                answer.read()

    thread = threading.Thread(target=fetch, daemon=True)
    if address:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if address:
            thread.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
