"""A real S3 server for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_core.storage.s3 import S3Settings
from support.s3_server import S3Server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Settings, Path]]:
    """Settings of a running server, and the folder in which it keeps its buckets."""
    server = S3Server(tmp_path_factory.mktemp("s3") / "buckets")
    server.start()
    yield server.settings, server.folder
    server.stop()
