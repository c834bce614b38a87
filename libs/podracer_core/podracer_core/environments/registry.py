"""EnvironmentSpec -> a running batch of environments."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import torch

from podracer_core.catalogue import EnvironmentSpec, find_environment, is_batched
from podracer_core.config import Builder, Node
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed

_PLACES = {"cpu": "the CPU", "cuda": "CUDA devices"}


def make_vec_environment(
    spec: EnvironmentSpec,
    num_envs: int,
    device: torch.device | str = "cpu",
    *,
    evaluation: bool = False,
    own: type[VecEnvironment] | None = None,
    **options: Any,
) -> VecEnvironment:
    """N environments of `spec`: in this process for a batched class, else in their own processes.

    `evaluation`: make them for evaluation, for MuJoCo's and classes with
    `deterministic_evaluation`. `own`: the caller's batched class, whose errors are its own.
    `options` are `PreprocessVecEnv`'s. Raises InvalidInput for an unknown id, invalid kwargs or an
    unsupported device, UserCodeFailed if the user's environment does not start."""
    batched = own or batched_class(spec)
    if batched is None:
        return PreprocessVecEnv(
            gymnasium_spec(spec), num_envs, device, elastic=evaluation, **options
        )
    if not runs_on(spec, device):
        places = " or ".join(_PLACES[place] for place in find_environment(spec.id).devices)
        raise InvalidInput(
            f"{spec.name} runs on {places} only, not on {device}",
            environment=spec.name,
            device=device,
        )
    limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
    arguments = limit | spec.arguments
    place: dict[str, Any] = {"device": device}
    if batched.deterministic_evaluation or _is_mujoco(spec):
        place["evaluation"] = evaluation
        if "evaluation" in arguments:
            message = f"Podracer sets this argument of {spec.name}; leave it out"
            raise InvalidInput(message, field="environment.kwargs.evaluation")
    try:
        inspect.signature(batched).bind(num_envs, **place, **arguments)
    except TypeError as error:
        raise InvalidInput(
            f"{spec.name} does not take these: {error}", field="environment.kwargs"
        ) from error
    if _is_described(spec):
        arguments = typed_arguments(batched, arguments)
    constructor: Any = batched
    try:
        environment: VecEnvironment = constructor(num_envs, **place, **arguments)
    # A model without the body that the task is about, say, or a number that no array can hold.
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if own:
            raise
        message = f"{spec.name} cannot be made with these: {type(error).__name__}: {error}"
        raise InvalidInput(message, field="environment.kwargs") from error
    environment.evaluation_steps = spec.evaluation_steps
    return environment


def runs_on(spec: EnvironmentSpec, device: torch.device | str) -> bool:
    """Whether a batched environment supports `device`; a class that its package does not describe
    is trusted to run anywhere."""
    return not _is_described(spec) or torch.device(device).type in find_environment(spec.id).devices


def _is_described(spec: EnvironmentSpec) -> bool:
    return bool(spec.id) and is_batched(spec.id)


def _is_mujoco(spec: EnvironmentSpec) -> bool:
    return bool(spec.id) and find_environment(spec.id).backend == "mujoco"


def evaluation_device(spec: EnvironmentSpec, device: str) -> str:
    """The device to evaluate on where training is on `device`: the CPU for MuJoCo's, which C MuJoCo
    then steps."""
    return "cpu" if _is_mujoco(spec) else device


def is_evaluated_beside(spec: EnvironmentSpec, device: torch.device | str) -> bool:
    """Whether `spec`, trained on `device`, is evaluated in a process beside training: what MuJoCo
    Warp trains."""
    return _is_mujoco(spec) and (
        torch.device(device).type == "cuda" or spec.kwargs.get("engine") == "warp"
    )


def batched_class(spec: EnvironmentSpec) -> type[VecEnvironment] | None:
    """The VecEnvironment that implements `spec`, or None if a `gymnasium.Env` does.

    Only built-in and installed classes (entry point group `podracer.environments`) are loaded into
    this process."""
    factory = find_environment(spec.id).factory if spec.id else ""
    if not factory:
        return None
    loaded = pkgutil.resolve_name(factory)
    return loaded if inspect.isclass(loaded) and issubclass(loaded, VecEnvironment) else None


def device_for(wanted: str, spec: EnvironmentSpec) -> str:
    """The device to step an environment on: `wanted`; for "auto" CUDA if it is available and
    supported, else CPU."""
    if wanted != "auto":
        return wanted
    fits = torch.cuda.is_available() and batched_class(spec) is not None and runs_on(spec, "cuda")
    return "cuda" if fits else "cpu"


def require_device(device: str) -> str:
    """`device` itself. Raises InvalidInput unless it is the CPU or a CUDA device, and
    PreconditionFailed (NO_DEVICE) if this machine does not have it."""
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in _PLACES:
        raise InvalidInput(
            f"{device[:100]!r} is no device: cpu, cuda, and cuda:0 and so on are", field="device"
        )
    count = torch.cuda.device_count() if found.type == "cuda" else 1
    if (found.index or 0) >= count:
        message = (
            f"there is no device {device} here: torch sees {torch.cuda.device_count()} CUDA devices"
        )
        raise PreconditionFailed(message, reason="NO_DEVICE", device=device)
    return device


def evaluates_alike(spec: EnvironmentSpec) -> bool:
    """Whether the class that implements `spec` has `deterministic_evaluation`.

    False for environments that run in their own process: only the running environment knows.
    """
    batched = batched_class(spec)
    return batched is not None and batched.deterministic_evaluation


def gymnasium_spec(spec: EnvironmentSpec) -> EnvironmentSpec:
    """`spec` as a child process can open it: the name of an installed entry point becomes its
    "module:Name"."""
    factory = find_environment(spec.id).factory if spec.id else ""
    return replace(spec, id="", entry_point=factory) if factory else spec


def typed_arguments(
    environment: type[VecEnvironment], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """`arguments` (JSON values) converted to the types in the constructor's annotations; a list
    becomes a tuple.

    Without it a wrong type is found late: a word is true (`no` is one in YAML 1.2), and others come
    up in torch. Arguments without an annotation stay as they are. Raises InvalidInput with every
    value of the wrong type."""
    named = inspect.signature(environment).parameters
    kinds = get_type_hints(
        getattr(environment, "arguments_type", environment.__init__), include_extras=True
    )
    builder = Builder("", {})
    typed = {
        name: builder.value(kinds[name], Node.from_plain(value), f"environment.kwargs.{name}")
        if name in named and named[name].kind is not inspect.Parameter.VAR_KEYWORD
        else value
        for name, value in arguments.items()
    }
    if builder.problems:
        violations = [
            FieldViolation(problem.field, problem.message) for problem in builder.problems
        ]
        raise InvalidInput("; ".join(map(str, violations)), violations=violations)
    return typed
