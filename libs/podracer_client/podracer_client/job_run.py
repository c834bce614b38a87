"""`run`: run a job file on this machine, as `podracer run` does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from podracer_core.errors import PreconditionFailed
from podracer_core.in_process import Look, Result, interrupts, load
from podracer_platform.jobs import load_job_file

_CLIENT = "podracer_client"
_TARGET_MISSED, _INTERRUPTED = 3, 130  # exit codes of the command, beside 0


def run(job_file: Path | str, *, folder: Path | str = "runs", progress: bool = True) -> Result:
    """Run a job on this machine and return its best policy. Continues an interrupted run of the
    same state `folder`.

    The services are processes that end with the call. Ctrl-C suspends the job and returns the best
    policy so far. `history` holds the best evaluation over time. Raises InvalidInput for an invalid
    job file, PreconditionFailed for a job that fails or has no policy."""
    spec = load_job_file(Path(job_file))
    command = [
        sys.executable,
        "-P",
        "-m",
        _CLIENT,
        "run",
        str(job_file),
        "--dir",
        str(folder),
        "--json",
    ]
    looks: list[Look] = []
    end: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors, _running(command, errors) as process:
        assert process.stdout is not None, "it is a pipe"
        for event in map(json.loads, process.stdout):
            if event["event"] == "progress":
                _note(looks, event)
                _show(event, progress)
            elif event["event"] == "job_finished":
                end = event
        process.wait()
        errors.seek(0)
        problem = errors.read().strip()
    if progress:
        sys.stderr.write("\n")
    if process.returncode not in (0, _TARGET_MISSED, _INTERRUPTED) or not end.get("checkpoint"):
        raise PreconditionFailed(
            problem or f"the job {spec.name} ended without a policy", reason="JOB_FAILED"
        )
    result = load(end["checkpoint"])
    stopped_by = "target" if end["seconds_to_target"] is not None else ""
    if process.returncode == _INTERRUPTED:
        stopped_by = "interrupt"
    return Result(result.checkpoint, None, looks, stopped_by, spec.objective.target_return)


@contextmanager
def _running(command: Sequence[str], errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Run the command. Ctrl-C makes it suspend its job. An error here tells it to leave at once."""
    # In a session of its own, so that Ctrl-C reaches it once, from here.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
    )
    with process, interrupts(lambda: process.send_signal(signal.SIGINT)):
        try:
            yield process
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise


def _note(looks: list[Look], event: dict[str, Any]) -> None:
    """Add the current best, if it is new."""
    best, env_steps = event["best_return"], event["env_steps"]
    if best is None or (looks and (looks[-1].returns, looks[-1].env_steps) == ((best,), env_steps)):
        return
    highest = max([best, *(look.best for look in looks)])
    looks.append(Look(event["train_seconds"], env_steps, (best,), highest))


def _show(event: dict[str, Any], progress: bool) -> None:
    if not progress:
        return
    best = "–" if event["best_return"] is None else f"{event['best_return']:.4g}"
    rate = event["env_steps_per_second"]
    text = (
        f"{event['state'].lower()}  {event['live_env_steps']:,} steps  {rate:,.0f} steps/s  "
        f"best {best}"
    )
    sys.stderr.write(f"\r{text:<78}")
    sys.stderr.flush()
