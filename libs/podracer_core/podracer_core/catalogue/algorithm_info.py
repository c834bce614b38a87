"""What is known of an algorithm without torch: its name, where it can act, and every hyperparameter."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from podracer_core.catalogue.hyperparameters import Hyperparameter, Scope
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["AlgorithmInfo"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_IMPLEMENTATION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """An algorithm as far as it can be known without torch. Raises InvalidInput for one that cannot be right.

    name             lower case, digits and _; what a job file says
    paper            "Authors year, title, where"; of several papers with "; " between them
    action_spaces    the kinds of space (BoxSpace, DiscreteSpace, …) in which it can act
    implementation   "package.module:Class", a podracer_core.algorithms.algorithm.Algorithm; imported where torch is
    bounded_actions  of Box spaces only those with finite bounds
    automatic        takes part where a job leaves the choice of algorithms to us (`search.algorithms: auto`)
    summary          one sentence: what sets it apart
    package          the installed package that brought it, set when it is found; empty for a built-in one
    """

    name: str
    title: str
    paper: str
    on_policy: bool
    action_spaces: tuple[type, ...]
    hyperparameters: tuple[Hyperparameter, ...]
    implementation: str
    bounded_actions: bool = False
    automatic: bool = False
    summary: str = ""
    package: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"{self.name!r} is no name of an algorithm: lower-case letters, digits and _ are")
        if not _IMPLEMENTATION.fullmatch(self.implementation):
            raise InvalidInput(f"{self.name}: implementation {self.implementation!r} is not package.module:Class")
        names = [knob.name for knob in self.hyperparameters]
        for knob in self.hyperparameters:
            knob.check(knob.default)
            if names.count(knob.name) > 1:
                raise InvalidInput(f"{self.name} has two hyperparameters {knob.name}")
            if knob.scope == "member" and knob.kind != "float":
                raise InvalidInput(f"{self.name}.{knob.name}: members differ in real numbers only, not in {knob.kind}")

    def hyperparameter(self, name: str) -> Hyperparameter:
        """The knob called `name`; InvalidInput with the nearest names if there is none."""
        for candidate in self.hyperparameters:
            if candidate.name == name:
                return candidate
        names = [candidate.name for candidate in self.hyperparameters]
        nearest = difflib.get_close_matches(name, names, n=2, cutoff=0.5) or names
        message = f"{self.name} has no hyperparameter {name!r}; did you mean {' or '.join(nearest)}?"
        raise InvalidInput(message, violations=[FieldViolation(name, message)], hyperparameter=name)

    def defaults(self, *scopes: Scope) -> dict[str, Any]:
        """Name → default of the knobs in `scopes`, or of all."""
        return {knob.name: knob.default for knob in self.hyperparameters if not scopes or knob.scope in scopes}
