"""Generators and updaters come from installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from random import Random

import pytest

from podracer_core.catalogue import extensions, load_class
from podracer_core.errors import InvalidInput
from podracer_core.evolution import (
    GENERATORS,
    UPDATERS,
    Cohort,
    CohortRequest,
    Generator,
    LowerBoundUpdater,
    MeanUpdater,
    Population,
    Tournament,
    Updater,
)
from support.errors import raises


class Idle(Generator):
    """The smallest generator there can be."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        return Cohort()


class Impostor:
    """Not a generator."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints(
        EntryPoint(name, f"{__name__}:{name}", "g") for name in ("Idle", "Impostor")
    )
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.name])
    monkeypatch.setattr(extensions, "entry_points", lambda group: found)


def test_the_built_in_ones_are_entry_points_like_any_other():
    assert load_class(GENERATORS, "tournament", Generator, "f") is Tournament  # type: ignore[type-abstract]
    assert load_class(UPDATERS, "lower_bound", Updater, "f") is LowerBoundUpdater  # type: ignore[type-abstract]
    assert load_class(UPDATERS, "mean", Updater, "f") is MeanUpdater  # type: ignore[type-abstract]


def test_a_package_can_bring_its_own(installed):
    assert load_class(GENERATORS, "Idle", Generator, "f") is Idle  # type: ignore[type-abstract]


def test_what_is_no_generator_is_refused(installed):
    with raises(InvalidInput, "UNKNOWN_EXTENSION", field="evolution.generator"):
        load_class(GENERATORS, "Impostor", Generator, "evolution.generator")  # type: ignore[type-abstract]
