"""The figures that need a GPU, row by row, ours and the peer's in one run, in
docs/benchmarks/gpu.jsonl.

A run takes the rows without a record first, then those measured with other code, then the oldest,
as many as fit into `--minutes`. Each row is appended when it ends, so a run can be cut anywhere.
Last comes the table of the whole file: medians of each system's newest three records on a chip
(`--minutes 0`: the table alone). Nothing is recorded without a return. Peak memory is that of the
GPU, other programs included.

`--tiny --device cpu` runs every row in seconds, to see that it works. `--profile` prints the
kernels of the rows that train in rounds, without CUDA graphs, and records nothing."""

from __future__ import annotations

import argparse
import datetime
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.arguments import RECORDS as DOCS
from lab.arguments import RESULTS, ROOT
from lab.report import Target, finish, number_text, print_table, spread, versions
from lab.runs import append_lines, read_lines

RECORDS, TRIALS = DOCS / "gpu.jsonl", RESULTS / "gpu.jsonl"
# a commit that changes nothing here leaves the figures as they are
CODE = ("benchmarks", "libs", "services")
NEWEST = 3
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "WARP_CACHE_PATH")

Record = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """What the median of a system's figure has to reach, or its quotient by the same figure of
    `over`: row, system."""

    system: str
    figure: str
    wanted: float
    over: tuple[str, str] | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Row:
    """What one run measures.

    minutes   expected, of all systems together
    systems   by name a function of peers/gpu_measure.py and its arguments
    waits     why it cannot be measured yet; its tiny form runs all the same
    is_cold   every system starts with empty kernel caches
    """

    name: str
    title: str
    minutes: float
    systems: Mapping[str, tuple[str, Mapping[str, Any]]]
    goals: Sequence[Goal] = ()
    waits: str = ""
    is_cold: bool = False


def _trained(
    name: str, title: str, task: str, minutes: float, *wanted: float, **options: Any
) -> Row:
    """A training of so many minutes, judged by 100 episodes afterwards."""
    systems = {"ours": ("train", {"task": task, "seconds": 60.0 * minutes, **options})}
    goals = [Goal("ours", "return", each) for each in wanted]
    return Row(name, f"{title}, {minutes:g} minutes", minutes + 0.75, systems, goals)


