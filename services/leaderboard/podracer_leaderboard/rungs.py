"""Who is at the bottom of a rung: agents are judged only against those that had as many rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

MINIMUM_RUNG_SIZE = 4
"""Fewer scores than this say too little to replace anyone."""


def is_at_bottom(score: float, rung_scores: Sequence[float], fraction: float) -> bool:
    """Whether `score` is among the worst `fraction` of its rung.

    Only what is strictly worse than the worst of the others counts: equal agents never replace one another, and the
    best of a rung always stays.
    """
    if len(rung_scores) < MINIMUM_RUNG_SIZE:
        return False
    replaced = min(math.floor(fraction * len(rung_scores)), len(rung_scores) - 1)
    return score < sorted(rung_scores)[replaced]
