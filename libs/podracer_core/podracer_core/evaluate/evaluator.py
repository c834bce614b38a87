"""What judges policies in an environment, built in or of an installed package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from podracer_core.catalogue.evaluators import BUILT_IN_EVALUATORS, ENTRY_POINT_GROUP, GREEDY_EPISODES
from podracer_core.catalogue.extensions import load_class
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.evaluate.greedy_episodes import Acting
from podracer_core.evaluate.result import EvaluationResult


class Evaluated(Acting, Protocol):
    """What can be evaluated: an Actor, or an EnsembleActor."""

    @property
    def members(self) -> int:
        """M."""

    def repeat(self, times: int) -> Evaluated:
        """A copy in which each member stands `times` times in a row."""


class Evaluator(ABC):
    """Made for one environment, used for many policies, in one thread.

    Its results decide: candidates are ranked by their `mean`, and pass a target by `mean` or `lower_bound`.
    """

    def __init__(
        self,
        make_environment: Callable[[int], VecEnvironment],
        *,
        all_alike: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_environment(num_envs)` makes environments for evaluation; whoever calls it closes them. `all_alike`:
        all episodes of a policy are known to be alike (see `evaluates_alike`). `check` is to be called every few steps;
        it raises to give up."""
        self._make_environment, self._all_alike, self._check = make_environment, all_alike, check

    @abstractmethod
    def evaluate(self, actor: Evaluated, seeds: Sequence[int], *, first_row: int = 0) -> tuple[EvaluationResult, ...]:
        """One result for each of the actor's M members, of as many episodes as there are seeds.

        The same policy and seeds have to give the same returns again. `first_row`: episodes of this evaluation that
        were played before, for an evaluation in stages, whose results are added.
        """

    def look(self, actor: Evaluated, seeds: Sequence[int]) -> tuple[EvaluationResult, ...]:
        """A quick evaluation during training. Its returns need not be reproducible."""
        return self.evaluate(actor, seeds)

    def close(self) -> None:  # noqa: B027 - not every evaluator has something to give back
        """Give back what it holds; closing twice is harmless."""


def evaluator_class(name: str = "") -> type[Evaluator]:
    """The class of the evaluator called `name`; of greedy episodes where it is empty. Errors as of `load_class`."""
    found = name or GREEDY_EPISODES
    return load_class(ENTRY_POINT_GROUP, found, Evaluator, "evaluation.evaluator", BUILT_IN_EVALUATORS)  # type: ignore[type-abstract]