PEER, ALONE = ("cartpole", "PureJaxRL"), ("cartpole", "lock-step")
CART_POLE: Record = {
    "task": "CartPole-v1", "worlds": 16_384, "least": 475.0,
    "recipe": {"horizon": 32, "minibatch_size": 0, "epochs": 4, "hidden_sizes": (64, 64)},
}  # fmt: skip
ANT: Record = {
    "task": "Ant-v5", "worlds": 8192,
    "recipe": {"horizon": 16, "minibatch_size": 32_768, "epochs": 4,
               "hidden_sizes": (256, 128, 64)},
}  # fmt: skip
ROWS = (
    Row("cartpole", "PPO, CartPole-v1, 64-64, 16,384 × 32, 4 × 4", 2.0,
        {"lock-step": ("rounds", CART_POLE), "overlapping": ("rounds", CART_POLE | {"ahead": 1}),
         "PureJaxRL": ("purejaxrl", {"worlds": 16_384})},
        [Goal("lock-step", "steps/s", 60e6), Goal("lock-step", "steps/s", 1.2, PEER),
         Goal("overlapping", "steps/s", 60e6), Goal("overlapping", "steps/s", 1.2, PEER)]),
    Row("cohort", "the same, 32 agents × 512 worlds", 1.0,
        {"lock-step": ("rounds", CART_POLE | {"members": 32, "worlds": 512})},
        [Goal("lock-step", "steps/s", 0.7, ALONE)]),
    Row("start", "CartPole-v1 to a confirmed 475", 1.0,
        {"ours": ("start", {"task": "CartPole-v1", "target": 475.0})},
        [Goal("ours", "seconds, kernels warm", 1.0, at_most=True),
         Goal("ours", "seconds from process start, caches empty", 12.0, at_most=True)],
         is_cold=True),
    Row("ant_speed", "PPO, Ant-v5, 256-128-64, beside its physics alone", 2.0,
        {"ours": ("rounds", ANT | {"physics": True})}, [Goal("ours", "learning ÷ physics", 0.95)]),
    _trained("ant", "Ant-v5 by defaults", "Ant-v5", 3, 6294),
    _trained("half_cheetah", "HalfCheetah-v5 by defaults", "HalfCheetah-v5", 3, 6490),
    _trained("walker2d", "Walker2d-v5 by defaults", "Walker2d-v5", 4, 7046),
    _trained("hopper", "Hopper-v5 by defaults", "Hopper-v5", 4, 3100),
    _trained("off_policy", "HalfCheetah-v5 by FlashSAC", "HalfCheetah-v5", 8, 9000,
             algorithm="flash_sac"),
    Row("sac", "SAC, HalfCheetah-v5 on the CPU, a gradient step a step", 2.0,
        {"alone": ("replaying", {"seeds": 1}), "8 seeds": ("replaying", {"seeds": 8})},
        [Goal("alone", "steps/s", 1500.0), Goal("8 seeds", "steps/s", 8000.0)]),
    _trained("ant_members", "Ant-v5, 8 agents × 1,024 worlds with mutation", "Ant-v5", 6, 7000,
             members=8, envs_per_member=1024, search=True),
    _trained("ant_alone", "Ant-v5, 1 agent × 8,192 worlds", "Ant-v5", 6, envs_per_member=8192),
    _trained("humanoid", "Humanoid-v5 by defaults", "Humanoid-v5", 9, 5000),
    Row("go1", "mjlab's Go1, flat, 300 iterations, beside rsl_rl", 9.0, {},
        [Goal("ours", "return", 0.95, ("go1", "rsl_rl"))],
        waits="nothing here trains by rsl_rl yet"),
    Row("pod", "Ant-v5, a fused pod with its services, beside in-process", 2.5,
        {"in-process": ("rounds", ANT), "fused pod": ("pod", ANT)},
        [Goal("fused pod", "steps/s", 0.9, ("pod", "in-process"))]),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="what may take longer is not begun")
    add("--dry-run", action="store_true", help="only list the queue, with the minutes expected")
    add("--tiny", action="store_true", help="every row in seconds; the figures mean nothing")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--rows", nargs="+", choices=[row.name for row in ROWS], help="only these")
    add("--purejaxrl", help="the peer: the full path of a checkout, beside JAX and gymnax 0.0.9")
    add("--profile", action="store_true", help="print kernels instead")
    add("--results", type=Path, help="default: docs/benchmarks/gpu.jsonl; in runs/ if tiny or CPU")
    add("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(json.loads(options.worker))
        return
    counts = options.device == "cuda" and not options.tiny
    results = (options.results or (RECORDS if counts else TRIALS)).absolute()
    rows = [row for row in ROWS if not options.rows or row.name in options.rows]
    code = code_version()
    order, left = queue(rows, list(read_lines(results)), code), options.minutes
    if options.dry_run:
        cells = []
        for row in order:
            problem = _problem(row, options, left)
            left -= 0.0 if problem else row.minutes
            cells.append([row.name, row.title, row.minutes, problem])
        print_table(
            f"The queue for {options.minutes:g} minutes",
            ["row", "what", "minutes", "why not now"],
            cells,
        )
        return
    if options.device == "cuda" and not shutil.which("nvidia-smi"):
        sys.exit(
            "there is no NVIDIA GPU here: --dry-run lists the queue, --tiny --device cpu tries it"
        )
    print(versions("torch", "mujoco-core", "mujoco-warp", "warp-lang"), "·", code, flush=True)
    end = time.monotonic() + 60.0 * left
    for row in order:
        if problem := _problem(row, options, (end - time.monotonic()) / 60.0):
            print(f"{row.name}: {problem}", flush=True)
            continue
        seeds = [each["seed"] for each in read_lines(results) if each["row"] == row.name]
        seed = max(seeds, default=-1) + 1
        found = [
            {**each, "seed": seed, "commit": code} for each in _measured(row, options, seed, end)
        ]
        append_lines(results, found)
    if not options.profile:
        _report(rows, list(read_lines(results)), counts)


def queue(rows: Sequence[Row], records: Sequence[Record], code: str) -> list[Row]:
    """The rows, first those without a record, then by their newest one: of other code than `code`,
    oldest first."""

    def age(row: Row) -> tuple[bool, str]:
        newest = max(
            (each for each in records if each["row"] == row.name),
            key=lambda each: each["date"],
            default=None,
        )
        return (False, "") if newest is None else (newest["commit"] == code, newest["date"])

    return sorted(rows, key=age)


def code_version() -> str:
    """PODRACER_REVISION, or the commit that changed the code last, with a "+" if something is
    changed since."""
    commit, changes = os.environ.get("PODRACER_REVISION", "unknown"), ""
    with suppress(OSError, subprocess.SubprocessError):
        words = ["log", "-1", "--format=%h"], ["status", "--porcelain"]
        commit, changes = (
            subprocess.check_output(["git", *each, "--", *CODE], cwd=ROOT, text=True)
            for each in words
        )
    return commit.strip() + "+" * bool(changes)


def _problem(row: Row, options: argparse.Namespace, minutes: float) -> str:
    """Why a row is not measured now; empty if it is."""
    if row.waits and not (options.tiny and row.systems):
        return row.waits
    if options.profile and not any(function == "rounds" for function, _ in row.systems.values()):
        return "has no rounds to profile"
    return "too long for what is left" if row.minutes > minutes and not options.tiny else ""


def _measured(row: Row, options: argparse.Namespace, seed: int, end: float) -> Iterator[Record]:
    """The records of a row's systems, each measured in a process of its own."""
    for system, (function, arguments) in row.systems.items():
        if (options.profile and function != "rounds") or (
            function == "purejaxrl" and not options.purejaxrl
        ):
            continue
        order = {"function": function, "arguments": arguments, "seed": seed, "started": time.time()}
        order |= {
            name: getattr(options, name) for name in ("device", "tiny", "profile", "purejaxrl")
        }
        start = time.monotonic()
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with tempfile.TemporaryDirectory() as folder, _watched(options.device) as gpu:
            output, problem = _ended(
                order, folder, dict.fromkeys(CACHES, folder) if row.is_cold else {}, end
            )
        found = json.loads(
            next((line for line in reversed(output) if line.startswith('{"figures"')), "{}")
        )
        if not problem and not options.profile and not math.isfinite(found.get("return", math.nan)):
            problem = "gave no return"
        about = {"row": row.name, "system": system, "seconds": round(time.monotonic() - start, 1)}
        figures = {**found.get("figures", {}), "return": found.get("return", math.nan)}
        told = [f"{name} {number_text(value)}" for name, value in figures.items()]
        text = problem or ("\n".join(output) if options.profile else ", ".join(told))
        print(f"{row.name}, {system}, {about['seconds']:.0f} s:", text, flush=True)
        if found and not problem:
            yield {"date": date, **about, **gpu, **found}


def _ended(
    order: Record, folder: str, caches: Mapping[str, str], end: float
) -> tuple[list[str], str]:
    """The output of a worker, errors too, and what went wrong. Tiny ones with warm caches need no
    process."""
    if order["tiny"] and not caches:
        with redirect_stdout(io.StringIO()) as printed, chdir(folder):
            try:
                _work(json.loads(json.dumps(order)))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of whatever is measured
                return [], f"{type(error).__name__}: {error}"
        return printed.getvalue().splitlines(), ""
    words = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(order)]
    variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **caches}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)  # absolute, for it works in another folder
    left_s = max(0.0, end - time.monotonic())
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        done = subprocess.run(
            words, check=False, timeout=left_s, cwd=folder, env=variables, **streams
        )
    except subprocess.TimeoutExpired:
        return [], "cut: the time is over"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines, (lines or [f"status {done.returncode}"])[-1] if done.returncode else ""


