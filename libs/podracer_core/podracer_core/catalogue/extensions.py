"""Built-in and installed extensions by name; no torch.

Descriptions of algorithms and environments stand beside the code. Evaluators and fusions are known
by name; a package adds one with an entry point in `podracer.evaluators` or `podracer.fusions`.
Learners and evaluators load the class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from podracer_core.errors import InvalidInput

Info = TypeVar("Info")
Kind = TypeVar("Kind")

EVALUATOR_GROUP, FUSION_GROUP = "podracer.evaluators", "podracer.fusions"

GREEDY_EPISODES = "greedy_episodes"

BUILT_IN_EVALUATORS = (
    EntryPoint(
        GREEDY_EPISODES, "podracer_core.evaluate.evaluator:GreedyEvaluator", EVALUATOR_GROUP
    ),
)

OUTER = "outer"
"""The fusion with an optimizer of its own."""

BUILT_IN_FUSIONS = ("mean", "weighted", OUTER)


class BuiltIn(Mapping[str, Info]):
    """Name → description, from the tuples BUILT_IN in `modules`. These import no torch. They import
    the catalogue, which therefore imports them at the first lookup."""

    def __init__(self, name: str, *modules: str) -> None:
        """`name`: the attribute of a description that is its key."""
        self._name, self._modules = name, modules

    @cached_property
    def _infos(self) -> dict[str, Any]:
        infos = (info for module in self._modules for info in import_module(module).BUILT_IN)
        return {getattr(info, self._name): info for info in infos}

    def __getitem__(self, name: str) -> Info:
        return self._infos[name]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


def package_of(entry: EntryPoint) -> str:
    """Name and version of its distribution, as in `my-package 1.2`."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def load_class(
    group: str, name: str, kind: type[Kind], field: str, built_in: Sequence[EntryPoint] = ()
) -> type[Kind]:
    """The subclass `name` of `kind` in `group`, built in or installed; `field`: the job's field
    with the name.

    Raises InvalidInput if there is none, if several packages offer one, if it cannot be imported,
    or if it is not a subclass of `kind`."""

    def refused(problem: str) -> InvalidInput:
        return InvalidInput(problem, field=field, reason="UNKNOWN_EXTENSION")

    called = kind.__name__.lower()
    entries = [*built_in, *entry_points(group=group)]
    found = [entry for entry in entries if entry.name == name]
    if not found:
        known = ", ".join(sorted({entry.name for entry in entries}))
        raise refused(f"no {called} {name!r} is installed; there are: {known}")
    packages = sorted({package_of(entry) for entry in found})
    if len(packages) > 1:
        raise refused(
            f"{called} {name!r} is offered by {', '.join(packages)}; remove all but one of them"
        )
    described = f"{called} {name!r} of package {packages[0]}: {found[0].value}"
    try:
        loaded = found[0].load()
    except Exception as error:
        # what an installed package does when it is imported is not ours to foresee
        raise refused(f"{described} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise refused(f"{described} is no {kind.__module__}.{kind.__name__}")
    return loaded


def evaluator_names() -> list[str]:
    """The built-in evaluators and those of packages that are installed here."""
    return sorted(
        {entry.name for entry in [*BUILT_IN_EVALUATORS, *entry_points(group=EVALUATOR_GROUP)]}
    )


def fusion_names() -> list[str]:
    """The built-in fusions and those of packages that are installed here."""
    return sorted({*BUILT_IN_FUSIONS, *entry_points(group=FUSION_GROUP).names})
