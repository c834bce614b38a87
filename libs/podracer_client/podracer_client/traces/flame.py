"""Which work took how long: spans of the same name, below the same one, are one frame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from podracer_client.traces.reading import Trace, TraceSpan

__all__ = ["Frame", "flame_of"]

_TOTAL = "seconds."
_SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class Frame:
    """What took time, of all processes together.

    seconds       with all that is below it, also where several processes worked at once
    count         spans; 0 where only their sum is known
    is_estimated  scaled up from a few spans
    """

    service: str
    name: str
    seconds: float
    count: int
    children: Sequence[Frame] = field(default=())
    is_estimated: bool = False
    errors: int = 0

    @property
    def own_seconds(self) -> float:
        """In none of its children."""
        return max(0.0, self.seconds - sum(child.seconds for child in self.children))


def flame_of(trace: Trace) -> Frame:
    """A frame for the job, with everything that was done for it below.

    A round tells the sums of its phases, and has spans of the phases of a few iterations: these say what the phases
    consist of, in proportion. A frame is at least as long as its children together: processes work at the same time.
    """
    children = trace.children()
    frames = _merged([_frame(one, children) for one in children[""]])
    return Frame("", trace.job.rpartition("/")[2], sum(one.seconds for one in frames), 1, frames)


def _frame(one: TraceSpan, children: Mapping[str, Sequence[TraceSpan]]) -> Frame:
    """A span and all below it."""
    own = children.get(one.span_id, ())
    sampled: dict[str, list[Frame]] = defaultdict(list)
    below: list[Frame] = []
    for child in own:
        (sampled[child.name] if child.attributes.get(_SAMPLED) else below).append(_frame(child, children))
    totals = {
        name.removeprefix(_TOTAL): float(value) for name, value in one.attributes.items() if name.startswith(_TOTAL)
    }
    names = [*totals, *(name for name in sampled if name not in totals)]
    below += [_phase(one.service, name, totals.get(name), _merged(sampled.get(name, ()))) for name in names]
    frames = _merged(below)
    seconds = max(one.seconds, sum(frame.seconds for frame in frames))
    return Frame(one.service, one.name, seconds, 1, frames, errors=int(bool(one.error)))


def _phase(service: str, name: str, seconds: float | None, sampled: Sequence[Frame]) -> Frame:
    """A phase that has taken so many seconds, made of what its samples are made of. `sampled`: one at most."""
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
    """Those of one name and service together, the longest first."""
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
