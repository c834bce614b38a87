"""The flame view as a tree for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from podracer_client.traces.flame import Frame
from podracer_client.traces.reading import Trace

__all__ = ["flame_text"]

_LEAST = 0.002
"""Share of the whole below which a frame is left out."""
_WIDTH = 46


def flame_text(trace: Trace, flame: Frame) -> str:
    """Two lines about the trace, then a line for each frame: seconds, share of the whole, how often, and what."""
    processes = len({one.process for one in trace.spans})
    lines = [
        f"{trace.job}: {trace.seconds:.1f} s, {flame.seconds:.1f} s of work in {processes} processes",
        f"{'seconds':>9}  {'share':>6}  {'count':>6}  what (~: in proportion to a few that were looked at)",
    ]
    lines += [_line(frame, depth, flame.seconds) for frame, depth in _walk(flame, 0, _LEAST * flame.seconds)]
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
    return f"{frame.seconds:9.2f}  {share:6.1%}  {count:>6}  {name:<{_WIDTH}}{where}{errors}".rstrip()
