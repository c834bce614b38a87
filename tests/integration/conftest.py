"""The tests of a module run in one process: what they share, as a pod or a database, is made
once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgresql import PostgresServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server")
        server.start()
        yield server
        server.kill()
