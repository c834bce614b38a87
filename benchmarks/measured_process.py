"""A command with all the processes that it starts: when each of its lines came, and the memory of
all together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_S = 0.2
SAMPLING_SHARE = 0.02
_END_GRACE_S = 10.0


@dataclass
class Measured:
    """What became of a command. `events` are its JSON lines, each with the seconds since the
    command was started.

    peak_bytes    the largest sum of the proportional set sizes (PSS) of all its processes: shared
                  pages count once
    processes     how many they were then
    cpu           every so often: seconds since the command was started, processor seconds of all
                  its living processes
    threads       as often, where asked for: the time, and processor seconds of each living thread
                  by its id
    """

    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    cpu: list[tuple[float, float]] = field(default_factory=list)
    threads: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    peak_bytes: int = 0
    processes: int = 0
    timed_out: bool = False

    def first(self, event: str) -> tuple[float, dict[str, Any]] | None:
        """The first event of that name, with its time."""
        return next((found for found in self.events if found[1].get("event") == event), None)

    def last(self, event: str) -> tuple[float, dict[str, Any]] | None:
        """The last event of that name, with its time."""
        return next(
            (found for found in reversed(self.events) if found[1].get("event") == event), None
        )

    def cpu_s_at(self, at: float) -> float:
        """Processor seconds up to `at` seconds after the start, of all processes that lived
        then."""
        times, cpu_s = zip(*self.cpu, strict=True)
        return float(np.interp(at, times, cpu_s))


def run_measured(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float,
    until: Sequence[str] = (),
    with_threads: bool = False,
) -> Measured:
    """Run `command` until it ends, or until `timeout_s`, or until ten seconds after an event that
    is named in `until`.

    Whatever it leaves behind is killed. Its stderr goes to `log`.
    """
    found, over, late = Measured(), threading.Event(), threading.Event()
    with log.open("ab") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            env=None if environment is None else {**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    tree = _Tree(process.pid)
    meter = threading.Thread(
        target=_meter, args=(tree, found, start, over, with_threads), daemon=True
    )
    limit = threading.Timer(timeout_s, lambda: (late.set(), tree.kill()))
    meter.start()
    limit.start()
    try:
        assert process.stdout is not None, "asked for as a pipe above"
        for line in process.stdout:
            event = _json(line)
            if event is None:
                continue
            found.events.append((time.perf_counter() - start, event))
            if event.get("event") in until:
                break
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_GRACE_S)
    finally:
        limit.cancel()
        over.set()
        meter.join()
        tree.kill()
        process.wait()
    found.timed_out = late.is_set()
    return found


class _Tree:
    """A process and its descendants, those too whose parent has gone since they were first seen."""

    def __init__(self, root: int) -> None:
        self._started: dict[int, str] = {root: _status(root)[1]}
        self._lock = threading.Lock()

    def living(self) -> list[int]:
        """The processes that are there now."""
        with self._lock:
            present = {pid: _status(pid) for pid in _pids()}
            self._started = {
                pid: began
                for pid, began in self._started.items()
                if pid in present and present[pid][1] == began
            }
            children: dict[int, list[int]] = {}
            for pid, (parent, _) in present.items():
                children.setdefault(parent, []).append(pid)
            queue = list(self._started)
            while queue:
                for child in children.get(queue.pop(), ()):
                    if child not in self._started:
                        self._started[child] = present[child][1]
                        queue.append(child)
            return list(self._started)

    def kill(self) -> None:
        """End all of them now."""
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _meter(
    tree: _Tree, found: Measured, start: float, over: threading.Event, with_threads: bool
) -> None:
    """Add up processor time and memory, at most for `SAMPLING_SHARE` of a core: the kernel takes
    milliseconds for the PSS of a process."""
    pause_s = SAMPLE_S
    while not over.wait(pause_s):
        start_s = time.thread_time()
        living = tree.living()
        found.cpu.append((time.perf_counter() - start, sum(map(_cpu_s, living))))
        if with_threads:
            found.threads.append((time.perf_counter() - start, _thread_cpu_s(living)))
        sizes = [size for size in map(_pss_bytes, living) if size]
        pause_s = max(SAMPLE_S, (time.thread_time() - start_s) / SAMPLING_SHARE)
        if sum(sizes) > found.peak_bytes:
            found.peak_bytes, found.processes = sum(sizes), len(sizes)


def _pids() -> Iterator[int]:
    return (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())


def _status(pid: int) -> tuple[int, str]:
    """(parent, start time); (0, "") for a process that is not there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return 0, ""
    return int(fields[1]), fields[19]


def _cpu_s(pid: int) -> float:
    """In user and kernel mode, children that have ended included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _thread_cpu_s(pids: Sequence[int]) -> dict[int, float]:
    """Of each thread, in user and kernel mode."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
                with suppress(OSError, UnicodeDecodeError):
                    fields = stat.read_text().rpartition(")")[2].split()
                    found[int(stat.parent.name)] = sum(map(int, fields[11:13])) / os.sysconf(
                        "SC_CLK_TCK"
                    )
    return found


def _pss_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _json(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
