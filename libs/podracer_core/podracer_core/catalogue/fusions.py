"""Names of fusions, without torch: what they do is in podracer_core.fusion.

A package adds one with an entry point in the group `podracer.fusions`. It is loaded by learners only.
"""

from __future__ import annotations

from importlib.metadata import entry_points

ENTRY_POINT_GROUP = "podracer.fusions"

OUTER = "outer"
"""The one with an optimizer of its own."""

BUILT_IN_FUSIONS = ("mean", "weighted", OUTER)


def fusion_names() -> list[str]:
    """The built-in fusions and those of packages that are installed here."""
    return sorted({*BUILT_IN_FUSIONS, *entry_points(group=ENTRY_POINT_GROUP).names})
