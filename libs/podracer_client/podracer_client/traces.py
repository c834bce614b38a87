"""The time a job spent, by operation: its spans, from the files that the processes have written, as
a tree of text and as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from podracer_client.names import job_name, short_name
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.telemetry import ENDING

_JOB = re.compile(r'"job":"([^"]+)"')


_TOTAL = "seconds."
_SAMPLED = "sampled"
_LEAST = 0.002
"""Share of the whole below which a frame is left out."""
_WIDTH = 46


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


@dataclass(frozen=True, slots=True)
class Frame:
    """An operation and its time, over all processes.

    seconds       including the frames below it, added up for processes that work in parallel
    count         number of spans; 0 if only their sum is known
    is_estimated  extrapolated from a few spans
    """

    service: str
    name: str
    seconds: float
    count: int
    children: Sequence[Frame] = field(default=())
    is_estimated: bool = False
    errors: int = 0


def flame_of(trace: Trace) -> Frame:
    """The frame of the job, with the frames of all its operations below.

    A round has the sums of its phases, and spans of the phases of a few iterations. These give the
    proportions of the operations in each phase. A frame is at least as long as its children
    together: processes work at the same time."""
    children = trace.children()
    frames = _merged([_frame(one, children) for one in children[""]])
    return Frame("", trace.job.rpartition("/")[2], sum(one.seconds for one in frames), 1, frames)


def _frame(one: TraceSpan, children: Mapping[str, Sequence[TraceSpan]]) -> Frame:
    """The frame of a span and of all spans below it."""
    own = children.get(one.span_id, ())
    sampled: dict[str, list[Frame]] = defaultdict(list)
    below: list[Frame] = []
    for child in own:
        (sampled[child.name] if child.attributes.get(_SAMPLED) else below).append(
            _frame(child, children)
        )
    totals = {
        name.removeprefix(_TOTAL): float(value)
        for name, value in one.attributes.items()
        if name.startswith(_TOTAL)
    }
    names = [*totals, *(name for name in sampled if name not in totals)]
    below += [
        _phase(one.service, name, totals.get(name), _merged(sampled.get(name, ())))
        for name in names
    ]
    frames = _merged(below)
    seconds = max(one.seconds, sum(frame.seconds for frame in frames))
    return Frame(one.service, one.name, seconds, 1, frames, errors=int(bool(one.error)))


def _phase(service: str, name: str, seconds: float | None, sampled: Sequence[Frame]) -> Frame:
    """A phase of that many seconds, with the proportions of its samples. `sampled`: one at most."""
    if not sampled:
        return Frame(service, name, seconds or 0.0, 0)
    (like,) = sampled
    if seconds is None or like.seconds <= 0.0:
        return like
    return _scaled(replace(like, count=0), seconds / like.seconds)


def _scaled(frame: Frame, factor: float) -> Frame:
    children = tuple(_scaled(replace(child, is_estimated=True), factor) for child in frame.children)
    return replace(frame, seconds=frame.seconds * factor, children=children)


def _merged(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames merged by name and service, the longest first."""
    groups: dict[tuple[str, str], list[Frame]] = defaultdict(list)
    for frame in frames:
        groups[frame.service, frame.name].append(frame)
    merged = [
        Frame(
            service,
            name,
            sum(frame.seconds for frame in group),
            sum(frame.count for frame in group),
            _merged([child for frame in group for child in frame.children]),
            any(frame.is_estimated for frame in group),
            sum(frame.errors for frame in group),
        )
        for (service, name), group in groups.items()
    ]
    return tuple(sorted(merged, key=lambda frame: (-frame.seconds, frame.name)))


def flame_text(trace: Trace, flame: Frame) -> str:
    """Two lines about the trace, then a line for each frame: seconds, share of the whole, number of
    spans, and name."""
    processes = len({one.process for one in trace.spans})
    lines = [
        f"{trace.job}: {trace.seconds:.1f} s, {flame.seconds:.1f} s of work in {processes} "
        "processes",
        f"{'seconds':>9}  {'share':>6}  {'count':>6}  what (~: in proportion to a few that were "
        "looked at)",
    ]
    lines += [
        _line(frame, depth, flame.seconds)
        for frame, depth in _walk(flame, 0, _LEAST * flame.seconds)
    ]
    return "\n".join(lines) + "\n"


def _walk(frame: Frame, depth: int, least_s: float) -> Iterator[tuple[Frame, int]]:
    yield frame, depth
    for child in frame.children:
        if child.seconds >= least_s:
            yield from _walk(child, depth + 1, least_s)


def _line(frame: Frame, depth: int, whole_s: float) -> str:
    share = frame.seconds / whole_s if whole_s else 0.0
    count = f"{frame.count:,}" if frame.count and not frame.is_estimated else ""
    name = "  " * depth + ("~" if frame.is_estimated else "") + frame.name
    where = f"  {frame.service}" if frame.service else ""
    errors = f"  {frame.errors} failed" if frame.errors else ""
    return (
        f"{frame.seconds:9.2f}  {share:6.1%}  {count:>6}  {name:<{_WIDTH}}{where}{errors}".rstrip()
    )


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """The spans as JSON values in Chrome's Trace Event Format: times in microseconds since the
    first span."""
    begin_ns, processes = trace.spans[0].start_ns, dict.fromkeys(one.process for one in trace.spans)
    numbers = {process: number for number, process in enumerate(processes, 1)}
    named = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": process}}
        for process, number in numbers.items()
    ]
    spans = [
        {
            "ph": "X",
            "name": one.name,
            "cat": one.service,
            "pid": numbers[one.process],
            "tid": row,
            "ts": (one.start_ns - begin_ns) / 1000,
            "dur": max(0, one.end_ns - one.start_ns) / 1000,
            "args": {**one.attributes, **({"error": one.error} if one.error else {})},
        }
        for one, row in _rows(trace.spans)
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"job": trace.job},
        "traceEvents": [*named, *spans],
    }


def _rows(spans: Sequence[TraceSpan]) -> Iterator[tuple[TraceSpan, int]]:
    """Each span with the first row of its process in which it overlaps only spans that enclose it:
    the viewers draw a row as a stack."""
    open_until: dict[str, list[list[int]]] = defaultdict(list)
    for one in sorted(spans, key=lambda one: (one.start_ns, -one.end_ns)):
        rows = open_until[one.process]
        for ends in rows:
            while ends and ends[-1] <= one.start_ns:
                ends.pop()
        row = next(
            (row for row, ends in enumerate(rows) if not ends or one.end_ns <= ends[-1]), len(rows)
        )
        if row == len(rows):
            rows.append([])
        rows[row].append(one.end_ns)
        yield one, row
