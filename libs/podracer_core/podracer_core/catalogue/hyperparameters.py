"""Hyperparameters: type, range, scope within a cohort, and search range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from podracer_core.catalogue.ranges import HyperparameterValue, Interval, Range
from podracer_core.config import schedule_advice
from podracer_core.errors import FieldViolation, InvalidInput

Kind = Literal["float", "int", "bool", "sizes", "choice"]
Scope = Literal["member", "cohort", "network"]

SearchRange = Interval
"""The name of plug-ins for an interval of an automatic search."""

_MOST_SIZES = 64


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One hyperparameter of an algorithm.

    scope   "member": every member of a cohort has its own, and mutation may change it at any time;
            "cohort": one for all members, weights are kept when it changes;
            "network": one for all members, another value means fresh weights
    kind    "sizes" is a list of positive integers, one per hidden layer; "choice" one of `choices`
    bounds  inclusive; of every element if kind is "sizes"
    search  the range of an automatic search. None: the default, unless the job has a range
    source  the paper or code that the default is from
    near_one  the distance from 1 matters, as for a discount: logarithm and perturbation are of 1 −
              x
    former    of agents that were made before there was this hyperparameter; None: the default
    """

    name: str
    kind: Kind
    default: HyperparameterValue
    scope: Scope
    meaning: str
    source: str = ""
    bounds: tuple[float, float] | None = None
    search: Range | None = None
    choices: tuple[str, ...] = ()
    near_one: bool = False
    former: HyperparameterValue | None = None

    @property
    def keeps_weights(self) -> bool:
        """Whether an agent with another value can continue from its weights."""
        return self.scope != "network"

    def typed(self, value: HyperparameterValue) -> HyperparameterValue:
        """The value in its type: `1` becomes `1.0` for a real number."""
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return value

    def check(self, value: object) -> None:
        """Raises InvalidInput unless `value` has the right type and is in the range."""
        problem = self._problem(value)
        if problem:
            problem = f"{problem}, not {value!r}{schedule_advice(value)}"
            violation = FieldViolation(self.name, problem)
            raise InvalidInput(
                f"{self.name} {problem}", violations=[violation], hyperparameter=self.name
            )

    def _problem(self, value: object) -> str:
        match self.kind:
            case "bool":
                return "" if isinstance(value, bool) else "must be true or false"
            case "choice":
                return "" if value in self.choices else f"must be one of {', '.join(self.choices)}"
            case "sizes":
                if isinstance(value, str) or not isinstance(value, Sequence) or not value:
                    return "must be a list of whole numbers"
                if len(value) > _MOST_SIZES:
                    return f"must be a list of at most {_MOST_SIZES} whole numbers"
                problems = (
                    problem for size in value if (problem := self._number_problem(size, int))
                )
                return next((f"must be a list each of which {problem}" for problem in problems), "")
            case "int":
                return self._number_problem(value, int)
            case "float":
                return self._number_problem(value, float)

    def _number_problem(self, value: object, kind: type) -> str:
        number = "a whole number" if kind is int else "a number"
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            return f"must be {number}"
        if self.bounds is None:
            return ""
        low, high = self.bounds
        # Written so that NaN fails too.
        return "" if low <= value <= high else f"must be {number} from {low:g} to {high:g}"
