"""The spans of a job, from the files in a folder."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podracer_client.names import job_name, short_name
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.telemetry.span_files import ENDING

_JOB = re.compile(r'"job":"([^"]+)"')

__all__ = ["Trace", "TraceSpan", "read_trace"]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One span, with its `service` (learner, worker…) and the `process` of that service that wrote
    it."""

    service: str
    process: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    error: str

    @property
    def seconds(self) -> float:
        return max(0, self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of a job, given by its resource name, in the order in which they began."""

    job: str
    spans: Sequence[TraceSpan]

    @property
    def seconds(self) -> float:
        """The time from the first span to the end of the last one."""
        return (max(one.end_ns for one in self.spans) - self.spans[0].start_ns) / 1e9

    def children(self) -> Mapping[str, Sequence[TraceSpan]]:
        """The spans by the id of their parent; spans with a missing parent are below the empty
        id."""
        ids = {one.span_id for one in self.spans}
        found: dict[str, list[TraceSpan]] = defaultdict(list)
        for one in self.spans:
            found[one.parent_id if one.parent_id in ids else ""].append(one)
        return found


def read_trace(folder: Path, job: str) -> Trace:
    """The spans of `job`, an id or a name, in the files of `folder`. Truncated lines are left out.

    Raises NotFound if there are none, InvalidInput for an invalid name and for a folder that cannot
    be read."""
    wanted = job_name(job)
    try:
        paths = sorted(folder.glob(f"*{ENDING}"))
        if not paths:
            raise NotFound(
                f"no traces in {folder}; `podracer run` and `podracer up` write them to the folder "
                "traces of their state folder (--dir), other services to PODRACER_TRACE_DIR "
                "(--traces)",
                reason="NO_TRACE",
            )
        trace_id = _latest_trace(paths, wanted)
        found = [one for path in paths for one in _spans_of(path, trace_id)]
    except OSError as error:
        raise InvalidInput(
            f"cannot read the traces in {folder}: {error.strerror}", folder=folder
        ) from error
    return Trace(wanted, sorted(found, key=lambda one: one.start_ns))


def _latest_trace(paths: Sequence[Path], job: str) -> str:
    """The id of the trace that spans of a job belong to. Raises NotFound."""
    mark, others = f'"job":"{job}"', set()
    latest = (0, "")
    for path in paths:
        for line in _lines(path):
            if mark in line and (value := _parsed(line)):
                latest = max(latest, (int(value["end_ns"]), str(value["trace"])))
            elif found := _JOB.search(line):
                others.add(short_name(found[1]))
    if not latest[1]:
        known = ", ".join(sorted(others)) or "none"
        raise NotFound(
            f"no trace of {job} there; there are traces of: {known}", reason="NO_TRACE", job=job
        )
    return latest[1]


def _spans_of(path: Path, trace_id: str) -> Iterator[TraceSpan]:
    lines = _lines(path)
    process = {"service": "?", "process": path.name.removesuffix(ENDING)}
    if header := _parsed(next(lines, "")):
        process |= {key: str(header[key]) for key in process if key in header}
    for line in lines:
        if trace_id in line and (value := _parsed(line)) and value.get("trace") == trace_id:
            yield _span(value, process)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except FileNotFoundError:
        return  # a running process has just filled it, or needed its room


def _parsed(line: str) -> dict[str, Any]:
    """The values of a line; empty for a truncated one, whose process was killed while it wrote."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _span(value: Mapping[str, Any], process: Mapping[str, str]) -> TraceSpan:
    return TraceSpan(
        process["service"],
        process["process"],
        str(value["span"]),
        str(value["parent"]),
        str(value["name"]),
        int(value["start_ns"]),
        int(value["end_ns"]),
        dict(value["attributes"]),
        str(value.get("error", "")),
    )
