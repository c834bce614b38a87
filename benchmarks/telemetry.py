"""What telemetry costs: environment steps/s of whole pods, learning included, with none of it, with spans in files (the
default on one machine), and with spans and metrics to a collector, to Prometheus and in files.

Every run is `podracer run` of a job with one agent and one pod: real processes, on the cores that there are. Steps/s
are what the learner tells of the last five seconds, the median of what it told once it had settled. The three take
turns, repeat after repeat, and are compared within a repeat. The collector, and what fetches for Prometheus every two
seconds, run on the same cores.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from measured_process import run_measured
from pipeline import END_S, FUSED, START_S, TASKS, Pod, job, steady_pace
from report import Target, finish, print_table, spread, versions

OFF, FILES, ALL = "off", "files", "collector, Prometheus and files"
MODES = (OFF, FILES, ALL)
PODS = {"fused": FUSED, "split, one worker": Pod(1)}
MOST_OVERHEAD = 0.02
TASK = TASKS["cartpole"]
"""Its updates are short, so that whatever is done for each of them weighs most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one fused run of each: under a minute")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long a run is measured")
    options = parser.parse_args()
    pods = dict(PODS)
    if options.quick:
        options.repeats, options.seconds, pods = 1, 4.0, {"fused": FUSED}
    print(versions("torch", "opentelemetry-sdk"), f"· {options.repeats} × {options.seconds:g} s", flush=True)
    speeds: dict[str, dict[str, list[float]]] = {name: {mode: [] for mode in MODES} for name in pods}
    with discarding_collector() as endpoint:
        for repeat in range(options.repeats):
            for name, pod in pods.items():
                for mode in MODES[repeat % 3 :] + MODES[: repeat % 3]:
                    speed = _measure(pod, _environment(mode, endpoint), options)
                    speeds[name][mode].append(speed)
                    print(f"{name}, {mode}: {speed:,.0f} steps/s", flush=True)
    overheads = {name: {mode: _overhead(of_pod, mode) for mode in MODES[1:]} for name, of_pod in speeds.items()}
    for name, of_pod in speeds.items():
        print_table(
            f"{TASK.title}, {name}: environment steps/s, learning included, median (least – greatest)",
            ["telemetry", "steps/s", "slower by"],
            [
                [mode, spread(found), "–" if mode == OFF else f"{100 * overheads[name][mode]:.1f} %"]
                for mode, found in of_pod.items()
            ],
        )
    targets = {
        f"{name}, {mode}": Target(overhead, MOST_OVERHEAD, at_most=True)
        for name, of_pod in overheads.items()
        for mode, overhead in of_pod.items()
    }
    finish("telemetry", {"steps_per_second": speeds, "overhead": overheads}, targets)


def _overhead(speeds: Mapping[str, Sequence[float]], mode: str) -> float:
    """By what share it is slower than without: the median over runs that followed one another."""
    return 1.0 - statistics.median(one / off for one, off in zip(speeds[mode], speeds[OFF], strict=True))


def _environment(mode: str, endpoint: str) -> dict[str, str]:
    if mode == OFF:
        return {"PODRACER_TRACE_DIR": ""}
    if mode == FILES:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
        "PODRACER_METRICS_LISTEN": f"127.0.0.1:{_free_port()}",
    }


def _measure(pod: Pod, environment: Mapping[str, str], options: argparse.Namespace) -> float:
    settle_s = 2.0 if options.quick else TASK.settle_s
    with tempfile.TemporaryDirectory(prefix="telemetry-") as scratch:
        folder = Path(scratch)
        (folder / "job.json").write_text(json.dumps(job(TASK, pod, START_S + settle_s + options.seconds)))
        command = [sys.executable, "-m", "podracer_client", "run", str(folder / "job.json"), "--json"]
        with fetching(environment.get("PODRACER_METRICS_LISTEN", "")):
            measured = run_measured(
                [*command, "--dir", str(folder / "runs")],
                folder / "run.log",
                environment={"PODRACER_COLLECT_AHEAD": "0", **environment},
                timeout_s=START_S + settle_s + options.seconds + END_S,
                until=("job_finished",),
            )
        finished = measured.first("job_finished")
        if finished is None or finished[1]["state"] != "SUCCEEDED":
            raise SystemExit(f"a run has failed:\n{(folder / 'run.log').read_text()[-3000:]}")
        return steady_pace(measured, settle_s)


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
        tuple(grpc.method_handlers_generic_handler(service, methods) for service, methods in handlers.items())
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
            with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=5.0) as answer:
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
