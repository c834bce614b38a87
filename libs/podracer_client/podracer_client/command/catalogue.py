"""`podracer algorithms` and `environments`."""

from __future__ import annotations

import json as json_format
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import Json
from podracer_client.display import value_text, write_json, write_table
from podracer_core.catalogue import (
    AlgorithmInfo,
    BoxSpace,
    Choice,
    Fixed,
    Hyperparameter,
    IntegerInterval,
    Interval,
    Range,
    Space,
    broken_algorithms,
    describe,
    find_algorithm,
    known_algorithms,
    to_json,
)

if TYPE_CHECKING:
    from podracer_core.catalogue import ArgumentInfo, EnvironmentInfo


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show this algorithm and all its hyperparameters."),
    ] = None,
    json: Json = False,
) -> None:
    """List built-in and installed algorithms, or show one. Needs no server."""
    found = list(known_algorithms().values()) if name is None else [find_algorithm(name)]
    if json:
        for info in found:
            write_json(
                algorithm_json(info)
                | ({} if name is None else {"hyperparameters": _knobs_json(info)})
            )
    elif name is None:
        _list_algorithms(found)
    else:
        _show_algorithm(found[0])
    if name is None:
        for problem in broken_algorithms():
            sys.stderr.write(f"podracer: {problem}\n")


def algorithm_json(info: AlgorithmInfo) -> dict[str, Any]:
    """An algorithm without its hyperparameters."""
    return {
        "name": info.name,
        "title": info.title,
        "summary": info.summary,
        "on_policy": info.on_policy,
        "action_spaces": [kind.__name__.removesuffix("Space") for kind in info.action_spaces],
        "bounded_actions": info.bounded_actions,
        "automatic": info.automatic,
        "paper": info.paper,
        "package": info.package or None,
        "implementation": info.implementation,
    }


def _knobs_json(info: AlgorithmInfo) -> list[dict[str, Any]]:
    return [
        {
            "name": knob.name,
            "kind": knob.kind,
            "default": knob.default,
            "bounds": knob.bounds,
            "choices": knob.choices or None,
            "search": _search_json(knob.search),
            "near_one": knob.near_one,
            "scope": knob.scope,
            "meaning": knob.meaning,
            "source": knob.source,
        }
        for knob in info.hyperparameters
    ]


def _list_algorithms(found: Sequence[AlgorithmInfo]) -> None:
    rows = [
        (
            info.name,
            info.title,
            "on" if info.on_policy else "off",
            _spaces(info),
            "yes" if info.automatic else "",
            "; ".join(_reference(paper) for paper in info.paper.split("; ")),
            info.package or "built in",
        )
        for info in found
    ]
    write_table(("name", "title", "policy", "action spaces", "in auto", "paper", "from"), rows)


def _show_algorithm(info: AlgorithmInfo) -> None:
    sys.stdout.write(
        f"{info.name}: {info.title}\n{info.summary}\n\n"
        f"paper          {info.paper}\n"
        f"policy         {'on' if info.on_policy else 'off'}\n"
        f"action spaces  {_spaces(info)}\n"
        f"in auto        {'yes' if info.automatic else 'no'}\n"
        f"from           {info.package or 'built in'}, {info.implementation}\n\n"
    )
    for knob in info.hyperparameters:
        sys.stdout.write(_knob_text(knob))
    sys.stdout.write(
        "\nscope member: each member of a cohort has its own; cohort: all members share it;\n"
        "network: all members share it, and another value means fresh weights\n"
    )


def _knob_text(knob: Hyperparameter) -> str:
    lines = [f"{knob.name}: {value_text(knob.default)}", f"    {knob.meaning}"]
    lines.append(f"    range {_range(knob)}{_searched(knob)}, scope {knob.scope}")
    lines += [f"    source {knob.source}"] if knob.source else []
    return "\n".join(lines) + "\n"


def _search_json(search: Range | None) -> dict[str, Any] | None:
    match search:
        case None:
            return None
        case Interval(low, high, logarithmic) | IntegerInterval(low, high, logarithmic):
            return {"low": low, "high": high, "logarithmic": logarithmic}
        case Choice(values):
            return {"choice": list(values)}
        case Fixed(value):
            return {"choice": [value]}


