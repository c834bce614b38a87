"""`make test-stress`: the tests of real processes again and again, on cores that are busy, with
delays at the seams.

Each round has a seed of its own. What has run is in runs/stress.jsonl and is not run again, until
`--fresh`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stress_results import RESULTS, ROUND, read_lines

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TEST_TIMEOUT_S = 600
SELECTION = "processes and not slow and not gpu and not compose"
_PR_SET_PDEATHSIG = 1


def main() -> int:
    arguments = _arguments()
    results: Path = arguments.results.resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    if arguments.fresh:
        for file in (results, results.with_suffix(".txt"), results.with_suffix(".log")):
            file.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    with _busy_cores():
        for number in range(1, arguments.rounds + 1):
            if any(line.get("complete") == number for line in read_lines(results)):
                continue
            left_s = arguments.limit_min * 60 - (time.monotonic() - begun)
            if left_s <= _longest_round_s(results):
                print(
                    f"stopped before round {number}: {left_s / 60:.0f} min are left, a round takes "
                    "more",
                    flush=True,
                )
                break
            round_begun = time.monotonic()
            code = _run_round(number, results, arguments)
            if code not in (0, 1, 5):  # good, failures, nothing left to run
                print(
                    f"pytest ended with {code} in round {number}: see {results.with_suffix('.log')}"
                )
                return code
            took_s = round(time.monotonic() - round_begun, 1)
            with results.open("a") as lines:
                lines.write(json.dumps({"complete": number, "took_s": took_s}) + "\n")
            _tell_round(number, arguments.rounds, results, took_s)
    return _tell_all(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--fresh", action="store_true", help="forget what has run")
    parser.add_argument("--seed", type=int, default=0, help="rounds have the seeds that follow it")
    parser.add_argument(
        "--limit-min", type=float, default=60.0, help="no round begins that would not end within it"
    )
    parser.add_argument(
        "--thorough", action="store_true", help="run the tests marked `thorough`, too"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "stress.jsonl")
    parser.add_argument("tests", nargs="*", help="files, folders or tests; all where none is given")
    return parser.parse_args()


def _run_round(number: int, results: Path, arguments: argparse.Namespace) -> int:
    """pytest's exit code."""
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "STRESS_SEED": str(arguments.seed + number),
        RESULTS: str(results),
        ROUND: str(number),
    }
    selection = SELECTION if arguments.thorough else f"{SELECTION} and not thorough"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-m", selection]
    command += ["-p", "stress_results", "--timeout", str(TEST_TIMEOUT_S), *arguments.tests]
    with results.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=log, stderr=log
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()


@contextmanager
def _busy_cores() -> Iterator[None]:
    """One process for each core that computes all the time; they end with this process, however it
    ends."""
    processes = [_fork_busy_process() for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork_busy_process() -> int:
    """Its process id."""
    ours = os.getpid()
    if pid := os.fork():
        return pid
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C; its parent ends it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    while os.getppid() == ours:
        sum(range(1_000_000))
    os._exit(0)


def _longest_round_s(results: Path) -> float:
    """Of all rounds so far; 0 before the first one is complete."""
    return max((line["took_s"] for line in read_lines(results) if "complete" in line), default=0.0)


def _tell_round(number: int, rounds: int, results: Path, took_s: float) -> None:
    outcomes = Counter(
        line["outcome"] for line in read_lines(results) if line.get("round") == number
    )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    rest_min = (rounds - number) * _longest_round_s(results) / 60
    print(
        f"round {number} of {rounds}: {counts}, {took_s / 60:.1f} min; about {rest_min:.0f} min to "
        "go",
        flush=True,
    )


def _tell_all(results: Path) -> int:
    """Print each test, how often it ran and failed; 1 where any has failed."""
    lines = [line for line in read_lines(results) if "test" in line]
    runs = Counter(line["test"] for line in lines)
    failures = Counter(line["test"] for line in lines if line["outcome"] == "failed")
    print(f"{'runs':>5} {'failures':>8}  test")
    for test in sorted(runs, key=lambda test: (-failures[test], test)):
        print(f"{runs[test]:5d} {failures[test]:8d}  {test}")
    if failures:
        print(f"{failures.total()} failures; their texts: {results.with_suffix('.txt')}")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: what has run is kept, the same command goes on")
