"""What a job says in `environment.kwargs`, checked against the annotations of the constructor that will take it.

Without it a wrong type would be found by chance: a word is true (`no` is one in YAML 1.2), and most other mistakes come
up somewhere in torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from podracer_core.config.build import Builder
from podracer_core.config.document import Node
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["typed_arguments"]


def typed_arguments(environment: type[VecEnvironment], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments`, JSON values, as the constructor's annotations want them: a list becomes a tuple, for one.

    Those that it does not name are left as they are. Raises InvalidInput with every value of the wrong type.
    """
    constructor = environment.__init__
    named = inspect.signature(constructor).parameters
    kinds = get_type_hints(constructor, include_extras=True)
    builder = Builder("", {})
    typed = {
        name: builder.value(kinds[name], Node.from_plain(value), f"environment.kwargs.{name}")
        if name in named and named[name].kind is not inspect.Parameter.VAR_KEYWORD
        else value
        for name, value in arguments.items()
    }
    if builder.problems:
        violations = [FieldViolation(problem.field, problem.message) for problem in builder.problems]
        raise InvalidInput("; ".join(map(str, violations)), violations=violations)
    return typed
