"""From the name of a user's environment to running rows, in a process of its own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium

from podracer_core.environments.processes.gymnasium_rows import GymnasiumRows
from podracer_core.environments.processes.rows import Rows
from podracer_core.errors import InvalidInput

__all__ = ["open_rows"]

_PROTOCOL = "podracer_core.environments.vec_environment"


def open_rows(environment: dict[str, Any], count: int, pictures: bool) -> Rows:
    """`count` rows of what `EnvironmentSpec.to_json` describes, able to draw `pictures` of the first if asked to."""
    entry_point: str = environment["entry_point"]
    kwargs: dict[str, Any] = environment["kwargs"]
    limit: int | None = environment["max_episode_steps"]
    drawing = {"render_mode": "rgb_array"} if pictures else {}
    if environment["id"]:
        made = [
            gymnasium.make(environment["id"], limit, disable_env_checker=True, **drawing, **kwargs)
            for _ in range(count)
        ]
        return GymnasiumRows(made, limit, pictures)
    loaded = _load(entry_point, environment["code_path"])
    if _is_batched(loaded):
        # Late: torch takes seconds and memory that an environment which does without should not pay for.
        batched_rows = importlib.import_module("podracer_core.environments.processes.batched_rows")
        rows: Rows = batched_rows.BatchedRows(loaded, count, kwargs, limit)
        return rows
    if pictures:
        _check_takes_render_mode(loaded)
    made = [_checked(loaded(**drawing, **kwargs), entry_point) for _ in range(count)]
    return GymnasiumRows(made, limit, pictures)


def _load(entry_point: str, code_path: str) -> Any:
    """What `entry_point` names, with `code_path` importable (in this process only)."""
    if code_path and code_path not in sys.path:
        if not Path(code_path).is_dir():
            raise InvalidInput(f"the code folder {code_path!r} does not exist", code_path=code_path)
        module = re.split(r"[.:]", entry_point, maxsplit=1)[0]
        if module in sys.modules:
            place = getattr(sys.modules[module], "__file__", None) or "Python itself"
            raise InvalidInput(f"another module {module} is there already, from {place}: give yours another name")
        sys.path.insert(0, code_path)
    return pkgutil.resolve_name(entry_point)


def _is_batched(loaded: Any) -> bool:
    """Whether it is a VecEnvironment: only then has it imported that module itself, and torch with it."""
    protocol = sys.modules.get(_PROTOCOL)
    return protocol is not None and isinstance(loaded, type) and issubclass(loaded, protocol.VecEnvironment)


def _check_takes_render_mode(loaded: Any) -> None:
    parameters = inspect.signature(loaded).parameters.values()
    if not any(each.name == "render_mode" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        raise InvalidInput("it cannot be filmed: it takes no argument render_mode, as Gymnasium's environments do")


def _checked(made: Any, entry_point: str) -> gymnasium.Env[Any, Any]:
    if not isinstance(made, gymnasium.Env):
        raise InvalidInput(
            f"{entry_point} returned {type(made).__name__}, not a gymnasium.Env; "
            "an environment in torch is named by its class, a subclass of TorchEnvironment"
        )
    return made