def _work(order: Record) -> None:
    from peers.gpu_measure import measure

    measure(order)


@contextmanager
def _watched(device: str) -> Iterator[Record]:
    """Says afterwards which chip it was, and how much of its memory was in use at most."""
    gpu: Record = {"chip": "no GPU", "peak_memory_mib": None}
    if device == "cpu":
        yield gpu
        return
    query = "--query-gpu=name,memory.used --format=csv,noheader,nounits"
    words = f"nvidia-smi -i 0 {query} -lms 200".split()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield gpu
        finally:
            process.terminate()
            lines = process.communicate()[0].splitlines()
            if seen := [line.rsplit(", ", 1) for line in lines if ", " in line]:
                gpu |= {"chip": seen[0][0], "peak_memory_mib": max(int(used) for _, used in seen)}


def _report(rows: Sequence[Row], records: Sequence[Record], counts: bool) -> None:
    """The table, the goals, and the closing line. A row's goals are about the chip of its newest
    record."""
    cells, figures, targets = list[list[object]](), dict[str, float](), dict[str, Target]()
    chips = {record["row"]: record["chip"] for record in records}
    by_system: dict[tuple[str, str, str], list[Record]] = {}
    for each in records:
        by_system.setdefault((each["row"], each["system"], each["chip"]), []).append(each)
    for (row, system, chip), every in by_system.items():
        own = every[-NEWEST:]
        memory = max((each["peak_memory_mib"] or 0 for each in own), default=0)
        for name in (*own[-1]["figures"], "return"):
            values = [{**each["figures"], **each}.get(name) for each in own]
            found = [value for value in values if value is not None]
            commits = " ".join(dict.fromkeys(each["commit"] for each in own))
            cells.append([row, system, name, spread(found), len(found), memory, chip, commits])
            figures[f"{row}, {system}, {name}, {chip}"] = statistics.median(found)
    for row in rows:
        for goal in row.goals:
            place = f"{goal.figure}, {chips.get(row.name)}"
            value = figures.get(f"{row.name}, {goal.system}, {place}")
            below = figures.get(f"{', '.join(goal.over)}, {place}", 0.0) if goal.over else 1.0
            value = value / below if counts and value is not None and below else None
            over = f" ÷ {' '.join(goal.over)}" if goal.over else ""
            name = f"{row.title}: {goal.system}, {goal.figure}{over}"
            targets[name] = Target(value, goal.wanted, goal.at_most)
    header = ["row", "system", "figure", "median (least – greatest)", "runs", "MiB", "chip"]
    print_table(f"Of the newest {NEWEST} records of each system", [*header, "commits"], cells)
    finish("gpu", figures, targets)


if __name__ == "__main__":
    main()
