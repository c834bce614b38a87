"""The class behind a fusion's name, imported when it is asked for."""

from __future__ import annotations

from podracer_core.catalogue.entry_points import load_class
from podracer_core.catalogue.fusions import ENTRY_POINT_GROUP
from podracer_core.fusion.fusion import Fusion

__all__ = ["fusion_class"]


def fusion_class(name: str) -> type[Fusion]:
    """The class of the fusion called `name`. Errors as of `load_class`."""
    return load_class(ENTRY_POINT_GROUP, name, Fusion, "pod.fusion.name")  # type: ignore[type-abstract]
