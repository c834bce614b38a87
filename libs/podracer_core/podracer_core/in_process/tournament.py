"""`run`: a job file, run by the services of this machine as `podracer run` does it."""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podracer_core.errors import PreconditionFailed
from podracer_core.in_process.reporting import Look
from podracer_core.in_process.result import Result, load
from podracer_core.jobs.job_file import load_job_file

__all__ = ["run"]

_CLIENT = "podracer_client"
_INTERRUPTED = 130


def run(job_file: Path | str, *, folder: Path | str = "runs", progress: bool = True) -> Result:
    """Run a job on this machine from start to end, on from where it stopped in the state `folder`; its best policy.

    The tournament's services are processes that end with the call. Ctrl-C suspends the job and returns the best so far.
    `history` has what was known of the best at each moment. Raises ImportError without the package podracer-client,
    InvalidInput for a job file that cannot be right, PreconditionFailed for a job that fails or has no policy.
    """
    if importlib.util.find_spec(_CLIENT) is None:
        raise ImportError(
            "podracer.run needs the command and the services: pip install 'podracer-client[local]'", name=_CLIENT
        )
    spec = load_job_file(Path(job_file))
    command = [sys.executable, "-P", "-m", _CLIENT, "run", str(job_file), "--dir", str(folder), "--json"]
    # In a session of its own, so that Ctrl-C reaches it once, from here.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    looks: list[Look] = []
    end: dict[str, Any] = {}
    errors = ""
    with process:
        for event in _events(process):
            match event.get("event"):
                case "progress":
                    looks += _look(event)
                    _show(event, progress)
                case "job_finished":
                    end = event
        assert process.stderr is not None, "it is a pipe"
        errors = process.stderr.read()
    if progress:
        sys.stderr.write("\n")
    if process.returncode not in (0, _INTERRUPTED) or not end.get("checkpoint"):
        raise PreconditionFailed(errors.strip() or f"the job {spec.name} ended without a policy", reason="JOB_FAILED")
    result = load(Path(end["checkpoint"]))
    stopped_by = "interrupt" if process.returncode else "target" if end["seconds_to_target"] is not None else ""
    return Result(result.checkpoint, None, looks, stopped_by, spec.objective.target_return)


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What the command tells; an interrupt is passed on to it, and a second one ends it at once."""
    assert process.stdout is not None, "it is a pipe"
    while True:
        try:
            line = process.stdout.readline()
            if not line:
                return
            yield json.loads(line)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)


def _look(event: dict[str, Any]) -> list[Look]:
    """The best of a moment; none where there is none, or it is known."""
    best = event["best_return"]
    if best is None or not math.isfinite(best):
        return []
    return [Look(event["train_seconds"], event["env_steps"], (best,), best)]


def _show(event: dict[str, Any], progress: bool) -> None:
    if not progress:
        return
    best = "–" if event["best_return"] is None else f"{event['best_return']:.4g}"
    rate = event["env_steps_per_second"]
    text = f"{event['state'].lower()}  {event['live_env_steps']:,} steps  {rate:,.0f} steps/s  best {best}"
    sys.stderr.write(f"\r{text:<78}")
    sys.stderr.flush()
