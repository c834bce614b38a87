"""The caller's environment argument -> environments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import gymnasium
import torch

from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.catalogue.environments.spec import Isolation
from podracer_core.environments.processes.isolation import IsolationProof, isolation_proof
from podracer_core.environments.processes.local_rows import MakeEnvironment
from podracer_core.environments.processes.own_code import packed
from podracer_core.environments.processes.preprocess import PreprocessVecEnv
from podracer_core.environments.registry import device_for, evaluates_alike, make_vec_environment
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import FieldViolation, InvalidInput

Environment = str | type[gymnasium.Env[Any, Any]] | type[VecEnvironment] | Callable[..., gymnasium.Env[Any, Any]]
"""An id; a class, or a function that returns a new `gymnasium.Env` at each call; or a class of batched environments."""

_HERE = "__main__"  # the module of what only this process has


@dataclass(frozen=True)
class EnvironmentSource:
    """Makes environments of one kind.

    spec     its stored description
    make     makes each environment in this process; None: made from the spec
    batched  the caller's own class of batched environments
    """

    spec: EnvironmentSpec
    make: MakeEnvironment | None = None
    batched: type[VecEnvironment] | None = None

    def open(
        self,
        count: int,
        device: torch.device | str = "cpu",
        *,
        evaluation: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> VecEnvironment:
        """`count` environments on `device`; the caller closes them. `check` is called before each one that is made in
        this process; it raises to cancel. Raises InvalidInput, and the code's own errors."""
        environment = self._open(count, device, evaluation, check)
        environment.evaluation_steps = self.spec.evaluation_steps
        return environment

    def _open(
        self, count: int, device: torch.device | str, evaluation: bool, check: Callable[[], None]
    ) -> VecEnvironment:
        if (construct := self.make) is not None:

            @functools.wraps(construct)
            def make(**arguments: Any) -> gymnasium.Env[Any, Any]:
                check()
                return construct(**arguments)

            own = construct if self.spec.isolation else make
            return PreprocessVecEnv(self.spec, count, device, make=own, elastic=evaluation)
        if self.batched is None:
            return make_vec_environment(self.spec, count, device, evaluation=evaluation)
        arguments = self.spec.arguments
        if self.spec.max_episode_steps is not None:
            arguments["max_episode_steps"] = self.spec.max_episode_steps
        if self.batched.deterministic_evaluation:
            arguments["evaluation"] = evaluation
        constructor: Any = self.batched
        made: VecEnvironment = constructor(count, device=device, **arguments)
        return made

    def device(self, wanted: str) -> str:
        """The device to step them on, by `device_for`; the caller's own batched class is trusted to run on a GPU."""
        if self.batched is not None and wanted == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return "cpu" if self.make is not None and wanted == "auto" else device_for(wanted, self.spec)

    def isolated(self) -> Self:
        """The same, with each environment in a process of its own."""
        return replace(self, spec=replace(self.spec, isolation="process"))

    def proof(self) -> IsolationProof | None:
        """The proof that its environments share state, not begun; None if there is nothing to prove, or no way to."""
        if self.batched is not None or self.spec.isolation:
            return None
        if self.make is None:
            return isolation_proof(self.spec)
        try:
            return IsolationProof(self.spec, packed(self.make, self.spec.name))
        except InvalidInput:
            return None

    @property
    def all_alike(self) -> bool:
        """Whether all episodes of an evaluation are alike."""
        return self.batched.deterministic_evaluation if self.batched else not self.make and evaluates_alike(self.spec)


def find_source(
    environment: Environment,
    arguments: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    isolation: Isolation = "",
) -> EnvironmentSource:
    """The source for `environment`. `arguments` are those of its constructor, JSON values; `isolation` is the spec's.

    Raises InvalidInput for an unknown id, an environment instance, and any other object.
    """
    given, named = dict(arguments or {}), cast("Any", environment)  # what callers give may be anything
    if isinstance(environment, str):
        spec = EnvironmentSpec(id=environment, kwargs=given, max_episode_steps=max_episode_steps, isolation=isolation)
        if find_environment(environment).backend == "gymnasium" and _is_registered_here(environment):
            registered = gymnasium.registry[environment]  # another process does not know the id
            return EnvironmentSource(spec, partial(gymnasium.make, registered, disable_env_checker=True))
        return EnvironmentSource(spec)
    if isinstance(named, gymnasium.Env | VecEnvironment):
        kind = type(named).__name__
        raise _refused(f"expected the class {kind} or a function that makes one, not a {kind}: training needs several")
    if not callable(named):
        message = f"expected an id, a class, or a function that returns a gymnasium.Env, got {named!r:.100}"
        raise _refused(message)
    spec = EnvironmentSpec(
        entry_point=_entry_point(named), kwargs=given, max_episode_steps=max_episode_steps, isolation=isolation
    )
    if inspect.isclass(named) and issubclass(named, VecEnvironment):
        if isolation:
            raise _refused(f"{spec.name} makes all environments of a batch as one: isolation is for a gymnasium.Env")
        return EnvironmentSource(spec, batched=named)
    return EnvironmentSource(spec, named)


def source_of_checkpoint(spec: EnvironmentSpec) -> EnvironmentSource:
    """The source for a checkpoint's environment, ids only. Raises InvalidInput for a caller's own code and for an id
    with a module, which Gymnasium would import: a file must not start code. Also if it needs files of a server."""
    if not spec.id or ":" in spec.id:
        raise _refused(f"the policy was trained in {spec.name}: load it with podracer.load(path, environment=…)")
    if spec.stored_files:
        raise _refused(f"{spec.id} needs files of the job: `podracer evaluate` fetches them, as do its other commands")
    return find_source(spec.id, spec.kwargs, spec.max_episode_steps)


def _is_registered_here(environment_id: str) -> bool:
    """Whether code that was imported here registered the id, so that other processes may not know it."""
    if ":" in environment_id or environment_id not in gymnasium.registry:
        return False
    entry_point = gymnasium.registry[environment_id].entry_point
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return re.split(r"[.:]", module)[0] != "gymnasium"


def _entry_point(environment: Callable[..., Any]) -> str:
    """`module:Name` for a checkpoint's metadata; of what has no name that another process knows, `__main__:name`."""
    name = getattr(environment, "__qualname__", "")
    if all(part.isidentifier() for part in name.split(".")):
        return f"{environment.__module__}:{name}"
    last = name.rpartition(".")[2]
    return f"{_HERE}:{last if last.isidentifier() else 'environment'}"


def _refused(message: str) -> InvalidInput:
    return InvalidInput(message, violations=[FieldViolation("environment", message)], reason="NO_ENVIRONMENT")
