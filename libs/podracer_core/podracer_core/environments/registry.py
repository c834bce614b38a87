"""EnvironmentSpec -> a running batch of environments. Before any agent exists, an environment is
inspected: its spaces, whether it works, and whether the worlds of one process share state, so that
each needs a process of its own."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import pkgutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, Self, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray

from podracer_core.catalogue import EnvironmentSpec, Space, find_environment, from_json, is_batched
from podracer_core.config import Builder, Node
from podracer_core.environments.processes import (
    LocalRows,
    MakeEnvironment,
    PreprocessVecEnv,
    RowProcesses,
)
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import InvalidInput, PodracerError, PreconditionFailed

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
    builder.raise_problems()
    return typed


_logger = logging.getLogger(__name__)


class Inspection(NamedTuple):
    """The properties of an environment, before spaces are flattened for a batch; see
    VecEnvironment's attributes.

    warnings         sentences on what trains but may surprise
    start_s, step_s  seconds that one environment and one step of it take; 0 if unknown
    waits            a step waits more than it computes, as a simulator behind a connection does
    observation_origin  the spec's, or one that keeps apart what float32 does not
    """

    observation_space: Space
    action_space: Space
    max_episode_steps: int | None
    deterministic_evaluation: bool = False
    preparation: str = ""
    warnings: Sequence[str] = ()
    start_s: float = 0.0
    step_s: float = 0.0
    waits: bool = False
    observation_origin: tuple[float, ...] = ()


def inspect_environment(
    spec: EnvironmentSpec, timeout_s: float = 120.0, make: MakeEnvironment | None = None
) -> Inspection:
    """Start one environment and try it with `Checker`; an id of Gymnasium's own is only started.
    `make`: makes it in this process, else it has its own.

    Raises InvalidInput if a value is outside its space or no algorithm could act in it. Raises
    UserCodeFailed with the user's traceback if the code raises, its process dies, or everything
    together takes longer than `timeout_s`; in this process the code's own exceptions are raised
    unchanged."""
    if batched_class(spec) is not None:
        environment = make_vec_environment(spec, 1)
        observed = environment.original_space or from_gymnasium(environment.observation_space)
        spaces = observed, from_gymnasium(environment.action_space)
        environment.close()
        if environment.preparation:
            _logger.info("%s: %s", spec.name, environment.preparation)
        return Inspection(
            *spaces,
            environment.max_episode_steps,
            environment.deterministic_evaluation,
            environment.preparation,
        )
    end = time.monotonic() + timeout_s
    spec = gymnasium_spec(spec)
    rows = LocalRows(make, spec, 1) if make else RowProcesses(spec, 1, 1, start_timeout_s=timeout_s)
    try:
        found = rows.open()
        rows.step_timeout_s = end - time.monotonic()
        if make or not (spec.id and find_environment(spec.id).is_gymnasiums):
            found |= rows.ask_first("inspect")[0]
    finally:
        rows.close()
    spaces = from_json(found["observation_space"]), from_json(found["action_space"])
    rest = {name: found[name] for name in Inspection._fields[len(spaces) :] if name in found}
    rest["observation_origin"] = spec.observation_origin or tuple(
        rest.get("observation_origin", ())
    )
    return Inspection(*spaces, **rest)


_PATIENCE_S = 30.0  # for processes that play at the same time
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-8}  # the last digits may depend on places in memory
_LOOK_S = 0.1


class IsolationProof:
    """Fresh processes play with the same seed and the same actions: one with a world alone, one
    with a second world, which is stepped between. If they differ, two more play alone and one
    beside a second world again.

    The worlds share state if all are alike that were alone, and those beside another differ from
    them or fail. All else proves nothing: an environment that ignores its seed, that cannot be
    started twice, or that takes too long."""

    def __init__(self, spec: EnvironmentSpec, code: bytes = b"") -> None:
        """`code`: what makes an environment, packed (see `exchange.packed`)."""
        self._spec, self._code = spec, code
        self._processes: list[RowProcesses] = []
        self._closed = self._shares_state = False
        self._thread = threading.Thread(target=self._run, name="isolation", daemon=True)

    def start(self) -> Self:
        """Begin to prove it."""
        self._thread.start()
        return self

    def shares_state(
        self, check: Callable[[], None] = lambda: None, deadline: float = math.inf
    ) -> bool:
        """Whether it has been proved; waits for the end, and calls `check` meanwhile. It is not if
        that takes until `deadline` (of `time.monotonic`)."""
        if self._thread.ident is None:
            self.start()
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            check()
            if time.monotonic() > deadline:
                self.close()
        return self._shares_state

    def close(self) -> None:
        """End it, proved or not."""
        self._closed = True
        while self._thread.is_alive():
            for each in list(self._processes):
                each.kill()
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        with contextlib.suppress(PodracerError):  # it takes too long
            self._shares_state = self._is_shared() and not self._closed

    def _is_shared(self) -> bool:
        with ThreadPoolExecutor() as threads:
            alone, beside = threads.map(self._shown, (1, 2))
            if alone is None or _alike(alone, beside):
                return False
            *others, again = threads.map(self._shown, (1, 1, 2))
        return all(_alike(alone, other) for other in others) and not _alike(alone, again)

    def _shown(self, count: int) -> NDArray[np.float64] | None:
        """What the first of so many worlds of a fresh process shows; None if one fails. Raises
        PodracerError if it takes too long."""
        if self._closed:
            return None
        processes = RowProcesses(
            self._spec,
            count,
            1,
            step_timeout_s=_PATIENCE_S,
            start_timeout_s=_PATIENCE_S,
            code=self._code,
        )
        self._processes.append(processes)
        end = time.monotonic() + _PATIENCE_S
        try:
            if processes.open().get("batched"):
                return None  # it keeps its worlds apart by itself
            answer, payload = processes.ask_first("trace")
            return np.frombuffer(payload).reshape(answer["shape"])
        except PodracerError:
            if time.monotonic() >= end:
                raise
            return None
        finally:
            processes.close()


def _alike(one: NDArray[np.float64], other: NDArray[np.float64] | None) -> bool:
    """Whether they begin alike: one may have taken fewer steps in its time."""
    if other is None or one.shape[1:] != other.shape[1:]:
        return False
    rows = min(len(one), len(other))
    return np.allclose(one[:rows], other[:rows], **_TOLERANCE, equal_nan=True)


def isolation_proof(spec: EnvironmentSpec, code: bytes = b"") -> IsolationProof | None:
    """A proof for an environment, not begun; None if it is isolated or batched, or one of
    Gymnasium's own, of which it is known that they share nothing."""
    known = bool(spec.id) and find_environment(spec.id).is_gymnasiums
    return (
        None
        if spec.isolation or known or batched_class(spec)
        else IsolationProof(gymnasium_spec(spec), code)
    )
