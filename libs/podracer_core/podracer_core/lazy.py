"""The façade of a folder: the names that other folders import from it, each loaded at its first
use. So a light name never imports torch because of its neighbours."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_IMPORT = re.compile(r"^    from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)


def exports(package: str) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` (PEP 562) of the package whose `__init__.py` calls this: the
    names that it imports below `if TYPE_CHECKING:`, where type checkers see them."""
    spec = sys.modules[package].__spec__
    source = spec.loader.get_source(package)  # type: ignore[union-attr]
    homes = {
        name: module
        for module, names in _IMPORT.findall(source)
        for name in re.findall(r"\w+", names)
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    return sorted(homes), load
