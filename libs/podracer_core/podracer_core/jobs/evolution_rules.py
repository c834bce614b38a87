"""What cannot be right in a job's `evolution`."""

from __future__ import annotations

import re

from podracer_core.config.scalars import MAX_SECONDS
from podracer_core.jobs.checks import MAX_COUNT, Checks
from podracer_core.jobs.spec import Evolution

__all__ = ["MAX_POPULATION", "check_evolution"]

MAX_POPULATION = 4096
MAX_GENERATIONS = 1_000_000

_EXTENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def check_evolution(check: Checks, evolution: Evolution) -> None:
    """Each key by itself, and what goes together.

    Whether the server has a generator or an updater of a name is for the server to say.
    """
    _check_population(check, evolution)
    _check_round(check, evolution)
    check.between(evolution.tournament_size, 1, MAX_POPULATION, "evolution.tournament_size")
    for name in ("replaced_fraction", "exploration", "crossover", "noise_scale"):
        check.between(getattr(evolution, name), 0.0, 1.0, f"evolution.{name}")
    if evolution.lineage_limit is not None:
        check.between(evolution.lineage_limit, 1, MAX_POPULATION, "evolution.lineage_limit")
    for kind in ("generator", "updater"):
        extension: str | None = getattr(evolution, kind)
        right = extension is None or _EXTENSION.fullmatch(extension) is not None
        check.that(right, f"evolution.{kind}", f"expected the name of an installed {kind}, got {extension!r}")
    _check_generations(check, evolution)


def _check_population(check: Checks, evolution: Evolution) -> None:
    if not check.between(evolution.population, 1, MAX_POPULATION, "evolution.population"):
        return
    if evolution.leaderboard_size is not None and not check.between(
        evolution.leaderboard_size, 1, evolution.population, "evolution.leaderboard_size"
    ):
        return
    size, places = evolution.ensemble_size, evolution.places
    message = f"expected 0 for none, or 2 to {places}, the places of the leaderboard; got {size}"
    if places < 2:
        message = f"expected 0: a leaderboard of one place has no ensemble; got {size}"
    check.that(size == 0 or 2 <= size <= places, "evolution.ensemble_size", message)


def _check_round(check: Checks, evolution: Evolution) -> None:
    seconds, env_steps = evolution.round.seconds, evolution.round.env_steps
    one = (seconds is None) != (env_steps is None)
    check.that(one, "evolution.round", "expected either seconds or env_steps, such as {seconds: 15}")
    check.positive(seconds, MAX_SECONDS, "evolution.round.seconds")
    check.positive(env_steps, MAX_COUNT, "evolution.round.env_steps")


def _check_generations(check: Checks, evolution: Evolution) -> None:
    if evolution.generations is None:
        return
    if check.between(evolution.generations, 1, MAX_GENERATIONS, "evolution.generations"):
        check.that(
            evolution.scheduler == "generational",
            "evolution.generations",
            "only generational evolution has generations: write scheduler: generational, or leave it out",
        )
