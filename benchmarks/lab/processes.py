"""A command with all the processes that it starts: when each of its lines came, and the memory of
all together. Also `podracer run`, and measurements in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PODRACER = (sys.executable, "-m", "podracer_client")
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
    log           what it has written to stderr
    """

    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    peak_bytes: int = 0
    processes: int = 0
    timed_out: bool = False
    log: Path | None = None

    def first(self, event: str) -> tuple[float, dict[str, Any]] | None:
        """The first event of that name, with its time."""
        return next((found for found in self.events if found[1].get("event") == event), None)

    def last(self, event: str) -> tuple[float, dict[str, Any]] | None:
        """The last event of that name, with its time."""
        return next(
            (found for found in reversed(self.events) if found[1].get("event") == event), None
        )

    def need(self, event: str) -> tuple[float, dict[str, Any]]:
        """The first event of that name. Raises SystemExit with the end of the log where it did not
        come."""
        found = self.first(event)
        if found is None:
            raise SystemExit(f"no {event} came{' in time' * self.timed_out}\n{self.tail}")
        return found

    @property
    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log else ""

    @property
    def memory(self) -> dict[str, float]:
        """Figures of the peak."""
        return {"memory_mb": self.peak_bytes / 1e6, "processes": self.processes}


def run_measured(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float,
    until: Sequence[str] = (),
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Measured:
    """Run `command` until it ends, or until `timeout_s`, or until ten seconds after an event that
    is named in `until`.

    Whatever it leaves behind is killed. Its stderr goes to `log`.
    """
    found, over, late = Measured(log=log), threading.Event(), threading.Event()
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
    meter = threading.Thread(target=_meter, args=(tree, found, over), daemon=True)

    def end() -> None:
        late.set()
        tree.kill()

    limit = threading.Timer(timeout_s, end)
    meter.start()
    limit.start()
    try:
        assert process.stdout is not None, "asked for as a pipe above"
        for line in process.stdout:
            event = _json(line)
            if event is None:
                continue
            found.events.append((time.perf_counter() - start, event))
            on_event(event)
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


def run_job(job: Mapping[str, Any], folder: Path, timeout_s: float, **environment: str) -> Measured:
    """`podracer run` of a job, with its file, state and log in `folder`, until it tells
    `job_finished`. Raises SystemExit where it does not, or where the job has failed."""
    (folder / "job.json").write_text(json.dumps(job))  # JSON is YAML, too
    command = [*PODRACER, "run", str(folder / "job.json"), "--json", "--dir", str(folder / "runs")]
    measured = run_measured(
        command,
        folder / "run.log",
        environment=environment,
        timeout_s=timeout_s,
        until=("job_finished",),
    )
    last = measured.need("job_finished")[1]
    if last["state"] == "FAILED" and last["outcome"] != "NOTHING_JUDGED":
        raise SystemExit(f"the job has failed\n{measured.tail}")
    return measured


def last_line(command: Sequence[str], **variables: str) -> dict[str, Any]:
    """The object that ends the output of a command, run in a folder of its own. Raises SystemExit
    if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        places: Any = {"cwd": folder, "env": {**os.environ, **variables}}
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=900, **places
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def in_process(script: str, order: Any, **variables: str) -> dict[str, Any]:
    """The last line of a script that is started with `--worker`, which takes the order as JSON."""
    command = [sys.executable, str(Path(script).resolve()), "--worker", json.dumps(order)]
    return last_line(command, **variables)


class _Tree:
    """A process and its descendants, those too whose parent has gone since they were first seen."""

    def __init__(self, root: int) -> None:
        self._known = {psutil.Process(root)}
        self._lock = threading.Lock()

    def living(self) -> set[psutil.Process]:
        """The processes that are there now."""
        with self._lock:
            self._known = {process for process in self._known if process.is_running()}
            for process in list(self._known):
                with suppress(psutil.Error):
                    self._known |= set(process.children(recursive=True))
            return set(self._known)

    def kill(self) -> None:
        """End all of them now."""
        for process in self.living():
            with suppress(psutil.Error):
                process.kill()


def _meter(tree: _Tree, found: Measured, over: threading.Event) -> None:
    """Add up memory, at most for `SAMPLING_SHARE` of a core: the kernel takes milliseconds for the
    PSS of a process."""
    pause_s = SAMPLE_S
    while not over.wait(pause_s):
        start_s, sizes = time.thread_time(), []
        for process in tree.living():
            with suppress(psutil.Error):
                sizes.append(process.memory_full_info().pss)
        pause_s = max(SAMPLE_S, (time.thread_time() - start_s) / SAMPLING_SHARE)
        if sum(sizes) > found.peak_bytes:
            found.peak_bytes, found.processes = sum(sizes), len(sizes)


def _json(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
