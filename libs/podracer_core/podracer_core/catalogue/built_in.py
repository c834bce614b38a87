"""The built-in descriptions, which stand beside the code: found by the names of their modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

Info = TypeVar("Info")


class BuiltIn(Mapping[str, Info]):
    """Name → description, of the tuples BUILT_IN in `modules`. These import no torch; they import the catalogue, which
    therefore imports them when it is first looked into."""

    def __init__(self, name: str, *modules: str) -> None:
        """`name` is the attribute of a description that it is found by."""
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
