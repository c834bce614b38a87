"""Numbers of messages as text."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from podracer.common.v1 import agent_pb2


def seconds(duration: Duration | Timestamp) -> float:
    return duration.seconds + duration.nanos * 1e-9


def count_text(value: float) -> str:
    """`1,234`, from a million on `1.23 M`."""
    if abs(value) < 1e6:
        return f"{value:,.0f}"
    for unit, size in (("M", 1e6), ("G", 1e9)):
        if abs(value) < 1000 * size or unit == "G":
            return f"{value / size:,.2f} {unit}"
    raise AssertionError("the last unit takes everything")


def return_text(value: float | None) -> str:
    """A return with the digits that matter; `–` for none."""
    if value is None:
        return "–"
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 10_000 else f"{value:,.0f}"


def duration_text(value: float | None) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`; `–` for none."""
    if value is None:
        return "–"
    if round(value, 1) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def time_json(timestamp: Timestamp) -> str | None:
    """In UTC as JSON has it; None for what no calendar has."""
    with suppress(ValueError):
        return timestamp.ToJsonString()
    return None


def evaluation_text(evaluation: agent_pb2.Evaluation) -> str:
    """An evaluation's mean, interval and episodes, and those that broke or were cut; a single
    episode has an interval only of its own statistic."""
    broken = evaluation.broken_number_episodes + evaluation.broken_code_episodes
    count, cut = len(evaluation.returns), evaluation.cut_episodes
    if broken and not count:
        return f"none: all of {broken} episodes broke"
    inside = "1 episode" if count == 1 else f"{count} episodes"
    if count != 1 or evaluation.deterministic:
        inside = (
            f"95 % interval {interval_text(evaluation.lower_bound, evaluation.upper_bound)}, "
            f"{inside}"
        )
    inside += (
        f", {cut} of them cut after {max(evaluation.lengths, default=0):,} steps" if cut else ""
    )
    inside += f"; {broken} more broke" if broken else ""
    return f"{return_text(evaluation.mean)} ({inside})"


def interval_text(lower: float | None, upper: float | None) -> str:
    """`-201.3 to -163.5`."""
    return f"{return_text(lower)} to {return_text(upper)}"
