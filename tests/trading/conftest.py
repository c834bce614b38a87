"""What the tests of trading use of the house's; those of a module run in one process, as they share
what is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.orchestrator.conftest import site

__all__ = ["site"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"trading/{item.path.stem}"))
