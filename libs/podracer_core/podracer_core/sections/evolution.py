"""The competition of a job's agents, and how new agents are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from podracer_core.config import MAX_SECONDS, Seconds
from podracer_core.sections.objective import MAX_COUNT, Checks, is_extension_name

MAX_POPULATION = 4096
MAX_GENERATIONS = 1_000_000


@dataclass(frozen=True)
class Round:
    """The length of a round, after which members are judged: seconds of the pod, or environment
    steps of one agent."""

    seconds: Seconds | None = None
    env_steps: int | None = None


@dataclass(frozen=True)
class Evolution:
    """How agents compete and how new ones are made (DESIGN §8).

    population          agents alive at a time
    leaderboard_size    places on the leaderboard, at most the population; None: 4, or the
                        population if smaller
    tournament_size     candidates among which a tournament selection picks the best
    replaced_fraction   part of a rung, from the bottom, that may be replaced
    exploration         probability of a fresh agent in place of an exploited one
    lineage_limit       places that one lineage may hold; None: half of the leaderboard, rounded up
    keep_replay         checkpoints of off-policy agents always hold their transitions, which
                        children inherit; else only agents with at most 16 MiB of them store them,
                        if the object store is a folder
    selection           how the parent of an exploited agent is selected
    crossover           probability that a child is fused from two parents of one shape
    noise_scale         standard deviation of the noise on a child's parameters, relative to each
                        tensor's own
    generator, updater  names of extensions; None: the scheduler's own, the objective's statistic
    generations         of the generational scheduler; None: until the budget ends
    adaptive_rounds     longer rounds for agents that improve, an early end for hopeless ones; None:
                        in a tournament, or with halving, of several algorithms. The generator asha
                        always has them
    ensemble_size       number of best candidates in the ensemble at the end; 0: no ensemble
    """

    scheduler: Literal["tournament", "generational"] = "tournament"
    population: int = 8
    leaderboard_size: int | None = None
    round: Round = field(default_factory=lambda: Round(seconds=15.0))
    tournament_size: int = 2
    replaced_fraction: float = 0.25
    exploration: float = 0.1
    lineage_limit: int | None = None
    keep_replay: bool = False
    selection: Literal["tournament", "truncation"] = "tournament"
    crossover: float = 0.0
    noise_scale: float = 0.0
    generator: str | None = None
    updater: str | None = None
    generations: int | None = None
    adaptive_rounds: bool | None = None
    ensemble_size: int = 0

    @property
    def places(self) -> int:
        """`leaderboard_size`, the default filled in."""
        return self.leaderboard_size or min(4, self.population)

    def check(self, check: Checks) -> None:
        """Check each key, and the keys that depend on each other.

        The server checks whether it has the generator and the updater.
        """
        self._check_places(check)
        one = (self.round.seconds is None) != (self.round.env_steps is None)
        check.that(
            one, "evolution.round", "expected either seconds or env_steps, such as {seconds: 15}"
        )
        check.positive(self.round.seconds, MAX_SECONDS, "evolution.round.seconds")
        check.positive(self.round.env_steps, MAX_COUNT, "evolution.round.env_steps")
        check.between(self.tournament_size, 1, MAX_POPULATION, "evolution.tournament_size")
        for name in ("replaced_fraction", "exploration", "crossover", "noise_scale"):
            check.between(getattr(self, name), 0.0, 1.0, f"evolution.{name}")
        check.between(self.lineage_limit, 1, MAX_POPULATION, "evolution.lineage_limit")
        for kind, extension in (("generator", self.generator), ("updater", self.updater)):
            expected = f"expected the name of an installed {kind}, got {extension!r}"
            check.that(
                extension is None or is_extension_name(extension), f"evolution.{kind}", expected
            )
        if check.between(self.generations, 1, MAX_GENERATIONS, "evolution.generations"):
            check.that(
                self.generations is None or self.scheduler == "generational",
                "evolution.generations",
                "only generational evolution has generations: write scheduler: generational, or "
                "leave it out",
            )

    def _check_places(self, check: Checks) -> None:
        if not check.between(self.population, 1, MAX_POPULATION, "evolution.population"):
            return
        if not check.between(
            self.leaderboard_size, 1, self.population, "evolution.leaderboard_size"
        ):
            return
        size, places = self.ensemble_size, self.places
        message = (
            f"expected 0 for none, or 2 to {places}, the places of the leaderboard; got {size}"
        )
        if places < 2:
            message = f"expected 0: a leaderboard of one place has no ensemble; got {size}"
        check.that(size == 0 or 2 <= size <= places, "evolution.ensemble_size", message)
