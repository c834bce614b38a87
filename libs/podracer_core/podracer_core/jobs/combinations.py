"""Hyperparameters that are right one by one and wrong together, as far as a job's search can reach them."""

from __future__ import annotations

from collections.abc import Iterator

from podracer_core.catalogue.algorithms import AlgorithmInfo
from podracer_core.catalogue.ranges import Choice, Fixed, HyperparameterValue
from podracer_core.jobs.spec import Search

__all__ = ["impossible_combinations"]


def impossible_combinations(search: Search, info: AlgorithmInfo) -> Iterator[tuple[str, str]]:
    """The hyperparameter that should change, and why, for each pair of values that one agent could draw in vain."""
    subsets, sizes = (
        [value for value in _reachable(search, info, name) if isinstance(value, int)]
        for name in ("subset_size", "ensemble_size")
    )
    if subsets and sizes and max(subsets) > min(sizes):
        yield "subset_size", f"{info.name} needs at most ensemble_size, {min(sizes)}, got {max(subsets)}"
    if "shared" in _reachable(search, info, "replay") and True in _reachable(search, info, "prioritized"):
        yield "replay", "expected member where prioritized may be true: priorities are each member's own; got 'shared'"


def _reachable(search: Search, info: AlgorithmInfo, name: str) -> list[HyperparameterValue]:
    """The values that `name` may have, of a range its ends; none where the algorithm has no such hyperparameter."""
    knob = next((knob for knob in info.hyperparameters if knob.name == name), None)
    if knob is None:
        return []
    ruling = [d for d in search.space if d.hyperparameter == name and d.algorithm in ("", info.name)]
    ruling.sort(key=lambda dimension: dimension.algorithm == "")  # its own goes before a general one
    if not ruling:
        return [knob.default]
    match ruling[0].range:
        case Fixed(value):
            return [value]
        case Choice(values):
            return list(values)
        case other:
            return [other.low, other.high]