def _searched(knob: Hyperparameter) -> str:
    match knob.search:
        case None:
            return ""
        case Interval(low, high, logarithmic) | IntegerInterval(low, high, logarithmic):
            scale = " in the logarithm of 1 - x" if knob.near_one else " in its logarithm"
            return (
                f", searched {value_text(low)} to {value_text(high)}{scale if logarithmic else ''}"
            )
        case Choice(values):
            return f", searched among {' or '.join(map(value_text, values))}"
        case Fixed(value):
            return f", in a search {value_text(value)}"


def _spaces(info: AlgorithmInfo) -> str:
    names = [kind.__name__.removesuffix("Space") for kind in info.action_spaces]
    return ", ".join(
        "bounded Box" if name == "Box" and info.bounded_actions else name for name in names
    )


def _reference(paper: str) -> str:
    """`Authors year, title, where` without the title."""
    parts = paper.split(", ")
    return ", ".join(parts if len(parts) < 3 else [parts[0], parts[-1]])


def _range(knob: Hyperparameter) -> str:
    """The values that a hyperparameter may have."""
    if knob.choices:
        return ", ".join(knob.choices)
    if knob.kind == "bool":
        return "true, false"
    each = "each " if knob.kind == "sizes" else ""
    return (
        f"{each}{value_text(knob.bounds[0])} to {value_text(knob.bounds[1])}"
        if knob.bounds
        else "any number"
    )


_UNKNOWN = "known once a job starts"
_MOST_BOUNDS = 12  # numbers of a bound that are shown one by one


