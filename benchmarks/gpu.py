"""All that a GPU can be asked, in ten minutes at most: which tests fail there, then every figure in one table.

The same, with the failures, goes into a JSON file, so that the first minutes on a machine are kept. A part that fails,
or takes longer than it may, costs its own figures only. The status is 1 where a test or a part has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from report import number_text, print_table, versions

HERE = Path(__file__).parent
LIMIT_S = 600.0
RESERVE_S = 15.0  # to end what is too slow, and to write everything down
TESTS_S = 240.0  # of them a minute or two compiles Warp's kernels, which what follows finds in its cache
PARTS = {"cuda_training": 150.0, "cuda_environments": 180.0, "carriers": 90.0}


@dataclass
class Outcome:
    """Of one part. `problem` is empty where all went well; `failures` are tests, each with its reason."""

    seconds: float = 0.0
    problem: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("runs/bench_gpu.json"), help="where everything is written")
    parser.add_argument("--dry-run", action="store_true", help="only say what would run, and for how long at most")
    options = parser.parse_args()
    if options.dry_run:
        for name, limit_s in {"tests": TESTS_S, **PARTS}.items():
            print(f"{limit_s:4.0f} s  {' '.join(command(name, Path('tests.xml')))}")
        return
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here; --dry-run says what would run")
    sys.exit(run(options.json, torch.cuda.get_device_name()))


def run(path: Path, device: str) -> int:
    """Everything; returns the exit status."""
    print(versions("torch", "mujoco-warp", "warp-lang"), "·", device, flush=True)
    started, found = time.monotonic(), {"tests": tests(TESTS_S)}
    tell_failures(found["tests"])
    for name, limit_s in PARTS.items():
        left_s = LIMIT_S - RESERVE_S - (time.monotonic() - started)
        found[name] = part(name, min(limit_s, left_s)) if left_s > 0.0 else Outcome(problem="there was no time left")
        print(f"{name}: {found[name].problem or 'done'}, {found[name].seconds:.0f} s", flush=True)
        write(path, device, found)
    tell_figures(found)
    print(f"\n{time.monotonic() - started:.0f} s; all of it: {path}")
    return int(any(outcome.problem for outcome in found.values()))


def command(name: str, report: Path) -> list[str]:
    """What runs a part; `report` is for the results of tests."""
    if name == "tests":
        return [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--tb=line", f"--junitxml={report}"]
    return [sys.executable, str(HERE / f"{name}.py"), "--quick"]


def tests(limit_s: float) -> Outcome:
    """The suite of `make test-gpu`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        outcome, output = ended(command("tests", report), limit_s)
        if not report.exists():
            outcome.problem += f"no results: {last_line(output)}"
            return outcome
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    for case in cases:
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if problem is not None:
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            outcome.failures[name] = (problem.get("message") or "").split("\n")[0][:200]
    skipped = sum(case.find("skipped") is not None for case in cases)
    outcome.figures = {"passed": len(cases) - skipped - len(outcome.failures), "skipped": skipped}
    if outcome.failures and not outcome.problem.startswith("longer"):
        outcome.problem = f"{len(outcome.failures)} tests fail"
    return outcome


def part(name: str, limit_s: float) -> Outcome:
    """One benchmark; its last line says what it has found."""
    outcome, output = ended(command(name, Path()), limit_s)
    try:
        closing = json.loads(last_line(output))
    except json.JSONDecodeError:
        outcome.problem = outcome.problem or f"no figures: {last_line(output)}"
        return outcome
    outcome.figures, outcome.targets = closing["figures"], closing["targets"]
    return outcome


def ended(words: list[str], limit_s: float) -> tuple[Outcome, str]:
    """What a program printed, errors too, and how it ended: interrupted after `limit_s`, so that it can conclude."""
    start, problem = time.monotonic(), ""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE.parent
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            problem = f"longer than {limit_s:.0f} s; "
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=RESERVE_S / 3)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
    if process.returncode and not problem:
        problem = f"status {process.returncode}: {last_line(output)}"
    return Outcome(time.monotonic() - start, problem), output


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was printed"


def tell_failures(outcome: Outcome) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in outcome.figures.items())
    print(f"tests: {counts or 'none'}; {outcome.problem or 'all pass'}, {outcome.seconds:.0f} s", flush=True)
    for name, reason in outcome.failures.items():
        print(f"  FAILS  {name}: {reason}", flush=True)


def tell_figures(found: dict[str, Outcome]) -> None:
    rows = []
    for part_name, outcome in found.items():
        for name, value in flat(outcome.figures).items():
            rows.append([part_name, name, number_text(value) if isinstance(value, int | float) else value, "", ""])
        for name, target in outcome.targets.items():
            measured = target["value"]
            value = "not measured" if measured is None else number_text(measured)
            met = "–" if measured is None else "yes" if target["met"] else "NO"
            rows.append([part_name, name, value, number_text(target["target"]), met])
        if outcome.problem:
            rows.append([part_name, outcome.problem[:80], "", "", "NO"])
    print_table("All figures", ["part", "figure", "value", "to reach", "met"], rows)


def flat(figures: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Figures in one level: `shared memory, 1 MB · streamed_us`."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        found |= flat(value, f"{prefix}{name} · ") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def write(path: Path, device: str, found: dict[str, Outcome]) -> None:
    """Everything so far: what comes next may take the machine away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    commit = ""
    with contextlib.suppress(OSError):
        words = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device,
        "machine": platform.processor() or platform.machine(),
        "versions": versions("torch", "mujoco-core", "mujoco-warp", "warp-lang"),
        "commit": commit,
        "parts": {name: vars(outcome) for name, outcome in found.items()},
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
