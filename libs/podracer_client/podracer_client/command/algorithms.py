"""`podracer algorithms`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import Json
from podracer_client.display import value_text, write_json, write_table
from podracer_core.catalogue import Choice, Fixed, IntegerInterval, Interval, Range

if TYPE_CHECKING:
    from podracer_core.catalogue import AlgorithmInfo, Hyperparameter


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show this algorithm and all its hyperparameters."),
    ] = None,
    json: Json = False,
) -> None:
    """List built-in and installed algorithms, or show one. Needs no server."""
    from podracer_core.catalogue import (
        broken_algorithms,
        find_algorithm,
        known_algorithms,
    )

    found = list(known_algorithms().values()) if name is None else [find_algorithm(name)]
    if json:
        for info in found:
            write_json(
                algorithm_json(info)
                | ({} if name is None else {"hyperparameters": _knobs_json(info)})
            )
    elif name is None:
        _show_list(found)
    else:
        _show_one(found[0])
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


def _show_list(found: Sequence[AlgorithmInfo]) -> None:
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


def _show_one(info: AlgorithmInfo) -> None:
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