def environments(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Show this environment, its arguments and a job file to start from.",
        ),
    ] = None,
    gymnasium: Annotated[
        bool,
        typer.Option(
            "--gymnasium", help="List Gymnasium's environments instead, newest version of each."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List built-in and installed environments, or show one. Needs no server."""
    from podracer_core.catalogue import (
        broken_environments,
        find_environment,
        gymnasium_environments,
        known_environments,
    )

    if name is not None:
        found = [find_environment(name)]
    else:
        found = list((gymnasium_environments() if gymnasium else known_environments()).values())
    if json:
        for info in found:
            write_json(environment_json(info) | ({} if name is None else {"job": job_text(info)}))
    elif name is None:
        (_show_gymnasium if gymnasium else _list_environments)(found)
    else:
        _show_environment(found[0])
    if name is None and not gymnasium:
        for problem in broken_environments():
            sys.stderr.write(f"podracer: {problem}\n")


def environment_json(info: EnvironmentInfo) -> dict[str, Any]:
    """Everything that is known of an environment; spaces are null where only starting it tells."""
    return {
        "id": info.id,
        "description": info.description,
        "observation_space": info.observation_space and to_json(info.observation_space),
        "action_space": info.action_space and to_json(info.action_space),
        "max_episode_steps": info.max_episode_steps,
        "backend": info.backend,
        "devices": list(info.devices),
        "package": info.package or None,
        "factory": info.factory or None,
        "arguments": [
            {
                "name": each.name,
                "required": each.required,
                "default": _strict(each.default),
                "is_file": each.is_file,
                "meaning": each.meaning,
            }
            for each in info.arguments
        ],
    }


def _strict(value: object) -> object:
    """The value with "inf" and "-inf" for numbers that strict JSON cannot carry, as in spaces."""
    if isinstance(value, tuple | list):
        return [_strict(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def job_text(info: EnvironmentInfo) -> str:
    """A job file that trains in the environment, with nothing in it that could be left out."""
    return (
        "\n".join(
            [
                f"name: {label_of(info.id)}",
                *environment_lines(info),
                "objective: {max_duration: 10m}",
            ]
        )
        + "\n"
    )


def environment_lines(info: EnvironmentInfo) -> list[str]:
    """The environment, with examples of what it requires, as a job file has it."""
    required = [each for each in info.arguments if each.required]
    kwargs = _mapping((each.name, each.example) for each in required if not each.is_file)
    data = _mapping((each.name, each.example) for each in required if each.is_file)
    environment = f"id: {_scalar(info.id)}" + (f", kwargs: {kwargs}" if kwargs else "")
    return [f"environment: {{{environment}}}", *([f"data: {data}"] if data else [])]


def label_of(environment: str) -> str:
    """A job's name for an environment's id."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"-v\d+$", "", environment.lower())).strip("-")


def _mapping(values: Iterable[tuple[str, object]]) -> str:
    """The mapping in YAML's flow style; empty if there are no values."""
    pairs = ", ".join(f"{name}: {_scalar(value)}" for name, value in values)
    return f"{{{pairs}}}" if pairs else ""


def _scalar(value: object) -> str:
    """The value in a YAML flow mapping; plain where that is safe."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z.][\w./-]*[A-Za-z]\w*", value)
    return str(value) if plain else json_format.dumps(value, ensure_ascii=False)


def _list_environments(found: Sequence[EnvironmentInfo]) -> None:
    rows = [
        (
            info.id,
            info.description,
            describe(info.observation_space) if info.observation_space else _UNKNOWN,
            describe(info.action_space) if info.action_space else _UNKNOWN,
            _limit(info),
            info.backend,
            ", ".join(info.devices),
            info.package or "built in",
        )
        for info in found
    ]
    titles = (
        "id",
        "what it is",
        "observation",
        "action",
        "time limit",
        "backend",
        "devices",
        "from",
    )
    write_table(titles, rows)


def _show_gymnasium(found: Sequence[EnvironmentInfo]) -> None:
    """Write the table without the columns in which all would be alike. The time limit is registered
    with the id."""
    rows = [
        (info.id, info.description.rpartition(" ")[2], _limit(info, "none"), info.package)
        for info in found
    ]
    write_table(("id", "class", "time limit", "from"), rows)


def _show_environment(info: EnvironmentInfo) -> None:
    factory = f", {info.factory}" if info.factory else ""
    sys.stdout.write(
        f"{info.id}: {info.description}\n\n"
        f"observation  {_space_text(info.observation_space)}\n"
        f"action       {_space_text(info.action_space)}\n"
        f"time limit   {_limit(info)}\n"
        f"backend      {info.backend}\n"
        f"devices      {', '.join(info.devices)}\n"
        f"from         {info.package or 'built in'}{factory}\n"
    )
    if info.arguments:
        sys.stdout.write(
            "\narguments, in environment.kwargs:\n" + "".join(map(_argument_text, info.arguments))
        )
    sys.stdout.write(f"\na job to start from:\n\n{job_text(info)}")


def _argument_text(argument: ArgumentInfo) -> str:
    value = "required" if argument.required else value_text(argument.default)
    place = "; a file, so it stands under data" if argument.is_file else ""
    return f"  {argument.name}: {value}{place}\n      {argument.meaning}\n"


def _limit(info: EnvironmentInfo, unknown: str = _UNKNOWN) -> str:
    if info.max_episode_steps is None:
        return unknown if info.needs_inspection else "none"
    return f"{info.max_episode_steps:,} steps"


def _space_text(space: Space | None) -> str:
    if space is None:
        return _UNKNOWN
    return (
        f"{describe(space)} {_bounds_text(space)}"
        if isinstance(space, BoxSpace)
        else describe(space)
    )


def _bounds_text(space: BoxSpace) -> str:
    low, high = (
        bound if isinstance(bound, tuple) else (bound,) for bound in (space.low, space.high)
    )
    if max(len(low), len(high)) > _MOST_BOUNDS:
        return (
            f"{space.dtype}, each number with bounds of its own, from {min(low):g} to {max(high):g}"
        )
    return f"{space.dtype} from {_numbers(low)} to {_numbers(high)}"


def _numbers(bound: tuple[float, ...]) -> str:
    return (
        f"{bound[0]:g}" if len(bound) == 1 else f"[{', '.join(f'{number:g}' for number in bound)}]"
    )
