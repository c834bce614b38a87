"""Who is at the bottom of a rung: nobody is judged against agents that had more rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MINIMUM_PEERS = 4
"""Fewer scores than this say too little to replace anyone."""

DEPTH = 4
"""A rung with too few scores is filled up from those below it; this many rungs are looked at, its own included."""


def peer_scores(rung: int, rung_scores: Mapping[int, Sequence[float]]) -> list[float]:
    """The scores that one of `rung` is judged against: of all that finished that rung.

    Where they are too few, the next rungs below come in: who leads the field alone is held against what others
    reached with less training, else it could never be replaced; a slow starter is never held against older agents.
    """
    scores: list[float] = []
    for lower in range(rung, rung - DEPTH, -1):
        if len(scores) < MINIMUM_PEERS:
            scores.extend(rung_scores.get(lower, ()))
    return scores


def is_at_bottom(score: float, peers: Sequence[float], fraction: float) -> bool:
    """Whether `score`, one of `peers`, is among the worst `fraction` of them.

    Only what is strictly worse than the worst of the others counts: equal agents never replace one another, and the
    best always stays.
    """
    if len(peers) < MINIMUM_PEERS:
        return False
    replaced = min(math.floor(fraction * len(peers)), len(peers) - 1)
    return score < sorted(peers)[replaced]
