"""The time of each operation: spans of the same name and parent form one frame; printed as a tree
in the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from podracer_client.traces.reading import Trace, TraceSpan

__all__ = ["Frame", "flame_of", "flame_text"]

_TOTAL = "seconds."
_SAMPLED = "sampled"
_LEAST = 0.002
"""Share of the whole below which a frame is left out."""
_WIDTH = 46


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
